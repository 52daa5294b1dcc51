// Every algorithm on this cluster's Services: the simulator's table and plots, made when somebody looks.

import { count, el, put } from "./dom.js";

const PLOTS = { totals: "Mean total scores", "in-zone-against-overload": "More local is up, more even is right", distribution: "How scores are distributed over the Services" };

export class Simulator {
  constructor(section) {
    this.body = el("div", {});
    section.append(el("div", { class: "card" }, el("div", { class: "detail-head" }, el("h2", {}, "Every algorithm on this cluster's Services"), el("button", { type: "button", onclick: () => this.load() }, "Again")), el("p", { class: "muted small" }, "Scores from 0 to 100, higher is better: in-zone is the share of traffic that stays, overload falls with the worst and the mean deviation from an even load, slices with the EndpointSlices needed. The same figures: ", el("code", {}, "zonewise simulate --from-cluster")), this.body));
  }

  shown() {
    if (!this.loaded) this.load();
  }

  draw() {}

  async load() {
    this.loaded = true;
    put(this.body, el("p", { class: "muted" }, "computing …"));
    const answered = await fetch("/simulation").catch(() => null);
    if (!answered?.ok) {
      this.loaded = false;
      put(this.body, el("p", { class: "bad", role: "alert" }, "no answer from the server"));
      return;
    }
    const table = await answered.json();
    if (!table.inputs) {
      put(this.body, el("p", { class: "muted" }, "No Service has ready endpoints yet."));
      return;
    }
    const best = Math.max(...table.rows.map((row) => row.total));
    const cell = (value) => el("td", { class: "number" }, value.toFixed(2));
    put(this.body,
      el("div", { class: "wide-table" }, el("table", { class: "scores" }, el("caption", {}, count(table.inputs, "Service and address family", "Services and address families")), el("thead", {}, el("tr", {}, ["algorithm", "total", "in-zone", "overload", "slices"].map((word, index) => el("th", { scope: "col", class: index ? "number" : "" }, word)))),
        el("tbody", {}, table.rows.map((row) => el("tr", { class: row.total === best ? "best" : "" }, el("th", { scope: "row" }, `${row.total === best ? "★ " : ""}${row.algorithm}`), cell(row.total), cell(row.inZone), cell(row.overload), cell(row.slices)))))),
      el("div", { class: "plots" }, Object.entries(PLOTS).map(([name, words]) => el("figure", {}, el("img", { src: `/simulation/${name}.svg?${Date.now()}`, alt: words, loading: "lazy" }), el("figcaption", { class: "small muted" }, words)))));
  }
}
