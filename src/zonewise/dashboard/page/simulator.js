// Simulation of every algorithm on this cluster's Services, computed when the view is opened.

import { count, el, replaceChildren } from "./dom.js";

const PLOTS = { totals: "Mean total scores", "in-zone-against-overload": "More local is up, more even is right", distribution: "How scores are distributed over the Services" };

export class Simulator {
  constructor(section) {
    this.body = el("div", {});
    section.append(el("div", { class: "card" }, el("div", { class: "detail-head" }, el("h2", {}, "Every algorithm on this cluster's Services"), el("button", { type: "button", onclick: () => this.load() }, "Recompute")), el("p", { class: "muted small" }, "Scores from 0 to 100, higher is better: in-zone is the share of traffic that stays, overload falls with the worst and the mean deviation from an even load, slices with the EndpointSlices needed. The same figures: ", el("code", {}, "zonewise simulate --from-cluster")), this.body));
  }

  shown() {
    if (!this.loaded) this.load();
  }

  draw() {}

  async load() {
    this.loaded = true;
    replaceChildren(this.body, el("p", { class: "muted" }, "computing …"));
    const reply = await fetch("/simulation").catch(() => null);
    if (!reply?.ok) {
      this.loaded = false;
      replaceChildren(this.body, el("p", { class: "bad", role: "alert" }, "no reply from the server"));
      return;
    }
    const table = await reply.json();
    if (!table.inputs) {
      replaceChildren(this.body, el("p", { class: "muted" }, "No Service has ready endpoints yet."));
      return;
    }
    const best = Math.max(...table.rows.map((row) => row.total));
    const cell = (value) => el("td", { class: "number" }, value.toFixed(2));
    replaceChildren(this.body,
      el("div", { class: "wide-table" }, el("table", { class: "scores" }, el("caption", {}, count(table.inputs, "Service and address family", "Services and address families")), el("thead", {}, el("tr", {}, ["algorithm", "total", "in-zone", "overload", "slices"].map((word, index) => el("th", { scope: "col", class: index ? "number" : "" }, word)))),
        el("tbody", {}, table.rows.map((row) => el("tr", { class: row.total === best ? "best" : "" }, el("th", { scope: "row" }, `${row.total === best ? "★ " : ""}${row.algorithm}`), cell(row.total), cell(row.inZone), cell(row.overload), cell(row.slices)))))),
      el("div", { class: "plots" }, Object.entries(PLOTS).map(([name, title]) => el("figure", {}, el("img", { src: `/simulation/${name}.svg?${Date.now()}`, alt: title, loading: "lazy" }), el("figcaption", { class: "small muted" }, title)))));
  }
}
