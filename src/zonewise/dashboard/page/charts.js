// SVG charts of in-zone shares over time.

import { el, percent, rate, svg } from "./dom.js";
import { store } from "./store.js";

/** Path of a sparkline, with gaps where nothing was measured. */
export function sparkPath(points, width, height) {
  if (!points.length) return "";
  const last = Math.max(points.at(-1).at, Date.now() / 1000 - store.bucketSeconds);
  const first = last - store.bucketSeconds * store.buckets;
  let path = "";
  let before = -Infinity;
  for (const { at, share } of points) {
    const x = ((at - first) / (last - first)) * width;
    const y = height - 1.5 - share * (height - 3);
    path += `${at - before > store.bucketSeconds * 2.5 ? "M" : "L"}${x.toFixed(1)} ${y.toFixed(1)}`;
    before = at;
  }
  return path;
}

export function shareChart(all, { width = 640, height = 170, title = "In-zone share over time" } = {}) {
  const left = 40;
  const right = 12;
  const top = 12;
  const bottom = 24;
  const points = all.filter((point) => point.at > Date.now() / 1000 - store.bucketSeconds * (store.buckets + 1));
  const inner = [width - left - right, height - top - bottom];
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": summary(points, title) });
  for (const share of [0, 0.5, 1]) {
    const y = top + inner[1] * (1 - share);
    chart.append(
      svg("path", { class: "grid", d: `M${left} ${y}H${width - right}` }),
      svg("text", { class: "tick end", x: left - 6, y: y + 4 }, `${share * 100}%`),
    );
  }
  const last = Math.max(points.at(-1)?.at ?? 0, Date.now() / 1000 - store.bucketSeconds);
  const range = store.bucketSeconds * store.buckets;
  const first = last - Math.min(range, Math.max(300, last - (points[0]?.at ?? last - range)));
  const x = (at) => left + ((at - first) / (last - first)) * inner[0];
  const y = (share) => top + inner[1] * (1 - share);
  const step = Math.ceil((last - first) / 60 / Math.floor(inner[0] / 58));
  for (let minutes = 0; minutes * 60 <= last - first; minutes += step) {
    const at = last - minutes * 60;
    chart.append(svg("text", { class: "tick middle", x: Math.max(20, Math.min(x(at), width - right - 12)), y: height - 6 }, minutes ? `-${minutes} min` : "now"));
  }
  const maxBytes = Math.max(...points.map((point) => point.bytes), 1);
  const barWidth = Math.max(1.5, (inner[0] * store.bucketSeconds) / (last - first) - 2);
  for (const point of points) {
    const barHeight = inner[1] * 0.9 * (point.bytes / maxBytes);
    chart.append(svg("rect", { class: "volume", x: x(point.at) - barWidth / 2, y: top + inner[1] - barHeight, width: barWidth, height: barHeight, rx: 1 }));
  }
  let line = "";
  let area = "";
  let before = -Infinity;
  for (const { at, share } of points) {
    const coordinates = `${x(at).toFixed(1)} ${y(share).toFixed(1)}`;
    if (at - before > store.bucketSeconds * 2.5) {
      if (area) area += `L${x(before).toFixed(1)} ${y(0)}Z`;
      line += `M${coordinates}`;
      area += `M${x(at).toFixed(1)} ${y(0)}L${coordinates}`;
    } else {
      line += `L${coordinates}`;
      area += `L${coordinates}`;
    }
    before = at;
  }
  if (area) area += `L${x(before).toFixed(1)} ${y(0)}Z`;
  chart.append(svg("path", { class: "area", d: area }), svg("path", { class: "line", d: line }));
  if (points.length) {
    const end = points.at(-1);
    chart.append(svg("circle", { class: "end-point", cx: x(end.at), cy: y(end.share), r: 4 }));
  } else {
    chart.append(svg("text", { class: "tick middle", x: left + inner[0] / 2, y: top + inner[1] / 2 }, "nothing measured yet"));
  }
  return el("figure", { class: "share" }, chart, points.length > 0 && el("figcaption", { class: "legend" },
    el("span", {}, el("i", { class: "key stays" }), "share that stays"),
    el("span", {}, el("i", { class: "key volume" }), `all traffic, ${rate(maxBytes / store.bucketSeconds)} at most`)));
}

function summary(points, title) {
  if (!points.length) return `${title}: nothing measured yet`;
  const end = points.at(-1);
  return `${title}: from ${percent(points[0].share)} to ${percent(end.share)}, ${rate(end.bytes / store.bucketSeconds)} at the end`;
}
