// Blind rating: item by item, dimension by dimension, by keyboard alone. What judges said is not asked for, and not sent,
// before the rater is done.

import { ask, at, get, job as of, poll } from "./ask.js";
import { act, confirmed, count, fixed, foreign, h, notice, percent, say, show, wide } from "./dom.js";
import { crumbs } from "./job.js";
import { texts } from "./item.js";

const NAME = "dicast-rater", WHOLE = "dicast-rate-whole";
const OTHERS_EVERY_S = 20;
const AHEAD = 2;
const PAIRED = new Set(["A", "B", "A better", "B better", "A much better", "B much better"]);
const SIDES = { a: 1, t: 0, b: -1 };

export async function rateView({ root, name, query, signal, session, ready }) {
  const rater = query.get("rater") || "";
  if (!rater) return who(root, name, session, ready);
  let state;
  try {
    state = await get(at(of(name, "/rating"), { rater }), signal);
  } catch (error) {
    if (error.status !== 404 || error.kind !== "not-found") throw error;
    return open(root, name, session);
  }
  if (state.finished) return agreement(root, name, rater, signal, ready);
  return new Rating(root, name, rater, state, signal).begin(ready);
}

const link = (name, rater) => `#/rate/${encodeURIComponent(name)}?${new URLSearchParams({ rater })}`;

function who(root, name, session, ready) {
  const field = h("input", { id: "rater", required: true, maxlength: 60, autocomplete: "nickname", value: localStorage.getItem(NAME) || (session.require_auth ? session.subject : "") });
  show(root, crumbs(name, "Rate"), h("form", { class: "card stack narrow", onsubmit: (event) => {
    event.preventDefault();
    const rater = field.value.trim();
    if (!rater) return;
    localStorage.setItem(NAME, rater);
    location.hash = link(name, rater);
  } },
    h("h1", {}, "Rate blind"),
    h("p", {}, "You see items that judges have judged, and say what you think of them. What the judges said is shown when you are done."),
    h("label", { for: "rater" }, "Your name"), field,
    h("p", { class: "dim" }, "Your ratings are kept under it. Come back with the same name to go on."),
    h("div", { class: "row" }, h("button", { class: "main" }, "Begin"))));
  ready();
  field.focus();
}

/** Puts a sample up, where there is none yet. */
function open(root, name, session) {
  if (!session.scopes.includes("job:submit")) {
    return show(root, crumbs(name, "Rate"), h("h1", {}, "Nothing is to be rated yet"), h("p", {}, "Who submitted the job puts a sample up for rating."));
  }
  const size = h("input", { id: "size", type: "number", min: 1, max: 2000, value: "50", required: true });
  const seed = h("input", { id: "seed", type: "number", min: 0, value: "1", required: true });
  const file = h("input", { id: "file", type: "file", accept: ".jsonl,.csv" });
  const disputed = h("input", { id: "disputed", type: "checkbox" });
  const said = h("div", { role: "alert" });
  const begin = (work) => async (event) => {
    event.preventDefault();
    show(said);
    try {
      await ask("POST", of(name, "/rating"), { json: await work() });
      dispatchEvent(new Event("hashchange"));
    } catch (error) {
      show(said, foreign(error.message, "p", { class: "card wrong" }));
    }
  };
  return show(root, crumbs(name, "Rate"), h("h1", {}, "What is to be rated?"), said,
    h("div", { class: "fields" },
      h("form", { class: "card stack", onsubmit: begin(async () => ({ size: Number(size.value), seed: Number(seed.value), disputed: disputed.checked })) },
        h("h2", {}, "Draw a sample"), h("label", { for: "size" }, "Items"), size, h("label", { for: "seed" }, "Seed: the same draws the same items"), seed,
        h("div", { class: "field check" }, disputed, h("label", { for: "disputed" }, "More of what the judges disagree on")),
        h("p", { class: "dim" }, "Each item's chance of being drawn is kept, so that means and agreement stay right. What an escalating panel with a guarantee has left to people is put up as well, and comes first."),
        h("div", { class: "row" }, h("button", { class: "main" }, "Draw"))),
      h("form", { class: "card stack", onsubmit: begin(async () => {
        const given = file.files[0];
        const ending = given.name.slice(given.name.lastIndexOf(".")).toLowerCase();
        const found = await ask("POST", `/uploads?ending=${encodeURIComponent(ending)}`, { body: given, type: "application/octet-stream" });
        return { path: found.path };
      }) },
        h("h2", {}, "Or take a file"), h("p", {}, "One that ", h("code", {}, "dicast sample"), " has written, also of strata or of what judges disagreed on."),
        h("label", { for: "file" }, "The file, .jsonl or .csv"), Object.assign(file, { required: true }),
        h("div", { class: "row" }, h("button", { class: "main" }, "Upload")))));
}

class Rating {
  constructor(root, name, rater, state, signal) {
    Object.assign(this, { root, name, rater, signal, state, texts: new Map(), undone: [], queue: Promise.resolve() });
    this.dimensions = state.dimensions;
    this.given = new Map(state.items.map((id) => [id, new Map(Object.entries(state.given[id] || {}))]));
    this.noted = new Map(state.items.map((id) => [id, new Map(Object.entries(state.noted[id] || {}))]));
    this.whole = localStorage.getItem(WHOLE) === "yes";
    this.steps = state.items.flatMap((id) => this.dimensions.map((_, n) => [id, n]));
    const first = this.steps.findIndex((step) => !this.answered(step));
    this.at = first < 0 ? this.steps.length : first;
  }

  async begin(ready) {
    this.bar = h("progress", { max: this.steps.length, "aria-label": "Rated" });
    this.part = h("span", { class: "part" });
    this.item = h("div", { class: "rated" });
    this.panel = h("section", { class: "card ask", "aria-label": "Your rating" });
    const whole = h("input", { id: "whole", type: "checkbox", checked: this.whole, onchange: () => {
      this.whole = whole.checked;
      localStorage.setItem(WHOLE, this.whole ? "yes" : "no");
      this.later(() => this.draw());
    } });
    this.others = h("div", { class: "raters" });
    this.tellRaters(this.state.raters);
    poll(async () => this.tellRaters((await get(at(of(this.name, "/rating"), { rater: this.rater }), this.signal)).raters), OTHERS_EVERY_S, this.signal);
    show(this.root, crumbs(this.name, "Rate"),
      h("div", { class: "head" }, h("h1", {}, "Rate blind"), h("div", { class: "row" }, h("p", { class: "dim" }, "as ", foreign(this.rater)), this.dimensions.length > 1 && h("div", { class: "field check" }, whole, h("label", { for: "whole" }, "All dimensions at once")))),
      this.others,
      h("div", { class: "progress" }, this.bar, this.part),
      h("div", { class: "rating" }, this.item, this.panel));
    const press = (event) => this.key(event);
    document.addEventListener("keydown", press, { signal: this.signal });
    if (this.at < this.steps.length) await this.text(this.steps[this.at][0]);
    ready();
    await this.draw();
  }

  /** Whether a question has a score, or it was said that none can be given. */
  answered([id, n]) {
    const dimension = this.dimensions[n].id;
    return this.given.get(id).has(dimension) || Boolean(this.noted.get(id).get(dimension)?.cannot_say);
  }

  get done() { return this.steps.filter((step) => this.answered(step)).length; }

  /** How many of the items that are wanted first are left. Why they are is not told: who rates is blind. */
  wantedFirst() {
    const left = this.state.items.slice(0, this.state.first).filter((id) => this.dimensions.some((_, n) => !this.answered([id, n]))).length;
    return left ? `; ${count(left)} of the first ${count(this.state.first)} items are left` : "";
  }

  /** How far all raters are, the others by name. */
  tellRaters(raters) {
    const others = raters.filter((each) => each.name !== this.rater);
    show(this.others, others.length > 0 && h("details", {}, h("summary", {}, `${others.length} other${others.length > 1 ? "s" : ""} rate${others.length > 1 ? "" : "s"}, too`),
      h("ul", {}, others.map((each) => h("li", {}, h("progress", { max: this.steps.length, value: each.ratings + each.cannot_say, "aria-label": `Rated by ${each.name}` }), " ", foreign(each.name), ` ${count(each.ratings + each.cannot_say)} of ${count(this.steps.length)}`, each.finished && ", done")))));
  }

  async text(id) {
    if (!this.texts.has(id)) this.texts.set(id, get(at(of(this.name, "/rating/item"), { rater: this.rater, id }), this.signal));
    try { return await this.texts.get(id); } catch (error) { this.texts.delete(id); throw error; }
  }

  async draw() {
    this.bar.value = this.done;
    this.part.textContent = `${count(this.done)} of ${count(this.steps.length)}${this.wantedFirst()}`;
    if (this.at >= this.steps.length) return this.end();
    const [id, n] = this.steps[this.at];
    if (this.drawn !== id) {
      const found = await this.text(id);
      show(this.item, h("p", { class: "dim" }, `Item ${Math.floor(this.at / this.dimensions.length) + 1} of ${this.state.items.length}`), texts(found.texts));
      this.drawn = id;
      scrollTo(0, 0);
    }
    this.panel.classList.toggle("whole", this.whole);
    show(this.panel, this.whole ? this.dimensions.map((_, each) => h("div", { class: `question${each === n ? " now" : ""}` }, this.question(id, each, each === n))) : this.question(id, n, true), this.buttons());
    const entry = this.panel.querySelector("#entry");
    if (entry) entry.focus({ preventScroll: true });
    else this.panel.querySelector(".now h2, h2").focus({ preventScroll: true });
    this.panel.querySelector(".now")?.scrollIntoView({ block: "nearest" });
    for (const [next] of this.steps.slice(this.at + 1, this.at + 1 + AHEAD * this.dimensions.length)) this.text(next).catch(() => {});
    return undefined;
  }

  /** A dimension's question. Of those that are shown at once, keys go to the one that is asked `now`. */
  question(id, n, now) {
    const dimension = this.dimensions[n], given = this.given.get(id).get(dimension.id), noted = this.noted.get(id).get(dimension.id);
    const scores = this.choices(dimension);
    const go = (work) => this.later(() => { this.at = this.steps.findIndex(([of, each]) => of === id && each === n); return work(); });
    const button = (score, place) => h("button", { type: "button", class: "level", "aria-pressed": String(given === score), "data-score": score, onclick: () => go(() => this.store(score)) },
      this.digit(dimension, place) !== null && h("kbd", {}, this.digit(dimension, place)), foreign(this.label(dimension, score), "b"), dimension.levels[score] && foreign(dimension.levels[score], "span"));
    const field = now ? "entry" : `entry-${n}`;
    const entry = h("input", { id: field, type: "number", min: dimension.min, max: dimension.max, step: 1, value: String(given ?? "") });
    const cannot = noted?.cannot_say && given === undefined;
    return [
      h("p", { class: "dim" }, `Dimension ${n + 1} of ${this.dimensions.length}`),
      h("h2", { tabindex: "-1" }, foreign(dimension.name || dimension.id)),
      dimension.instructions && foreign(dimension.instructions, "p", { class: "instructions", tabindex: "0" }),
      dimension.kind === "preference" && h("p", { class: "dim" }, h("kbd", {}, "A"), " or ", h("kbd", {}, "B"), " is better, ", h("kbd", {}, "T"), " a tie", scores.length > 3 && "; the digits tell how much better"),
      dimension.questions?.length > 0 && h("p", {}, "How many of these have the answer yes?"),
      dimension.questions?.length > 0 && h("ol", {}, dimension.questions.map((question) => h("li", {}, foreign(question)))),
      scores ? h("div", { class: `levels${scores.some((score) => dimension.levels[score]) ? "" : " plain"}` }, scores.map(button))
        : h("form", { class: "row", onsubmit: (event) => { event.preventDefault(); if (entry.value !== "") go(() => this.store(Number(entry.value))); } },
          h("label", { for: field }, `${dimension.min} to ${dimension.max}`), entry, h("button", { class: "main" }, "Rate"),
          Object.keys(dimension.levels).length > 0 && h("dl", { class: "told" }, Object.entries(dimension.levels).map(([score, told]) => [h("dt", {}, score), foreign(told, "dd")]))),
      h("div", { class: "row" },
        h("button", { type: "button", class: "quiet cannot", "aria-pressed": String(Boolean(cannot)), onclick: () => go(() => this.storeCannot()) }, "Cannot say ", h("kbd", {}, "X")),
        this.notes(id, n, noted)),
    ];
  }

  /** A note on this item and dimension, kept when the field is left. */
  notes(id, n, noted) {
    const { id: dimension, name } = this.dimensions[n];
    const text = h("textarea", { rows: 2, maxlength: 2000, "aria-label": `Note on ${name || dimension}`, onchange: () => this.later(async () => {
      await this.sendNote(id, dimension, { note: text.value });
      say("The note is kept");
    }) });
    text.value = noted?.note ?? "";
    return h("details", { class: "note", open: Boolean(noted?.note) }, h("summary", {}, "Note"), text);
  }

  buttons() {
    const step = this.whole ? this.dimensions.length : 1;
    return h("div", { class: "row steps" },
      h("button", { type: "button", class: "quiet", onclick: () => this.move(-step), disabled: this.at === 0 }, h("kbd", {}, "←"), " Back"),
      h("button", { type: "button", class: "quiet", onclick: () => this.move(step) }, "On ", h("kbd", {}, "→")),
      h("button", { type: "button", class: "quiet", onclick: () => this.undo(), disabled: !this.undone.length }, "Undo ", h("kbd", {}, "U")));
  }

  /** The scores that have a button each, or nothing where there are too many; of a pair A stands first. */
  choices(dimension) {
    const wide = dimension.max - dimension.min + 1;
    const scores = wide <= 20 ? Array.from({ length: wide }, (_, n) => dimension.min + n) : null;
    return scores && dimension.kind === "preference" ? scores.reverse() : scores;
  }

  label(dimension, score) { return dimension.options[score - dimension.min] ?? String(score); }

  /** The key of a choice: its own digit where scores are digits (0 stands for 10), else its place. */
  digit(dimension, place) {
    const named = dimension.options.length > 0;
    const score = named ? place + 1 : dimension.min + place;
    if (!named && dimension.min >= 1 && score === 10) return "0";
    return score >= 0 && score <= 9 ? String(score) : null;
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const typing = event.target.matches("input, textarea, select");
    if (typing && !(event.target.id === "entry" && event.target.value === "" && ["ArrowLeft", "ArrowRight", "u", "U", "x", "X", "Backspace"].includes(event.key))) return;
    const now = this.steps[this.at];
    const dimension = now && this.dimensions[now[1]];
    const scores = dimension && this.choices(dimension);
    if (event.key === "ArrowRight" || event.key === "j") this.move(1);
    else if (event.key === "ArrowLeft" || event.key === "k") this.move(-1);
    else if (event.key === "u" || event.key === "U" || event.key === "Backspace") this.undo();
    else if (event.key === "x" || event.key === "X") this.later(() => this.storeCannot());
    else if (/^[0-9]$/.test(event.key) && (scores || !now)) this.later(async () => this.press(event.key));
    else if (SIDES[event.key.toLowerCase()] !== undefined && this.dimensions.some((of) => of.kind === "preference")) this.later(async () => this.side(event.key.toLowerCase()));
    else return;
    event.preventDefault();
  }

  /** A digit counts for the question that is shown when its turn comes: who types ahead rates one after the other. */
  async press(key) {
    const now = this.steps[this.at];
    if (!now) return;
    const dimension = this.dimensions[now[1]], scores = this.choices(dimension);
    const place = scores ? scores.findIndex((_, n) => this.digit(dimension, n) === key) : -1;
    if (place >= 0) await this.store(scores[place]);
    else notice(`${key} is not on this scale.`);
  }

  /** A, B or T for a tie, of a pair; of how much better it is, the digits tell. */
  async side(key) {
    const now = this.steps[this.at];
    if (now && this.dimensions[now[1]].kind === "preference") await this.store(SIDES[key]);
  }

  /** One thing after the other, in the order in which it was asked for. */
  later(work) {
    this.queue = this.queue.then(work).catch((error) => { if (error.name !== "AbortError") notice(error.message); });
    return this.queue;
  }

  async send(id, dimension, score) {
    await ask("POST", of(this.name, "/rating/scores"), { json: { rater: this.rater, item_id: id, dimension, score }, signal: this.signal });
    if (score === null) this.given.get(id).delete(dimension);
    else this.given.get(id).set(dimension, score);
  }

  async sendNote(id, dimension, changes) {
    const note = { cannot_say: false, note: "", ...this.noted.get(id).get(dimension), ...changes };
    await ask("POST", of(this.name, "/rating/notes"), { json: { rater: this.rater, item_id: id, dimension, ...note }, signal: this.signal });
    this.noted.get(id).set(dimension, note);
  }

  /** No score can be given; one that was given is taken back. */
  async storeCannot() {
    const now = this.steps[this.at];
    if (!now) return;
    const [id, n] = now, dimension = this.dimensions[n].id;
    const before = this.given.get(id).get(dimension) ?? null;
    await this.sendNote(id, dimension, { cannot_say: true });
    if (before !== null) await this.send(id, dimension, null);
    this.undone.push([this.at, before, true]);
    this.at += 1;
    await this.draw();
    say("Kept: cannot say");
  }

  async store(score) {
    const now = this.steps[this.at];
    if (!now) return;
    const [id, n] = now, dimension = this.dimensions[n].id;
    const before = this.given.get(id).get(dimension) ?? null;
    await this.send(id, dimension, score);
    if (this.noted.get(id).get(dimension)?.cannot_say) await this.sendNote(id, dimension, { cannot_say: false });
    this.undone.push([this.at, before]);
    this.at += 1;
    await this.draw();
    say(`${this.label(this.dimensions[n], score)} is kept`);
  }

  move(by) {
    return this.later(async () => {
      this.at = Math.max(0, Math.min(this.steps.length, this.at + by));
      await this.draw();
    });
  }

  undo() {
    return this.later(async () => {
      const last = this.undone.at(-1);
      if (!last) return notice("There is nothing to take back.");
      const [id, n] = this.steps[last[0]];
      if (last[2]) await this.sendNote(id, this.dimensions[n].id, { cannot_say: false });
      if (!last[2] || last[1] !== null) await this.send(id, this.dimensions[n].id, last[1]);
      this.undone.pop();
      this.at = last[0];
      await this.draw();
      say("Taken back");
      return undefined;
    });
  }

  end() {
    const left = this.steps.length - this.done;
    this.drawn = null;
    show(this.item);
    show(this.panel,
      h("h2", { tabindex: "-1" }, left ? `${count(left)} ratings are left out` : "You have rated everything"),
      h("p", {}, "Your ratings are kept. You can still change them, by going back. Once you see what the judges said, you cannot any more."),
      h("div", { class: "row" },
        h("button", { type: "button", class: "main", disabled: ![...this.given.values()].some((of) => of.size), onclick: act(() => this.finish(left)) }, "I am done: show the agreement"),
        h("button", { type: "button", class: "quiet", onclick: () => this.move(-1) }, h("kbd", {}, "←"), " Back"),
        left > 0 && h("button", { type: "button", class: "quiet", onclick: () => this.later(async () => {
          this.at = this.steps.findIndex((step) => !this.answered(step));
          await this.draw();
        }) }, "To the first that is left out")));
    this.panel.querySelector("h2").focus({ preventScroll: true });
  }

  async finish(left) {
    if (left && !(await confirmed(`${count(left)} ratings are left out. Are you done?`, "I am done"))) return;
    say("The agreement is computed");
    show(this.panel, h("p", { class: "wait" }, "The agreement is computed; this takes some seconds …"));
    try {
      told(this.root, this.name, await ask("POST", of(this.name, "/rating/finish"), { json: { rater: this.rater }, signal: this.signal }));
    } catch (error) {
      this.end();
      throw error;
    }
  }
}

async function agreement(root, name, rater, signal, ready) {
  const found = await get(at(of(name, "/rating/agreement"), { rater }), signal);
  ready();
  told(root, name, found);
}

/** How people and judges agree, and where this rater and they lie farthest apart. */
function told(root, name, found) {
  const figure = (of) => (of.value === null || of.value === undefined ? h("span", { class: "dim", title: of.reason || "" }, "–") : [fixed(of.value), of.low !== null && h("span", { class: "dim" }, ` ${fixed(of.low)} to ${fixed(of.high)}`)]);
  show(root, crumbs(name, "Rate"), h("h1", { tabindex: "-1" }, "How you and the judges agree"),
    h("p", {}, `${count(found.ratings)} ratings by `, foreign(found.rater), ". They are part of the job's report now."),
    found.reason && foreign(`The statistics are not computed: ${found.reason}.`, "p", { class: "card" }),
    found.dimensions.map((d) => h("section", { class: "card" }, h("h2", {}, foreign(d.dimension)),
      h("ul", {}, d.summary.map((line) => h("li", {}, foreign(line)))),
      wide(`Agreement in ${d.dimension}`, h("table", { class: "small" },
        h("thead", {}, h("tr", {}, ["Voice", "Pearson", "Spearman", "Kappa", "Lies higher by"].map((label, n) => h("th", { scope: "col", class: n ? "number" : null }, label)))),
        h("tbody", {}, d.voices.map((voice) => h("tr", {}, h("th", { scope: "row" }, foreign(voice.name)), [voice.pearson, voice.spearman, voice.kappa, voice.bias].map((of) => h("td", { class: "number" }, figure(of)))))))))),
    h("section", {}, h("h2", {}, "Item by item, what lies farthest apart first"),
      found.compared.some((each) => PAIRED.has(each.label)) && h("p", { class: "dim" }, "A and B are the item's own here; you may have seen them the other way round. A judge's number is above 0 where A is better."),
      wide("Item by item", h("table", {},
        h("thead", {}, h("tr", {}, ["Item", "Dimension", "You", "Judges", "Apart"].map((label, n) => h("th", { scope: "col", class: n > 1 && n !== 3 ? "number" : null }, label)))),
        h("tbody", {}, found.compared.map((each) => h("tr", {},
          h("td", {}, h("a", { href: `#/jobs/${encodeURIComponent(name)}/item?${new URLSearchParams({ id: each.item_id })}` }, foreign(each.item_id))),
          h("td", {}, foreign(each.dimension)), h("td", { class: "number" }, foreign(each.label ?? String(each.score))),
          h("td", {}, Object.entries(each.judges).map(([judge, score], n) => [n ? ", " : "", foreign(judge), ` ${fixed(score, Number.isInteger(score) ? 0 : 2)}`])),
          h("td", { class: "number" }, percent(each.apart)))))))));
  root.querySelector("h1").focus({ preventScroll: true });
  scrollTo(0, 0);
}
