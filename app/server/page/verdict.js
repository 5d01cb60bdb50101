// What a finished job's report concludes, and what it rests on: the verdict, systems, judges, disagreement and failures.
// The sentences are the report's own, the same as in report.html and on a terminal.

import { at, get, job as of } from "./ask.js";
import { HEALTH, badge } from "./jobs.js";
import { count, fixed, foreign, h, s, show, wide } from "./dom.js";

const here = (id, rest = "", params = {}) => at(`#/jobs/${encodeURIComponent(id)}${rest}`, params);
const SHADES = 6;
const ADVICE = { use: "use", calibrate: "calibrate", drop: "drop or replace", unknown: "not known" };
const ABOUT = {
  agreement: "How closely a judge's scores rise and fall with people's: 1 is in step, 0 is no relation. The band is what a person reaches against the other people. The line is the 95 % interval.",
  opinion: "People's opinion of all items is estimated from the ratings of some and the judges' scores of all; where nobody has rated, only the judges' own opinion can be told.",
  interval: "The line is the 95 % interval: where the value lies, allowing for the chance by which these items were drawn.",
  spread: "The spread of an item is the standard deviation between its judges, in parts of the scale, as a mean over the dimensions.",
  sofar: "Only items that all judges have judged count, in the order in which they are judged, so that slow ones are not left out. Which system is best is told when the job has ended.",
  strength: "The share of comparisons that this one would win against an average one of those compared (Bradley and Terry), with its 95 % interval.",
};

/** A word that is explained where one asks for it. */
export const hint = (about) => h("details", { class: "hint" }, h("summary", { "aria-label": "What this means" }, "?"), h("p", {}, ABOUT[about]));

export const health = (conclusions, state) => badge(conclusions?.badge ?? state, HEALTH[conclusions?.health] ?? state);

/** A sentence whose percents stay on one line with their numbers. */
const sentence = (text) => foreign(text.split(/(\d[\d.,]* %)/).map((part, at) => (at % 2 ? h("span", { class: "together" }, part) : part)));

/** The sentences: which is best, whom to trust, what failed, what now. */
export function verdict(conclusions, again) {
  const [first, ...more] = conclusions.best;
  const lines = (label, sentences) => sentences.length > 0 && h("div", { class: "line" }, h("h3", {}, label), h("div", {}, sentences));
  return h("section", { class: `card verdict health-${conclusions.health}`, "aria-label": "Verdict" },
    h("p", { class: "first" }, sentence(first)),
    more.map((line) => h("p", {}, sentence(line))),
    lines("Trust", conclusions.trust.map((line) => h("p", {}, sentence(line)))),
    lines("Failed", conclusions.failures.map((line) => h("p", {}, sentence(line)))),
    lines("Do this", conclusions.actions.map((action) => h("p", {}, sentence(action.text), action.command && [" ", h("code", {}, action.command)],
      again && action.kind === "judge_again" && [" ", again()]))));
}

/** A chart a dimension, all on one axis; a dot leads to its items. */
export function systems(name, report) {
  const { charts, subject } = report.conclusions;
  if (!charts.length) return null;
  const { opinion } = charts[0];
  const grouped = charts.some((chart) => chart.by && chart.by !== "candidate");
  return h("section", {},
    h("div", { class: "head" }, h("h2", {}, grouped ? "Systems" : { pairs: "Who wins", rankings: "Who wins", labels: "Labels" }[subject] ?? "Scores"),
      h("div", { class: "row dim" }, h("span", {}, `${opinion === "people" ? "people's" : "the judges'"} opinion, ${axisOf(charts[0])}`), hint("opinion"), h("span", {}, "95 % intervals"), hint("interval"))),
    drawn(charts, (chart, row) => marked(name, report, chart, row)));
}

/** What the labels of a chart's axis are. */
const axisOf = ({ ticks, unit }) => (ticks.every(([, label]) => label.includes("%")) ? unit : "in scores");

/** A card a chart; `lead` gives the address that a dot leads to, where there is one. */
function drawn(charts, lead) {
  const { axis: [low, high], ticks } = charts[0], x = along(low, high);
  return h("div", { class: "multi" }, charts.map((chart) => h("figure", { class: "card chart" },
    h("h3", {}, foreign(chart.title)),
    h("div", { class: "rows" }, chart.rows.map((row) => [
      h("span", { class: `who${row.leads ? " leads" : ""}`, title: row.name }, foreign(row.name)),
      dotted(row, chart, low, high, lead(chart, row)),
    ])),
    h("div", { class: "rows scale", "aria-hidden": "true" }, h("span"), h("div", { class: "ticks" },
      s("svg", {}, ticks.map(([at, label]) => [s("line", { x1: x(at), x2: x(at), y1: 0, y2: 4, class: "grid" }), s("text", { x: x(at), y: 15, "text-anchor": at > high - 4 ? "end" : at < low + 4 ? "start" : "middle" }, label)])))),
    chart.note && foreign(chart.note, "figcaption"))));
}

/** What the judges of a running job have said so far, what failed of each, and what its calls have cost. */
export function soFar(found) {
  const { charts, judges: rows, failed: causes } = found;
  const priced = rows.some((row) => row.cost), head = (label, right) => h("th", { scope: "col", class: right ? "number" : null }, label);
  return [
    ...[...new Set(charts.map((chart) => chart.unit))].map((unit, at) => {
      const alike = charts.filter((chart) => chart.unit === unit);
      return h("section", {},
        h("div", { class: "head" }, h("h2", {}, alike[0].by ? "Systems so far" : unit === "percent of labels" ? "Labels so far" : "Scores so far"),
          h("div", { class: "row dim" }, h("span", {}, `the judges' opinion, ${axisOf(alike[0])}`), hint("sofar"))),
        at === 0 && foreign(found.note, "p", { class: "dim" }), drawn(alike, () => null));
    }),
    rows.length > 0 && h("section", {}, h("h2", {}, "Judges so far"),
      wide("Judges so far", h("table", { class: "judges" },
        h("thead", {}, h("tr", {}, head("Judge"), head("Scores", true), head("Failed", true), head("Why"), priced && head("Cost"))),
        h("tbody", {}, rows.map((row) => h("tr", {},
          h("th", { scope: "row" }, foreign(row.name)), h("td", { class: "number", "data-label": "Scores" }, count(row.scored)),
          h("td", { class: row.failed ? "number bad" : "number", "data-label": "Failed" }, row.failed ? `${count(row.failed)} of ${count(row.failed + row.scored)}` : "–"),
          h("td", { class: "long", "data-label": "Why" }, whyFailed(causes.filter((cause) => cause.judge === row.name))),
          priced && h("td", { "data-label": "Cost" }, foreign(row.cost || "–")))))))),
  ];
}

const whyFailed = (causes) => (causes.length ? causes.map((cause) => h("div", {}, cause.count === 1 ? "once " : `${count(cause.count)} times `, foreign(cause.cause), h("div", { class: "dim" }, foreign(cause.remedy)))) : "–");

/** Where on a chart a place of its axis lies. */
const along = (low, high) => (place) => `${(3 + 94 * (place - low) / (high - low)).toFixed(2)}%`;

function dotted(row, chart, low, high, href) {
  const x = along(low, high), label = `${row.name}: ${row.text}`;
  return h(href ? "a" : "div", { class: "track", href, role: href ? null : "img", "aria-label": href ? `${label}, its items` : label, title: label },
    s("svg", { "aria-hidden": "true", class: row.leads ? "leads" : null },
      s("line", { x1: x(low), x2: x(high), y1: "50%", y2: "50%", class: "grid" }),
      row.low !== null && s("line", { x1: x(row.low), x2: x(row.high), y1: "50%", y2: "50%", class: "interval" }),
      row.place !== null && s("circle", { cx: x(row.place), cy: "50%", r: 4.5 })),
    h("span", { class: "value" }, row.text.replace(/ \(.*/, "")));
}

function marked(name, report, chart, row) {
  if (chart.by && report.keep.includes(chart.by)) return here(name, "/items", { metadata: `${chart.by}=${row.name}`, sort: chart.dimension ? "score" : "overall", dimension: chart.dimension });
  const dimension = report.dimensions.find((d) => d.id === chart.dimension) ?? report.dimensions.find((d) => (d.name || d.id) === row.name);
  const score = dimension?.labels?.indexOf(row.name) ?? -1;
  if (score >= 0) return here(name, "/items", { dimension: dimension.id, least: dimension.scale_min + score, most: dimension.scale_min + score });
  return here(name, "/items", dimension && { sort: "score", dimension: dimension.id });
}

/** Of pairs: how often each wins against each other, and how strong each is. */
export function meetings(report) {
  const found = (report.statistics?.dimensions ?? []).filter((d) => d.preferences?.meetings?.length);
  const title = (id) => report.dimensions.find((d) => d.id === id)?.name || id;
  return found.map((d) => {
    const { meetings: met, contestants, rates } = d.preferences;
    const names = (contestants.length ? contestants : rates).map((each) => each.name);
    const won = new Map(met.flatMap((each) => [[`${each.first}\0${each.second}`, [each.wins.value, each.pairs]], [`${each.second}\0${each.first}`, [each.wins.value === null ? null : 1 - each.wins.value, each.pairs]]]));
    const chance = (strength) => (strength === null ? null : 1 / (1 + Math.exp(-strength)));
    const share = (value) => `${Math.round(100 * value)} %`;
    return h("section", {}, h("h2", {}, "Who beats whom, ", foreign(title(d.dimension))),
      wide("Who beats whom", h("table", { class: "matrix small" },
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "The row wins against"), names.map((each) => h("th", { scope: "col" }, foreign(each))),
          contestants.length > 0 && h("th", { scope: "col", class: "number" }, "Strength ", hint("strength")))),
        h("tbody", {}, names.map((row) => h("tr", {}, h("th", { scope: "row" }, foreign(row)), names.map((column) => {
          const [value, pairs] = won.get(`${row}\0${column}`) ?? [null, 0];
          return h("td", { class: value === null ? null : `shade${Math.min(SHADES - 1, Math.floor(SHADES * value))}`, title: value === null ? null : `${count(pairs)} comparisons` }, row === column ? "" : value === null ? "–" : share(value));
        }), contestants.length > 0 && strengthOf(contestants.find((each) => each.name === row))))))),
      h("p", { class: "dim" }, "Ties count half."), d.preferences.reason && foreign(`The comparisons alone rank nobody: ${d.preferences.reason}.`, "p", { class: "dim" }));

    function strengthOf(one) {
      const { value, low, high } = one.strength;
      return h("td", { class: "number" }, value === null ? "–" : [share(chance(value)), low !== null && h("span", { class: "dim" }, ` ${share(chance(low))} to ${share(chance(high))}`)]);
    }
  });
}

/** A row a judge: how closely it follows people, how strict it is, what failed, and what to do with it. */
export function judges(name, report) {
  const { judges: rows } = report.conclusions;
  if (!rows.length) return null;
  const noisy = rows.some((row) => row.noise?.value !== null && row.noise), probed = rows.some((row) => row.probes.length), rated = rows.some((row) => row.agreement.value !== null);
  const biased = rows.some((row) => row.bias);
  const head = (label, right, about) => h("th", { scope: "col", class: right ? "number" : null }, label, about && [" ", hint(about)]);
  return h("section", {}, h("h2", {}, "Judges"),
    wide("Judges", h("table", { class: "judges" },
      h("thead", {}, h("tr", {}, head("Judge"), rated && head("Follows people (band: a person)", false, "agreement"), biased && head("Strict or kind"), noisy && head("With itself", true), probed && head("Moved by"), head("Failed", true), head("Verdict"))),
      h("tbody", {}, rows.map((row) => h("tr", {},
        h("th", { scope: "row" }, row.kind === "judge" ? h("a", { href: here(name, "/items", { judge: row.name, sort: "overall" }) }, foreign(row.name)) : foreign(row.name), row.model && h("div", { class: "dim" }, foreign(row.model))),
        rated && h("td", { "data-label": "Follows people" }, following(row)), biased && h("td", { "data-label": "Strict or kind" }, foreign(row.bias || "–")),
        noisy && h("td", { class: "number", "data-label": "With itself" }, fixed(row.noise?.value)), probed && h("td", { "data-label": "Moved by" }, row.probes.length ? foreign(row.probes.join("; ")) : "–"),
        h("td", { class: row.failed ? "number bad" : "number", "data-label": "Failed" }, row.failed ? `${count(row.failed)} of ${count(row.asked)}` : "–"),
        h("td", { class: `advice ${row.advice}`, "data-label": "Verdict" }, h("b", {}, ADVICE[row.advice]), h("div", { class: "dim" }, foreign(row.reason)))))))));
}

function following(row) {
  const { value, low, high, reason } = row.agreement;
  if (value === null) return h("span", { class: "dim" }, foreign(reason ?? "–"));
  const x = (place) => `${(2 + 96 * (Math.max(-0.25, place) + 0.25) / 1.25).toFixed(2)}%`;
  const wide = (from, to) => `${(96 * (to - Math.max(-0.25, from)) / 1.25).toFixed(2)}%`;
  const { person } = row;
  return h("div", { class: "follows" },
    s("svg", { role: "img", "aria-label": `agreement ${fixed(value)}${low === null ? "" : `, ${fixed(low)} to ${fixed(high)}`}` },
      person.low !== null && s("rect", { x: x(person.low), width: wide(person.low, person.high), y: 2, height: 20, class: "band" }),
      s("line", { x1: "2%", x2: "98%", y1: "50%", y2: "50%", class: "grid" }), s("line", { x1: x(0), x2: x(0), y1: 6, y2: 18, class: "grid" }),
      low !== null && s("line", { x1: x(low), x2: x(high), y1: "50%", y2: "50%", class: "interval" }), s("circle", { cx: x(value), cy: "50%", r: 4.5 })),
    h("span", { class: "value" }, fixed(value)));
}

/** What failed, of which judge and why, and what to do about it. */
export function failed(name, report, again) {
  const { failed: rows, counts } = report.conclusions;
  if (!rows.length) return null;
  return h("section", { class: "card" }, h("div", { class: "head" }, h("h2", {}, `Failed: ${count(counts.failed)} of ${count(counts.scored + counts.failed)}`), again && again()),
    h("ul", { class: "failures" }, rows.map((row) => h("li", {},
      h("div", { class: "head" }, h("a", { href: here(name, "/items", { judge: row.judge, failed: "true" }) }, foreign(row.judge)), h("b", {}, count(row.count))),
      h("div", {}, foreign(row.cause), row.message && [": ", foreign(row.message)]), h("div", { class: "dim" }, foreign(row.remedy))))));
}

const WIDE = 520, TALL = 220, LEFT = 34, BOTTOM = 24;

/** Each item by its score and how far its judges lie apart; what is dragged over leads to the list. */
export function disagreement(name, report, signal) {
  const box = h("section", { class: "card scatter", hidden: true });
  const group = report.groups[0] ?? report.keep.find((each) => !["list", "candidate_a", "candidate_b", "system_a", "system_b"].includes(each));
  get(at(of(name, "/points"), { group }), signal).then(({ points }) => {
    if (points.length < 3) return;
    const groups = [...new Set(points.map((point) => point.group))].filter((each) => each !== null);
    const colours = groups.length > 1 && groups.length <= 6 ? groups : [];
    const most = Math.max(0.1, Math.ceil(10 * Math.max(...points.map((point) => point.spread))) / 10);
    const x = (score) => LEFT + (WIDE - LEFT - 8) * score, y = (spread) => 8 + (TALL - BOTTOM - 8) * (1 - spread / most);
    const brush = s("rect", { class: "brush", visibility: "hidden" });
    const svg = s("svg", { viewBox: `0 0 ${WIDE} ${TALL}`, role: "img", "aria-label": `${count(points.length)} items by score and spread; drag over some to list them` },
      [0, 0.5, 1].map((part) => [s("line", { x1: LEFT, x2: WIDE - 8, y1: y(part * most), y2: y(part * most), class: "grid" }), s("text", { x: LEFT - 5, y: y(part * most) + 4, "text-anchor": "end" }, `${Math.round(100 * part * most)} %`), s("text", { x: x(part), y: TALL - 8, "text-anchor": part === 1 ? "end" : "middle" }, `${100 * part} %`)]),
      points.map((point) => s("circle", { cx: x(point.score).toFixed(1), cy: y(point.spread).toFixed(1), r: points.length > 800 ? 2 : 3, class: `c${Math.max(0, colours.indexOf(point.group))}` }, s("title", {}, `${point.id}: score ${Math.round(100 * point.score)} %, spread ${Math.round(100 * point.spread)} %`))), brush);
    drag(svg, brush, (from, to) => {
      const score = (at) => Math.min(1, Math.max(0, (at - LEFT) / (WIDE - LEFT - 8))).toFixed(3), spread = (at) => Math.min(1, Math.max(0, most * (1 - (at - 8) / (TALL - BOTTOM - 8)))).toFixed(3);
      location.hash = here(name, "/items", { least: score(from.x), most: score(to.x), least_spread: spread(to.y), most_spread: spread(from.y), sort: "disagreement", descending: "true" });
    }, (point) => { const nearest = closest(points, point, x, y); if (nearest) location.hash = here(name, "/item", { id: nearest.id }); });
    show(box, h("div", { class: "head" }, h("h2", {}, "Where judges disagree ", hint("spread")), h("a", { href: here(name, "/items", { sort: "disagreement", descending: "true" }) }, "Most disputed items")),
      svg, h("p", { class: "dim" }, "Across: score, up: spread between judges. Drag over a cloud to list its items. ", colours.map((each, n) => h("span", { class: "key-of" }, h("i", { class: `dot c${n}` }), foreign(each)))));
    box.hidden = false;
  }).catch(() => {});
  return box;
}

function closest(points, at, x, y) {
  let found = null, near = 100;
  for (const point of points) {
    const apart = (x(point.score) - at.x) ** 2 + (y(point.spread) - at.y) ** 2;
    if (apart < near) { near = apart; found = point; }
  }
  return found;
}

function drag(svg, brush, done, clicked) {
  let from = null;
  const place = (event) => {
    const box = svg.getBoundingClientRect();
    return { x: WIDE * (event.clientX - box.left) / box.width, y: TALL * (event.clientY - box.top) / box.height };
  };
  const ends = (to) => [{ x: Math.min(from.x, to.x), y: Math.min(from.y, to.y) }, { x: Math.max(from.x, to.x), y: Math.max(from.y, to.y) }];
  svg.addEventListener("pointerdown", (event) => { from = place(event); svg.setPointerCapture(event.pointerId); event.preventDefault(); });
  svg.addEventListener("pointermove", (event) => {
    if (!from) return;
    const [low, high] = ends(place(event));
    for (const [key, value] of Object.entries({ x: low.x, y: low.y, width: high.x - low.x, height: high.y - low.y, visibility: "visible" })) brush.setAttribute(key, value);
  });
  svg.addEventListener("pointerup", (event) => {
    if (!from) return;
    const to = place(event), [low, high] = ends(to);
    from = null;
    brush.setAttribute("visibility", "hidden");
    if (high.x - low.x > 5 && high.y - low.y > 5) done(low, high);
    else clicked(to);
  });
}
