// Two runs over the same items: which systems moved, then the panel, then each judge, and what was judged and said where
// scores moved most. The sentences are those of `dicast compare`.

import { at, get, job as of } from "./ask.js";
import { count, fixed, foreign, h, s, say, show, wide } from "./dom.js";
import { crumbs, title } from "./job.js";
import { hint } from "./verdict.js";

const CLEAR = 0.05;
const WORDS = 400;
const here = (id, rest = "", params = {}) => at(`#/jobs/${encodeURIComponent(id)}${rest}`, params);

export async function compareView({ root, name, query, signal, ready }) {
  const other = query.get("from") || "", force = query.get("force") || "";
  const [report, page] = await Promise.all([get(of(name, "/report"), signal), get(at("/jobs", { limit: 200, state: "completed" }), signal)]);
  const others = page.jobs.filter((view) => view.id !== name).sort((a, b) => Number(b.project === report.project) - Number(a.project === report.project));
  const ids = others.map((view) => view.id);
  if (other && !ids.includes(other)) ids.unshift(other);
  const pick = h("select", { id: "other", onchange: () => { if (pick.value) location.hash = here(name, "/compare", { from: pick.value }); } },
    h("option", { value: "" }, "choose a job"), ids.map((id) => h("option", { value: id }, id)));
  pick.value = other;
  const found = h("div", { class: "results" });
  show(root, crumbs(name, "Compare"),
    h("div", { class: "head" }, h("h1", {}, "What has changed"),
      h("div", { class: "row" }, h("label", { for: "other" }, "from"), pick, h("span", {}, "to ", foreign(name, "b")),
        other && h("a", { class: "button", href: here(other, "/compare", { from: name }) }, "The other way round"))),
    found);
  ready();
  if (!other) return show(found, h("p", { class: "empty" }, ids.length ? "Choose an earlier job over the same items. Items are the same where their ids are." : "There is no other finished job to compare this one with."));
  show(found, h("p", { class: "wait" }, "The runs are compared …"));
  try {
    const compared = await get(at(of(name, "/compare"), { from: other, force }), signal);
    show(found, parts(name, report, compared));
    say(compared.summary[0] ?? "Compared");
  } catch (error) {
    if (error.name === "AbortError") return undefined;
    show(found, foreign(`${error.message}.`.replace("; --force compares them all the same", ""), "p", { class: "card wrong" }),
      error.kind === "runs-differ" && !force && error.message.includes("--force") && h("div", { class: "row" }, h("a", { class: "button", href: here(name, "/compare", { from: other, force: "true" }) }, "Compare them all the same")));
  }
  return undefined;
}

function parts(name, report, compared) {
  const [first, ...more] = compared.summary;
  const titled = (id) => { const d = report.dimensions.find((each) => each.id === id); return d ? title(d) : id; };
  return [
    h("section", { class: "card verdict", "aria-label": "What has changed" }, foreign(first ?? "", "p", { class: "first" }), more.map((line) => foreign(line, "p")),
      compared.forced.map((line) => foreign(`Compared all the same, although they differ: ${line}.`, "p", { class: "wrong" }))),
    moves(name, compared, titled),
    byJudge(compared, titled),
    moved(name, compared, titled),
  ];
}

/** A chart a dimension: how far each system and all items moved, on one axis around no change. */
function moves(name, compared, titled) {
  const shifts = [...compared.systems, ...compared.panel].filter((each) => each.shift.value !== null);
  if (!shifts.length) return null;
  const far = Math.max(...shifts.flatMap(({ shift }) => [shift.value, shift.low ?? 0, shift.high ?? 0].map(Math.abs)));
  const most = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 1000].find((edge) => edge >= far) ?? far;
  const dimensions = [...new Set(shifts.map((each) => each.dimension))];
  return h("section", {}, h("div", { class: "head" }, h("h2", {}, compared.systems.length ? "Systems" : "All items"),
    h("div", { class: "row dim" }, h("span", {}, "mean of the judges, points from before to now"), h("span", {}, "95 % intervals"), hint("interval"))),
  h("div", { class: "multi" }, dimensions.map((dimension) => h("figure", { class: "card chart" },
    h("h3", {}, foreign(titled(dimension))),
    h("div", { class: "rows" }, shifts.filter((each) => each.dimension === dimension).map((each) => {
      const clear = each.p !== null && each.p < CLEAR;
      return [h("span", { class: `who${clear ? " leads" : ""}`, title: each.system || "all items" }, each.system ? foreign(each.system) : "all items"),
        arrow(each, most, clear, here(name, "/items", { metadata: each.system && compared.by ? `${compared.by}=${each.system}` : "", sort: "score", dimension }))];
    })),
    h("div", { class: "rows scale", "aria-hidden": "true" }, h("span"), h("div", { class: "ticks" },
      s("svg", {}, [-most, 0, most].map((edge) => [
        s("line", { x1: place(edge, most), x2: place(edge, most), y1: 0, y2: 4, class: "grid" }),
        s("text", { x: place(edge, most), y: 15, "text-anchor": edge < 0 ? "start" : edge > 0 ? "end" : "middle" }, signed(edge, 1)),
      ]))))))),
  h("p", { class: "dim" }, "Bold and coloured: beyond chance (p below 0.05, corrected for all that is compared here)."));
}

const signed = (value, digits = 2) => `${value > 0 ? "+" : value < 0 ? "−" : ""}${fixed(Math.abs(value), Number.isInteger(value) ? 0 : digits)}`;

/** Where on a chart a move lies, from -most to most. */
const place = (value, most) => `${(50 + 47 * value / most).toFixed(2)}%`;

function arrow({ shift, system }, most, clear, href) {
  const x = (value) => place(value, most);
  const label = `${system || "all items"}: ${signed(shift.value)}${shift.low === null ? "" : ` (${signed(shift.low)} to ${signed(shift.high)})`}, its items`;
  return h("a", { class: "track", href, "aria-label": label, title: label },
    s("svg", { "aria-hidden": "true", class: clear ? "leads" : null },
      s("line", { x1: x(-most), x2: x(most), y1: "50%", y2: "50%", class: "grid" }), s("line", { x1: x(0), x2: x(0), y1: 4, y2: 20, class: "grid" }),
      shift.low !== null && s("line", { x1: x(shift.low), x2: x(shift.high), y1: "50%", y2: "50%", class: "interval" }), s("circle", { cx: x(shift.value), cy: "50%", r: 4.5 })),
    h("span", { class: "value" }, signed(shift.value)));
}

function byJudge(compared, titled) {
  const judges = [...new Set(compared.shifts.map((each) => each.judge))], dimensions = [...new Set(compared.shifts.map((each) => each.dimension))];
  const own = (judge, dimension) => compared.shifts.find((each) => each.judge === judge && each.dimension === dimension);
  return h("section", {}, h("h2", {}, "Judges"),
    wide("How far each judge moved", h("table", { class: "small moves" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Judge"), dimensions.map((dimension) => h("th", { scope: "col" }, foreign(titled(dimension)))))),
      h("tbody", {}, judges.map((judge) => h("tr", {}, h("th", { scope: "row" }, foreign(judge)), dimensions.map((dimension) => {
        const each = own(judge, dimension), { value, low, high, reason } = each?.shift ?? { value: null };
        if (value === null) return h("td", {}, h("span", { class: "dim" }, foreign(reason ?? "–")));
        const alone = each.only_first + each.only_second;
        return h("td", { class: each.p !== null && each.p < CLEAR ? "clear" : null }, h("b", {}, signed(value)), low !== null && h("span", { class: "dim" }, ` ${signed(low)} to ${signed(high)}`), alone > 0 && h("div", { class: "dim" }, `${count(alone)} items in one run alone`));
      })))))),
    compared.spared.length > 0 && foreign(`Not asked about all items, because earlier judges had settled the outcome: ${compared.spared.join(", ")}. Their shifts are of no sample of all items.`, "p", { class: "dim" }));
}

function moved(name, compared, titled) {
  const score = (value) => fixed(value, Number.isInteger(value) ? 0 : 2);
  if (!compared.moved.length) return h("section", {}, h("h2", {}, "What moved most"), h("p", {}, "No item has moved."));
  const run = (label, text, said) => h("div", { class: "run" }, h("p", { class: "dim" }, label), text && h("div", { class: "text", dir: "auto" }, text), foreign(said || "The judge gave no argument.", "p", { class: "argument" }));
  return h("section", {}, h("h2", {}, "What moved most"), h("ol", { class: "moved" }, compared.moved.map((item) => {
    const same = item.first_text === item.second_text;
    const [before, now] = same ? [null, null] : marked(item.first_text, item.second_text);
    return h("li", { class: "card" },
      h("div", { class: "head" }, h("h3", {}, h("a", { href: here(name, "/item", { id: item.item_id }) }, foreign(item.item_id))),
        h("span", {}, foreign(titled(item.dimension)), ", ", foreign(item.judge), " ", h("b", { class: "chip" }, score(item.first)), " → ", h("b", { class: "chip" }, score(item.second)))),
      same && item.first_text && h("div", { class: "text", dir: "auto" }, item.first_text),
      h("div", { class: "sides" }, run(same ? "Before" : `Before, ${compared.first}`, before, item.first_argument), run(same ? "Now" : `Now, ${compared.second}`, now, item.second_argument)),
      same && h("p", { class: "dim" }, item.first_text ? "The text is the same in both runs: it is the judge who sees it otherwise." : "The texts are not kept."));
  })));
}

/** Two texts with the words marked that the other lacks (their longest common subsequence is left plain). */
function marked(first, second) {
  const [a, b] = [first, second].map((text) => text.split(/(?<=\s)/));
  if (!first || !second || a.length > WORDS || b.length > WORDS) return [first, second];
  const common = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1) for (let j = b.length - 1; j >= 0; j -= 1) common[i][j] = a[i].trim() === b[j].trim() ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
  const sides = [[], []];
  let i = 0, j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i].trim() === b[j].trim()) { sides[0].push(a[i]); sides[1].push(b[j]); i += 1; j += 1; }
    else if (j >= b.length || (i < a.length && common[i + 1][j] >= common[i][j + 1])) { sides[0].push(h("mark", {}, a[i])); i += 1; }
    else { sides[1].push(h("mark", {}, b[j])); j += 1; }
  }
  return sides;
}
