// Entry point of the page: the event stream, the views, and keyboard navigation.

import { Budgets } from "./budgets.js";
import { el, replaceChildren, setText } from "./dom.js";
import { Overview } from "./overview.js";
import { Services } from "./services.js";
import { Simulator } from "./simulator.js";
import { connect, onChange, store, markDirty } from "./store.js";
import { Volumes } from "./volumes.js";
import { WhatIf } from "./whatif.js";

const NAMES = ["overview", "services", "budgets", "volumes", "what-if", "simulator"];
const THEMES = ["", "light", "dark"];
const section = (name) => document.getElementById(name);
const viewOf = (name) => section(`view-${name}`);
const goToService = (key) => { location.hash = key ? `services/${encodeURIComponent(key)}` : "services"; };

const views = {
  overview: new Overview(viewOf("overview")),
  services: new Services(viewOf("services"), goToService),
  budgets: new Budgets(viewOf("budgets")),
  volumes: new Volumes(viewOf("volumes")),
  "what-if": new WhatIf(viewOf("what-if")),
  simulator: new Simulator(viewOf("simulator")),
};
/** Tables that changed while a view was hidden. */
const missed = Object.fromEntries(NAMES.map((name) => [name, new Set()]));
let current = "";

function show() {
  if (location.hash === "#main") return;
  const [name, rest] = location.hash.slice(1).split(/\/(.*)/s);
  const view = NAMES.includes(name) ? name : "overview";
  const argument = rest ? decoded(rest) : "";
  if (view !== current) {
    current = view;
    for (const other of NAMES) viewOf(other).hidden = other !== view;
    for (const link of document.querySelectorAll(".tabs a")) {
      if (link.dataset.view !== view) link.removeAttribute("aria-current");
      else {
        link.setAttribute("aria-current", "page");
        link.scrollIntoView({ block: "nearest", inline: "center" });
      }
    }
    catchUp(view);
    views[view].shown?.();
  }
  if (view === "services") views.services.open(argument);
  if (view === "what-if" && argument) prefill(argument);
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

function prefill(argument) {
  try {
    views["what-if"].prefill(JSON.parse(argument));
  } catch {
    // Not a link of this page.
  }
}

function catchUp(name) {
  const names = missed[name];
  missed[name] = new Set();
  if (names.size) views[name].draw(names);
}

onChange((names) => {
  for (const view of NAMES) for (const name of names) missed[view].add(name);
  catchUp(current);
  if (names.has("about")) {
    setText(section("source"), store.about.live ? store.about.source : `${store.about.source} (a dump, not live)`);
    section("logout").hidden = !store.about.login;
  }
  if (names.has("notices")) {
    replaceChildren(section("notices"), [...store.tables.notices.values()].map((row) => el("p", { class: "notice" }, el("strong", {}, `${row.what} can't be read: `), row.trouble)));
  }
});

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  try {
    localStorage.setItem("zonewise-theme", theme);
  } catch {
    // Storage is disabled: the theme is not kept.
  }
}

function nextTheme() {
  const now = THEMES.indexOf(document.documentElement.dataset.theme ?? "");
  setTheme(THEMES[(now + 1) % THEMES.length]);
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && current === "services" && views.services.opened) goToService("");
  if (event.target.closest("input, select, textarea")) return;
  const number = Number(event.key);
  if (number >= 1 && number <= NAMES.length) location.hash = NAMES[number - 1];
  else if (event.key === "/") {
    event.preventDefault();
    if (current !== "services") location.hash = "services";
    setTimeout(() => views.services.search.focus());
  } else if (event.key === "t") nextTheme();
  else if (event.key === "?") section("keys").showModal();
}

try {
  setTheme(localStorage.getItem("zonewise-theme") ?? "");
} catch {
  setTheme("");
}
section("theme").addEventListener("click", nextTheme);
section("help").addEventListener("click", () => section("keys").showModal());
addEventListener("keydown", onKey);
addEventListener("hashchange", show);
show();
connect((state) => {
  const words = { live: store.about.live === false ? "a dump" : "live", lost: "connection lost, retrying" };
  setText(section("connection"), words[state]);
  section("connection").dataset.state = state;
  markDirty("about");
});
