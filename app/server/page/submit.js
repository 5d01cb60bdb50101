// A job by paste or upload; refused in the words of `dicast validate`.

import { ask } from "./ask.js";
import { foreign, h, say, show } from "./dom.js";

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
const endingOf = (name) => name.slice(name.lastIndexOf(".")).toLowerCase();

export async function submitView({ root, signal }) {
  const text = h("textarea", { id: "text", rows: 18, spellcheck: "false", placeholder: EXAMPLE, "aria-describedby": "text-help", required: true });
  const said = h("div", { role: "alert" });
  const file = h("input", { type: "file", id: "file", accept: ".yaml,.yml,.json", onchange: async () => {
    if (file.files[0]) text.value = await file.files[0].text();
    text.focus();
  } });
  const items = h("input", { type: "file", id: "items", accept: ITEMS.join(",") });
  const path = h("p", { class: "dim", role: "status" });
  items.addEventListener("change", async () => {
    const given = items.files[0];
    if (!given) return;
    show(path, "Being uploaded …");
    try {
      const found = await ask("POST", `/uploads?ending=${encodeURIComponent(endingOf(given.name))}`, { body: given, type: "application/octet-stream", signal });
      show(path, "Uploaded. In the job: ", h("code", {}, `items: ${found.path}`));
    } catch (error) {
      show(path, h("span", { class: "wrong" }, foreign(error.message)));
    }
  });
  const button = h("button", { class: "main" }, "Submit");
  const form = h("form", { class: "stack", onsubmit: async (event) => {
    event.preventDefault();
    button.disabled = true;
    show(said);
    const type = text.value.trimStart().startsWith("{") ? "application/json" : "application/yaml";
    try {
      const made = await ask("POST", "/jobs", { body: text.value, type, signal });
      say(`Job ${made.id} is submitted`);
      location.hash = `#/jobs/${encodeURIComponent(made.id)}`;
    } catch (error) {
      const lines = error.lines.length ? error.lines : [error.message];
      show(said, h("div", { class: "card wrong" }, h("p", {}, lines.length > 1 ? "The job is refused:" : "The job is refused."), h("ul", {}, lines.map((line) => h("li", {}, foreign(line))))));
    } finally {
      button.disabled = false;
    }
  } },
    h("label", { for: "file" }, "A job's file"), file,
    h("label", { for: "text" }, "or its text, in YAML or JSON"), text,
    h("p", { id: "text-help", class: "dim" }, "Items come with the job, or are a file that you upload here."),
    h("details", {}, h("summary", {}, "Items in a file"), h("div", { class: "stack" }, h("label", { for: "items" }, "A file of items, ", ITEMS.join(", ")), items, path)),
    said,
    h("div", { class: "row" }, button, h("a", { href: "#/jobs" }, "Back to all jobs")));
  show(root, h("h1", {}, "Submit a job"), form);
}
