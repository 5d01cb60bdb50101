// The page's frame: who is signed in, which view the address names, and its beginning and end.

import { ask, needsToken, token } from "./ask.js";
import { compareView } from "./compare.js";
import { act, foreign, h, notice, say, show } from "./dom.js";
import { itemView } from "./item.js";
import { itemsView } from "./items.js";
import { jobView } from "./job.js";
import { jobsView } from "./jobs.js";
import { nodesView } from "./nodes.js";
import { poolView, poolsView } from "./pools.js";
import { rateView } from "./rate.js";
import { submitView } from "./submit.js";

const ROUTES = [
  [/^\/jobs$/, jobsView, "Jobs", "#/jobs"],
  [/^\/submit$/, submitView, "Submit a job", "#/jobs"],
  [/^\/jobs\/([^/]+)$/, jobView, "Job", "#/jobs"],
  [/^\/jobs\/([^/]+)\/items$/, itemsView, "Items", "#/jobs"],
  [/^\/jobs\/([^/]+)\/item$/, itemView, "Item", "#/jobs"],
  [/^\/jobs\/([^/]+)\/compare$/, compareView, "Compare", "#/jobs"],
  [/^\/rate\/([^/]+)$/, rateView, "Rate", "#/jobs"],
  [/^\/pools$/, poolsView, "Pools", "#/pools"],
  [/^\/pools\/([^/]+)$/, poolView, "Pool", "#/pools"],
  [/^\/nodes$/, nodesView, "Nodes", "#/nodes"],
];

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const account = document.getElementById("account");
let session = null;
let leaving = new AbortController();

/** The address behind '#': its path, and the parameters behind '?'. */
function address() {
  const [path, query = ""] = (location.hash.slice(1) || "/jobs").split("?");
  return { path, query: new URLSearchParams(query) };
}

async function enter() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const { path, query } = address();
  if (needsToken && !token.get()) return signIn();
  try {
    session ??= await ask("GET", "/session", { signal });
  } catch (error) {
    if (error.name === "AbortError") return undefined;
    if (error.status === 403) { token.forget(); return signIn(error.message); }
    if (error.status !== 401) show(main, trouble(error, enter));
    return undefined;
  }
  frame();
  for (const [pattern, view, title, tab] of ROUTES) {
    const found = pattern.exec(path);
    if (!found) continue;
    const [name] = found.slice(1).map(decoded);
    document.title = `${name ? `${name} · ` : ""}${title} · Dicast`;
    for (const link of nav.children) link.toggleAttribute("aria-current", link.getAttribute("href") === tab);
    nav.querySelector("[aria-current]")?.setAttribute("aria-current", "page");
    show(main, h("p", { class: "wait" }, "One moment …"));
    scrollTo(0, 0);
    const root = h("div", { class: "view" });
    try {
      await view({ root, name, query, signal, session, ready: () => !signal.aborted && root.parentNode !== main && show(main, root) });
      if (!signal.aborted && root.parentNode !== main) show(main, root);
      if (!signal.aborted) say(`${title}${name ? ` ${name}` : ""}`);
    } catch (error) {
      if (error.name !== "AbortError" && error.status !== 401 && !signal.aborted) show(main, trouble(error, enter));
    }
    return undefined;
  }
  show(main, h("div", { class: "view" }, h("h1", {}, "There is nothing here"), h("p", {}, h("a", { href: "#/jobs" }, "All jobs"))));
  return undefined;
}

function decoded(part) {
  try { return decodeURIComponent(part); } catch { return part; }
}

const trouble = (error, again) => h("div", { class: "view narrow" },
  h("h1", {}, "This cannot be shown"),
  foreign(error.message, "p"),
  h("div", { class: "row" }, h("button", { type: "button", onclick: again }, "Try again"), h("a", { href: "#/jobs" }, "All jobs")));

function frame() {
  const looks = session.scopes.some((scope) => ["job:read", "pool:admin", "node:admin", "job:submit"].includes(scope));
  nav.hidden = !looks;
  show(account,
    h("span", { class: "who", title: `Dicast ${session.version}, installation ${session.installation}` }, foreign(session.require_auth ? session.subject : session.installation)),
    session.require_auth && h("button", { type: "button", class: "quiet", onclick: act(async () => signOut()) }, "Sign out"));
}

function signOut(why) {
  token.forget();
  session = null;
  leaving.abort();
  nav.hidden = true;
  show(account);
  signIn(why);
}

function signIn(why = "") {
  document.title = "Sign in · Dicast";
  nav.hidden = true;
  const field = h("input", { id: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true, maxlength: 4096, "aria-describedby": "token-help" });
  const said = h("p", { class: "wrong", role: "alert" }, why ? foreign(`${sentence(why)} Sign in with another token.`) : "");
  const form = h("form", { class: "card stack", onsubmit: async (event) => {
    event.preventDefault();
    token.set(field.value.trim());
    try {
      session = await ask("GET", "/session");
      enter();
    } catch (error) {
      token.forget();
      show(said, foreign(sentence(error.message)));
      field.select();
    }
  } },
    h("h1", {}, "Sign in"),
    h("label", { for: "token" }, "Token"), field,
    h("p", { id: "token-help", class: "dim" }, "An operator makes one with ", h("code", {}, "dicast token issue NAME --scope job:read"), ". It is kept in this tab until you sign out or close it."),
    said,
    h("div", { class: "row" }, h("button", { class: "main" }, "Sign in")));
  show(main, h("div", { class: "view narrow" }, form));
  field.focus();
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;

addEventListener("hashchange", enter);
addEventListener("signed-out", (event) => { if (session) signOut(event.detail); else { token.forget(); } });
addEventListener("trouble", (event) => notice(event.detail));
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
enter();
