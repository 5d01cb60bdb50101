// The pools: limits as they move, why they are what they are, and what an operator wants of them.

import { ask, get, poll } from "./ask.js";
import { curve, lines } from "./charts.js";
import { act, count, foreign, h, notice, percent, say, show, span, wide } from "./dom.js";

const EVERY_S = 2;
const KEPT = 300;
const WISHES = [
  ["limit", "Fixed limit", "calls open at once, and no others"], ["floor", "Floor", "the least that the limit may become"],
  ["ceiling", "Ceiling", "the most that it may become"], ["rpm", "Requests a minute", ""], ["tpm", "Tokens a minute", ""],
];
const seen = new Map();

/** What was seen of a pool since the page was opened; before that, the changes of its limit that the store knows. */
function history(pool) {
  let of = seen.get(pool.pool);
  if (!of) {
    of = { limit: [], open: [], waiting: [], refused: [], before: null };
    const changes = [...pool.changes].sort((a, b) => a.at - b.at);
    for (const change of changes) if (Number.isFinite(change.limit ?? change.to)) of.limit.push([change.at, change.limit ?? change.to]);
    seen.set(pool.pool, of);
  }
  const last = of.limit.at(-1);
  if (!last || pool.now > (of.at ?? -1)) {
    of.at = pool.now;
    of.limit.push([pool.now, pool.effective_limit]);
    of.open.push([pool.now, pool.open]);
    of.waiting.push([pool.now, pool.assigned + pool.waiting.length]);
    of.refused.push([pool.now, of.before === null ? 0 : Math.max(0, pool.rate_limited - of.before)]);
    of.before = pool.rate_limited;
    for (const name of ["limit", "open", "waiting", "refused"]) if (of[name].length > KEPT) of[name].shift();
  }
  return of;
}

const chart = (pool) => {
  const of = history(pool);
  return lines([
    { name: "limit", tone: "blue", points: of.limit, stepped: true },
    { name: "open", tone: "green", points: of.open, filled: true },
    { name: "waiting", tone: "amber", points: of.waiting },
    { name: "429s", tone: "red", points: of.refused },
  ], { label: `Pool ${pool.pool}` });
};

const figures = (pool) => h("dl", { class: "figures" }, [
  ["Limit", pool.effective_limit === pool.limit ? count(pool.limit) : `${count(pool.effective_limit)} of ${count(pool.limit)}`],
  ["Open", count(pool.open)],
  ["Waiting", pool.waiting.length ? `${count(pool.assigned)} units, ${pool.waiting.length} project${pool.waiting.length > 1 ? "s" : ""}` : count(pool.assigned)],
  ["429s", count(pool.rate_limited)],
  ["Errors lately", percent(pool.error_rate)],
  ["Latency", pool.latency_s === null ? "–" : `${pool.latency_s.toFixed(1)} s`],
].map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));

const why = (pool) => h("div", { class: "why" },
  h("p", {}, h("b", {}, "Why: "), foreign(pool.reason || "nothing has been decided yet"), ` (${pool.profile || "default"}, ${span(pool.decided_s_ago)} ago)`),
  pool.bound && h("p", {}, foreign(pool.bound)),
  pool.breaker !== "closed" && h("p", { class: "wrong" }, `The circuit breaker is ${pool.breaker} for ${span(pool.breaker_for_s)} more.`),
  pool.findings.map((finding) => foreign(finding, "p", { class: "wrong" })));

export async function poolsView({ root, signal, ready }) {
  const grid = h("div", { class: "pools" });
  const look = async () => {
    const { pools, slo } = await get("/pools", signal);
    show(root,
      h("div", { class: "head" }, h("h1", {}, "Pools"), slo !== null && h("p", { class: "dim" }, `All limits are capped at ${slo}.`)), grid);
    const held = document.activeElement?.getAttribute?.("href");
    show(grid, pools.map((pool) => h("section", { class: "card" },
      h("h2", {}, h("a", { href: `#/pools/${encodeURIComponent(pool.pool)}` }, foreign(pool.pool)), " ", h("span", { class: `badge ${pool.live ? pool.availability : "idle"}` }, pool.live ? pool.availability : "unused")),
      pool.live ? [chart(pool), figures(pool), why(pool)] : h("p", { class: "dim" }, "Nobody has used it yet."))));
    if (held) grid.querySelector(`a[href="${CSS.escape(held)}"]`)?.focus();
  };
  await look();
  ready();
  poll(look, EVERY_S, signal);
}

export async function poolView({ root, name, signal, session, ready }) {
  const top = h("div", { class: "stack" }), below = h("div", { class: "stack" });
  const admin = session.scopes.includes("pool:admin");
  let pool;
  const look = async () => {
    pool = await get(`/pools/${encodeURIComponent(name)}`, signal);
    show(top, h("p", {}, h("span", { class: `badge ${pool.live ? pool.availability : "idle"}` }, pool.live ? pool.availability : "unused")),
      pool.live ? [chart(pool), figures(pool), why(pool)] : h("p", { class: "dim" }, "Nobody has used it yet."));
    show(below, pool.live && [learned(pool), changes(pool), codes(pool)]);
  };
  await look();
  show(root, h("nav", { "aria-label": "Where you are", class: "crumbs" }, h("a", { href: "#/pools" }, "Pools")),
    h("h1", {}, foreign(name)), top, admin && wishes(name, pool, look), below);
  ready();
  poll(look, EVERY_S, signal);
}

function wishes(name, pool, look) {
  const set = { ...pool.configured, ...pool.override };
  const fields = WISHES.map(([field, label, help]) => {
    const input = h("input", { id: `wish-${field}`, type: "number", min: "1", step: "1", inputmode: "numeric", placeholder: "–", value: String(set[field] ?? "") });
    return { field, input, element: h("div", { class: "field" }, h("label", { for: `wish-${field}` }, label), input, help && h("span", { class: "dim" }, help)) };
  });
  const change = async (given) => {
    const found = await ask("PATCH", `/pools/${encodeURIComponent(name)}`, { json: given });
    for (const { field, input } of fields) input.value = String(found.overrides[field] ?? "");
    say("In force at once, for all workers");
    await look();
  };
  return h("section", { class: "card" }, h("h2", {}, "What you want of it"),
    h("form", { class: "stack", onsubmit: async (event) => {
      event.preventDefault();
      const given = {};
      for (const { field, input } of fields) {
        const before = String(set[field] ?? "");
        if (input.value !== before) given[field] = input.value === "" ? null : Number(input.value);
      }
      if (!Object.keys(given).length) return notice("Nothing is changed.");
      try { await change(given); Object.assign(set, given); } catch (error) { notice(error.message); }
      return undefined;
    } },
      h("div", { class: "fields" }, fields.map((each) => each.element)),
      h("div", { class: "row" }, h("button", { class: "main" }, "Set"),
        h("button", { type: "button", class: "quiet", onclick: act(async () => { await change(Object.fromEntries(WISHES.map(([field]) => [field, null]))); for (const [field] of WISHES) delete set[field]; }) }, "Take all back"))));
}

const learned = (pool) => pool.knee && h("section", {}, h("h2", {}, "How latency grows with load"),
  h("p", {}, pool.knee.level === null ? "" : `At most ${count(pool.knee.level)} calls: `, foreign(pool.knee.reason)),
  pool.knee.curve.length > 1 && curve(pool.knee.curve, pool.knee.level, `Pool ${pool.pool}`));

const changes = (pool) => h("section", {}, h("h2", {}, "How the limit moved"),
  pool.changes.length ? wide("Changes of the limit", h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "When"), h("th", { scope: "col", class: "number" }, "Limit"), h("th", { scope: "col" }, "Why"))),
    h("tbody", {}, [...pool.changes].sort((a, b) => b.at - a.at).slice(0, 30).map((change) => h("tr", {},
      h("td", {}, `${span(pool.now - change.at)} ago`), h("td", { class: "number" }, change.from !== undefined ? `${change.from} → ${change.to ?? change.limit}` : count(change.limit ?? change.to)), h("td", {}, foreign(change.reason || ""))))))) : h("p", { class: "dim" }, "It has not moved."));

const codes = (pool) => h("section", {}, h("h2", {}, "What the provider answered"),
  Object.keys(pool.statuses).length ? wide("Answers", h("table", { class: "small" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Status"), h("th", { scope: "col", class: "number" }, "Calls"))),
    h("tbody", {}, Object.entries(pool.statuses).map(([code, n]) => h("tr", {}, h("td", {}, code), h("td", { class: "number" }, count(n))))))) : h("p", { class: "dim" }, "Nothing yet."));
