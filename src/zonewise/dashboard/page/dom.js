// DOM helpers. Elements are built without markup: names are always inserted as text.

import { lossTexts } from "./store.js";

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export function el(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

export function replaceChildren(node, ...children) {
  node.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
}

/** Writes only changed text, to avoid needless layout. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttr(node, name, value) {
  if (value === null || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

export function percent(share) {
  return share === null || share === undefined ? "–" : `${Math.round(share * 100)} %`;
}

const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

export function amount(bytes) {
  let value = bytes;
  let unit = 0;
  while (value >= 999.5 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit && value < 9.95 ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`;
}

export function rate(bytesPerSecond) {
  return `${amount(bytesPerSecond)}/s`;
}

export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

export function ago(time) {
  const seconds = Math.max(0, (Date.now() - Date.parse(time)) / 1000);
  if (Number.isNaN(seconds)) return "";
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}

/** Service states. Shape and word tell them apart, colour is an addition. */
export const STATES = {
  CutOff: { shape: "▲", word: "cut off", tone: "bad", rank: 0 },
  NotInForce: { shape: "✕", word: "not in force", tone: "bad", rank: 1 },
  Unserved: { shape: "□", word: "unserved", tone: "warn", rank: 2 },
  InForce: { shape: "●", word: "in force", tone: "good", rank: 3 },
  NotAsked: { shape: "○", word: "no policy", tone: "none", rank: 4 },
};

export function state(row) {
  const plain = STATES[row.state] ?? STATES.NotAsked;
  const limited = row.state === "InForce" && (lossTexts(row).length || row.complaints.length);
  return limited ? { ...plain, shape: "◐", word: "in part", tone: "warn" } : plain;
}

export function badge(state) {
  return el("span", { class: `badge ${state.tone}` }, el("span", { class: "shape", "aria-hidden": "true" }, state.shape), ` ${state.word}`);
}
