// What-if changes, computed by the server with the functions of `zonewise plan`.

import { el, percent, replaceChildren } from "./dom.js";
import { lossTexts, store } from "./store.js";

const POLICIES = {
  "same-zone": ["Prefer", "Require", "Balanced", ""],
  "same-node": ["Prefer", "Require", "Balanced", ""],
  "same-region": ["Prefer", "Require", "Balanced", ""],
  trafficDistribution: ["PreferSameZone", "PreferSameNode", "PreferClose", ""],
  "topology-mode": ["Auto", "Disabled", ""],
};

export class WhatIf {
  constructor(section) {
    this.changes = [];
    this.kind = el("select", { id: "change-kind", onchange: () => this.fields() }, [["set", "a policy is set"], ["lose-zone", "a zone is lost"], ["add-nodes", "nodes are added"], ["replicas", "a Service is scaled"]].map(([value, label]) => el("option", { value }, label)));
    this.inputs = el("span", { class: "inputs" });
    this.list = el("ol", { class: "changes" });
    this.gb = number("0", "gb");
    this.price = number("0.02", "price", "0.001");
    this.result = el("div", { "aria-live": "polite" });
    this.names = el("datalist", { id: "service-names" });
    const form = el("form", { class: "card", onsubmit: (event) => { event.preventDefault(); this.ask(); } },
      el("h2", {}, "What if …"),
      el("div", { class: "tools" }, el("label", { for: "change-kind", class: "sr" }, "Change"), this.kind, this.inputs, el("button", { type: "button", onclick: () => this.add() }, "Add")),
      this.list,
      el("div", { class: "tools" }, el("label", {}, "traffic a month, GB ", this.gb), el("label", {}, "price per GB across zones ", this.price), el("button", { class: "primary" }, "Show what happens")),
      el("p", { class: "small muted" }, "Nothing is changed in the cluster."), this.names);
    section.append(form, this.result);
    this.fields();
  }

  draw(names) {
    if (names.has("nodes") || names.has("services")) this.refresh();
    if (names.has("services") && store.tables.services.size <= 500) replaceChildren(this.names, [...store.tables.services.keys()].map((value) => el("option", { value })));
  }

  /** Updates the choices from the cluster, and keeps what the user entered. */
  refresh() {
    const choices = JSON.stringify([this.zones(), this.namespaces()]);
    if (choices === this.choices || this.inputs.contains(document.activeElement)) return;
    const before = [...this.inputs.querySelectorAll("[name]")].map(({ name, value }) => [name, value]);
    this.fields();
    for (const [name, value] of before) {
      const input = this.inputs.querySelector(`[name=${name}]`);
      if (input.tagName !== "SELECT" || [...input.options].some((option) => option.value === value)) input.value = value;
      if (name === "policy") input.dispatchEvent(new Event("change"));
    }
    this.choices = choices;
  }

  namespaces() {
    return [...new Set([...store.tables.services.values()].map((row) => row.namespace))].sort();
  }

  zones() {
    return [...new Set([...store.tables.nodes.values()].map((row) => row.zone))].filter(Boolean).sort();
  }

  fields(service = "") {
    const zone = (label = "in") => labelled(label, el("select", { name: "zone" }, this.zones().map((value) => el("option", { value }, value))));
    const serviceInput = (hint) => el("input", { name: "service", list: "service-names", placeholder: hint, "aria-label": "Service", value: service });
    if (this.kind.value === "set") {
      const values = el("select", { name: "value", "aria-label": "Value" });
      const fill = () => replaceChildren(values, POLICIES[policy.value].map((value) => el("option", { value }, value || "removed")));
      const policy = el("select", { name: "policy", "aria-label": "Policy", onchange: fill }, Object.keys(POLICIES).map((value) => el("option", { value }, value)));
      fill();
      const namespace = el("select", { name: "namespace", "aria-label": "Namespace" }, el("option", { value: "" }, "every namespace"), this.namespaces().map((value) => el("option", { value }, value)));
      replaceChildren(this.inputs, policy, values, el("span", {}, "on"), namespace, el("input", { name: "selector", placeholder: "labels, such as app=shop", "aria-label": "Labels" }), serviceInput("or one Service"));
    } else if (this.kind.value === "lose-zone") replaceChildren(this.inputs, zone("zone"));
    else if (this.kind.value === "add-nodes") replaceChildren(this.inputs, number("1", "number", "1"), zone());
    else replaceChildren(this.inputs, serviceInput("namespace/name"), labelled("to", number("3", "number", "1")));
  }

  value(name) {
    return this.inputs.querySelector(`[name=${name}]`)?.value ?? "";
  }

  read() {
    const kind = this.kind.value;
    if (kind === "set") return { type: kind, policy: this.value("policy"), value: this.value("value"), namespace: this.value("namespace"), selector: this.value("selector"), service: this.value("service") };
    if (kind === "lose-zone") return { type: kind, zone: this.value("zone") };
    if (kind === "add-nodes") return { type: kind, zone: this.value("zone"), number: Number(this.value("number")) };
    return { type: kind, service: this.value("service"), number: Number(this.value("number")) };
  }

  add() {
    const change = this.read();
    const other = this.changes.find((present) => present.type === "set" && change.type === "set" && scopeOf(present) !== scopeOf(change));
    if (other) {
      replaceChildren(this.result, el("p", { class: "card bad", role: "alert" }, `All policies must be set on the same Services; the list already has ${scopeOf(other)}.`));
      return;
    }
    this.changes.push(change);
    this.showChanges();
  }

  showChanges() {
    replaceChildren(this.list, this.changes.map((change, index) => el("li", {}, describe(change), " ", el("button", { type: "button", class: "quiet", "aria-label": `Remove: ${describe(change)}`, onclick: () => { this.changes.splice(index, 1); this.showChanges(); } }, "✕"))));
  }

  /** Fills the form from a link of another view. */
  prefill(change) {
    this.kind.value = change.type;
    this.fields(change.service ?? "");
    if (change.zone) this.inputs.querySelector("[name=zone]").value = change.zone;
    if (change.type === "lose-zone") {
      this.changes = [change];
      this.showChanges();
      this.ask();
    }
  }

  async ask() {
    if (!this.changes.length) this.add();
    const scope = this.changes.find((change) => change.type === "set") ?? {};
    const question = {
      changes: this.changes.map((change) => (change.type === "set" ? { type: "set", policy: change.policy, value: change.value } : change)),
      namespace: scope.namespace ?? "", selector: scope.selector ?? "", service: scope.service ?? "",
      gb: Number(this.gb.value) || 0, price: Number(this.price.value) || 0,
    };
    replaceChildren(this.result, el("p", { class: "muted" }, "computing …"));
    try {
      const reply = await fetch("/what-if", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(question) });
      const answer = await reply.json();
      if (reply.ok) this.show(answer);
      else replaceChildren(this.result, el("p", { class: "card bad", role: "alert" }, answer.error));
    } catch (error) {
      replaceChildren(this.result, el("p", { class: "card bad", role: "alert" }, `no reply: ${error.message}`));
    }
  }

  show(answer) {
    const money = (value) => (value === null ? "–" : value.toLocaleString("en", { style: "currency", currency: "USD" }));
    const total = (name, today, planned, good) => el("div", { class: `figure ${today === planned ? "none" : good ? "good" : "warn"}` }, el("div", { class: "figure-title" }, name), el("div", { class: "figure-value" }, planned), el("div", { class: "figure-more" }, today === planned ? "as today" : `${today} today`));
    const { today, planned } = answer;
    replaceChildren(this.result,
      el("div", { class: "figures" },
        total("in zone", percent(today.inZone), percent(planned.inZone), planned.inZone >= today.inZone),
        total("worst overload", percent(today.worstOverload), percent(planned.worstOverload), planned.worstOverload <= today.worstOverload),
        total("slices", String(today.slices), String(planned.slices), true),
        total("Services cut off", String(today.cutOff), String(planned.cutOff), planned.cutOff <= today.cutOff),
        today.cost !== null && total("cost a month", money(today.cost), money(planned.cost), planned.cost <= today.cost)),
      el("div", { class: "card" },
        el("h2", {}, answer.rows.length ? `${answer.rows.length + answer.leftOut} of ${today.services} Services change` : "No Service changes"),
        answer.command && el("p", { class: "small muted" }, "In a terminal: ", el("code", {}, answer.command)),
        answer.rows.length > 0 && el("div", { class: "wide-table" }, el("table", { class: "stacked" }, el("thead", {}, el("tr", {}, ["Service", "policy", "in zone", "overload", "endpoints", "why"].map((word) => el("th", { scope: "col" }, word)))),
          el("tbody", {}, answer.rows.map((row) => {
            const [a, b] = [row.today.outlook, row.planned.outlook];
            return el("tr", {}, el("th", { scope: "row" }, `${b.namespace}/${b.name}`), step("policy", a.policy, b.policy), step("in zone", percent(a.inZone), percent(b.inZone)), step("overload", percent(a.worstOverload), percent(b.worstOverload)), step("endpoints", String(a.endpoints), String(b.endpoints)),
              el("td", { class: "small" }, b.sentence, b.cutOff.length > 0 && el("span", { class: "bad block" }, `▲ ${b.cutOff.length} nodes reach no endpoint`), lossesOf(b).slice(0, 1).map((text) => el("span", { class: "warn block" }, `! ${text}`))));
          })))),
        answer.leftOut > 0 && el("p", { class: "muted small" }, `and ${answer.leftOut} more`)));
  }
}

function step(name, today, planned) {
  return el("td", { "data-name": name, class: name === "policy" ? "policy" : "figures-of" }, today === planned ? today : [el("span", { class: "muted" }, `${today} → `), el("strong", {}, planned)]);
}

function lossesOf(forecast) {
  const headless = store.tables.services.get(`${forecast.namespace}/${forecast.name}`)?.headless;
  return lossTexts({ ...forecast, headless });
}

function describe(change) {
  if (change.type === "set") return `${change.policy} ${change.value || "removed"} on ${scopeOf(change)}`;
  if (change.type === "lose-zone") return `zone ${change.zone} is lost`;
  if (change.type === "add-nodes") return `${change.number} more nodes in ${change.zone}`;
  return `${change.service || "a Service"} has ${change.number} endpoints`;
}

function scopeOf(change) {
  return change.service || [change.namespace || "every namespace", change.selector].filter(Boolean).join(", ");
}

function number(value, name, step = "any") {
  return el("input", { type: "number", name, value, step, min: 0, "aria-label": name, class: "number-input" });
}

function labelled(label, input) {
  return el("label", {}, `${label} `, input);
}
