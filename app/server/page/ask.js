// What the page asks of the server: requests with the session's token, problems as errors, and streams of events.
// The token is kept for this tab alone. It goes along as a header, which no other site's page can make a browser send.

const KEEP = "dicast-token";
export const needsToken = document.documentElement.dataset.auth === "required";

export const token = {
  get: () => sessionStorage.getItem(KEEP),
  set: (value) => sessionStorage.setItem(KEEP, value),
  forget: () => sessionStorage.removeItem(KEEP),
};

export class Problem extends Error {
  constructor(status, told) {
    super(told.detail || told.title || `the server answers ${status}`);
    this.name = "Problem";
    this.status = status;
    this.kind = (told.type || "").replace("urn:dicast:problem:", "");
    this.lines = told.errors || [];
  }
}

const headers = (more = {}) => (token.get() ? { Authorization: `Bearer ${token.get()}`, ...more } : more);

async function reply(method, path, { body, type, signal, more } = {}) {
  let found;
  try {
    found = await fetch(path, {
      method, signal, body, headers: headers({ ...(type ? { "Content-Type": type } : {}), ...more }),
      cache: "no-store", credentials: "omit", redirect: "error",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { detail: "The server does not answer. What you have sent may not have arrived." });
  }
  if (found.ok) return found;
  const told = await found.json().catch(() => ({}));
  const problem = new Problem(found.status, told);
  if (found.status === 401 && needsToken) dispatchEvent(new CustomEvent("signed-out", { detail: problem.message }));
  throw problem;
}

/** The answer to a request, as JSON; null where there is no content. */
export async function ask(method, path, { json, ...given } = {}) {
  const found = await reply(method, path, json === undefined ? given : { ...given, body: JSON.stringify(json), type: "application/json" });
  return found.status === 204 ? null : found.json();
}

export const get = (path, signal) => ask("GET", path, { signal });

/** A path with parameters; those that are empty are left out. */
export function at(path, params = {}) {
  const given = Object.entries(params).filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false);
  const query = new URLSearchParams(given).toString();
  return query ? `${path}?${query}` : path;
}

export const job = (id, rest = "") => `/jobs/${encodeURIComponent(id)}${rest}`;

/** Hands a file of the server to the person. */
export async function download(path, name) {
  const blob = await (await reply("GET", path)).blob();
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

const pause = (seconds, signal) => new Promise((resolve) => {
  const timer = setTimeout(resolve, 1000 * seconds);
  signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
});

const shown = (signal) => new Promise((resolve) => {
  if (!document.hidden || signal.aborted) return resolve();
  const look = () => { if (!document.hidden) { document.removeEventListener("visibilitychange", look); resolve(); } };
  document.addEventListener("visibilitychange", look);
  signal.addEventListener("abort", resolve, { once: true });
});

/** Does `work` again and again while the page is seen, less often while it fails; ends with the signal. */
export async function poll(work, seconds, signal) {
  let failed = 0;
  while (!signal.aborted) {
    await shown(signal);
    try {
      await work();
      failed = 0;
    } catch (error) {
      if (signal.aborted || error.name === "AbortError" || error.status === 401) return;
      failed += 1;
      if (failed === 2) dispatchEvent(new CustomEvent("trouble", { detail: error.message }));
    }
    await pause(Math.min(30, seconds * 2 ** Math.min(failed, 4)), signal);
  }
}

/** Server-sent events by `fetch`, because an EventSource sends no token. `take(name, view)`; ends when it returns true,
 * with the stream's own end (204), or with the signal. */
export async function follow(path, take, signal) {
  let last = "", failed = 0;
  while (!signal.aborted) {
    await shown(signal);
    try {
      const found = await reply("GET", path, { signal, more: { Accept: "text/event-stream", ...(last ? { "Last-Event-ID": last } : {}) } });
      if (found.status === 204) return;
      failed = 0;
      for await (const event of events(found.body)) {
        last = event.id || last;
        if (event.data && take(event.name, JSON.parse(event.data))) return;
      }
    } catch (error) {
      if (signal.aborted || error.name === "AbortError") return;
      if (error.status && error.status < 500 && error.status !== 429) throw error;
      failed += 1;
    }
    await pause(Math.min(15, 0.5 * 2 ** Math.min(failed, 5)), signal);
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value.replaceAll("\r\n", "\n");
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const event = { name: "message", data: "", id: "" };
      for (const line of part.split("\n")) {
        const [field, ...rest] = line.split(":");
        const text = rest.join(":").replace(/^ /, "");
        if (field === "event") event.name = text;
        else if (field === "data") event.data += text;
        else if (field === "id") event.id = text;
      }
      yield event;
    }
  }
}
