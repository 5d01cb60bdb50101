// One item: what was judged, with the judges' evidence marked in it, and all that they said.

import { at, get, job as of } from "./ask.js";
import { step } from "./charts.js";
import { count, fixed, foreign, h, show } from "./dom.js";
import { crumbs, nominal, optionsOf, title } from "./job.js";

const SHOWN = 20000;
const QUOTES = 300;

export async function itemView({ root, name, query, signal, ready }) {
  const id = query.get("id") || "";
  const [report, found] = await Promise.all([get(of(name, "/report"), signal), get(at(of(name, "/item"), { id }), signal)]);
  const text = h("section", { "aria-label": "Text" }, h("p", { class: "wait" }, "The text is looked for …"));
  show(root, crumbs(name, "Item"), h("h1", {}, foreign(id)),
    h("p", {}, h("a", { href: `#/jobs/${encodeURIComponent(name)}/items` }, "All items")),
    h("div", { class: "beside" }, text,
      h("section", { "aria-label": "Opinions" }, report.dimensions.map((d) => about(d, found)),
        found.more && h("p", { class: "dim" }, `Only the first ${count(found.opinions.length)} opinions are shown.`))));
  ready();
  const told = await get(at(of(name, "/text"), { id }), signal).catch((error) => ({ item: null, reason: error.message }));
  if (!signal.aborted) showText(text, told, found.opinions);
}

/** All that was said of the item in one dimension. */
function about(dimension, found) {
  const mine = found.opinions.filter((opinion) => opinion.criterion_id === dimension.id);
  const scores = mine.map((opinion) => opinion.score).filter((score) => score !== null);
  const errors = found.errors.filter((error) => error.criterion_id === dimension.id);
  const names = optionsOf(dimension);
  const mean = scores.reduce((sum, score) => sum + score, 0) / scores.length;
  const deviation = Math.sqrt(scores.reduce((sum, score) => sum + (score - mean) ** 2, 0) / scores.length);
  return h("section", { class: "card" },
    h("div", { class: "head" }, h("h2", {}, foreign(title(dimension))),
      scores.length > 0 && !nominal(dimension) && h("p", { class: "dim" }, `mean ${fixed(mean)}`, scores.length > 1 && `, from ${named(Math.min(...scores), dimension)} to ${named(Math.max(...scores), dimension)}, spread ${fixed(deviation)}`)),
    h("ul", { class: "opinions" }, mine.map((opinion) => h("li", {},
      h("div", { class: "row" },
        h("span", { class: `chip ${nominal(dimension) ? "" : `tone${step(opinion.score, dimension.scale_min, dimension.scale_max) ?? "none"}`}` }, opinion.score === null ? (opinion.not_needed ? "not needed" : "failed") : foreign(opinion.label ?? named(opinion.score, dimension))),
        h("b", {}, foreign(opinion.judge)), h("span", { class: "dim" }, foreign(opinion.model), opinion.replicate ? `, time ${opinion.replicate + 1}` : "", opinion.swapped ? ", order swapped" : "")),
      opinion.argument && h("div", { class: "argument" }, marked(opinion.argument)),
      opinion.dissent && h("div", {}, h("h3", {}, "Dissent"), h("div", { class: "argument" }, marked(opinion.dissent))),
      dimension.questions?.length > 0 && opinion.answers && h("ul", { class: "answers" }, dimension.questions.map((question, n) => h("li", {}, h("b", {}, opinion.answers[n] ? "yes" : "no"), " ", foreign(question)))),
      (opinion.cited_evidence || []).map((quote) => h("blockquote", { dir: "auto" }, quote)),
      opinion.score === null && errors.filter((error) => error.judge === opinion.judge && error.replicate === opinion.replicate).map((error) => h("p", { class: "wrong" }, `${error.kind.replaceAll("_", " ")}: `, foreign(error.message)))))));

  function named(score, of) { return names[score - of.scale_min] ?? String(score); }
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
  const card = (label, text, judged, more) => h("div", { class: "card" }, h("h2", {}, foreign(label)), text && marked(text, judged ? quotes : []), more);
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
