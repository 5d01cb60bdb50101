// Who works, how wide, how busy, and when each was last heard.

import { ask, get, poll } from "./ask.js";
import { act, confirmed, count, foreign, h, percent, show, span, tell, wide } from "./dom.js";

const EVERY_S = 2;
const path = (id, rest = "") => `/cluster/nodes/${encodeURIComponent(id)}${rest}`;

export async function nodesView({ root, signal, session, ready }) {
  const rows = new Map();
  const body = h("tbody");
  const empty = h("p", { class: "empty", hidden: true }, "No worker is known. ", h("code", {}, "celery -A dicast worker"), " starts one.");
  const admin = session.scopes.includes("node:admin");
  const sum = h("p", { class: "dim" });
  const look = async () => {
    const nodes = await get("/cluster/nodes", signal);
    const known = new Set(nodes.map((node) => node.id));
    for (const [id, row] of rows) if (!known.has(id)) { row.element.remove(); rows.delete(id); }
    for (const node of nodes) {
      let row = rows.get(node.id);
      if (!row) { row = line(node, admin, look); rows.set(node.id, row); body.append(row.element); }
      row.update(node);
    }
    table.hidden = !nodes.length;
    empty.hidden = nodes.length > 0;
    const online = nodes.filter((node) => node.status === "online");
    tell(sum, `${online.length} of ${nodes.length} online · ${count(nodes.reduce((n, node) => n + node.open, 0))} calls open · room for ${count(online.reduce((n, node) => n + node.width, 0))}`);
  };
  const table = wide("Nodes", h("table", {},
    h("thead", {}, h("tr", {}, ["Node", "Status", "Busy", "Width", "CPU", "Errors", "Heard", "Pools"].map((name) => h("th", { scope: "col", class: ["Width", "CPU", "Errors", "Heard"].includes(name) ? "number" : null }, name)), admin && h("th", { scope: "col" }, "Order"))),
    body));
  await look();
  show(root, h("div", { class: "head" }, h("h1", {}, "Nodes"), sum), table, empty);
  ready();
  poll(look, EVERY_S, signal);
}

function line(first, admin, look) {
  const status = h("td"), width = h("td", { class: "number" }), cpu = h("td", { class: "number" }), errors = h("td", { class: "number" }), heard = h("td", { class: "number" }), pools = h("td"), orders = h("td", { class: "tight" });
  const bar = h("meter", { min: 0, value: 0, "aria-label": `Open calls of ${first.name}` });
  const open = h("span", { class: "part" });
  const order = (name, work, ask = null, kind = "quiet") => h("button", { type: "button", class: kind, "aria-label": `${name} ${first.name}`, onclick: act(async () => {
    if (ask && !(await confirmed(ask, name))) return;
    await work();
    await look();
  }) }, name);
  let told = "";
  return {
    element: h("tr", {},
      h("td", { class: "name" }, foreign(first.name), h("div", { class: "dim" }, foreign(`${first.host}, process ${first.pid}`))),
      status, h("td", {}, h("div", { class: "progress" }, bar, open)), width, cpu, errors, heard, pools, admin && orders),
    update(node) {
      const said = `${node.status}|${node.reason}`;
      if (said !== told) {
        told = said;
        show(status, h("span", { class: `badge ${node.status}` }, node.status), node.reason && foreign(node.reason, "div", { class: "dim" }));
        show(orders,
          ["online", "degraded"].includes(node.status) && order("Cordon", () => ask("POST", path(node.id, "/cordon"))),
          ["online", "degraded", "cordoned"].includes(node.status) && order("Drain", () => ask("POST", path(node.id, "/drain"), { json: {} }), `Drain ${node.name}? It begins no calls, and what is open after 60 s is cut.`),
          ["cordoned", "draining"].includes(node.status) && order("Uncordon", () => ask("POST", path(node.id, "/uncordon"))),
          order("Remove", () => ask("DELETE", path(node.id)), `Remove ${node.name}? Its process ends.`, "quiet bad"));
      }
      bar.max = Math.max(1, node.width);
      bar.value = node.open;
      tell(open, `${node.open} open`);
      tell(width, node.width === node.slots ? String(node.width) : `${node.width} of ${node.slots}`);
      tell(cpu, `${Math.round(node.cpu_percent)} %`);
      tell(errors, percent(node.error_rate));
      tell(heard, node.heard_s_ago === null ? "not heard" : node.heard_s_ago < 2 ? "now" : `${span(node.heard_s_ago)} ago`);
      tell(pools, node.pools.join(", "));
    },
  };
}
