// One job: how it goes while it runs, and what it has brought when it has ended.

import { act, confirmed, count, fixed, foreign, h, percent, say, show, span, tell, when, wide } from "./dom.js";
import { at, download, follow, get, job as of } from "./ask.js";
import { bars, step } from "./charts.js";
import { Pace, badge, cancel, ended, progress, resume } from "./jobs.js";
import { disagreement, failed, health, judges, meetings, soFar, systems, verdict } from "./verdict.js";

const LOOK_EVERY_MS = 3000;
const here = (id, rest = "", params = {}) => at(`#/jobs/${encodeURIComponent(id)}${rest}`, params);

export const crumbs = (id, last) => h("nav", { class: "crumbs", "aria-label": "Where you are" },
  h("a", { href: "#/jobs" }, "Jobs"), last && h("a", { href: here(id) }, id), last && foreign(last, "span"));

export async function jobView({ root, name, signal, session, ready }) {
  const state = h("span"), actions = h("div", { class: "row" }), told = h("div"), results = h("div", { class: "results" }), newest = h("div");
  const bar = progress(`Progress of ${name}`), pace = new Pace(), figures = h("dl", { class: "figures" }), facts = h("p", { class: "dim" });
  const submits = session.scopes.includes("job:submit");
  const cost = h("p"), known = h("div", { class: "results" });
  let before = "", failures = 0, done = 0, looking = false, told_so_far = "";

  /** What the judges have said so far, and the newest errors, while the job runs. */
  const look = async () => {
    if (looking) return;
    looking = true;
    while (!signal.aborted && done && !ended(before)) {
      const [found, errors] = await Promise.all([get(of(name, "/so-far"), signal).catch(() => null), failures && get(of(name, "/errors/newest"), signal).catch(() => null)]);
      if (signal.aborted || ended(before)) break;
      if (found && JSON.stringify(found) !== told_so_far && !known.querySelector(".hint[open]")) {
        told_so_far = JSON.stringify(found);
        show(known, soFar(found));
      }
      if (errors) show(newest, errors.errors.length > 0 && lately(name, errors.errors));
      await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS));
    }
    looking = false;
  };

  const update = (view) => {
    pace.add(view.done);
    bar.set(view.done, view.units);
    const c = view.counters, over = ended(view.state);
    const took = view.started_ms && view.finished_ms ? (view.finished_ms - view.started_ms) / 1000 : null;
    const rate = over ? (took ? view.done / took : null) : pace.rate;
    show(figures, [
      ["Judgements", `${count(view.done)} of ${count(view.units)}`],
      ["Rate", rate === null ? "–" : `${rate < 10 ? rate.toFixed(1) : count(Math.round(rate))} /s`],
      over ? ["Took", took === null ? "–" : span(took)] : ["Time left", span(pace.left(view.units))],
      ["Calls", count(c.calls)], ["Retries", count(c.retries)], ["Delayed by limits", count(c.requeues)], ["Timeouts", count(c.timeouts)],
      ["Failed", count(c.failed), c.failed > 0], ["Tokens in", count(c.tokens_in)], ["Tokens out", count(c.tokens_out)],
      c.spared > 0 && ["Not needed", count(c.spared)],
      c.possible_double_charges > 0 && ["Perhaps paid twice", count(c.possible_double_charges), true],
    ].filter(Boolean).map(([label, value, bad]) => h("div", {}, h("dt", {}, label), h("dd", { class: bad ? "bad" : null }, value))));
    show(told, view.waits_for && foreign(`Waits: ${view.waits_for}`, "p", { class: "card wrong" }), view.why && foreign(view.why, "p", { class: "card wrong" }));
    tell(cost, costs(view, "Cost so far"));
    cost.hidden = over || !view.cost;
    failures = c.failed || 0;
    done = view.done;
    if (view.state === before) return done && !over ? look() : undefined;
    if (before) say(`The job is ${view.state}`);
    before = view.state;
    show(state, badge(view.state));
    show(actions,
      submits && !over && h("button", { type: "button", class: "danger", onclick: act(async () => {
        if (await confirmed(`Cancel ${name}? No new calls are made; open ones end and count.`, "Cancel the job")) update(await cancel(name));
      }) }, "Cancel"),
      submits && over && view.state !== "lost" && view.done < view.units && h("button", { type: "button", class: "quiet", title: "Judges again what has no score", onclick: act(async () => { update(await resume(name)); watch(); }) }, "Resume"),
      view.state === "completed" || view.state === "cancelled" ? links(name, session) : null);
    bar.element.hidden = over;
    const again = submits && view.state !== "lost" && (() => h("button", { type: "button", class: "quiet", onclick: act(async () => {
      update(await resume(name));
      watch();
    }) }, "Judge these again"));
    if (over) outcome({ name, root: results, view, signal, state, facts, figures, again }).catch((error) => error.name !== "AbortError" && show(results, foreign(error.message, "p", { class: "card wrong" })));
    else show(results);
    if (over) show(newest), show(known), told_so_far = "";
    else if (done) look();
    return undefined;
  };

  const view = await get(of(name), signal);
  update(view);
  show(root, crumbs(name), h("div", { class: "head" }, h("h1", {}, name, " ", state), actions),
    facts, told, bar.element, !ended(view.state) && figures, cost, known, newest, results);
  show(facts, "Project ", foreign(view.project), ` · submitted ${when(view.created_ms || view.started_ms)}`);
  ready();
  const watch = () => follow(of(name, "/events"), (kind, seen) => {
    if (kind === "gone") return true;
    update(seen);
    return kind === "ended";
  }, signal).catch(() => {});
  if (!ended(view.state)) watch();
}

/** Errors of a job that runs. */
const lately = (name, errors) => h("section", {}, h("h2", {}, "Newest errors"),
  wide("Newest errors", h("table", {},
    h("thead", {}, h("tr", {}, ["Kind", "Reason", "Judge", "Dimension", "Item"].map((label) => h("th", { scope: "col" }, label)))),
    h("tbody", {}, errors.map((error) => h("tr", {},
      h("td", { class: "bad" }, error.kind.replaceAll("_", " "), error.status_code ? ` (${error.status_code})` : ""), h("td", { class: "long" }, foreign(error.message)),
      h("td", {}, foreign(error.judge)), h("td", {}, foreign(error.criterion_id)), h("td", {}, foreign(error.item_id))))))));

/** What an ended job has brought: the answer first, and what it rests on below. */
async function outcome({ name, root, view, signal, state, facts, figures, again }) {
  if (view.state === "lost") return show(root, h("p", { class: "card wrong" }, "The store has lost this job; submit it again."));
  if (!root.firstChild) show(root, h("p", { class: "wait" }, "The results are read …"));
  const report = await get(of(name, "/report"), signal);
  const { conclusions } = report, judged = report.scored > 0;
  const distributed = h("section", {}, h("p", { class: "wait" }, "One moment …"));
  if (conclusions) {
    show(state, health(conclusions, view.state));
    show(facts, summary(report, view));
  }
  show(root,
    conclusions ? [verdict(conclusions, report.failed > 0 && again), systems(name, report), meetings(report), judges(name, report),
      (judged || report.failed > 0) && h("div", { class: "closer" }, judged && !report.dimensions.every(compared) && disagreement(name, report, signal), failed(name, report, again))]
      : [again && report.failed > 0 && h("div", { class: "row" }, again()), failures(name, report)],
    judged && h("div", { class: "row links" }, h("h2", {}, "Items"), h("a", { class: "button", href: here(name, "/items") }, "All items"),
      h("a", { class: "button", href: here(name, "/items", { sort: "disagreement", descending: "true" }) }, "Most disputed"),
      !report.dimensions.every(compared) && h("a", { class: "button", href: here(name, "/items", { sort: "overall" }) }, "Lowest scores"),
      report.rated && h("a", { class: "button", href: here(name, "/items", { rated: "true" }) }, "Rated by people"),
      report.failed > 0 && h("a", { class: "button", href: here(name, "/items", { failed: "true" }) }, "With failures")),
    judged && folded("Means by judge and dimension", () => [h("p", { class: "dim" }, "A cell leads to what this judge scored lowest."), heat(name, report)]),
    judged && folded("Distributions", () => {
      get(of(name, "/scores"), signal).then(({ scores }) => show(distributed, distributions(report, scores))).catch((error) => error.name !== "AbortError" && show(distributed, foreign(error.message, "p", { class: "wrong" })));
      return distributed;
    }),
    folded("All that the statistics say", () => words(report)),
    folded("Cost, calls, tokens and configuration", () => [bill(report), figures, details(report)]));
  return undefined;
}

/** A part that is made when it is opened. */
function folded(label, make) {
  const inside = h("div", { class: "stack" });
  const box = h("details", { class: "fold", ontoggle: () => { if (box.open && !inside.firstChild) show(inside, make()); } }, h("summary", {}, h("h2", {}, label)), inside);
  return box;
}

/** What a job has cost, in words; "" before its first call. */
function costs(view, label) {
  if (!view.cost) return "";
  const missing = view.unpriced.join(", ");
  return view.spent ? `${label}: ${view.cost}` : `${label}: not known, as nobody has told the price of ${missing}`;
}

function summary(report, view) {
  const { counts } = report.conclusions, raters = report.statistics?.dimensions?.[0]?.raters?.length ?? 0;
  const several = (n, one, many) => `${count(n)} ${n === 1 ? one : many}`;
  const known = report.statistics?.items || null;
  return [
    known && `${several(known, "item", "items")}, `, several(report.agents.length, "judge", "judges"), ", ", several(report.dimensions.length, "dimension", "dimensions"),
    raters > 0 && `; ${several(raters, "person", "people")} rated ${count(Math.max(...report.statistics.dimensions.map((d) => d.rated_items)))}`,
    `. ${several(counts.planned, "judgement", "judgements")}`, counts.probes > 0 && ` and ${count(counts.probes)} for probes`, `, ${several(report.calls, "call", "calls")}, ${span(report.wall_s)}. `, view.cost && [foreign(costs(view, "Cost")), ". "], "Project ", foreign(report.project), ".",
  ];
}

const links = (name, session) => [
  h("a", { class: "button", href: here(name, "/compare") }, "Compare with …"),
  h("button", { type: "button", title: "One file to send around", onclick: act(() => download(of(name, "/report.html"), `${name}.html`)) }, "Share report"),
  session.scopes.includes("rating:write") && h("a", { class: "button", href: `#/rate/${encodeURIComponent(name)}` }, "Rate blind"),
  files(name),
];

const files = (name) => h("details", { class: "menu" }, h("summary", { class: "button" }, "Files"),
  h("div", { class: "stack" }, [
    ["Report, JSON", "/report", "report.json"], ["Opinions, JSONL", "/opinions?format=jsonl", "opinions.jsonl"],
    ["Opinions, Parquet", "/opinions?format=parquet", "opinions.parquet"], ["Errors, JSONL", "/errors?format=jsonl", "errors.jsonl"],
    ["Blind ratings, JSONL", "/rating/file", "ratings.jsonl"],
  ].map(([label, path, file]) => h("button", { type: "button", class: "quiet", onclick: act(() => download(of(name, path), `${name}-${file}`)) }, label))));

export const title = (dimension) => dimension.name || dimension.id;
export const optionsOf = (dimension) => dimension.labels || [];
/** A dimension whose labels have no order has no mean that says anything. */
export const compared = (dimension) => dimension.kind === "preference";
export const nominal = (dimension) => dimension.ordered === false;

function heat(name, report) {
  const dimensions = report.by_dimension, every = dimensions.every((d) => compared(d.dimension));
  return wide("Means by judge and dimension", h("table", { class: "heat" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Judge"), dimensions.map((d) => h("th", { scope: "col", title: d.dimension.id }, foreign(title(d.dimension)), (nominal(d.dimension) || compared(d.dimension)) && h("div", { class: "dim" }, "judgements"))), !every && h("th", { scope: "col" }, "Overall"))),
    h("tbody", {}, report.by_agent.map((agent) => h("tr", {},
      h("th", { scope: "row" }, foreign(agent.agent.name), h("div", { class: "dim" }, foreign(agent.agent.model || agent.agent.pool))),
      dimensions.map((d) => {
        const cell = d.by_judge.find((each) => each.judge === agent.agent.name);
        const { scale_min: low, scale_max: high } = d.dimension;
        const plain = nominal(d.dimension) || compared(d.dimension);
        return h("td", { class: cell && !plain ? `tone${step(cell.mean, low, high) ?? "none"}` : "tonenone" },
          cell ? h("a", { href: here(name, "/items", { judge: agent.agent.name, dimension: d.dimension.id, sort: "score" }), title: `${cell.n} scores, ${cell.failures} failed${plain ? "" : `, standard deviation ${fixed(cell.sd)}`}` },
            plain ? `${count(cell.n)}` : fixed(cell.mean), cell.failures > 0 && h("div", { class: "dim bad" }, `${count(cell.failures)} failed`)) : "–");
      }),
      !every && h("td", { class: `tone${step(agent.overall, 0, 1) ?? "none"}` }, percent(agent.overall))))),
    h("tfoot", {}, h("tr", {}, h("th", { scope: "row" }, "All judges"),
      dimensions.map((d) => h("td", {}, nominal(d.dimension) || compared(d.dimension) ? count(d.scores.n) : [fixed(d.scores.mean), h("span", { class: "dim" }, ` of ${d.dimension.scale_max}`)])), !every && h("td", {}, percent(report.overall))))));
}

function distributions(report, scores) {
  return h("div", { class: "spread" }, report.by_dimension.map((d) => {
    const { dimension } = d, names = optionsOf(dimension);
    const own = scores.filter((each) => each.dimension === dimension.id);
    return h("div", { class: "card" },
      h("h3", {}, foreign(title(dimension))),
      bars(d.scores.histogram, dimension.scale_min, dimension.scale_max, `Scores in ${title(dimension)}`, names),
      h("p", { class: "dim" }, `${count(d.scores.n)} scores`, !nominal(dimension) && !compared(dimension) && `, median ${fixed(d.scores.median, 1)}, deviation ${fixed(d.scores.sd)}`, d.mean_difference !== null && !nominal(dimension) && !compared(dimension) && `, two judges lie ${fixed(d.mean_difference)} apart`),
      own.length > 1 && h("details", {}, h("summary", {}, "Each judge"), own.slice(0, 20).map((each) => h("div", { class: "each" }, foreign(each.judge, "span"), bars(each.counts, dimension.scale_min, dimension.scale_max, `${each.judge} in ${title(dimension)}`, names)))));
  }));
}

function failures(name, report) {
  if (!report.errors.length) return null;
  return h("section", {}, h("h2", {}, `Units without a score: ${count(report.failed)}`),
    h("p", {}, h("a", { href: here(name, "/items", { failed: "true" }) }, "The items that lack a score")),
    wide("Errors", h("table", {},
      h("thead", {}, h("tr", {}, ["Kind", "Times", "Reason", "First at"].map((label) => h("th", { scope: "col", class: label === "Times" ? "number" : null }, label)))),
      h("tbody", {}, report.errors.flatMap((group) => (group.reasons.length ? group.reasons : group.examples.slice(0, 3).map((example) => ({ ...example, count: 1 }))).map((reason) => h("tr", {},
        h("td", {}, group.kind.replaceAll("_", " "), reason.status_code ? ` (${reason.status_code})` : ""), h("td", { class: "number" }, count(reason.count)), h("td", { class: "long" }, foreign(reason.message)),
        h("td", {}, h("a", { href: here(name, "/item", { id: reason.item_id }) }, foreign(reason.item_id))))))))));
}

/** The statistics in sentences. */
export function words(report) {
  const known = report.statistics;
  if (!known) return null;
  if (known.state !== "computed") {
    return h("section", {}, h("h2", {}, "How far the judges can be trusted"), known.reason && foreign(`Not computed: ${known.reason}.`, "p"),
      known.unknowable.length > 0 && h("details", {}, h("summary", {}, "What nobody can know without ratings by people"), h("ul", {}, known.unknowable.map((line) => h("li", {}, foreign(line))))));
  }
  return h("section", {}, h("h2", {}, "How far the judges can be trusted"), known.dimensions.map((d) => h("div", {}, h("h3", {}, foreign(d.dimension)), h("ul", {}, d.summary.map((line) => h("li", {}, foreign(line)))))));
}

/** The books: what each judge has spent, where and on which day. */
function bill(report) {
  const { lines } = report.cost ?? { lines: [] };
  if (!lines?.length) return null;
  const money = (amount, currency) => (amount === null ? h("span", { class: "dim" }, "no price") : `${Number(amount).toPrecision(3)} ${currency}`);
  return wide("Cost", h("table", { class: "small" },
    h("thead", {}, h("tr", {}, ["Judge", "Model", "Day", "Calls", "Tokens in", "Tokens out", "Cost", "At most, of unknown"].map((label, n) => h("th", { scope: "col", class: n > 2 ? "number" : null }, label)))),
    h("tbody", {}, lines.map((line) => h("tr", {}, h("td", {}, foreign(line.judge)), h("td", {}, foreign(`${line.pool}/${line.model}`)), h("td", {}, line.day),
      h("td", { class: "number" }, count(line.calls)), h("td", { class: "number" }, count(line.input_tokens)), h("td", { class: "number" }, count(line.output_tokens)),
      h("td", { class: "number" }, money(line.spent, line.currency)), h("td", { class: "number" }, Number(line.unknown) ? money(line.unknown, line.currency) : "–"))))));
}

const details = (report) => h("details", {}, h("summary", {}, "Configuration"),
  wide("Configuration", h("table", { class: "small" },
    h("thead", {}, h("tr", {}, ["Dimension", "Scale", "Weight", "Rubric"].map((label) => h("th", { scope: "col" }, label)))),
    h("tbody", {}, report.dimensions.map((d) => h("tr", {}, h("td", {}, foreign(title(d))), h("td", {}, optionsOf(d).length ? foreign(optionsOf(d).join(", ")) : `${d.scale_min} to ${d.scale_max}`), h("td", {}, String(d.weight)), h("td", {}, h("code", {}, d.rubric))))))),
  h("p", { class: "dim" }, `Ran ${report.started} to ${report.finished}, ${count(report.input_tokens)} tokens in, ${count(report.output_tokens)} out.`));
