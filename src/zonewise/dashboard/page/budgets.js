// Disruption budgets per domain, leaving pods, rollouts and drains.

import { ago, count, el, replaceChildren } from "./dom.js";
import { store } from "./store.js";

const MAX_SHOWN = 120;

export class Budgets {
  constructor(section) {
    this.search = el("input", { type: "search", placeholder: "Find a budget", "aria-label": "Find a budget", oninput: () => this.drawBudgets() });
    this.total = el("span", { class: "muted small" });
    this.cards = el("div", { class: "cards" });
    this.rollouts = el("div");
    this.drains = el("div");
    section.append(el("div", { class: "tools" }, this.search, this.total), this.cards,
      el("div", { class: "cards two" }, el("div", { class: "card" }, el("h2", {}, "Rollouts"), this.rollouts), el("div", { class: "card" }, el("h2", {}, "Drains"), this.drains)));
  }

  draw(names) {
    if (names.has("budgets")) this.drawBudgets();
    if (names.has("rollouts")) this.drawRollouts();
    if (names.has("drains") || names.has("nodes")) this.drawDrains();
  }

  drawBudgets() {
    const query = this.search.value.toLowerCase();
    const budgets = [...store.tables.budgets].filter(([key]) => key.toLowerCase().includes(query)).sort((a, b) => b[1].charges.length - a[1].charges.length || a[1].allowed - b[1].allowed || (a[0] < b[0] ? -1 : 1));
    replaceChildren(this.total, count(budgets.length, "budget"));
    replaceChildren(this.cards, budgets.slice(0, MAX_SHOWN).map(([key, row]) => card(key, row)),
      !store.tables.budgets.size && el("div", { class: "card" }, el("p", { class: "muted" }, "There is no TopologyDisruptionBudget in this cluster. Only stock budgets limit drains, rollouts and scale-downs.")),
      budgets.length > MAX_SHOWN && el("p", { class: "muted" }, `and ${budgets.length - MAX_SHOWN} more: search for them`));
  }

  drawRollouts() {
    const rows = [...store.tables.rollouts];
    replaceChildren(this.rollouts, rows.length ? el("ul", { class: "plain" }, rows.slice(0, MAX_SHOWN).map(([key, row]) => el("li", {}, el("span", { class: "name" }, key), row.byEviction && el("span", { class: "badge none" }, " by eviction"), progress("new", row.updated, row.wanted), progress("ready", row.ready, row.wanted)))) : el("p", { class: "muted" }, "No workload is replacing its pods."));
  }

  drawDrains() {
    const cordoned = [...store.tables.nodes].filter(([, row]) => row.cordoned);
    const lines = [
      ...[...store.tables.drains.values()].map((row) => el("li", {}, el("strong", {}, `⇥ zone ${row.zone}`), el("span", { class: "small muted block" }, `drained by ${row.by.join(", ")}`))),
      ...cordoned.slice(0, MAX_SHOWN).map(([name, row]) => el("li", {}, el("span", { class: "name" }, `▨ ${name}`), el("span", { class: "small muted block" }, `cordoned, in ${row.zone || "no zone"}, ${count(row.endpoints, "endpoint")} left there`))),
    ];
    replaceChildren(this.drains, lines.length ? el("ul", { class: "plain" }, lines) : el("p", { class: "muted" }, "No zone is drained and no node is cordoned."));
  }
}

function card(key, row) {
  const tone = row.trouble ? "bad" : row.allowed ? "good" : "warn";
  return el("article", { class: "card budget", "aria-label": key },
    el("div", { class: "detail-head" }, el("h3", {}, key), el("span", { class: `badge ${tone}` }, row.trouble ? "✕ not enforced" : row.allowed ? `● ${row.allowed} may leave` : "■ none may leave")),
    el("p", { class: "small muted" }, `${row.limit}${row.enforcement !== "Enforce" ? ` · ${row.enforcement}` : ""}`),
    row.trouble && el("p", { class: "bad small" }, row.trouble),
    row.domains.map((domain) => bar(domain)),
    row.charges.length > 0 && el("ul", { class: "plain small" }, row.charges.slice(0, 8).map((charge) => el("li", {}, `↘ ${charge.pod} leaves ${charge.domain} (${charge.source}, ${ago(charge.time)})`))),
    row.charges.length > 8 && el("p", { class: "small muted" }, `and ${row.charges.length - 8} more`));
}

/** Healthy pods, with a mark at the required number. */
function bar(domain) {
  const total = Math.max(domain.pods, domain.healthy, domain.desired, 1);
  const fill = el("span", { class: `bar-fill ${domain.healthy < domain.desired ? "bad" : ""}` });
  const tick = el("span", { class: "bar-tick" });
  fill.style.width = `${(domain.healthy / total) * 100}%`;
  tick.style.left = `${(domain.desired / total) * 100}%`;
  return el("div", { class: "domain" }, el("span", { class: "domain-name" }, domain.name || "no domain"), el("span", { class: "bar" }, fill, tick), el("span", { class: "domain-text" }, `${domain.healthy} of ${domain.pods} healthy · keep ${domain.desired} · ${domain.allowed} may leave`));
}

function progress(label, done, wanted) {
  const fill = el("span", { class: "bar-fill" });
  fill.style.width = `${(done / Math.max(1, wanted)) * 100}%`;
  return el("div", { class: "domain" }, el("span", { class: "domain-name" }, label), el("span", { class: "bar" }, fill), el("span", { class: "domain-text" }, `${done} of ${wanted}`));
}
