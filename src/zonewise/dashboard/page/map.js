// The map: zones on a ring, their nodes inside them, regions behind them, and measured traffic flowing between them.

import { count, el, mark, percent, put, rate, say, svg } from "./dom.js";
import { flows, store } from "./store.js";

const MOST_DRAWN = 400;
const MOST_LABELLED = 6;
const MOST_FLOWS = 60;
const LABELS_AT = [0.62, 0.5, 0.74, 0.38]; // how near to where a flow begins its label may stand, the best first

export class ZoneMap {
  constructor() {
    this.root = el("figure", { class: "map" });
    this.table = el("details", { class: "as-table" }, el("summary", {}, "Traffic as a table"), (this.tableBody = el("div")));
    this.shape = "";
    this.zones = new Map();
    this.flowPaths = new Map();
    this.pick = () => {};
  }

  /** Zones in order, with their nodes; those of a region stand together. */
  read() {
    const zones = new Map();
    for (const [name, row] of store.tables.nodes) {
      const known = zones.get(row.zone) ?? { name: row.zone, region: row.region, nodes: [], endpoints: 0 };
      known.nodes.push({ name, ...row });
      known.endpoints += row.endpoints;
      zones.set(row.zone, known);
    }
    return [...zones.values()].sort((a, b) => a.region.localeCompare(b.region) || a.name.localeCompare(b.name));
  }

  draw(names) {
    if (names.has("nodes") || names.has("drains") || names.has("takeovers") || !this.shape) this.drawZones();
    this.drawFlows();
  }

  drawZones() {
    const zones = this.read();
    const narrow = this.root.clientWidth > 0 && this.root.clientWidth < 560;
    const shape = JSON.stringify([narrow, zones.map((zone) => [zone.name, zone.region])]);
    if (shape !== this.shape) {
      this.shape = shape;
      this.layOut(zones, narrow);
    }
    for (const zone of zones) this.fillZone(this.zones.get(zone.name), zone);
  }

  layOut(zones, narrow) {
    const many = zones.length > 6;
    const [width, height] = narrow ? [430, 590] : [960, many ? 640 : 570];
    const radius = zones.length <= 1 ? 110 : zones.length <= 3 ? (narrow ? 64 : 86) : !many ? (narrow ? 52 : 70) : Math.max(22, (narrow ? 330 : 440) / zones.length);
    const across = zones.length > 1 ? width / 2 - radius - (narrow ? 14 : 110) : 0;
    const down = zones.length > 1 ? height / 2 - radius - (many ? 60 : 38) : 0;
    this.inside = radius >= 60;
    this.radius = radius;
    this.zones.clear();
    this.flowPaths.clear();
    const behind = svg("g", { class: "regions" });
    this.flowLayer = svg("g", { class: "flows" });
    this.labelLayer = svg("g", { class: "flow-labels" });
    const front = svg("g", { class: "zones" });
    this.middle = { x: width / 2, y: height / 2 };
    const places = around(zones).map((turn) => ({ x: width / 2 + across * Math.cos(turn), y: height / 2 + down * Math.sin(turn) }));
    zones.forEach((zone, index) => {
      const made = this.makeZone(zone, places[index], radius);
      this.zones.set(zone.name, { ...places[index], ...made });
      front.append(made.group);
    });
    this.drawRegions(behind, zones, radius);
    const top = Math.min(...places.map((place) => place.y)) - radius - (this.inside ? 40 : 58);
    const bottom = Math.max(...places.map((place) => place.y)) + radius + (this.inside ? 42 : 72);
    const arrow = (kind) => svg("marker", { id: `arrow-${kind}`, class: `arrow ${kind}`, viewBox: "0 0 10 10", refX: 5, refY: 5, markerWidth: zones.length > 3 ? 11 : 15, markerHeight: zones.length > 3 ? 11 : 15, markerUnits: "userSpaceOnUse", orient: "auto" }, svg("path", { d: "M0 0L10 5L0 10L2.500 5Z" }));
    this.picture = svg("svg", { viewBox: `0 ${top.toFixed(1)} ${width} ${(bottom - top).toFixed(1)}`, role: "group", "aria-label": "Zones and the traffic between them" }, svg("defs", {}, arrow("cross")), behind, this.flowLayer, front, this.labelLayer);
    put(this.root, this.picture, this.legend(), this.table);
  }

  legend() {
    return el("figcaption", { class: "legend" },
      el("span", {}, el("i", { class: "key stays" }), "stays in its zone"),
      el("span", {}, el("i", { class: "key crosses" }), "crosses zones: the wider, the more"),
      el("span", {}, el("i", { class: "key node-ready" }), "node"),
      el("span", {}, el("i", { class: "key node-cordoned" }), "cordoned"),
      el("span", {}, el("i", { class: "key node-lost" }), "not ready"));
  }

  drawRegions(layer, zones, radius) {
    const regions = new Map();
    for (const zone of zones) if (zone.region) regions.set(zone.region, [...(regions.get(zone.region) ?? []), this.zones.get(zone.name)]);
    for (const [name, places] of regions) {
      const path = `M${places.map((place) => `${place.x.toFixed(1)} ${(place.y + (this.inside ? 0 : 14)).toFixed(1)}`).join("L")}Z`;
      layer.append(svg("path", { class: "region", d: path, "stroke-width": 2 * (radius + (this.inside ? 36 : 54)) }));
      const top = places.reduce((a, b) => (a.y <= b.y ? a : b));
      layer.append(svg("text", { class: "region-name", x: top.x, y: top.y - radius - (this.inside ? 20 : 38) }, short(name, 22)));
    }
  }

  makeZone(zone, place, radius) {
    const group = svg("g", { class: "zone", transform: `translate(${place.x.toFixed(1)} ${place.y.toFixed(1)})`, tabindex: 0, role: "button" });
    group.addEventListener("click", () => this.pick(zone.name));
    group.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        this.pick(zone.name);
      }
    });
    const around = 2 * Math.PI * (radius + 9);
    const made = {
      group, around,
      disc: svg("circle", { class: "disc", r: radius }),
      ring: svg("circle", { class: "ring", r: radius + 9 }),
      stays: svg("circle", { class: "ring stays", r: radius + 9, transform: "rotate(-90)", "stroke-dasharray": `0 ${around}` }),
      crosses: svg("circle", { class: "ring crosses", r: radius + 9, transform: "rotate(-90)", "stroke-dasharray": `0 ${around}` }),
      nodes: svg("g", { class: "nodes" }),
      name: svg("text", { class: "zone-name", y: this.inside ? -radius * 0.5 : radius + 32 }),
      facts: svg("text", { class: "zone-facts", y: this.inside ? radius * 0.56 : radius + 47 }),
      more: svg("text", { class: "zone-facts", y: radius * 0.56 + 15 }),
      signs: svg("text", { class: "zone-sign", y: this.inside ? radius + 32 : -radius - 18 }),
      drawn: new Map(),
    };
    group.append(made.disc, made.ring, made.crosses, made.stays, made.nodes, made.name, made.facts, made.more, made.signs);
    return made;
  }

  fillZone(made, zone) {
    const nodes = zone.nodes.length > MOST_DRAWN ? zone.nodes.slice(0, MOST_DRAWN) : zone.nodes;
    nodes.sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
    if (made.drawn.size !== nodes.length || nodes.some((node) => !made.drawn.has(node.name))) this.placeNodes(made, nodes);
    for (const node of nodes) mark(made.drawn.get(node.name), "class", nodeClass(node));
    const ready = zone.nodes.filter((node) => node.ready).length;
    say(made.name, short(zone.name || "no zone", this.inside ? this.radius / 5 : 14));
    say(made.facts, `${ready < zone.nodes.length ? `${ready} of ` : ""}${count(zone.nodes.length, "node")}`);
    say(made.more, this.inside ? count(zone.endpoints, "endpoint") : "");
    const drain = store.tables.drains.get(zone.name);
    const taken = [...store.tables.takeovers.values()].filter((row) => row.domain.endsWith(`=${zone.name}`));
    say(made.signs, drain ? "⇥ being drained" : taken.length ? "⇄ taken over" : "");
    made.about = `${zone.name || "no zone"}: ${count(zone.nodes.length, "node")}, ${ready} ready, ${count(zone.endpoints, "endpoint")}${drain ? ", being drained" : ""}`;
    mark(made.group, "aria-label", made.about);
  }

  placeNodes(made, nodes) {
    const columns = Math.max(1, Math.ceil(Math.sqrt(nodes.length)));
    const rows = Math.ceil(nodes.length / columns);
    const cell = Math.min((this.radius * (this.inside ? 0.9 : 1.3)) / Math.max(columns, 1.5), 44);
    const size = cell * (cell < 7 ? 0.8 : 0.7);
    made.drawn.clear();
    nodes.forEach((node, index) => {
      const x = ((index % columns) - (columns - 1) / 2) * cell - size / 2;
      const y = (Math.floor(index / columns) - (rows - 1) / 2) * cell - size / 2 - (this.inside ? this.radius * 0.03 : 0);
      made.drawn.set(node.name, svg("rect", { x: x.toFixed(1), y: y.toFixed(1), width: size.toFixed(1), height: size.toFixed(1), rx: (size / 5).toFixed(1) }));
    });
    put(made.nodes, ...made.drawn.values());
  }

  drawFlows() {
    const all = flows();
    this.ring(all);
    const crossing = all.filter((flow) => flow.from !== flow.to && this.zones.has(flow.from) && this.zones.has(flow.to) && flow.rate >= 1).sort((a, b) => b.rate - a.rate).slice(0, MOST_FLOWS);
    const most = Math.max(...all.map((flow) => flow.rate), 1);
    const gone = new Set(this.flowPaths.keys());
    for (const flow of crossing) {
      const key = JSON.stringify([flow.from, flow.to]);
      gone.delete(key);
      const drawn = this.flowPaths.get(key) ?? this.makeFlow(key, flow);
      const width = 1.5 + 10 * Math.sqrt(flow.rate / most);
      mark(drawn.path, "stroke-width", width.toFixed(1));
      mark(drawn.dots, "stroke-width", Math.max(1.2, width * 0.45).toFixed(1));
      drawn.path.style.strokeOpacity = (0.14 + 0.3 * Math.sqrt(flow.rate / crossing[0].rate)).toFixed(2);
      drawn.text = rate(flow.rate);
    }
    for (const key of gone) {
      const drawn = this.flowPaths.get(key);
      drawn.path.remove();
      drawn.dots.remove();
      drawn.label.remove();
      this.flowPaths.delete(key);
    }
    this.placeLabels(crossing.map((flow) => this.flowPaths.get(JSON.stringify([flow.from, flow.to]))));
    this.writeTable(all);
  }

  /** The largest flows first, each where it lies on no zone and on no other label; one without such a place has none. */
  placeLabels(drawn) {
    const taken = [];
    for (const flow of drawn) {
      const wide = flow.text.length * 3.6 + 3;
      const free = ([x, y]) => taken.every((other) => Math.abs(other.x - x) > other.wide + wide || Math.abs(other.y - y) > 15) && [...this.zones.values()].every((zone) => this.clears(zone, x, y - 4, wide));
      const spot = taken.length < MOST_LABELLED ? [flow.at, ...LABELS_AT].find((at) => free(flow.spot(at))) : undefined;
      say(flow.label, spot === undefined ? "" : flow.text);
      if (spot === undefined) continue;
      const [x, y] = flow.spot(spot);
      flow.at = spot;
      taken.push({ x, y, wide });
      mark(flow.label, "x", x.toFixed(1));
      mark(flow.label, "y", y.toFixed(1));
    }
  }

  clears(zone, x, y, wide) {
    const beyond = Math.max(0, Math.abs(zone.x - x) - wide);
    const below = this.inside ? 0 : 36; // names stand under small zones
    const height = Math.max(0, Math.abs(zone.y + below / 2 - y) - 7 - below / 2);
    return Math.hypot(beyond, height) > this.radius + 13;
  }

  ring(all) {
    for (const [name, made] of this.zones) {
      const own = all.filter((flow) => flow.from === name && this.zones.has(flow.to));
      const whole = own.reduce((sum, flow) => sum + flow.rate, 0);
      const stays = own.find((flow) => flow.to === name)?.rate ?? 0;
      const share = whole > 0 ? stays / whole : 0;
      mark(made.stays, "stroke-dasharray", `${(made.around * share).toFixed(1)} ${made.around.toFixed(1)}`);
      mark(made.crosses, "stroke-dasharray", whole > 0 ? `${made.around.toFixed(1)} 0` : `0 ${made.around.toFixed(1)}`);
      mark(made.group, "aria-label", whole > 0 ? `${made.about}; of ${rate(whole)} sent, ${percent(share)} stays` : made.about);
    }
  }

  /** Both directions bend to their right, so that they don't lie on each other. */
  makeFlow(key, flow) {
    const [a, b] = [this.zones.get(flow.from), this.zones.get(flow.to)];
    const [dx, dy] = [b.x - a.x, b.y - a.y];
    const long = Math.hypot(dx, dy) || 1;
    const [ux, uy] = [dx / long, dy / long];
    const side = this.radius >= 40 ? 15 : 6;
    const edge = this.radius + 19;
    const from = [a.x + ux * edge - uy * side, a.y + uy * edge + ux * side];
    const to = [b.x - ux * (edge + 6) - uy * side, b.y - uy * (edge + 6) + ux * side];
    const bend = Math.min(34, long * 0.1);
    const pull = this.zones.size > 3 ? Math.max(0, Math.min(0.35, (long - 320) / 800)) : 0; // far ones past the others, through the middle
    const half = (axis, bent) => ((from[axis] + to[axis]) / 2) * (1 - pull) + [this.middle.x, this.middle.y][axis] * pull + bent;
    const middle = [half(0, -uy * bend), half(1, ux * bend)];
    const d = `M${from.map((v) => v.toFixed(1)).join(" ")}Q${middle.map((v) => v.toFixed(1)).join(" ")} ${to.map((v) => v.toFixed(1)).join(" ")}`;
    const spot = (at) => [-uy, ux].map((aside, axis) => at ** 2 * from[axis] + 2 * at * (1 - at) * middle[axis] + (1 - at) ** 2 * to[axis] + aside * 16 + axis * 4);
    const drawn = {
      path: svg("path", { class: "flow", d, "marker-end": "url(#arrow-cross)" }),
      dots: svg("path", { class: "flow-dots", d }),
      label: svg("text", { class: "flow-label" }),
      spot,
      at: LABELS_AT[0],
    };
    this.flowLayer.append(drawn.path, drawn.dots);
    this.labelLayer.append(drawn.label);
    this.flowPaths.set(key, drawn);
    return drawn;
  }

  writeTable(all) {
    if (!this.table.open) return;
    const rows = [...all].sort((a, b) => b.rate - a.rate).map((flow) => el("tr", {}, el("td", {}, flow.from || "unknown"), el("td", {}, flow.to || "unknown"), el("td", { class: "number" }, rate(flow.rate))));
    put(this.tableBody, el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "from clients in"), el("th", { scope: "col" }, "to endpoints in"), el("th", { scope: "col", class: "number" }, "per second"))), el("tbody", {}, rows.length ? rows : el("tr", {}, el("td", { colspan: 3 }, "nothing measured")))));
  }
}

/** Where zones stand, as angles: clockwise, and where there are several regions each from top to bottom, the first on the left. */
function around(zones) {
  const step = (2 * Math.PI) / zones.length;
  const sizes = new Map();
  for (const zone of zones) sizes.set(zone.region, (sizes.get(zone.region) ?? 0) + 1);
  const apart = sizes.size > 1 || zones.length === 2;
  const start = apart ? Math.PI - (step * ([...sizes.values()][0] - 1)) / 2 : -Math.PI / 2;
  const turns = zones.map((_, index) => start + step * index);
  if (!apart && zones.length !== 3) return turns;
  const high = (turn) => Math.round(Math.sin(turn) * 1000);
  let from = 0;
  return [...sizes.values()].flatMap((size) => turns.slice(from, (from += size)).sort((a, b) => high(a) - high(b) || Math.cos(a) - Math.cos(b)));
}

function nodeClass(node) {
  return `node ${!node.ready ? "lost" : node.cordoned ? "cordoned" : node.controlPlane ? "control" : "ready"}`;
}

function short(text, most) {
  return text.length > most ? `${text.slice(0, Math.max(1, Math.floor(most) - 1))}…` : text;
}
