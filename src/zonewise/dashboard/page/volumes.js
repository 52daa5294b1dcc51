// Volumes per domain, and takeovers.

import { amount, count, el, replaceChildren } from "./dom.js";
import { store } from "./store.js";

export class Volumes {
  constructor(section) {
    this.volumes = el("div");
    this.takeovers = el("div");
    section.append(el("div", { class: "cards two" }, el("div", { class: "card" }, el("h2", {}, "Volumes per domain"), this.volumes), el("div", { class: "card" }, el("h2", {}, "Takeovers"), this.takeovers)));
  }

  draw(names) {
    if (names.has("volumes")) this.drawVolumes();
    if (names.has("takeovers")) this.drawTakeovers();
  }

  drawVolumes() {
    const rows = [...store.tables.volumes.values()].sort((a, b) => (a.domain < b.domain ? -1 : 1));
    const maxBytes = Math.max(...rows.map((row) => row.bytes), 1);
    replaceChildren(this.volumes, rows.length ? rows.map((row) => {
      const fill = el("span", { class: "bar-fill" });
      fill.style.width = `${(row.bytes / maxBytes) * 100}%`;
      return el("div", { class: "domain" }, el("span", { class: "domain-name" }, row.domain), el("span", { class: "bar" }, fill), el("span", { class: "domain-text" }, `${count(row.volumes, "volume")}, ${row.bound} bound, ${amount(row.bytes)}, reached by ${count(row.nodes, "node")}`));
    }) : el("p", { class: "muted" }, "The Zonewise CSI driver has no volume in this cluster."));
  }

  drawTakeovers() {
    const rows = [...store.tables.takeovers.values()];
    replaceChildren(this.takeovers, rows.length ? el("ul", { class: "plain" }, rows.map((row) => el("li", {}, el("strong", {}, `⇄ ${row.domain}`), el("span", { class: "block" }, `served by ${count(row.nodes, "node")} in ${row.targets.join(", ")}`)))) : el("p", { class: "muted" }, "Every domain serves its own volumes."));
  }
}
