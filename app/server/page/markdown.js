// Texts as their writers meant them: Markdown, code and JSON, made of elements and text nodes alone. A link or an image
// is shown as its words and its address, and leads nowhere: its host would learn who looks.

import { h } from "./dom.js";

const RICH = 20000;
const LINE = 2000;
const INLINE = /(`+)([\s\S]+?)\1(?!`)|\*\*([^*\n]+)\*\*|__([^_\n]+)__|\*([^*\s][^*\n]*)\*|~~([^~\n]+)~~|!?\[([^\]\n]*)\]\(([^)\s]*)[^)\n]*\)/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^\s*([-*_])(\s*\1){2,}\s*$/;
const ROW = /^\s*\|?.*\|.*$/;

/** Whether a text has marks of Markdown, is JSON, or is neither. */
export function formOf(text) {
  if (text.length > RICH) return "plain";
  if (json(text) !== undefined) return "json";
  return /(^|\n)(#{1,6} |```|~~~|\s*[-*+] |\s*\d{1,3}[.)] |> |\|.*\|)|\*\*[^*\n]+\*\*|`[^`\n]+`|\]\([^)\s]{1,500}\)/.test(text) ? "markdown" : "plain";
}

function json(text) {
  const begins = text.trimStart()[0];
  if (begins !== "{" && begins !== "[") return undefined;
  try { return JSON.parse(text); } catch { return undefined; }
}

/** The text as elements; `leaf` makes what stands for a piece of plain text. */
export function rendered(text, leaf = (piece) => piece) {
  const form = formOf(text);
  if (form === "json") return [h("pre", { class: "code", dir: "auto", tabindex: "0" }, leaf(JSON.stringify(json(text), null, 2)))];
  return blocks(text.replaceAll("\r\n", "\n").split("\n"), leaf, 0);
}

function blocks(lines, leaf, depth) {
  const found = [];
  for (let at = 0; at < lines.length;) {
    const line = lines[at];
    const fence = /^\s*(```+|~~~+)\s*([\w+#.-]*)/.exec(line);
    if (fence) {
      const end = lines.findIndex((each, n) => n > at && each.trim().startsWith(fence[1]));
      const last = end < 0 ? lines.length : end;
      found.push(h("pre", { class: "code", dir: "auto", tabindex: "0", "aria-label": fence[2] ? `Code, ${fence[2]}` : "Code" }, leaf(lines.slice(at + 1, last).join("\n"))));
      at = last + 1;
    } else if (!line.trim()) {
      at += 1;
    } else if (/^#{1,6}\s/.test(line)) {
      found.push(h("p", { class: "heading", dir: "auto" }, inline(line.replace(/^#{1,6}\s+/, ""), leaf)));
      at += 1;
    } else if (RULE.test(line)) {
      found.push(h("hr"));
      at += 1;
    } else if (/^\s*>/.test(line) && depth < 5) {
      const last = until(lines, at, (each) => /^\s*>/.test(each));
      found.push(h("blockquote", { dir: "auto" }, blocks(lines.slice(at, last).map((each) => each.replace(/^\s*>\s?/, "")), leaf, depth + 1)));
      at = last;
    } else if (ITEM.test(line) && depth < 5) {
      const last = until(lines, at, (each) => ITEM.test(each) || /^\s{2,}\S/.test(each));
      found.push(list(lines.slice(at, last), leaf, depth));
      at = last;
    } else if (ROW.test(line) && /^\s*\|?[\s:|-]+\|[\s:|-]*$/.test(lines[at + 1] ?? "")) {
      const last = until(lines, at, (each) => ROW.test(each));
      found.push(table(lines.slice(at, last), leaf));
      at = last;
    } else {
      const last = until(lines, at, (each, n) => each.trim() && (n === at || !(/^(#{1,6}\s|\s*>|\s*(```|~~~))/.test(each) || ITEM.test(each) || RULE.test(each))));
      found.push(h("p", { dir: "auto" }, lines.slice(at, last).map((each, n) => [n > 0 && h("br"), inline(each, leaf)])));
      at = last;
    }
  }
  return found;
}

function until(lines, from, like) {
  let at = from;
  while (at < lines.length && like(lines[at], at)) at += 1;
  return Math.max(at, from + 1);
}

function list(lines, leaf, depth) {
  const indent = ITEM.exec(lines[0])[1].length;
  const items = [];
  for (const line of lines) {
    const found = ITEM.exec(line);
    if (found && found[1].length <= indent + 1) items.push([found[3]]);
    else items.at(-1).push(line.slice(Math.min(indent + 2, /^\s*/.exec(line)[0].length)));
  }
  const numbered = /\d/.test(ITEM.exec(lines[0])[2]);
  return h(numbered ? "ol" : "ul", { dir: "auto", start: numbered ? parseInt(ITEM.exec(lines[0])[2], 10) : null }, items.map(([first, ...rest]) => h("li", {}, inline(first, leaf), rest.length > 0 && blocks(rest, leaf, depth + 1))));
}

function table(lines, leaf) {
  const cells = (line) => line.trim().replace(/^\|/, "").replace(/\|$/, "").split("|").map((cell) => inline(cell.trim(), leaf));
  const [head, , ...rows] = lines;
  return h("div", { class: "wide", role: "region", "aria-label": "A table of the text", tabindex: "0" }, h("table", { class: "small" },
    h("thead", {}, h("tr", {}, cells(head).map((cell) => h("th", { scope: "col" }, cell)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, cells(row).map((cell) => h("td", { dir: "auto" }, cell)))))));
}

function inline(text, leaf, depth = 0) {
  const found = [];
  let rest = text;
  while (rest && depth < 4 && text.length <= LINE) {
    const match = INLINE.exec(rest);
    if (!match) break;
    if (match.index) found.push(leaf(rest.slice(0, match.index)));
    const [whole, , code, strong, strong2, em, struck, words, address] = match;
    if (code !== undefined) found.push(h("code", { dir: "auto" }, leaf(code.trim())));
    else if (strong ?? strong2) found.push(h("strong", {}, inline(strong ?? strong2, leaf, depth + 1)));
    else if (em) found.push(h("em", {}, inline(em, leaf, depth + 1)));
    else if (struck) found.push(h("s", {}, inline(struck, leaf, depth + 1)));
    else found.push(h("span", { class: "link" }, inline(words, leaf, depth + 1), " (", h("bdi", { class: "address" }, address), ")"));
    rest = rest.slice(match.index + whole.length);
  }
  if (rest) found.push(leaf(rest));
  return found;
}
