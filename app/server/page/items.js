// The items of a finished job: sorted, filtered, searched; the server finds them, and the address keeps what was asked.
// One item is shown beside the list where there is room, and the list stays where it was.

import { at, get, job as of } from "./ask.js";
import { strip } from "./charts.js";
import { count, fixed, foreign, h, percent, say, show } from "./dom.js";
import { itemParts, sides, trail } from "./item.js";
import { crumbs, nominal, optionsOf, title } from "./job.js";

const PAGE = 50;
const ASKED = ["sort", "descending", "search", "text", "argument", "judge", "dimension", "least", "most", "least_spread", "most_spread", "failed", "rated"];
const BESIDE = "(min-width: 72rem)";
const SEARCHES = [["text", "texts"], ["search", "ids"], ["argument", "arguments"]];
const ORDERS = [
  ["place", "", "as they were judged"], ["disagreement", "true", "most disputed first"], ["overall", "", "lowest score first"],
  ["overall", "true", "highest score first"], ["failed", "true", "most failures first"], ["item", "", "by id"],
];
/** Where one was in a list, by its address. */
const places = new Map();

export async function itemsView({ root, name, query, signal, ready }) {
  const asked = Object.fromEntries(ASKED.map((field) => [field, query.get(field) || ""]));
  const metadata = query.getAll("metadata");
  const offset = Math.max(0, Math.floor(Number(query.get("offset")) || 0));
  const path = (more) => withMetadata(at(of(name, "/items"), { ...asked, limit: PAGE, offset, ...more }), metadata);
  const [report, page, facets] = await Promise.all([get(of(name, "/report"), signal), get(path({}), signal), get(of(name, "/facets"), signal)]);
  const go = (more, from = 0, kept = metadata) => withMetadata(at(`#/jobs/${encodeURIComponent(name)}/items`, { ...asked, ...more, offset: from || "" }), kept);
  if (!page.items.length && page.total && offset) {
    location.replace(go({}, PAGE * Math.floor((page.total - 1) / PAGE)));
    return;
  }
  const here = location.hash, before = places.get(here);
  const list = new List({ name, report, page, signal, here });
  show(root, crumbs(name, "Items"),
    h("div", { class: "head" }, h("h1", {}, "Items"), h("p", { class: "dim", role: "status" }, `${count(page.total)} found of ${count(facets.items)}`, asked.judge && [", scores of ", foreign(asked.judge)])),
    filters(report, facets, asked, metadata, go),
    page.items.length ? h("div", { class: "split" }, list.element(asked, go), list.pane) : h("p", { class: "empty" }, "No item is like that. ", h("a", { href: `#/jobs/${encodeURIComponent(name)}/items` }, "Show all")),
    pager(page, offset, (from) => go({}, from)));
  say(`${count(page.total)} items`);
  ready();
  document.addEventListener("keydown", (event) => list.key(event), { signal });
  signal.addEventListener("abort", () => places.set(here, { scroll: list.scroll, selected: list.selected }), { once: true });
  addEventListener("scroll", () => { list.scroll = scrollY; }, { signal, passive: true });
  if (before) {
    if (before.selected >= 0) list.select(before.selected, false);
    scrollTo(0, before.scroll);
  }
  const more = await get(path({ excerpts: true }), signal).catch(() => null);
  if (more && !signal.aborted) list.tellExcerpts(more.items);
}

const withMetadata = (path, pairs) => pairs.reduce((found, pair) => `${found}${found.includes("?") ? "&" : "?"}metadata=${encodeURIComponent(pair)}`, path);

function filters(report, facets, asked, metadata, go) {
  const move = (more, kept) => { location.hash = go(more, 0, kept); };
  const field = (id, label, input) => h("div", { class: "field" }, h("label", { for: id }, label), input);
  const choice = (id, any, options, value, onchange) => {
    const made = h("select", { id, onchange: () => onchange(made.value) }, h("option", { value: "" }, any), options.map(([key, label]) => h("option", { value: key }, label)));
    made.value = value;
    return made;
  };
  const within = SEARCHES.find(([key]) => asked[key])?.[0] ?? "text";
  const search = h("input", { id: "search", type: "search", value: asked[within], maxlength: 200 });
  const where = h("select", { id: "within", "aria-label": "Search in" }, SEARCHES.map(([key, label]) => h("option", { value: key }, label)));
  where.value = within;
  const least = h("input", { id: "least", type: "number", step: "any", value: asked.least }), most = h("input", { id: "most", type: "number", step: "any", value: asked.most });
  const order = ORDERS.findIndex(([sort, down]) => sort === (asked.sort || "place") && down === asked.descending);
  const sorted = choice("order", "by a column", ORDERS.map(([, , label], n) => [String(n), label]), order < 0 ? "" : String(order), (n) => n !== "" && move({ sort: ORDERS[n][0] === "place" ? "" : ORDERS[n][0], descending: ORDERS[n][1] }));
  const bounds = asked.least_spread || asked.most_spread;
  const more = h("details", { class: "more", open: Boolean(asked.judge || asked.least || asked.most || asked.dimension) }, h("summary", {}, "More"),
    h("div", { class: "row" },
      field("judge", "Judge", choice("judge", "all judges", report.agents.map((agent) => [agent.name, agent.name]), asked.judge, (value) => move({ judge: value }))),
      field("dimension", "Score in", choice("dimension", "overall", report.dimensions.map((d) => [d.id, title(d)]), asked.dimension, (value) => move({ dimension: value }))),
      field("least", "from", least), field("most", "to", most), h("button", { class: "quiet" }, "Apply")));
  return h("form", { class: "filter", role: "search", onsubmit: (event) => {
    event.preventDefault();
    move({ search: "", text: "", argument: "", [where.value]: search.value.trim(), least: least.value, most: most.value });
  } },
    h("div", { class: "field grow" }, h("label", { for: "search" }, "Search"), h("div", { class: "joined" }, search, where)),
    Object.entries(facets.metadata).map(([key, values], n) => field(`facet${n}`, foreign(key), choice(`facet${n}`, "any", values.map((each) => [each.value, `${each.value} (${count(each.items)})`]),
      metadata.find((pair) => pair.startsWith(`${key}=`))?.slice(key.length + 1) ?? "",
      (value) => move({}, [...metadata.filter((pair) => !pair.startsWith(`${key}=`)), ...(value ? [`${key}=${value}`] : [])])))),
    field("order", "Order", sorted),
    h("div", { class: "row chips" },
      toggle("failed", `failed (${count(facets.failed)})`, asked.failed, facets.failed, move), toggle("rated", `rated by people (${count(facets.rated)})`, asked.rated, facets.rated, move),
      bounds && h("button", { type: "button", class: "facet on", onclick: () => move({ least_spread: "", most_spread: "", least: "", most: "" }) }, `disagreement ${percent(Number(asked.least_spread) || 0)} to ${percent(asked.most_spread === "" ? 1 : Number(asked.most_spread))}`, asked.least !== "" && !asked.dimension && `, score ${percent(Number(asked.least))} to ${percent(Number(asked.most))}`, " ✕"),
      (ASKED.some((key) => asked[key]) || metadata.length > 0) && h("a", { href: `#/jobs/${encodeURIComponent(report.job_id)}/items` }, "Clear")),
    more);
}

const toggle = (key, label, value, there, move) => (there || value) && h("button", { type: "button", class: `facet${value ? " on" : ""}`, "aria-pressed": String(value === "true"), onclick: () => move({ [key]: value === "true" ? "" : "true" }) }, label);

/** A page of items, one of which may be selected; it is shown beside the list, or in a view of its own. */
class List {
  constructor(given) {
    Object.assign(this, given, { selected: -1, scroll: 0, rows: [] });
    this.pane = h("aside", { class: "pane", hidden: true, "aria-label": "The selected item" });
    trail.set(this.name, this.page.items.map((item) => item.id), this.here);
  }

  element(asked, go) {
    const { report, page } = this;
    const head = (label, sort, dimension = "", plain = true) => {
      const now = (asked.sort || "place") === sort && (sort !== "score" || asked.dimension === dimension);
      const down = now ? asked.descending === "true" : false;
      const next = now ? (down ? "" : "true") : ["disagreement", "failed"].includes(sort) ? "true" : "";
      return h("th", { scope: "col", class: plain ? null : "number", "aria-sort": now ? (down ? "descending" : "ascending") : null },
        h("a", { href: go({ sort, dimension: sort === "score" ? dimension : asked.dimension, descending: next }) }, foreign(label), now && h("span", { "aria-hidden": "true" }, down ? " ↓" : " ↑")));
    };
    this.excerpts = page.items.map((item) => h("div", { class: "excerpt", dir: "auto" }, item.excerpt ?? ""));
    this.rows = page.items.map((item, n) => h("tr", { "data-id": item.id, onclick: (event) => { if (!event.target.closest("a") && !getSelection().toString()) this.open(n); } },
      h("td", { class: "name" },
        h("a", { href: this.link(item.id), onclick: (event) => { if (matchMedia(BESIDE).matches && !event.ctrlKey && !event.metaKey) { event.preventDefault(); this.select(n); } } }, foreign(item.id)),
        Object.keys(item.metadata).length > 0 && h("span", { class: "dim tags" }, Object.entries(item.metadata).filter(([key]) => key !== "list").map(([key, value]) => foreign(value, "span", { title: key }))),
        this.excerpts[n]),
      item.scores.map((score, at) => h("td", { class: "strip", "data-label": title(report.dimensions[at]) }, cell(score, report.dimensions[at], item))),
      h("td", { class: "number", "data-label": "Spread" }, percent(item.disagreement)),
      h("td", { class: item.failed ? "number bad" : "number none", "data-label": "Failed" }, item.failed || "–")));
    return h("div", { class: "wide list", role: "region", "aria-label": "Items", tabindex: "0" }, h("table", { class: "items" },
      h("thead", {}, h("tr", {}, head("Item", "item"), report.dimensions.map((d) => head(title(d), "score", d.id)), head("Spread", "disagreement", "", false), head("Failed", "failed", "", false))),
      h("tbody", {}, this.rows)),
      h("p", { class: "dim legend-line" }, "Filled: a judge, hollow: a person. ", h("span", { class: "keys" }, h("kbd", {}, "J"), " ", h("kbd", {}, "K"), " to move, ", h("kbd", {}, "Enter"), " to open")));
  }

  link(id) { return at(`#/jobs/${encodeURIComponent(this.name)}/item`, { id }); }

  tellExcerpts(items) { items.forEach((item, n) => { if (item.excerpt) show(this.excerpts[n], item.excerpt); }); }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select") || document.querySelector("dialog[open]")) return;
    if (event.key === "j" || event.key === "k") this.select(Math.max(0, Math.min(this.rows.length - 1, this.selected + (event.key === "j" ? 1 : -1))));
    else if (event.key === "Enter" && this.selected >= 0 && !event.target.closest("a, button, summary")) location.hash = this.link(this.page.items[this.selected].id);
    else if (event.key === "Escape" && this.selected >= 0) this.close();
    else return;
    event.preventDefault();
  }

  open(n) {
    if (matchMedia(BESIDE).matches) this.select(n);
    else location.hash = this.link(this.page.items[n].id);
  }

  close() {
    this.rows[this.selected]?.classList.remove("selected");
    this.rows[this.selected]?.querySelector("a").focus({ preventScroll: true });
    this.selected = -1;
    this.pane.hidden = true;
  }

  async select(n, moves = true) {
    if (!this.rows.length) return;
    this.rows[this.selected]?.classList.remove("selected");
    this.selected = n;
    const row = this.rows[n], { id } = this.page.items[n];
    row.classList.add("selected");
    if (moves) row.scrollIntoView({ block: "nearest" });
    say(`Item ${n + 1} of ${this.rows.length}: ${id}`);
    if (!matchMedia(BESIDE).matches) return;
    this.pane.hidden = false;
    const content = h("div", { class: "stack" }, h("p", { class: "wait" }, "One moment …"));
    show(this.pane, h("div", { class: "head" }, h("h2", {}, foreign(id)), h("div", { class: "row" }, h("a", { class: "button", href: this.link(id) }, "Open"), h("button", { type: "button", class: "quiet", "aria-label": "Close the item", onclick: () => this.close() }, "✕"))), content);
    this.pane.scrollTop = 0;
    try {
      const parts = await itemParts(this.name, id, this.report, this.signal);
      if (this.selected === n) show(content, parts.head, parts.texts, parts.opinions);
    } catch (error) {
      if (error.name !== "AbortError" && this.selected === n) show(content, foreign(error.message, "p", { class: "wrong" }));
    }
  }
}

/** A dimension of an item: a dot a judge and a hollow one a person, and what it comes to. */
function cell(score, dimension, item) {
  const names = optionsOf(dimension);
  const own = dimension.kind === "preference" ? sides(item) : names;
  const drawn = strip(score.judges, score.people, dimension, title(dimension), own);
  if (score.mean === null) return [drawn, h("span", { class: "dim" }, "–")];
  if (dimension.kind === "preference") {
    const side = Math.abs(score.mean) < 0.25 ? "tie" : own[score.mean > 0 ? own.length - 1 : 0];
    return [drawn, h("span", { class: "of" }, foreign(side))];
  }
  if (nominal(dimension)) return [h("span", { class: "of" }, Number.isInteger(score.mean) && !score.spread ? foreign(names[score.mean - dimension.scale_min] ?? String(score.mean)) : "mixed")];
  return [drawn, h("span", { class: "of" }, fixed(score.mean, dimension.scale_max - dimension.scale_min > 20 ? 0 : 1))];
}

function pager(page, offset, to) {
  if (page.total <= PAGE && !offset) return null;
  const last = Math.max(0, PAGE * Math.floor((page.total - 1) / PAGE));
  const link = (label, from, on) => (on ? h("a", { class: "button", href: to(from) }, label) : h("span", { class: "button off", "aria-disabled": "true" }, label));
  return h("nav", { class: "row pager", "aria-label": "Pages" },
    link("First", 0, offset > 0), link("Back", Math.max(0, offset - PAGE), offset > 0),
    h("span", {}, `${count(offset + 1)} to ${count(Math.min(offset + PAGE, page.total))} of ${count(page.total)}`),
    link("On", offset + PAGE, offset + PAGE < page.total), link("Last", last, offset < last));
}
