// The list of Services, which renders visible rows only, and the details of one Service.

import { shareChart, sparkPath } from "./charts.js";
import { ago, badge, count, el, setAttr, percent, replaceChildren, setText, state, STATES, svg } from "./dom.js";
import { lossTexts, measuredShare, shareHistory, store } from "./store.js";

const OVERSCAN = 6;

export class Services {
  constructor(section, go) {
    this.go = go;
    this.keys = [];
    this.rows = new Map();
    this.active = "";
    this.search = el("input", { type: "search", id: "search", placeholder: "Find by name, policy or reason", "aria-label": "Find a Service", oninput: () => this.filter() });
    this.stateFilter = el("select", { "aria-label": "State", onchange: () => this.filter() }, el("option", { value: "" }, "every state"), Object.entries(STATES).map(([value, { shape, word }]) => el("option", { value }, `${shape} ${word}`)));
    this.order = el("select", { "aria-label": "Order", onchange: () => this.filter() }, [["state", "worst first"], ["name", "by name"], ["zone", "least in zone first"], ["size", "most endpoints first"], ["overload", "most overload first"]].map(([value, words]) => el("option", { value }, words)));
    this.total = el("span", { class: "muted small", role: "status" });
    this.space = el("div", { class: "rows", role: "rowgroup" });
    this.scroller = el("div", { class: "scroller", role: "grid", tabindex: 0, "aria-label": "Services: arrows to move, Enter for more", onscroll: () => this.place(), onkeydown: (event) => this.key(event), onfocus: () => this.focusFirst() }, this.space);
    this.detail = el("aside", { class: "detail card", tabindex: -1, hidden: true, "aria-label": "Service" });
    section.append(el("div", { class: "tools" }, this.search, this.stateFilter, this.order, this.total), el("div", { class: "with-detail" }, el("div", { class: "list" }, (this.head = el("div", { class: "row head", "aria-hidden": "true" }, ["Service", "Policy", "In zone", "Last 20 min", "Endpoints", "Overload", "Why"].map((word, index) => el("span", { class: `c${index}` }, word)))), this.scroller), this.detail));
    new ResizeObserver(() => this.place()).observe(this.scroller);
  }

  draw(names) {
    if (names.has("services") || names.has("components")) this.filter();
    else if (names.has("traffic")) this.place(true);
    if (this.opened && ["services", "traffic", "components"].some((name) => names.has(name))) this.drawDetail();
  }

  filter() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wantedState = this.stateFilter.value;
    const matches = [];
    for (const [key, row] of store.tables.services) {
      if (wantedState && row.state !== wantedState) continue;
      if (words.length) {
        const text = `${key} ${row.policy} ${row.sentence}`.toLowerCase();
        if (!words.every((word) => text.includes(word))) continue;
      }
      matches.push([key, row]);
    }
    const by = { state: (a, b) => state(a[1]).rank - state(b[1]).rank, name: () => 0, zone: (a, b) => a[1].inZone - b[1].inZone, size: (a, b) => b[1].endpoints - a[1].endpoints, overload: (a, b) => b[1].overload - a[1].overload }[this.order.value];
    matches.sort((a, b) => by(a, b) || (a[0] < b[0] ? -1 : 1));
    this.keys = matches.map(([key]) => key);
    if (!this.keys.includes(this.active)) this.active = "";
    setText(this.total, this.keys.length === store.tables.services.size ? count(this.keys.length, "Service") : `${this.keys.length} of ${count(store.tables.services.size, "Service")}`);
    this.place(true);
  }

  measureRowHeight() {
    return this.scroller.clientWidth < 620 ? 76 : 46;
  }

  place(all = false) {
    const rowHeight = this.measureRowHeight();
    if (this.rowHeight !== rowHeight) all = true;
    this.rowHeight = rowHeight;
    this.head.style.paddingRight = `calc(0.9rem + ${this.scroller.offsetWidth - this.scroller.clientWidth - 1}px)`; // as rows beside the scroll bar
    this.space.style.height = `${this.keys.length * rowHeight}px`;
    setAttr(this.scroller, "aria-rowcount", this.keys.length);
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / rowHeight) - OVERSCAN);
    const last = Math.min(this.keys.length, Math.ceil((this.scroller.scrollTop + this.scroller.clientHeight) / rowHeight) + OVERSCAN);
    const visible = new Set(this.keys.slice(first, last));
    const free = [];
    for (const [key, row] of this.rows) {
      if (!visible.has(key)) {
        this.rows.delete(key);
        free.push(row);
      }
    }
    for (let index = first; index < last; index += 1) {
      const key = this.keys[index];
      const fresh = !this.rows.has(key);
      const row = this.rows.get(key) ?? free.pop() ?? this.makeRow();
      this.rows.set(key, row);
      if (fresh || all) this.fillRow(row, key, index, rowHeight);
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

  fillRow(row, key, index, rowHeight) {
    const service = store.tables.services.get(key);
    if (!service) return;
    const { tone, word, shape } = state(service);
    const share = measuredShare(key);
    row.key = key;
    row.node.style.transform = `translateY(${index * rowHeight}px)`;
    setAttr(row.node, "aria-rowindex", index + 1);
    setAttr(row.node, "id", `row-${index}`);
    setAttr(row.shape, "class", `shape ${tone}`);
    setAttr(row.shape, "title", word);
    setText(row.shape, shape);
    setText(row.name, service.name);
    setText(row.space, service.namespace);
    setText(row.policy, service.policy === "none" ? "–" : service.policy);
    row.bar.style.width = `${Math.round((share ?? service.inZone) * 100)}%`;
    setAttr(row.bar, "class", share === null ? "bar-fill foreseen" : "bar-fill");
    row.tick.style.left = `${Math.round(service.inZone * 100)}%`;
    setText(row.share, percent(share ?? service.inZone));
    setAttr(row.share, "title", share === null ? "forecast" : `measured; ${percent(service.inZone)} forecast`);
    setAttr(row.spark, "d", sparkPath(shareHistory(key), 110, 26));
    setText(row.endpoints, String(service.endpoints));
    setText(row.overload, service.overload > 0.005 ? `+${Math.round(service.overload * 100)} %` : "–");
    setText(row.why, service.state === "NotAsked" ? "" : service.sentence);
  }

  markActive() {
    const index = this.keys.indexOf(this.active);
    for (const [key, row] of this.rows) setAttr(row.node, "aria-selected", key === this.active ? "true" : "false");
    setAttr(this.scroller, "aria-activedescendant", index >= 0 && this.rows.has(this.active) ? `row-${index}` : null);
  }

  focusFirst() {
    if (!this.active && this.keys.length) this.move(0);
  }

  key(event) {
    const index = this.keys.indexOf(this.active);
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / this.rowHeight) - 1);
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
    const top = index * this.rowHeight;
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    else if (top + this.rowHeight > this.scroller.scrollTop + this.scroller.clientHeight) this.scroller.scrollTop = top + this.rowHeight - this.scroller.clientHeight;
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
      replaceChildren(this.detail, head, el("p", {}, "There is no such Service with a selector."));
      return;
    }
    const share = measuredShare(this.opened);
    const fact = (name, value) => [el("dt", {}, name), el("dd", {}, value)];
    replaceChildren(this.detail, head,
      el("p", {}, badge(state(row)), row.since ? el("span", { class: "muted small" }, ` since ${ago(row.since)}`) : null),
      el("p", { class: "sentence" }, row.sentence),
      row.remedy && el("p", { class: "remedy" }, el("strong", {}, "What would change it: "), row.remedy),
      row.cutOff > 0 && el("p", { class: "bad" }, `▲ ${count(row.cutOff, "node")} reach no endpoint`),
      row.complaints.map((text) => el("p", { class: "warn small" }, `! ${text}`)),
      lossTexts(row).map((text) => el("p", { class: "warn small" }, `! ${text}`)),
      shareChart(shareHistory(this.opened), { width: 460, height: 150 }),
      el("dl", { class: "facts" },
        fact("policy", row.policy), row.source && fact("set by", row.source), fact("in zone, forecast", percent(row.inZone)), fact("in zone, measured", share === null ? "not measured" : percent(share)),
        fact("worst overload", percent(row.overload)), fact("endpoints", String(row.endpoints)), fact("slices", String(row.slices)), fact("served by", row.headless ? "DNS" : row.ourProxy ? "the zonewise proxy" : "the stock proxy")),
      el("h3", {}, "Endpoints by client zone"),
      el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col", class: "number" }, "endpoints"), el("th", { scope: "col" }, "in"), el("th", { scope: "col" }, "for clients of"))), el("tbody", {}, row.parts.map((part) => el("tr", {}, el("td", { class: "number" }, String(part.endpoints)), el("td", {}, part.zone || "no zone"), el("td", {}, part.consumers.length === 0 ? "no client" : part.consumers[0] === "*" ? "every zone" : part.consumers.join(", ")))))),
      el("p", {}, el("a", { href: `#what-if/${encodeURIComponent(JSON.stringify({ type: "set", service: this.opened }))}` }, "What if its policy were changed?")),
      el("p", { class: "small muted" }, "In a terminal: ", el("code", {}, `zonewise explain service ${row.name} -n ${row.namespace}`)));
  }
}
