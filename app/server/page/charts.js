// Drawings in SVG: small, sharp at every width, in the page's own colours. Each says in words what it shows.

import { h, s, fixed, count } from "./dom.js";

/** Where on its scale a score lies, in five steps, for colours: 0 (the lowest) to 4; null for none. */
export function step(value, low, high) {
  if (value === null || value === undefined || high <= low) return null;
  return Math.max(0, Math.min(4, Math.floor(5 * (value - low) / (high - low))));
}

/** A strip of dots on a scale: filled ones are judges, hollow ones people. `given` and `people` are name -> score. */
export function strip(given, people, dimension, label, names = []) {
  const { scale_min: low, scale_max: high } = dimension;
  const x = (score) => 5 + 80 * (score - low) / Math.max(1, high - low);
  const named = (score) => (names.length === high - low + 1 && Number.isInteger(score) ? names[score - low] : fixed(score, Number.isInteger(score) ? 0 : 1));
  const dots = [...Object.entries(given).map(([name, score]) => [name, score, "judge"]), ...Object.entries(people).map(([name, score]) => [name, score, "person"])];
  const said = dots.map(([name, score]) => `${name} ${named(score)}`).join(", ");
  const seen = new Map();
  return s("svg", { viewBox: "0 0 90 20", class: "dots", role: "img", "aria-label": `${label}: ${said || "no score"}` },
    s("line", { x1: 5, x2: 85, y1: 10, y2: 10, class: "grid" }),
    dots.map(([name, score, kind]) => {
      const key = score.toFixed(1), before = seen.get(key) ?? 0;
      seen.set(key, before + 1);
      return s("circle", { cx: x(score).toFixed(1), cy: 10 + [0, -3.5, 3.5, -6, 6][before % 5], r: 3.4, class: kind }, s("title", {}, `${name}: ${named(score)}`));
    }));
}

/** Bars, one a score, or one for several where the scale has many. `counts` is score -> how often. */
export function bars(counts, low, high, label, names = []) {
  const each = Math.max(1, Math.ceil((high - low + 1) / 26));
  const bins = Array.from({ length: Math.ceil((high - low + 1) / each) }, (_, n) => ({ from: low + n * each, to: Math.min(high, low + (n + 1) * each - 1), count: 0 }));
  for (const [score, n] of Object.entries(counts)) { const bin = bins[Math.floor((Number(score) - low) / each)]; if (bin) bin.count += n; }
  const most = Math.max(1, ...bins.map((bin) => bin.count));
  const wide = 100 / bins.length;
  const named = (bin) => names[bin.from - low] ?? (bin.from === bin.to ? String(bin.from) : `${bin.from} to ${bin.to}`);
  const said = bins.filter((bin) => bin.count).map((bin) => `${named(bin)}: ${count(bin.count)}`).join(", ");
  return h("figure", { class: "bars" },
    s("svg", { viewBox: "0 0 100 40", preserveAspectRatio: "none", role: "img", "aria-label": `${label}. ${said || "no score"}` },
      bins.map((bin, n) => {
        const tall = bin.count ? Math.max(0.8, 38 * bin.count / most) : 0;
        return s("rect", { x: n * wide + wide * 0.1, y: 40 - tall, width: wide * 0.8, height: tall }, s("title", {}, `${named(bin)}: ${count(bin.count)}`));
      })),
    h("figcaption", {}, h("span", {}, names[0] ?? String(low)), h("span", {}, names[high - low] ?? String(high))));
}

/** Lines over time. `series` are {name, tone, points: [[seconds, value], ...], filled}; all share one axis from 0. */
export function lines(series, { label, seconds = 300, unit = "" }) {
  const now = Math.max(...series.flatMap((of) => of.points.map((point) => point[0])), 0);
  const since = now - seconds;
  const seen = series.map((of) => ({ ...of, points: visible(of.points, since) }));
  const most = nice(Math.max(1, ...seen.flatMap((of) => of.points.map((point) => 1.05 * point[1]))));
  const x = (at) => 600 * Math.max(0, (at - since) / seconds);
  const y = (value) => 150 - 140 * value / most;
  const last = seen.map((of) => `${of.name} ${of.points.length ? fixed(of.points.at(-1)[1], of.digits ?? 0) : "–"}${unit}`).join(", ");
  return h("figure", { class: "lines" },
    s("svg", { viewBox: "0 0 600 160", preserveAspectRatio: "none", role: "img", "aria-label": `${label}: ${last} now` },
      [0, 0.5, 1].map((part) => s("line", { x1: 0, x2: 600, y1: y(part * most), y2: y(part * most), class: "grid" })),
      seen.map((of) => {
        const path = of.points.map(([at, value], n) => `${n ? (of.stepped ? `H${x(at).toFixed(1)}V` : "L") : "M"}${n && of.stepped ? "" : `${x(at).toFixed(1)} `}${y(value).toFixed(1)}`).join("");
        return [
          of.filled && path && s("path", { d: `${path}V150H${x(of.points[0][0]).toFixed(1)}Z`, class: `area ${of.tone}` }),
          path && s("path", { d: path, class: `line ${of.tone}`, "vector-effect": "non-scaling-stroke" }),
        ];
      })),
    h("div", { class: "axis", "aria-hidden": "true" }, h("span", {}, `${count(most)}${unit}`), h("span", {}, "0")),
    h("figcaption", {}, h("span", {}, `${Math.round(seconds / 60)} min ago`),
      h("span", { class: "legend" }, series.map((of) => h("span", {}, h("i", { class: `key ${of.tone}` }), of.name))), h("span", {}, "now")));
}

/** How answers a second and latency grow with the calls that are open. `points` are {open, per_s, latency_s}, from few calls to many; both lines have an axis of their own, from 0. `level` is the number of calls that is kept, or null. */
export function curve(points, level, label) {
  const most = Math.max(1, level ?? 0, ...points.map((point) => point.open));
  const x = (open) => (600 * open / most).toFixed(1);
  const shown = [["per_s", "answers a second", "green"], ["latency_s", "seconds each", "amber"]].map(([name, what, tone]) => {
    const top = Math.max(1e-9, ...points.map((point) => point[name]));
    const path = points.map((point, n) => `${n ? "L" : "M"}${x(point.open)} ${(150 - 140 * point[name] / top).toFixed(1)}`).join("");
    return { tone, path, text: `${what}, up to ${fixed(top, 1)}` };
  });
  const said = points.map((point) => `${fixed(point.open, 0)} open: ${fixed(point.per_s, 1)} answers a second, ${fixed(point.latency_s, 1)} s each`).join("; ");
  return h("figure", { class: "lines" },
    s("svg", { viewBox: "0 0 600 160", preserveAspectRatio: "none", role: "img", "aria-label": `${label}. ${said}` },
      level !== null && s("line", { x1: x(level), x2: x(level), y1: 10, y2: 150, class: "grid" }),
      shown.map(({ tone, path }) => s("path", { d: path, class: `line ${tone}`, "vector-effect": "non-scaling-stroke" }))),
    h("figcaption", {}, h("span", {}, "none open"),
      h("span", { class: "legend" }, shown.map(({ tone, text }) => h("span", {}, h("i", { class: `key ${tone}` }), text))), h("span", {}, `${count(Math.round(most))} open`)));
}

function visible(points, since) {
  const first = points.findIndex((point) => point[0] >= since);
  if (first < 0) return points.length ? [[since, points.at(-1)[1]], points.at(-1)] : [];
  return first > 0 ? [[since, points[first - 1][1]], ...points.slice(first)] : points;
}

function nice(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 10].map((n) => n * unit).find((n) => n >= value);
}
