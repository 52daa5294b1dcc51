// All Services in one list: only the rows in sight exist. One opens with what was decided about it, and why.

import { shareChart, sparkPath } from "./charts.js";
import { ago, badge, count, el, mark, percent, put, say, state, STATES, svg } from "./dom.js";
import { losses, measured, shares, store } from "./store.js";

const SPARE = 6;

export class Services {
  constructor(section, go) {
    this.go = go;
    this.keys = [];
    this.rows = new Map();
    this.active = "";
    this.search = el("input", { type: "search", id: "search", placeholder: "Find by name, policy or reason", "aria-label": "Find a Service", oninput: () => this.sift() });
    this.wanted = el("select", { "aria-label": "State", onchange: () => this.sift() }, el("option", { value: "" }, "every state"), Object.entries(STATES).map(([value, known]) => el("option", { value }, `${known.shape} ${known.word}`)));
    this.order = el("select", { "aria-label": "Order", onchange: () => this.sift() }, [["state", "worst first"], ["name", "by name"], ["zone", "least in zone first"], ["size", "most endpoints first"], ["overload", "most overload first"]].map(([value, words]) => el("option", { value }, words)));
    this.total = el("span", { class: "muted small", role: "status" });
    this.space = el("div", { class: "rows", role: "rowgroup" });
    this.scroller = el("div", { class: "scroller", role: "grid", tabindex: 0, "aria-label": "Services: arrows to move, Enter for more", onscroll: () => this.place(), onkeydown: (event) => this.key(event), onfocus: () => this.focusFirst() }, this.space);
    this.detail = el("aside", { class: "detail card", tabindex: -1, hidden: true, "aria-label": "Service" });
    section.append(el("div", { class: "tools" }, this.search, this.wanted, this.order, this.total), el("div", { class: "with-detail" }, el("div", { class: "list" }, (this.head = el("div", { class: "row head", "aria-hidden": "true" }, ["Service", "Policy", "In zone", "Last 20 min", "Endpoints", "Overload", "Why"].map((word, index) => el("span", { class: `c${index}` }, word)))), this.scroller), this.detail));
    new ResizeObserver(() => this.place()).observe(this.scroller);
  }

  draw(names) {
    if (names.has("services") || names.has("components")) this.sift();
    else if (names.has("traffic")) this.place(true);
    if (this.opened && ["services", "traffic", "components"].some((name) => names.has(name))) this.drawDetail();
  }

  sift() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = this.wanted.value;
    const found = [];
    for (const [key, row] of store.tables.services) {
      if (wanted && row.state !== wanted) continue;
      if (words.length) {
        const text = `${key} ${row.policy} ${row.sentence}`.toLowerCase();
        if (!words.every((word) => text.includes(word))) continue;
      }
      found.push([key, row]);
    }
    const by = { state: (a, b) => state(a[1]).rank - state(b[1]).rank, name: () => 0, zone: (a, b) => a[1].inZone - b[1].inZone, size: (a, b) => b[1].endpoints - a[1].endpoints, overload: (a, b) => b[1].overload - a[1].overload }[this.order.value];
    found.sort((a, b) => by(a, b) || (a[0] < b[0] ? -1 : 1));
    this.keys = found.map(([key]) => key);
    if (!this.keys.includes(this.active)) this.active = "";
    say(this.total, this.keys.length === store.tables.services.size ? count(this.keys.length, "Service") : `${this.keys.length} of ${count(store.tables.services.size, "Service")}`);
    this.place(true);
  }

  rowHeight() {
    return this.scroller.clientWidth < 620 ? 76 : 46;
  }

  place(all = false) {
    const high = this.rowHeight();
    if (this.high !== high) all = true;
    this.high = high;
    this.head.style.paddingRight = `calc(0.9rem + ${this.scroller.offsetWidth - this.scroller.clientWidth - 1}px)`; // as rows beside the scroll bar
    this.space.style.height = `${this.keys.length * high}px`;
    mark(this.scroller, "aria-rowcount", this.keys.length);
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / high) - SPARE);
    const last = Math.min(this.keys.length, Math.ceil((this.scroller.scrollTop + this.scroller.clientHeight) / high) + SPARE);
    const seen = new Set(this.keys.slice(first, last));
    const free = [];
    for (const [key, row] of this.rows) {
      if (!seen.has(key)) {
        this.rows.delete(key);
        free.push(row);
      }
    }
    for (let index = first; index < last; index += 1) {
      const key = this.keys[index];
      const fresh = !this.rows.has(key);
      const row = this.rows.get(key) ?? free.pop() ?? this.makeRow();
      this.rows.set(key, row);
      if (fresh || all) this.fillRow(row, key, index, high);
    }
    for (const row of free) row.node.remove();
    this.markActive();
  }

  makeRow() {
    const cell = (index, ...children) => el("span", { class: `c${index}`, role: "gridcell" }, ...children);
    const row = { shape: el("span", { class: "shape" }), name: el("span", { class: "name" }), space: el("span", { class: "muted small" }), policy: el("span"), bar: el("span", { class: "bar-fill" }), tick: el("span", { class: "bar-tick" }), share: el("span", { class: "bar-text" }), spark: svg("path", { class: "line" }), endpoints: el("span"), overload: el("span"), why: el("span") };
    row.node = el("div", { class: "row", role: "row" }, cell(0, row.shape, el("span", { class: "names" }, row.name, row.space)), cell(1, row.policy), cell(2, el("span", { class: "bar" }, row.bar, row.tick), row.share), cell(3, svg("svg", { class: "spark", viewBox: "0 0 110 26", "aria-hidden": "true" }, row.spark)), cell(4, row.endpoints), cell(5, row.overload), cell(6, row.why));
    row.node.addEventListener("click", () => this.go(row.key));
    this.space.append(row.node);
    return row;
  }

  fillRow(row, key, index, high) {
    const found = store.tables.services.get(key);
    if (!found) return;
    const known = state(found);
    const share = measured(key);
    row.key = key;
    row.node.style.transform = `translateY(${index * high}px)`;
    mark(row.node, "aria-rowindex", index + 1);
    mark(row.node, "id", `row-${index}`);
    mark(row.shape, "class", `shape ${known.tone}`);
    mark(row.shape, "title", known.word);
    say(row.shape, known.shape);
    say(row.name, found.name);
    say(row.space, found.namespace);
    say(row.policy, found.policy === "none" ? "–" : found.policy);
    row.bar.style.width = `${Math.round((share ?? found.inZone) * 100)}%`;
    mark(row.bar, "class", share === null ? "bar-fill foreseen" : "bar-fill");
    row.tick.style.left = `${Math.round(found.inZone * 100)}%`;
    say(row.share, percent(share ?? found.inZone));
    mark(row.share, "title", share === null ? "foreseen" : `measured; ${percent(found.inZone)} foreseen`);
    mark(row.spark, "d", sparkPath(shares(key), 110, 26));
    say(row.endpoints, String(found.endpoints));
    say(row.overload, found.overload > 0.005 ? `+${Math.round(found.overload * 100)} %` : "–");
    say(row.why, found.state === "NotAsked" ? "" : found.sentence);
  }

  markActive() {
    const index = this.keys.indexOf(this.active);
    for (const [key, row] of this.rows) mark(row.node, "aria-selected", key === this.active ? "true" : "false");
    mark(this.scroller, "aria-activedescendant", index >= 0 && this.rows.has(this.active) ? `row-${index}` : null);
  }

  focusFirst() {
    if (!this.active && this.keys.length) this.move(0);
  }

  key(event) {
    const index = this.keys.indexOf(this.active);
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / this.high) - 1);
    const to = { ArrowDown: index + 1, ArrowUp: index - 1, PageDown: index + page, PageUp: index - page, Home: 0, End: this.keys.length - 1 }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      this.move(to);
    } else if (event.key === "Enter" && this.active) {
      event.preventDefault();
      this.go(this.active);
    }
  }

  move(to) {
    const index = Math.max(0, Math.min(this.keys.length - 1, to));
    this.active = this.keys[index] ?? "";
    const top = index * this.high;
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    else if (top + this.high > this.scroller.scrollTop + this.scroller.clientHeight) this.scroller.scrollTop = top + this.high - this.scroller.clientHeight;
    this.place();
  }

  open(key) {
    const before = this.opened;
    this.opened = key;
    this.detail.hidden = !key;
    if (key) {
      this.active = key;
      this.drawDetail();
      this.markActive();
      if (before !== key) this.detail.focus({ preventScroll: innerWidth >= 760 });
    } else if (before) this.scroller.focus();
  }

  drawDetail() {
    const row = store.tables.services.get(this.opened);
    const head = el("div", { class: "detail-head" }, el("h2", {}, this.opened), el("button", { type: "button", class: "quiet", "aria-label": "Close", onclick: () => this.go("") }, "✕"));
    if (!row) {
      put(this.detail, head, el("p", {}, "There is no such Service with a selector."));
      return;
    }
    const share = measured(this.opened);
    const fact = (name, value) => [el("dt", {}, name), el("dd", {}, value)];
    put(this.detail, head,
      el("p", {}, badge(state(row)), row.since ? el("span", { class: "muted small" }, ` since ${ago(row.since)}`) : null),
      el("p", { class: "sentence" }, row.sentence),
      row.remedy && el("p", { class: "remedy" }, el("strong", {}, "What would change it: "), row.remedy),
      row.cutOff > 0 && el("p", { class: "bad" }, `▲ ${count(row.cutOff, "node")} reach no endpoint`),
      row.complaints.map((text) => el("p", { class: "warn small" }, `! ${text}`)),
      losses(row).map((text) => el("p", { class: "warn small" }, `! ${text}`)),
      shareChart(shares(this.opened), { width: 460, height: 150 }),
      el("dl", { class: "facts" },
        fact("policy", row.policy), row.source && fact("said by", row.source), fact("in zone, foreseen", percent(row.inZone)), fact("in zone, measured", share === null ? "not measured" : percent(share)),
        fact("worst overload", percent(row.overload)), fact("endpoints", String(row.endpoints)), fact("slices", String(row.slices)), fact("served by", row.headless ? "DNS" : row.ourProxy ? "the zonewise proxy" : "the stock proxy")),
      el("h3", {}, "Which endpoints are for whom"),
      el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col", class: "number" }, "endpoints"), el("th", { scope: "col" }, "in"), el("th", { scope: "col" }, "for clients of"))), el("tbody", {}, row.parts.map((part) => el("tr", {}, el("td", { class: "number" }, String(part.endpoints)), el("td", {}, part.zone || "no zone"), el("td", {}, part.consumers.length === 0 ? "nobody" : part.consumers[0] === "*" ? "every zone" : part.consumers.join(", ")))))),
      el("p", {}, el("a", { href: `#what-if/${encodeURIComponent(JSON.stringify({ type: "set", service: this.opened }))}` }, "What if its policy were another?")),
      el("p", { class: "small muted" }, "In a terminal: ", el("code", {}, `zonewise explain service ${row.name} -n ${row.namespace}`)));
  }
}
