// Elements are made here and nowhere else. Whatever is shown goes in as a text node: judged material is hostile, and
// none of it can become markup. The server's Content-Security-Policy refuses the other ways, too.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** An element with attributes, listeners (`onclick`), and children: elements, texts, lists of these, or nothing. */
export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);

/** The same for SVG. */
export const s = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

export function show(root, ...children) {
  root.replaceChildren();
  add(root, children);
}

/** Foreign text: its direction is its own, and nothing in it turns round what stands beside it. */
export const foreign = (text, tag = "bdi", props = {}) => h(tag, { dir: "auto", ...props }, text);

/** Change a text only where it differs, so that a screen reader and a selection are left alone. */
export function tell(element, text) {
  if (element.textContent !== String(text)) element.textContent = text;
}

/** Said to who listens to the page. */
export const say = (text) => tell(document.getElementById("said"), text);

let noticeTimer;
/** Shown for a while, and said at once: what went wrong, in the server's words. */
export function notice(text) {
  const box = document.getElementById("notice");
  show(box, foreign(text, "span"), h("button", { type: "button", class: "quiet", onclick: () => { box.hidden = true; } }, "Dismiss"));
  box.hidden = false;
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(() => { box.hidden = true; }, 15000);
}

/** A table that scrolls within itself where it is too wide, also by keyboard. */
export const wide = (label, ...children) =>
  h("div", { class: "wide", role: "region", "aria-label": label, tabindex: "0" }, children);

const whole = new Intl.NumberFormat("en");
export const count = (n) => (n === null || n === undefined ? "–" : whole.format(n));
export const fixed = (x, digits = 2) => (x === null || x === undefined ? "–" : x.toFixed(digits));
export const percent = (x) => (x === null || x === undefined ? "–" : `${(100 * x).toFixed(x > 0.995 || x < 0.005 ? 1 : 0)} %`);

export function span(seconds) {
  if (seconds === null || !Number.isFinite(seconds)) return "–";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export function when(ms) {
  if (!ms) return "–";
  const then = new Date(ms);
  const today = new Date().toDateString() === then.toDateString();
  const time = then.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  return today ? time : `${then.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${time}`;
}

/** Asks before something that cannot be taken back; resolves to whether it was wanted. */
export function confirmed(question, yes) {
  return new Promise((resolve) => {
    const box = h("dialog", { "aria-label": question, onclose: () => { box.remove(); resolve(box.returnValue === "yes"); } },
      h("form", { method: "dialog" },
        foreign(question, "p"),
        h("div", { class: "row end" },
          h("button", { value: "no", class: "quiet" }, "Keep it"),
          h("button", { value: "yes", class: "danger" }, yes))));
    document.body.append(box);
    box.showModal();
  });
}

/** Runs what a button stands for; the button rests meanwhile, and a refusal is shown. */
export const act = (work) => async (event) => {
  const button = event.currentTarget;
  button.disabled = true;
  try {
    await work(event);
  } catch (error) {
    if (error.name !== "AbortError") notice(error.message);
  } finally {
    button.disabled = false;
  }
};
