// One item: what was judged, with the judges' evidence marked in it, and all that they said.

import { at, get, job as of } from "./ask.js";
import { step, strip } from "./charts.js";
import { act, count, fixed, foreign, h, notice, say, show } from "./dom.js";
import { crumbs, nominal, optionsOf, title } from "./job.js";
import { formOf, rendered } from "./markdown.js";

const SHOWN = 20000;
const QUOTES = 300;

/** The list that an item was opened from: its items in their order, and its address. */
export const trail = {
  job: "", ids: [], hash: "",
  set(job, ids, hash) { Object.assign(this, { job, ids, hash }); },
};

export async function itemView({ root, name, query, signal, ready }) {
  const id = query.get("id") || "";
  const report = await get(of(name, "/report"), signal);
  const parts = await itemParts(name, id, report, signal);
  const known = trail.job === name ? trail.ids.indexOf(id) : -1;
  const link = (n) => at(`#/jobs/${encodeURIComponent(name)}/item`, { id: trail.ids[n] });
  const beside = (n, label, key) => (known >= 0 && trail.ids[n] !== undefined ? h("a", { class: "button", href: link(n) }, label, h("kbd", {}, key)) : known >= 0 && h("span", { class: "button off", "aria-disabled": "true" }, label, h("kbd", {}, key)));
  show(root, crumbs(name, "Item"),
    h("div", { class: "head" }, h("h1", {}, foreign(id)), h("div", { class: "row" }, beside(known - 1, "Before ", "K"), beside(known + 1, "Next ", "J"),
      h("a", { class: "button", href: known >= 0 ? trail.hash : `#/jobs/${encodeURIComponent(name)}/items` }, known >= 0 ? "Back to the list" : "All items"))),
    parts.head,
    h("div", { class: "beside" }, parts.texts, parts.opinions));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select") || known < 0) return;
    const next = { j: known + 1, k: known - 1 }[event.key];
    if (next !== undefined && trail.ids[next] !== undefined) location.replace(link(next));
    else if (event.key === "Escape") location.hash = trail.hash;
  }, { signal });
  ready();
}

/** The parts of an item's view, which stand beside a list, too. The text comes when it is known. */
export async function itemParts(name, id, report, signal) {
  const found = await get(at(of(name, "/item"), { id }), signal);
  const text = h("section", { "aria-label": "Text" }, h("p", { class: "wait" }, "The text is looked for …"));
  const metadata = Object.entries(found.opinions[0] ?? {}).filter(([key, value]) => key.startsWith("metadata.") && value !== null).map(([key, value]) => [key.slice(9), String(value)]);
  const own = { metadata: Object.fromEntries(metadata) };
  const head = h("div", { class: "row facts" }, metadata.map(([key, value]) => h("span", { class: "fact" }, h("span", { class: "dim" }, foreign(key), " "), foreign(value))), copier("Copy the id", () => id));
  const whole = get(at(of(name, "/text"), { id }), signal).catch((error) => ({ item: null, reason: error.message }));
  const opinions = h("section", { "aria-label": "Opinions" }, report.dimensions.map((d) => about(name, d, found, own, whole, signal)),
    found.more && h("p", { class: "dim" }, `Only the first ${count(found.opinions.length)} opinions are shown.`));
  whole.then((told) => { if (!signal.aborted) showText(text, told, found.opinions); });
  return { head, texts: text, opinions };
}

/** What the ends of a preference's scale are called: the two that were compared, where they have names. */
export function sides(item) {
  const named = item.metadata ?? {};
  const side = (letter) => named[`candidate_${letter}`] ?? named[`system_${letter}`] ?? letter.toUpperCase();
  return [side("b"), "tie", side("a")];
}

/** What a score of the item means in words, where it has some. */
function wordsOf(dimension, own) {
  const names = optionsOf(dimension), [b, , a] = sides(own);
  return dimension.kind === "preference" ? names.map((label) => label.replace(/^A\b/, a).replace(/^B\b/, b)) : names;
}

function copier(label, text) {
  return h("button", { type: "button", class: "quiet copy", onclick: act(async () => {
    try { await navigator.clipboard.writeText(text()); say("Copied"); } catch { notice("The browser does not let this page copy."); }
  }) }, label);
}

/** All that was said of the item in one dimension. */
function about(name, dimension, found, own, whole, signal) {
  const mine = found.opinions.filter((opinion) => opinion.criterion_id === dimension.id);
  const scores = mine.map((opinion) => opinion.score).filter((score) => score !== null);
  const errors = found.errors.filter((error) => error.criterion_id === dimension.id);
  const people = found.ratings.filter((rating) => rating.dimension === dimension.id);
  const names = wordsOf(dimension, own), compared = dimension.kind === "preference";
  const named = (score) => names[score - dimension.scale_min] ?? (Number.isInteger(score) ? String(score) : fixed(score));
  const mean = scores.reduce((sum, score) => sum + score, 0) / scores.length;
  const means = Object.fromEntries(mine.filter((opinion) => opinion.score !== null).map((opinion) => [`${opinion.judge}${opinion.replicate ? `, time ${opinion.replicate + 1}` : ""}`, opinion.score]));
  const plain = compared || nominal(dimension);
  return h("section", { class: "card" },
    h("div", { class: "head" }, h("h2", {}, foreign(title(dimension))),
      scores.length > 0 && !nominal(dimension) && h("div", { class: "row strip" }, strip(means, Object.fromEntries(people.map((each) => [each.rater, each.score])), dimension, title(dimension), names),
        !plain && h("span", { class: "dim" }, `mean ${fixed(mean)}`, scores.length > 1 && `, from ${named(Math.min(...scores))} to ${named(Math.max(...scores))}`))),
    people.length > 0 && h("p", { class: "row" }, h("span", { class: "dim" }, "People:"), people.map((each) => h("span", {}, foreign(each.rater), " ", h("b", {}, foreign(Number.isInteger(each.score) ? named(each.score) : fixed(each.score)))))),
    found.notes.filter((note) => note.dimension === dimension.id).map((note) => h("p", {}, foreign(note.rater, "b"), note.cannot_say && " cannot say", note.note && [": ", foreign(note.note)])),
    h("ul", { class: "opinions" }, mine.map((opinion) => h("li", {},
      h("div", { class: "row" },
        h("span", { class: `chip ${plain ? "" : `tone${step(opinion.score, dimension.scale_min, dimension.scale_max) ?? "none"}`}` }, opinion.score === null ? (opinion.not_needed ? "not needed" : "failed") : foreign(compared ? named(opinion.score) : opinion.label ?? named(opinion.score))),
        h("b", {}, foreign(opinion.judge)), h("span", { class: "dim" }, foreign(opinion.model), opinion.replicate ? `, time ${opinion.replicate + 1}` : "", opinion.swapped ? ", order swapped" : "")),
      opinion.argument && h("div", { class: "argument" }, marked(opinion.argument)),
      opinion.dissent && h("div", {}, h("h3", {}, "Dissent"), h("div", { class: "argument" }, marked(opinion.dissent))),
      dimension.questions?.length > 0 && opinion.answers && h("ul", { class: "answers" }, dimension.questions.map((question, n) => h("li", {}, h("b", {}, opinion.answers[n] ? "yes" : "no"), " ", foreign(question)))),
      dimension.kind === "criteria" && opinion.answers && answered(opinion, whole),
      (opinion.cited_evidence || []).map((quote) => h("blockquote", { dir: "auto" }, quote)),
      opinion.score === null && errors.filter((error) => error.judge === opinion.judge && error.replicate === opinion.replicate).map((error) => h("p", { class: "wrong" }, `${error.kind.replaceAll("_", " ")}: `, foreign(error.message))),
      traces(name, opinion, signal)))));
}

/** What a judge found of the item's own criteria, with their texts as soon as they are known. */
function answered(opinion, whole) {
  const [low, high] = opinion.attained ?? [], open = opinion.answers.filter((met) => met === null).length;
  const list = h("ul", { class: "answers" });
  const draw = (criteria) => show(list, opinion.answers.map((met, n) => {
    const of = criteria?.[n], good = of && met !== null && met === of.points > 0;
    return h("li", {}, h("b", { class: of && met !== null ? (good ? "good" : "bad") : "" }, met === null ? "no answer" : met ? "met" : "not met"),
      h("span", {}, of ? [foreign(of.text), h("span", { class: "dim" }, ` (${of.points > 0 ? "+" : ""}${of.points})`)] : `criterion ${n + 1}`));
  }));
  draw();
  whole.then((told) => draw(told.item?.criteria));
  return [low !== undefined && h("p", { class: "dim" }, low === high ? `${fixed(100 * low, 1)} % of its points` : `${fixed(100 * low, 1)} to ${fixed(100 * high, 1)} % of its points, as ${open === 1 ? "one criterion has" : `${open} criteria have`} no answer`), list];
}

/** What a call took, what was sent, and what is kept of its answer. */
function traces(name, opinion, signal) {
  const facts = [
    opinion.latency_s > 0 && `${fixed(opinion.latency_s, 1)} s`, opinion.input_tokens + opinion.output_tokens > 0 && `${count(opinion.input_tokens)} tokens in, ${count(opinion.output_tokens)} out`,
    typeof opinion.cost === "number" && `$${opinion.cost.toPrecision(2)}`, opinion.attempts > 1 && `${opinion.attempts} attempts`,
  ].filter(Boolean);
  const sent = h("div", { class: "stack" }), kept = h("div", { class: "stack" });
  const prompt = h("details", { ontoggle: async () => {
    if (!prompt.open || sent.firstChild) return;
    const told = await get(at(of(name, "/prompt"), { id: opinion.item_id, judge: opinion.judge, dimension: opinion.criterion_id }), signal).catch((error) => ({ reason: error.message }));
    if (told.reason) return show(sent, foreign(`It cannot be shown: ${told.reason}.`, "p", { class: "dim" }));
    return show(sent, h("p", { class: "dim" }, "As it was sent, but for the code at the material's end, which is drawn anew here.", copier("Copy", () => `${told.system}\n\n${told.user}`)),
      told.system && [h("h3", {}, "System"), h("pre", { class: "code", dir: "auto", tabindex: "0" }, told.system)], h("h3", {}, "User"), h("pre", { class: "code", dir: "auto", tabindex: "0" }, told.user));
  } }, h("summary", {}, "Prompt"), sent);
  const answer = h("details", { ontoggle: () => {
    if (answer.open && !kept.firstChild) show(kept, copier("Copy", () => JSON.stringify(opinion, null, 2)), h("pre", { class: "code", dir: "auto", tabindex: "0" }, JSON.stringify(opinion, null, 2)));
  } }, h("summary", {}, "Answer as kept"), kept);
  return h("div", { class: "traces" }, facts.length > 0 && h("span", { class: "dim" }, facts.join(" · ")), prompt, answer);
}

function showText(root, told, opinions) {
  if (!told.item) return show(root, h("p", { class: "card" }, "The text cannot be shown: ", foreign(told.reason || "it is not known here"), "."));
  const quotes = [...new Set(opinions.flatMap((opinion) => opinion.cited_evidence || []))].filter((quote) => quote.trim()).slice(0, QUOTES);
  show(root, texts(told.item, quotes));
  return undefined;
}

const NAMED = { prompt: "What it answers", reference: "A good answer", text: "Text", text_a: "Text A", text_b: "Text B" };

/** The texts of an item, whatever kind it is of, each under its name: a text, two beside each other, a conversation turn
 * by turn, candidates, and what is known of images. Nothing is fetched for them. */
export function texts(item, quotes = []) {
  const card = (label, text, judged, more) => h("div", { class: "card" }, text ? shown(label, text, judged ? quotes : []) : h("h2", {}, foreign(label)), more);
  const plain = (field) => typeof item[field] === "string" && card(NAMED[field], item[field], field.startsWith("text"));
  const list = (field) => (Array.isArray(item[field]) ? item[field] : []);
  return [
    plain("prompt"), plain("reference"), plain("text"),
    item.text_a !== undefined && h("div", { class: "sides" }, plain("text_a"), plain("text_b")),
    list("messages").map((turn, n) => card(`${n + 1}. ${turn.role ?? "message"}${turn.name ? ` (${turn.name})` : ""}`, turn.content || "", true,
      [called(turn.tool_calls), pictures(turn.images)])),
    list("candidates").map((one, n) => card(`Candidate ${n + 1}: ${one.id ?? ""}`, String(one.text ?? one), true)),
    pictures(item.images),
  ].flat().filter(Boolean);
}

/** A text under its name, with marks of Markdown and JSON as they were meant, or as it was written. */
function shown(label, text, quotes) {
  const form = formOf(text);
  const body = h("div");
  const met = new Set();
  const leaf = (piece) => spans(piece, 0, piece.length, quotes.flatMap((quote) => {
    const found = where(piece, quote);
    if (found.length) met.add(quote);
    return found;
  }).sort((a, b) => a[0] - b[0]));
  const rich = form !== "plain" && h("div", { class: "text rich", dir: "auto" }, rendered(text, leaf));
  let formatted = form !== "plain" && quotes.every((quote) => met.has(quote) || !where(text, quote).length);
  const draw = () => show(body, formatted ? rich : marked(text, quotes));
  const turn = form !== "plain" && h("button", { type: "button", class: "quiet copy", "aria-pressed": String(!formatted), onclick: () => { formatted = !formatted; turn.setAttribute("aria-pressed", String(!formatted)); draw(); } }, "As written");
  draw();
  return [h("div", { class: "head" }, h("h2", {}, foreign(label)), h("div", { class: "row" }, turn, copier("Copy", () => text))), body];
}

const called = (calls) => Array.isArray(calls) && calls.length > 0 && [h("h3", {}, "Tools that it calls"), h("pre", { class: "calls", dir: "auto", tabindex: "0" }, JSON.stringify(calls, null, 1))];

/** Images are told of, and never fetched: an address would tell its host who looks. */
const pictures = (images) => Array.isArray(images) && images.length > 0 && h("ul", { class: "pictures" }, images.map((one, n) => {
  const source = String(one.image ?? one.url ?? one);
  const [, kind] = /^data:([^;,]{1,60})/.exec(source) ?? [];
  return h("li", {}, `Image ${n + 1}: `, kind ? `${kind}, ${count(Math.round(0.75 * source.length / 1000))} kB` : foreign(source.slice(0, 500)), one.description && [h("br"), foreign(one.description)]);
}));

/** A text with what was cited in it marked. Long ones are cut until all is asked for, and stand in pieces, of which a
 * browser lays out those that are seen: a line of a megabyte would else hold it up for many seconds. */
export function marked(text, quotes = []) {
  const box = h("div", { class: "text", dir: "auto" });
  const ranges = () => quotes.flatMap((quote) => where(text, quote)).sort((a, b) => a[0] - b[0]);
  const draw = (to) => {
    const found = ranges();
    const parts = [];
    for (let from = 0; from < to;) {
      const end = cut(text, from, to);
      parts.push(h("div", { dir: "auto", class: to > SHOWN ? "piece" : null }, spans(text, from, end, found)));
      from = end;
    }
    show(box, parts);
  };
  if (text.length <= SHOWN) { draw(text.length); return box; }
  draw(cut(text, 0, text.length));
  const more = h("button", { type: "button", class: "quiet", onclick: () => { draw(text.length); more.remove(); } }, `Show all ${count(text.length)} characters`);
  return [box, more];
}

/** Where the piece that begins at `from` ends: behind a line's end if there is one, and in no character's middle. */
function cut(text, from, to) {
  if (to - from <= SHOWN) return to;
  const most = from + SHOWN;
  const line = text.lastIndexOf("\n", most - 1);
  if (line > from + SHOWN / 2) return line + 1;
  const code = text.charCodeAt(most - 1);
  return code >= 0xd800 && code < 0xdc00 ? most - 1 : most;
}

function spans(text, from, to, ranges) {
  const found = [];
  let at = from;
  for (const [first, last] of ranges) {
    const start = Math.max(first, at), end = Math.min(last, to);
    if (end <= start) continue;
    found.push(text.slice(at, start), h("mark", {}, text.slice(start, end)));
    at = end;
  }
  found.push(text.slice(at, to));
  return found;
}

/** Where a quote stands: as it is, or with other white space, quotation marks and case. */
function where(text, quote) {
  const plain = text.indexOf(quote);
  if (plain >= 0) return [[plain, plain + quote.length]];
  const parts = quote.trim().split(/\s+/).map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&").replace(/["“”„]/g, "[\"“”„]").replace(/['‘’]/g, "['‘’]"));
  if (!parts.length || parts.length > 200) return [];
  const found = new RegExp(parts.join("\\s+"), "iu").exec(text);
  return found ? [[found.index, found.index + found[0].length]] : [];
}
