// Overview: figures, the zone map, the in-zone share over time, policies not in force, and operations in progress.

import { shareChart } from "./charts.js";
import { ago, amount, badge, count, el, percent, replaceChildren, rate, state } from "./dom.js";
import { ZoneMap } from "./map.js";
import { zoneFlows, lossTexts, measuredShare, shareHistory, store } from "./store.js";

const MONTH_SECONDS = 30 * 86400;
const PRICE_PER_GB = 0.02;
const MAX_LISTED = 4;

export class Overview {
  constructor(section, open) {
    this.open = open;
    this.map = new ZoneMap();
    this.map.pick = (zone) => this.showZone(zone);
    this.map.table.addEventListener("toggle", () => this.map.drawFlows());
    this.figures = el("div", { class: "figures" });
    this.zone = el("div", { class: "zone-detail", "aria-live": "polite" });
    this.chart = el("div");
    this.why = el("div");
    this.now = el("div");
    this.parts = el("div");
    section.append(this.figures,
      el("div", { class: "columns" },
        el("div", { class: "stack" },
          el("div", { class: "card" }, el("h2", {}, "Zones and traffic"), this.map.root, this.zone),
          el("div", { class: "card last parts" }, el("h2", {}, "Components"), this.parts)),
        el("div", { class: "stack filled" },
          el("div", { class: "card" }, el("h2", {}, "Traffic that stays in its zone"), this.chart),
          el("div", { class: "card" }, el("h2", {}, "Policies not in force"), this.why),
          el("div", { class: "card" }, el("h2", {}, "In progress"), this.now))));
    addEventListener("resize", () => this.map.draw(new Set(["nodes"])));
  }

  draw(names) {
    this.map.draw(names);
    if (["services", "nodes", "traffic", "budgets", "proxies"].some((name) => names.has(name))) this.drawFigures();
    if (names.has("traffic") || names.has("proxies")) this.drawChart();
    if (names.has("services") || names.has("components")) this.drawWhy();
    if (["drains", "rollouts", "takeovers", "budgets", "nodes"].some((name) => names.has(name))) this.drawNow();
    if (names.has("components")) this.drawParts();
    if (this.zoneShown !== undefined && names.has("nodes")) this.showZone(this.zoneShown);
  }

  drawFigures() {
    const rows = [...store.tables.services.values()];
    const withPolicy = rows.filter((row) => row.state !== "NotAsked" && row.state !== "Unserved");
    const inForce = withPolicy.filter((row) => row.state === "InForce");
    const nodes = [...store.tables.nodes.values()];
    const crossing = zoneFlows().filter((flow) => flow.from !== flow.to && flow.from && flow.to && flow.from !== "outside").reduce((sum, flow) => sum + flow.rate, 0);
    const share = measuredShare("*");
    const forecast = meanInZone(rows);
    const exhausted = [...store.tables.budgets.values()].filter((row) => row.pods && !row.allowed).length;
    const proxies = store.tables.proxies.get("all");
    const monthly = (crossing * MONTH_SECONDS) / 1e9;
    replaceChildren(this.figures,
      figure("Stays in its zone", share === null ? percent(forecast) : percent(share), share === null ? "forecast, not measured" : `measured; ${percent(forecast)} forecast`, "stays"),
      figure("Crosses zones", proxies?.answering ? rate(crossing) : "–", proxies?.answering ? `${(monthly * PRICE_PER_GB).toLocaleString("en", { style: "currency", currency: "USD" })} a month for ${amount(monthly * 1e9)}` : "no proxy reports its traffic", "crosses"),
      figure("Policies in force", withPolicy.length ? `${inForce.length} of ${withPolicy.length}` : "none", count(rows.length, "Service"), withPolicy.length > inForce.length ? "warn" : "good"),
      figure("Nodes ready", `${nodes.filter((row) => row.ready).length} of ${nodes.length}`, `${count(new Set(nodes.map((row) => row.zone)).size, "zone")}`, nodes.every((row) => row.ready) ? "good" : "bad"),
      figure("Budgets", store.tables.budgets.size ? String(store.tables.budgets.size) : "none", exhausted ? `${exhausted} allow${exhausted === 1 ? "s" : ""} no disruption now` : store.tables.budgets.size ? "all allow disruptions" : "none defined", exhausted ? "warn" : "none"));
  }

  drawChart() {
    const proxies = store.tables.proxies.get("all");
    const silent = proxies && proxies.answering < proxies.nodes ? `${proxies.answering} of ${count(proxies.nodes, "node")} report their traffic${proxies.trouble ? ` (${proxies.trouble})` : ""}` : null;
    const width = Math.min(640, Math.max(280, this.chart.clientWidth || 400));
    replaceChildren(this.chart, shareChart(shareHistory("*"), { width, height: Math.round(110 + width / 10) }), silent && el("p", { class: "muted small" }, silent));
  }

  drawWhy() {
    const rows = [...store.tables.services].filter(([, row]) => ["warn", "bad"].includes(state(row).tone)).sort((a, b) => state(a[1]).rank - state(b[1]).rank || b[1].endpoints - a[1].endpoints);
    if (!rows.length) {
      replaceChildren(this.why, el("p", { class: "muted" }, store.tables.services.size ? "Every policy is in force." : "There is no Service yet."));
      return;
    }
    replaceChildren(this.why, el("ul", { class: "plain" }, rows.slice(0, MAX_LISTED).map(([key, row]) => el("li", {},
      el("a", { href: `#services/${encodeURIComponent(key)}`, class: "name" }, key), " ", badge(state(row)),
      el("p", { class: "small" }, row.state === "InForce" ? [...row.complaints, ...lossTexts(row)][0] : row.sentence)))),
      rows.length > MAX_LISTED && el("p", { class: "small muted" }, `and ${rows.length - MAX_LISTED} more, listed first under `, el("a", { href: "#services" }, "Services")));
  }

  drawNow() {
    const lines = [];
    for (const row of store.tables.drains.values()) lines.push(["⇥", `zone ${row.zone} is being drained`, `by ${row.by.join(", ")}`]);
    const cordoned = [...store.tables.nodes].filter(([, row]) => row.cordoned).map(([name]) => name);
    if (cordoned.length) lines.push(["▨", `${count(cordoned.length, "node")} cordoned`, cordoned.slice(0, 5).join(", ")]);
    for (const row of store.tables.takeovers.values()) lines.push(["⇄", `${row.domain} is taken over`, `its volumes are served from ${row.targets.join(", ")}`]);
    for (const row of store.tables.rollouts.values()) lines.push(["↻", `${row.kind} ${row.namespace}/${row.name}`, `${row.updated} of ${row.wanted} new, ${row.ready} ready${row.byEviction ? ", by eviction" : ""}`]);
    for (const row of store.tables.budgets.values()) for (const charge of row.charges.slice(0, 3)) lines.push(["↘", `${charge.pod} leaves ${charge.domain}`, `${charge.source}, on budget ${row.namespace}/${row.name}, ${ago(charge.time)}`]);
    replaceChildren(this.now, lines.length ? el("ul", { class: "plain signs" }, lines.slice(0, 12).map(([sign, what, detail]) => el("li", {}, el("span", { class: "sign", "aria-hidden": "true" }, sign), el("span", {}, what, el("span", { class: "small muted block" }, detail))))) : el("p", { class: "muted" }, "No drain, rollout or takeover."), lines.length > 12 && el("p", { class: "small muted" }, `and ${lines.length - 12} more`));
  }

  drawParts() {
    const rows = [...store.tables.components.values()];
    replaceChildren(this.parts, rows.length ? el("ul", { class: "plain signs" }, rows.map((row) => el("li", {}, el("span", { class: `sign ${row.good ? "good" : "bad"}`, "aria-hidden": "true" }, row.good ? "●" : "✕"), el("span", {}, row.what, el("span", { class: "small muted block" }, row.sentence))))) : el("p", { class: "muted" }, "Zonewise is not installed in this cluster; the figures are forecasts."));
  }

  showZone(name) {
    this.zoneShown = name;
    const nodes = [...store.tables.nodes].filter(([, row]) => row.zone === name).sort((a, b) => a[0].localeCompare(b[0], "en", { numeric: true }));
    const shown = nodes.slice(0, 60);
    replaceChildren(this.zone, el("div", { class: "detail-head" }, el("h3", {}, `Zone ${name || "unknown"}`), el("button", { type: "button", class: "quiet", onclick: () => { this.zoneShown = undefined; replaceChildren(this.zone); } }, "Close")),
      el("ul", { class: "chips" }, shown.map(([node, row]) => el("li", { class: row.ready ? (row.cordoned ? "warn" : "") : "bad" }, `${row.ready ? (row.cordoned ? "▨ " : "") : "✕ "}${node}`, el("span", { class: "muted" }, ` ${row.endpoints}`)))),
      nodes.length > shown.length && el("p", { class: "small muted" }, `and ${nodes.length - shown.length} more nodes`),
      el("p", {}, el("a", { href: `#what-if/${encodeURIComponent(JSON.stringify({ type: "lose-zone", zone: name }))}` }, `What if ${name} were lost?`)));
  }
}

function figure(title, value, note, tone) {
  return el("div", { class: `figure ${tone}` }, el("div", { class: "figure-title" }, title), el("div", { class: "figure-value" }, value), el("div", { class: "figure-more" }, note));
}

/** Weighted by endpoints; null without any. */
function meanInZone(rows) {
  let total = 0;
  let inZone = 0;
  for (const row of rows) {
    total += row.endpoints;
    inZone += row.endpoints * row.inZone;
  }
  return total ? inZone / total : null;
}
