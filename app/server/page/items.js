// The items of a finished job: sorted, filtered, searched; the server finds them, and the address keeps what was asked.

import { at, get, job as of } from "./ask.js";
import { step } from "./charts.js";
import { count, fixed, foreign, h, percent, say, show, wide } from "./dom.js";
import { crumbs, nominal, optionsOf, title } from "./job.js";

const PAGE = 50;
const ASKED = ["sort", "descending", "search", "argument", "judge", "dimension", "least", "most", "failed"];

export async function itemsView({ root, name, query, signal, ready }) {
  const asked = Object.fromEntries(ASKED.map((field) => [field, query.get(field) || ""]));
  const offset = Number(query.get("offset")) || 0;
  const report = await get(of(name, "/report"), signal);
  const page = await get(at(of(name, "/items"), { ...asked, limit: PAGE, offset }), signal);
  const go = (more, from = 0) => at(`#/jobs/${encodeURIComponent(name)}/items`, { ...asked, ...more, offset: from || "" });
  const field = (id, label, input) => h("div", { class: "field" }, h("label", { for: id }, label), input);
  const choice = (id, any, options, value) => {
    const made = h("select", { id }, h("option", { value: "" }, any), options.map(([key, label]) => h("option", { value: key }, label)));
    made.value = value;
    return made;
  };
  const search = h("input", { id: "search", type: "search", value: asked.search, maxlength: 200 });
  const argument = h("input", { id: "argument", type: "search", value: asked.argument, maxlength: 200 });
  const judge = choice("judge", "all judges", report.agents.map((agent) => [agent.name, agent.name]), asked.judge);
  const dimension = choice("dimension", "overall", report.dimensions.map((d) => [d.id, title(d)]), asked.dimension);
  const least = h("input", { id: "least", type: "number", step: "any", value: asked.least });
  const most = h("input", { id: "most", type: "number", step: "any", value: asked.most });
  const failed = h("input", { id: "failed", type: "checkbox", checked: asked.failed === "true" });
  const form = h("form", { class: "filter", role: "search", onsubmit: (event) => {
    event.preventDefault();
    location.hash = go({ search: search.value, argument: search.value ? "" : argument.value, judge: judge.value, dimension: dimension.value, least: least.value, most: most.value, failed: failed.checked ? "true" : "" });
  } },
    field("search", "Id holds", search), field("argument", "or an argument holds", argument), field("judge", "Judge", judge),
    field("dimension", "Score in", dimension), field("least", "from", least), field("most", "to", most),
    h("div", { class: "field check" }, failed, h("label", { for: "failed" }, "with failures")),
    h("div", { class: "row" }, h("button", { class: "main" }, "Show"), h("a", { href: `#/jobs/${encodeURIComponent(name)}/items` }, "All")));

  show(root, crumbs(name, "Items"),
    h("div", { class: "head" }, h("h1", {}, "Items"), h("p", { class: "dim" }, `${count(page.total)} found`, asked.judge && [", scores of ", foreign(asked.judge)])),
    form,
    page.items.length ? table(name, report, page, asked, go) : h("p", { class: "empty" }, "No item is like that."),
    pager(page, offset, (from) => go({}, from)));
  say(`${count(page.total)} items`);
  ready();
}

function table(name, report, page, asked, go) {
  const head = (label, sort, dimension = "", plain = true) => {
    const now = (asked.sort || "place") === sort && (sort !== "score" || asked.dimension === dimension);
    const down = now ? asked.descending === "true" : false;
    const next = now ? (down ? "" : "true") : ["disagreement", "failed"].includes(sort) ? "true" : "";
    return h("th", { scope: "col", class: plain ? "number" : null, "aria-sort": now ? (down ? "descending" : "ascending") : null },
      h("a", { href: go({ sort, dimension: dimension || asked.dimension, descending: next }) }, foreign(label), now && h("span", { "aria-hidden": "true" }, down ? " ↓" : " ↑")));
  };
  return wide("Items", h("table", { class: "items" },
    h("thead", {}, h("tr", {}, head("Item", "item", "", false), head("Overall", "overall"), head("Disagreement", "disagreement"),
      report.dimensions.map((d) => head(title(d), "score", d.id)), head("Failed", "failed"))),
    h("tbody", {}, page.items.map((item) => h("tr", {},
      h("td", { class: "name" }, h("a", { href: at(`#/jobs/${encodeURIComponent(name)}/item`, { id: item.id }) }, foreign(item.id))),
      h("td", { class: "number" }, percent(item.overall)),
      h("td", { class: "number" }, meter(item.disagreement)),
      item.scores.map((score, n) => scored(score, report.dimensions[n])),
      h("td", { class: item.failed ? "number bad" : "number" }, item.failed || "–"))))));
}

function scored(score, dimension) {
  const names = optionsOf(dimension);
  if (score.mean === null) return h("td", { class: "number dim" }, "–");
  if (nominal(dimension)) return h("td", { class: "number" }, Number.isInteger(score.mean) && !score.spread ? foreign(names[score.mean - dimension.scale_min] ?? String(score.mean)) : "mixed");
  return h("td", { class: "number" },
    h("span", { class: `chip tone${step(score.mean, dimension.scale_min, dimension.scale_max)}` }, fixed(score.mean)),
    h("span", { class: "dim pm" }, score.spread === null ? "" : ` ±${fixed(score.spread, 1)}`));
}

const meter = (value) => (value === null ? "–" : [h("meter", { min: 0, max: 0.5, value, "aria-label": "Disagreement" }), " ", percent(value)]);

function pager(page, offset, to) {
  if (page.total <= PAGE && !offset) return null;
  const last = Math.max(0, PAGE * Math.floor((page.total - 1) / PAGE));
  const link = (label, from, on) => (on ? h("a", { class: "button", href: to(from) }, label) : h("span", { class: "button off", "aria-disabled": "true" }, label));
  return h("nav", { class: "row pager", "aria-label": "Pages" },
    link("First", 0, offset > 0), link("Back", Math.max(0, offset - PAGE), offset > 0),
    h("span", {}, `${count(offset + 1)} to ${count(Math.min(offset + PAGE, page.total))} of ${count(page.total)}`),
    link("On", offset + PAGE, offset + PAGE < page.total), link("Last", last, offset < last));
}
