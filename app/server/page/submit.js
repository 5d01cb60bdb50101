// A job by a form or by its text, side by side: the form writes the text, and the text is what is sent. It is checked and
// refused in the words of `dicast validate`, and what the first judge is sent is shown before anything is submitted.

import { ask, get } from "./ask.js";
import { act, count, foreign, h, say, show } from "./dom.js";

const EXAMPLE = `items:
  - id: a1
    text: Water boils at 100 degrees.
agents:
  - name: physicist
    persona: You teach physics.
dimensions:
  - id: correct
    instructions: Is it correct?
`;
const ITEMS = [".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".pq"];
const HEAD_BYTES = 65536;
const endingOf = (name) => name.slice(name.lastIndexOf(".")).toLowerCase();
const typeOf = (text) => (text.trimStart().startsWith("{") ? "application/json" : "application/yaml");

export async function submitView({ root, signal, session }) {
  const library = await get("/rubrics", signal);
  const pools = await get("/pools", signal).then((found) => found.pools.map((pool) => pool.pool), () => []);
  const text = h("textarea", { id: "text", rows: 24, spellcheck: "false", placeholder: EXAMPLE, "aria-describedby": "text-help", required: true, oninput: () => { changed(true); show(checked); } });
  const said = h("div", { role: "alert" }), checked = h("div", { class: "stack", role: "status" });
  const own = h("p", { class: "dim", id: "text-help" });
  const form = new Form({ library, pools, signal, changed: () => { text.value = form.text(); changed(false); show(checked); } });
  const again = h("button", { type: "button", class: "quiet", onclick: () => { text.value = form.text(); changed(false); } }, "Write it anew from the form");
  const changed = (byHand) => show(own, byHand ? ["Changed by hand: this text is what counts. ", again] : "Written by the form; change it here as you like. This text is what is sent.");
  const file = h("input", { type: "file", id: "file", accept: ".yaml,.yml,.json", onchange: async () => {
    if (!file.files[0]) return;
    text.value = await file.files[0].text();
    changed(true);
    show(checked);
    text.focus();
  } });

  const send = async (path, then) => {
    show(said);
    try {
      await then(await ask("POST", path, { body: text.value, type: typeOf(text.value), signal }));
    } catch (error) {
      if (error.name === "AbortError") return;
      show(checked);
      const lines = error.lines.length ? error.lines : [error.message];
      show(said, h("div", { class: "card wrong" }, h("p", {}, lines.length > 1 ? "The job is refused:" : "The job is refused."), h("ul", {}, lines.map((line) => h("li", {}, foreign(line))))));
    }
  };
  const check = h("button", { type: "button", onclick: act(() => send("/jobs/check", (found) => {
    show(checked, told(found));
    say(`${count(found.units)} judgements, ${count(found.calls)} calls`);
  })) }, "Check");
  const submit = h("button", { class: "main" }, "Submit");
  const whole = h("form", { class: "submit", onsubmit: async (event) => {
    event.preventDefault();
    submit.disabled = true;
    await send("/jobs", (made) => {
      say(`Job ${made.id} is submitted`);
      location.hash = `#/jobs/${encodeURIComponent(made.id)}`;
    });
    submit.disabled = false;
  } },
    h("div", { class: "stack form" }, form.element),
    h("div", { class: "stack written" },
      h("div", { class: "head" }, h("label", { for: "text" }, "The job's text, YAML or JSON"), h("div", { class: "row" }, h("label", { for: "file" }, "or its file"), file)),
      text, own, said,
      h("div", { class: "row" }, check, submit, h("a", { href: "#/jobs" }, "Back to all jobs")),
      checked));
  text.value = form.text();
  changed(false);
  show(root, h("h1", {}, "Submit a job"), whole);
}

/** What a job would take, and what its first judge is sent. */
function told(found) {
  const of = (n, one, many) => `${count(n)} ${n === 1 ? one : many}`;
  const first = found.first_call;
  return h("section", { class: "card stack", "aria-label": "The check" },
    h("p", { class: "first" }, `${of(found.units, "judgement", "judgements")} in ${of(found.calls, "call", "calls")}`),
    h("p", { class: "dim" }, `${of(found.items, "item", "items")}${found.variants ? ` (${count(found.variants)} of them variants for probes)` : ""} × ${of(found.judges, "judge", "judges")} × ${of(found.dimensions, "dimension", "dimensions")}${found.replicates > 1 ? ` × ${found.replicates} replicates` : ""}; ${count(found.text_bytes)} bytes of text. Nothing has been submitted.`),
    found.cost && h("p", {}, "Cost: ", foreign(found.cost)),
    found.warnings.map((line) => foreign(line, "p", { class: "amber" })),
    h("h2", {}, "What the first judge is sent"),
    h("p", { class: "dim" }, foreign(first.judge), " on item ", foreign(first.item), ", ", foreign(first.dimensions.join(", ")), ". Only the code at the material's end will be another."),
    first.system && h("pre", { class: "code", tabindex: "0", "aria-label": "System" }, first.system),
    h("pre", { class: "code", tabindex: "0", "aria-label": "User" }, first.user),
    first.schema && h("details", {}, h("summary", {}, "The form that answers must have"), h("pre", { class: "code", tabindex: "0" }, JSON.stringify(first.schema, null, 1))));
}

/** The form: what is judged, by whom and for what. It keeps what was given, and writes it as YAML. */
class Form {
  #judges = [];
  #dimensions = [];
  #files = { items: null, ratings: null };
  #columns = [];

  constructor({ library, pools, signal, changed }) {
    Object.assign(this, { library, pools, signal, changed });
    const input = (id, label, props = {}) => h("div", { class: "field" }, h("label", { for: id }, label), h("input", { id, autocomplete: "off", spellcheck: "false", oninput: changed, ...props }));
    this.texts = h("textarea", { id: "texts", rows: 4, oninput: changed, placeholder: "Water boils at 100 degrees.\n\nThe moon is made of cheese." });
    this.place = { items: h("p", { class: "dim", role: "status" }), ratings: h("p", { class: "dim", role: "status" }) };
    this.columns = h("div", { class: "row columns" });
    this.judgeList = h("div", { class: "stack" });
    this.ownList = h("div", { class: "stack" });
    this.rubrics = library.map((rubric) => ({ rubric, box: h("input", { type: "checkbox", id: `rubric-${rubric.name}`, onchange: changed }) }));
    this.element = [
      h("section", { class: "card stack" }, h("h2", {}, "What is judged"),
        this.#upload("items", `A file of items, ${ITEMS.join(", ")}`), this.columns,
        h("div", { class: "field" }, h("label", { for: "texts" }, "or texts, with an empty line between two"), this.texts)),
      h("section", { class: "card stack" }, h("div", { class: "head" }, h("h2", {}, "Judges"), h("button", { type: "button", class: "quiet", onclick: () => this.#judge() }, "Add a judge")), this.judgeList),
      h("section", { class: "card stack" }, h("div", { class: "head" }, h("h2", {}, "Dimensions"), h("button", { type: "button", class: "quiet", onclick: () => this.#dimension() }, "Add one of your own")),
        this.ownList,
        h("details", { class: "library" }, h("summary", {}, `From the library (${library.length})`), this.rubrics.map(({ rubric, box }) => h("div", { class: "rubric" },
          h("span", { class: "field check" }, box, h("label", { for: box.id }, rubric.title)),
          h("details", {}, h("summary", {}, "What it asks"), foreign(rubric.instructions, "p"), h("dl", { class: "told" }, Object.entries(rubric.levels).map(([score, means]) => [h("dt", {}, score), h("dd", {}, foreign(means))]))))))),
      h("details", { class: "card" }, h("summary", {}, h("h2", {}, "Ratings, limits and names")),
        h("div", { class: "stack" }, this.#upload("ratings", "What people say of some of the items: a file with item_id, rater and a column a dimension"),
          h("div", { class: "fields" }, input("project", "Project", { placeholder: "default" }), input("id", "Id, or one is drawn"), input("max-cost", "Spend at most", { placeholder: "no cap", inputmode: "decimal" }), input("max-calls", "Calls at most", { placeholder: "no cap", inputmode: "numeric" })))),
    ];
    this.#judge({ name: "judge", persona: "You judge with care." }, false);
    this.#dimension({ id: "correct", instructions: "Is every statement true?" }, false);
  }

  #value(id) { return this.#find(id)?.value.trim() ?? ""; }

  #find(id) { return this.element.map((each) => each.querySelector(`#${id}`)).find(Boolean); }

  #upload(kind, label) {
    const given = h("input", { type: "file", id: kind, accept: ITEMS.join(","), onchange: async () => {
      const file = given.files[0], place = this.place[kind];
      if (!file) return;
      show(place, "Being uploaded …");
      try {
        const found = await ask("POST", `/uploads?ending=${encodeURIComponent(endingOf(file.name))}`, { body: file, type: "application/octet-stream", signal: this.signal });
        this.#files[kind] = found.path;
        show(place, foreign(file.name), `, ${count(found.bytes)} bytes. In the job: `, h("code", {}, `${kind}: ${found.path}`));
        if (kind === "items") this.#offer(await columnsOf(file));
        this.changed();
      } catch (error) {
        if (error.name !== "AbortError") show(place, h("span", { class: "wrong" }, foreign(error.message)));
      }
    } });
    return h("div", { class: "field" }, h("label", { for: kind }, label), given, this.place[kind]);
  }

  /** Which of a file's columns hold what; nothing where they cannot be seen here. */
  #offer(names) {
    this.#columns = names;
    const choice = (id, label, usual, none) => {
      const made = h("select", { id, onchange: this.changed }, none && h("option", { value: "" }, none), names.map((name) => h("option", { value: name }, name)));
      if (names.includes(usual)) made.value = usual;
      return h("div", { class: "field" }, h("label", { for: id }, label), made);
    };
    show(this.columns, names.length > 0 && [choice("text-column", "Judged text", "text"), choice("id-column", "Id", "id"), choice("prompt-column", "What it answers", "prompt", "nothing"), choice("system-column", "Compare by", "system", "nothing")]);
  }

  #row(list, rows, row, fields, told = true) {
    const parts = Object.fromEntries(fields.map(([key, label, make]) => {
      const id = `${key}-${rows.serial = (rows.serial ?? 0) + 1}`, made = make(id);
      return [key, { made, element: h("div", { class: `field ${key}` }, h("label", { for: id }, label), made) }];
    }));
    const entry = { read: () => Object.fromEntries(Object.entries(parts).map(([key, { made }]) => [key, made.value.trim()])) };
    const element = h("div", { class: "entry" }, Object.values(parts).map((part) => part.element),
      h("button", { type: "button", class: "quiet", "aria-label": "Remove this one", title: "Remove", onclick: () => { rows.splice(rows.indexOf(entry), 1); element.remove(); this.changed(); } }, "✕"));
    rows.push(entry);
    list.append(element);
    if (told) { this.changed(); element.querySelector("input").focus(); }
  }

  #judge(given = {}, tells = true) {
    const input = (key, props = {}) => (id) => h("input", { id, value: given[key] ?? "", autocomplete: "off", oninput: this.changed, ...props });
    const pool = (id) => (this.pools.length ? h("select", { id, onchange: this.changed }, h("option", { value: "" }, "the default one"), this.pools.map((name) => h("option", { value: name }, name))) : input("pool")(id));
    this.#row(this.judgeList, this.#judges, given, [["name", "Name", input("name")], ["pool", "Pool", pool], ["model", "Model", input("model", { placeholder: "the pool's" })], ["persona", "Persona", input("persona")]], tells);
  }

  #dimension(given = {}, tells = true) {
    const input = (key, props = {}) => (id) => h("input", { id, value: given[key] ?? "", autocomplete: "off", oninput: this.changed, ...props });
    const whole = { type: "number", step: 1 };
    this.#row(this.ownList, this.#dimensions, given, [["id", "Name", input("id")], ["min", "From", input("min", { ...whole, placeholder: "1" })], ["max", "to", input("max", { ...whole, placeholder: "10" })], ["instructions", "What a judge is asked", input("instructions")]], tells);
  }

  /** The job as YAML. A JSON text is YAML, too, so every value stands as one. */
  text() {
    const lines = [], q = (value) => (/^[A-Za-z][A-Za-z0-9 _/.-]*[A-Za-z0-9.]$/.test(value) && !/^(true|false|null)$/i.test(value) ? value : JSON.stringify(value));
    for (const [id, key] of [["id", "id"], ["project", "project"]]) if (this.#value(id)) lines.push(`${key}: ${q(this.#value(id))}`);
    lines.push(...this.#itemLines(q));
    if (this.#files.ratings) lines.push(`ratings: ${this.#ratings(q)}`);
    const system = this.#value("system-column");
    if (system) lines.push(`groups: [${q(system)}]`);
    lines.push("agents:");
    for (const judge of this.#judges.map((each) => each.read())) {
      lines.push(`  - {name: ${q(judge.name)}${judge.pool ? `, pool: ${q(judge.pool)}` : ""}${judge.model ? `, model: ${JSON.stringify(judge.model)}` : ""}${judge.persona ? `, persona: ${JSON.stringify(judge.persona)}` : ""}}`);
    }
    lines.push("dimensions:");
    for (const { rubric, box } of this.rubrics) if (box.checked) lines.push(`  - ${rubric.name}`);
    for (const own of this.#dimensions.map((each) => each.read())) {
      lines.push(`  - id: ${q(own.id)}`, `    instructions: ${JSON.stringify(own.instructions)}`);
      if (own.min || own.max) lines.push(`    scale: {min: ${own.min || 1}, max: ${own.max || 10}}`);
    }
    for (const [id, key] of [["max-cost", "max_cost"], ["max-calls", "max_calls"]]) if (this.#value(id)) lines.push(`${key}: ${q(this.#value(id))}`.replaceAll('"', ""));
    return `${lines.join("\n")}\n`;
  }

  #ratings(q) {
    const named = [...this.rubrics.filter(({ box }) => box.checked).map(({ rubric }) => rubric.name), ...this.#dimensions.map((each) => each.read().id)];
    return `{path: ${this.#files.ratings}, columns: {${named.map((name) => `${q(name)}: ${q(name)}`).join(", ")}}}`;
  }

  #itemLines(q) {
    const given = this.texts.value.split(/\n\s*\n/).map((each) => each.trim()).filter(Boolean);
    if (!this.#files.items) return given.length ? ["items:", ...given.map((each, n) => `  - {id: text-${n + 1}, text: ${JSON.stringify(each)}}`)] : ["items: []"];
    const named = [["text-column", "text_field", "text"], ["id-column", "id_field", "id"], ["prompt-column", "prompt_field", "prompt"]]
      .filter(([id, , usual]) => this.#columns.length && this.#value(id) && this.#value(id) !== usual).map(([id, key]) => `, ${key}: ${q(this.#value(id))}`);
    return [named.length ? `items: {path: ${this.#files.items}${named.join("")}}` : `items: ${this.#files.items}`];
  }
}

/** The columns of a file, as far as its beginning tells: the fields of its first line, or of the first object. */
async function columnsOf(file) {
  const ending = endingOf(file.name), head = (await file.slice(0, HEAD_BYTES).text()).split(/\r?\n/)[0];
  if ([".csv", ".tsv"].includes(ending)) {
    const found = head.split(ending === ".tsv" ? "\t" : head.includes(",") ? "," : ";").map((name) => name.trim().replace(/^\uFEFF?"?|"$/g, ""));
    return found.filter(Boolean);
  }
  try { return [".jsonl", ".ndjson"].includes(ending) ? Object.keys(JSON.parse(head)) : []; } catch { return []; }
}
