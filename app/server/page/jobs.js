// All jobs, newest first, as they go on.

import { act, count, foreign, h, say, show, span, tell, when } from "./dom.js";
import { ask, at, get, job, poll } from "./ask.js";

const EVERY_S = 2;
const ENDED = ["completed", "cancelled", "lost"];
export const ended = (state) => ENDED.includes(state);

/** How fast a job goes, from what was seen of it: units a second over the last half minute or so. */
export class Pace {
  #seen = [];

  add(done) {
    const now = performance.now() / 1000;
    this.#seen.push([now, done]);
    while (this.#seen.length > 2 && now - this.#seen[0][0] > 30) this.#seen.shift();
  }

  get rate() {
    const [first, last] = [this.#seen[0], this.#seen.at(-1)];
    return first && last[0] - first[0] > 0.9 ? Math.max(0, (last[1] - first[1]) / (last[0] - first[0])) : null;
  }

  left(units) {
    const last = this.#seen.at(-1);
    return this.rate ? (units - last[1]) / this.rate : null;
  }
}

/** How well an ended job has gone, as a colour: green, amber or red. */
export const HEALTH = { good: "completed", partial: "partial", bad: "bad" };
export const badge = (label, tone = label) => h("span", { class: `badge ${tone}` }, label);

export function progress(label) {
  const bar = h("progress", { max: 1, value: 0, "aria-label": label });
  const text = h("span", { class: "part" });
  return {
    element: h("div", { class: "progress" }, bar, text),
    set(done, units) {
      bar.max = Math.max(1, units);
      bar.value = done;
      tell(text, `${units ? Math.floor(100 * done / units) : 0} %`);
    },
  };
}

export async function jobsView({ root, query, signal, session, ready }) {
  const rows = new Map();
  const body = h("tbody");
  const empty = h("p", { class: "empty", hidden: true });
  let older = null, more = [];
  const state = h("select", { id: "state", onchange: () => { location.hash = at("#/jobs", { state: state.value }); } },
    ["", "submitted", "running", "finishing", ...ENDED].map((name) => h("option", { value: name }, name || "all states")));
  state.value = query.get("state") || "";
  const olderButton = h("button", { type: "button", class: "quiet", hidden: true, onclick: act(async () => {
    const page = await get(at("/jobs", { limit: 50, state: state.value, cursor: older }), signal);
    more = [...more, ...page.jobs];
    older = page.next;
    olderButton.hidden = !older;
    for (const view of page.jobs) if (!rows.has(view.id)) body.append(place(view));
    say(`${page.jobs.length} more jobs`);
  }) }, "Show older jobs");

  const place = (view) => {
    const row = rows.get(view.id) || line(view, session);
    rows.set(view.id, row);
    row.update(view);
    return row.element;
  };

  const look = async () => {
    const page = await get(at("/jobs", { limit: 50, state: state.value }), signal);
    if (!more.length) older = page.next;
    olderButton.hidden = !older;
    const wanted = page.jobs.map(place);
    const first = new Set(page.jobs.map((view) => view.id));
    wanted.push(...more.filter((view) => !first.has(view.id)).map((view) => rows.get(view.id).element));
    wanted.forEach((element, n) => { if (body.children[n] !== element) body.insertBefore(element, body.children[n] || null); });
    while (body.children.length > wanted.length) body.lastChild.remove();
    empty.hidden = wanted.length > 0;
    tell(empty, state.value ? `No job is ${state.value}.` : "There is no job yet.");
    table.hidden = !wanted.length;
  };

  const table = h("div", { class: "wide", role: "region", "aria-label": "Jobs", tabindex: "0" },
    h("table", { class: "jobs" },
      h("thead", {}, h("tr", {}, ["Job", "State", "Progress", "Rate", "Time", "Calls", "Tokens", "Cost", "Retries", "Failed", "Submitted"].map((name, n) => h("th", { scope: "col", class: n > 2 ? "number" : null }, name)))),
      body));
  await look();
  show(root,
    h("div", { class: "head" }, h("h1", {}, "Jobs"),
      h("div", { class: "row" }, h("label", { for: "state", class: "unseen" }, "State"), state,
        session.scopes.includes("job:submit") && h("a", { class: "button main", href: "#/submit" }, "Submit a job"))),
    table, empty, h("div", { class: "row" }, olderButton));
  ready();
  poll(look, EVERY_S, signal);
}

function line(view) {
  const bar = progress(`Progress of ${view.id}`);
  const pace = new Pace();
  const [rate, left, calls, tokens, cost, retries, failed, submitted] = ["Rate", "Time", "Calls", "Tokens", "Cost", "Retries", "Failed", "Submitted"]
    .map((label) => h("td", { class: "number", "data-label": label }));
  const state = h("td"), whole = h("span", { hidden: true });
  const element = h("tr", {},
    h("td", { class: "name" }, h("a", { href: `#/jobs/${encodeURIComponent(view.id)}` }, view.id), h("div", { class: "dim" }, foreign(view.project))),
    state, h("td", {}, bar.element, whole), rate, left, calls, tokens, cost, retries, failed, submitted);
  return {
    element,
    update(now) {
      const of = now.counters;
      pace.add(now.done);
      const label = now.badge ?? now.state;
      if (state.textContent !== label) show(state, badge(label, now.health ? HEALTH[now.health] : now.state));
      bar.set(now.done, now.units);
      const runs = !ended(now.state);
      bar.element.hidden = !runs && now.done === now.units;
      whole.hidden = !bar.element.hidden;
      tell(whole, `all ${count(now.units)} judgements`);
      const took = now.finished_ms && now.started_ms ? (now.finished_ms - now.started_ms) / 1000 : null;
      const speed = runs ? pace.rate : took ? now.done / took : null;
      tell(rate, speed === null ? "–" : `${speed < 10 ? speed.toFixed(1) : count(Math.round(speed))} /s`);
      tell(left, runs ? (pace.rate ? `${span(pace.left(now.units))} left` : "–") : span(took));
      tell(calls, count(of.calls));
      tell(tokens, of.tokens_in === undefined ? "–" : count(of.tokens_in + of.tokens_out));
      tell(cost, now.spent || (now.unpriced.length ? "no price" : "–"));
      cost.classList.toggle("dim", !now.spent);
      cost.title = now.cost;
      if (now.spent && now.unpriced.length) cost.append(h("div", { class: "dim" }, "and unpriced calls"));
      tell(retries, count((of.retries || 0) + (of.requeues || 0)));
      tell(failed, count(of.failed));
      failed.classList.toggle("bad", of.failed > 0);
      tell(submitted, when(now.created_ms || now.started_ms));
    },
  };
}

export const cancel = (id) => ask("DELETE", job(id));
export const resume = (id) => ask("POST", job(id, "/resume"));
