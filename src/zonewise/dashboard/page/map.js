// The zone map: zones on a ring with their nodes, regions behind them, and measured traffic between them.

import { count, el, setAttr, percent, replaceChildren, rate, setText, svg } from "./dom.js";
import { zoneFlows, store } from "./store.js";

const MAX_NODES = 400;
const MAX_LABELS = 6;
const MAX_FLOWS = 60;
const LABELS_AT = [0.62, 0.5, 0.74, 0.38]; // positions of a label along its flow, the best first

export class ZoneMap {
  constructor() {
    this.root = el("figure", { class: "map" });
    this.table = el("details", { class: "as-table" }, el("summary", {}, "Traffic as a table"), (this.tableBody = el("div")));
    this.shape = "";
    this.zones = new Map();
    this.flowPaths = new Map();
    this.pick = () => {};
  }

  /** Zones with their nodes, sorted by region. */
  read() {
    const zones = new Map();
    for (const [name, row] of store.tables.nodes) {
      const zone = zones.get(row.zone) ?? { name: row.zone, region: row.region, nodes: [], endpoints: 0 };
      zone.nodes.push({ name, ...row });
      zone.endpoints += row.endpoints;
      zones.set(row.zone, zone);
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
    const positions = around(zones).map((turn) => ({ x: width / 2 + across * Math.cos(turn), y: height / 2 + down * Math.sin(turn) }));
    zones.forEach((zone, index) => {
      const shapes = this.makeZone(zone, positions[index], radius);
      this.zones.set(zone.name, { ...positions[index], ...shapes });
      front.append(shapes.group);
    });
    this.drawRegions(behind, zones, radius);
    const top = Math.min(...positions.map((position) => position.y)) - radius - (this.inside ? 40 : 58);
    const bottom = Math.max(...positions.map((position) => position.y)) + radius + (this.inside ? 42 : 72);
    const arrow = (kind) => svg("marker", { id: `arrow-${kind}`, class: `arrow ${kind}`, viewBox: "0 0 10 10", refX: 5, refY: 5, markerWidth: zones.length > 3 ? 11 : 15, markerHeight: zones.length > 3 ? 11 : 15, markerUnits: "userSpaceOnUse", orient: "auto" }, svg("path", { d: "M0 0L10 5L0 10L2.500 5Z" }));
    this.picture = svg("svg", { viewBox: `0 ${top.toFixed(1)} ${width} ${(bottom - top).toFixed(1)}`, role: "group", "aria-label": "Zones and the traffic between them" }, svg("defs", {}, arrow("cross")), behind, this.flowLayer, front, this.labelLayer);
    replaceChildren(this.root, this.picture, this.legend(), this.table);
  }

  legend() {
    return el("figcaption", { class: "legend" },
      el("span", {}, el("i", { class: "key stays" }), "stays in its zone"),
      el("span", {}, el("i", { class: "key crosses" }), "crosses zones (width: rate)"),
      el("span", {}, el("i", { class: "key node-ready" }), "node"),
      el("span", {}, el("i", { class: "key node-cordoned" }), "cordoned"),
      el("span", {}, el("i", { class: "key node-lost" }), "not ready"));
  }

  drawRegions(layer, zones, radius) {
    const regions = new Map();
    for (const zone of zones) if (zone.region) regions.set(zone.region, [...(regions.get(zone.region) ?? []), this.zones.get(zone.name)]);
    for (const [name, positions] of regions) {
      const path = `M${positions.map((position) => `${position.x.toFixed(1)} ${(position.y + (this.inside ? 0 : 14)).toFixed(1)}`).join("L")}Z`;
      layer.append(svg("path", { class: "region", d: path, "stroke-width": 2 * (radius + (this.inside ? 36 : 54)) }));
      const top = positions.reduce((a, b) => (a.y <= b.y ? a : b));
      layer.append(svg("text", { class: "region-name", x: top.x, y: top.y - radius - (this.inside ? 20 : 38) }, shorten(name, 22)));
    }
  }

  makeZone(zone, position, radius) {
    const group = svg("g", { class: "zone", transform: `translate(${position.x.toFixed(1)} ${position.y.toFixed(1)})`, tabindex: 0, role: "button" });
    group.addEventListener("click", () => this.pick(zone.name));
    group.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        this.pick(zone.name);
      }
    });
    const around = 2 * Math.PI * (radius + 9);
    const shapes = {
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
    group.append(shapes.disc, shapes.ring, shapes.crosses, shapes.stays, shapes.nodes, shapes.name, shapes.facts, shapes.more, shapes.signs);
    return shapes;
  }

  fillZone(shapes, zone) {
    const nodes = zone.nodes.length > MAX_NODES ? zone.nodes.slice(0, MAX_NODES) : zone.nodes;
    nodes.sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
    if (shapes.drawn.size !== nodes.length || nodes.some((node) => !shapes.drawn.has(node.name))) this.placeNodes(shapes, nodes);
    for (const node of nodes) setAttr(shapes.drawn.get(node.name), "class", nodeClass(node));
    const ready = zone.nodes.filter((node) => node.ready).length;
    setText(shapes.name, shorten(zone.name || "no zone", this.inside ? this.radius / 5 : 14));
    setText(shapes.facts, `${ready < zone.nodes.length ? `${ready} of ` : ""}${count(zone.nodes.length, "node")}`);
    setText(shapes.more, this.inside ? count(zone.endpoints, "endpoint") : "");
    const drain = store.tables.drains.get(zone.name);
    const taken = [...store.tables.takeovers.values()].filter((row) => row.domain.endsWith(`=${zone.name}`));
    setText(shapes.signs, drain ? "⇥ being drained" : taken.length ? "⇄ taken over" : "");
    shapes.about = `${zone.name || "no zone"}: ${count(zone.nodes.length, "node")}, ${ready} ready, ${count(zone.endpoints, "endpoint")}${drain ? ", being drained" : ""}`;
    setAttr(shapes.group, "aria-label", shapes.about);
  }

  placeNodes(shapes, nodes) {
    const columns = Math.max(1, Math.ceil(Math.sqrt(nodes.length)));
    const rows = Math.ceil(nodes.length / columns);
    const cell = Math.min((this.radius * (this.inside ? 0.9 : 1.3)) / Math.max(columns, 1.5), 44);
    const size = cell * (cell < 7 ? 0.8 : 0.7);
    shapes.drawn.clear();
    nodes.forEach((node, index) => {
      const x = ((index % columns) - (columns - 1) / 2) * cell - size / 2;
      const y = (Math.floor(index / columns) - (rows - 1) / 2) * cell - size / 2 - (this.inside ? this.radius * 0.03 : 0);
      shapes.drawn.set(node.name, svg("rect", { x: x.toFixed(1), y: y.toFixed(1), width: size.toFixed(1), height: size.toFixed(1), rx: (size / 5).toFixed(1) }));
    });
    replaceChildren(shapes.nodes, ...shapes.drawn.values());
  }

  drawFlows() {
    const all = zoneFlows();
    this.ring(all);
    const crossing = all.filter((flow) => flow.from !== flow.to && this.zones.has(flow.from) && this.zones.has(flow.to) && flow.rate >= 1).sort((a, b) => b.rate - a.rate).slice(0, MAX_FLOWS);
    const most = Math.max(...all.map((flow) => flow.rate), 1);
    const gone = new Set(this.flowPaths.keys());
    for (const flow of crossing) {
      const key = JSON.stringify([flow.from, flow.to]);
      gone.delete(key);
      const drawn = this.flowPaths.get(key) ?? this.makeFlow(key, flow);
      const width = 1.5 + 10 * Math.sqrt(flow.rate / most);
      setAttr(drawn.path, "stroke-width", width.toFixed(1));
      setAttr(drawn.dots, "stroke-width", Math.max(1.2, width * 0.45).toFixed(1));
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

  /** Labels the largest flows first. A label must not overlap a zone or another label; otherwise it is left out. */
  placeLabels(drawn) {
    const placed = [];
    for (const flow of drawn) {
      const halfWidth = flow.text.length * 3.6 + 3;
      const free = ([x, y]) => placed.every((other) => Math.abs(other.x - x) > other.halfWidth + halfWidth || Math.abs(other.y - y) > 15) && [...this.zones.values()].every((zone) => this.clears(zone, x, y - 4, halfWidth));
      const spot = placed.length < MAX_LABELS ? [flow.at, ...LABELS_AT].find((at) => free(flow.spot(at))) : undefined;
      setText(flow.label, spot === undefined ? "" : flow.text);
      if (spot === undefined) continue;
      const [x, y] = flow.spot(spot);
      flow.at = spot;
      placed.push({ x, y, halfWidth });
      setAttr(flow.label, "x", x.toFixed(1));
      setAttr(flow.label, "y", y.toFixed(1));
    }
  }

  clears(zone, x, y, halfWidth) {
    const dx = Math.max(0, Math.abs(zone.x - x) - halfWidth);
    const below = this.inside ? 0 : 36; // the name is below a small zone
    const dy = Math.max(0, Math.abs(zone.y + below / 2 - y) - 7 - below / 2);
    return Math.hypot(dx, dy) > this.radius + 13;
  }

  ring(all) {
    for (const [name, shapes] of this.zones) {
      const own = all.filter((flow) => flow.from === name && this.zones.has(flow.to));
      const total = own.reduce((sum, flow) => sum + flow.rate, 0);
      const stays = own.find((flow) => flow.to === name)?.rate ?? 0;
      const share = total > 0 ? stays / total : 0;
      setAttr(shapes.stays, "stroke-dasharray", `${(shapes.around * share).toFixed(1)} ${shapes.around.toFixed(1)}`);
      setAttr(shapes.crosses, "stroke-dasharray", total > 0 ? `${shapes.around.toFixed(1)} 0` : `0 ${shapes.around.toFixed(1)}`);
      setAttr(shapes.group, "aria-label", total > 0 ? `${shapes.about}; of ${rate(total)} sent, ${percent(share)} stays` : shapes.about);
    }
  }

  /** Each direction bends to its right, so that the two do not overlap. */
  makeFlow(key, flow) {
    const [a, b] = [this.zones.get(flow.from), this.zones.get(flow.to)];
    const [dx, dy] = [b.x - a.x, b.y - a.y];
    const length = Math.hypot(dx, dy) || 1;
    const [ux, uy] = [dx / length, dy / length];
    const side = this.radius >= 40 ? 15 : 6;
    const edge = this.radius + 19;
    const from = [a.x + ux * edge - uy * side, a.y + uy * edge + ux * side];
    const to = [b.x - ux * (edge + 6) - uy * side, b.y - uy * (edge + 6) + ux * side];
    const bend = Math.min(34, length * 0.1);
    const pull = this.zones.size > 3 ? Math.max(0, Math.min(0.35, (length - 320) / 800)) : 0; // long flows bend towards the middle, past other zones
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
    replaceChildren(this.tableBody, el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "from clients in"), el("th", { scope: "col" }, "to endpoints in"), el("th", { scope: "col", class: "number" }, "per second"))), el("tbody", {}, rows.length ? rows : el("tr", {}, el("td", { colspan: 3 }, "nothing measured")))));
  }
}

/** Angles of the zones, clockwise. With several regions, each runs from top to bottom, the first on the left. */
function around(zones) {
  const step = (2 * Math.PI) / zones.length;
  const sizes = new Map();
  for (const zone of zones) sizes.set(zone.region, (sizes.get(zone.region) ?? 0) + 1);
  const apart = sizes.size > 1 || zones.length === 2;
  const start = apart ? Math.PI - (step * ([...sizes.values()][0] - 1)) / 2 : -Math.PI / 2;
  const turns = zones.map((_, index) => start + step * index);
  if (!apart && zones.length !== 3) return turns;
  const height = (turn) => Math.round(Math.sin(turn) * 1000);
  let from = 0;
  return [...sizes.values()].flatMap((size) => turns.slice(from, (from += size)).sort((a, b) => height(a) - height(b) || Math.cos(a) - Math.cos(b)));
}

function nodeClass(node) {
  return `node ${!node.ready ? "lost" : node.cordoned ? "cordoned" : node.controlPlane ? "control" : "ready"}`;
}

function shorten(text, limit) {
  return text.length > limit ? `${text.slice(0, Math.max(1, Math.floor(limit) - 1))}…` : text;
}
