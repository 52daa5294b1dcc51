// The state received from the server: tables of rows by name. Views are notified of changed tables once per frame at most.

const TABLES = ["nodes", "services", "budgets", "rollouts", "volumes", "takeovers", "drains", "notices", "proxies", "components"];

export const store = {
  about: {},
  tables: Object.fromEntries(TABLES.map((name) => [name, new Map()])),
  bucketSeconds: 20,
  buckets: 60,
  recentSeconds: 60,
  history: new Map(),
  recent: [],
};

const listeners = new Set();
let dirty = new Set();
let scheduled = false;

export function onChange(listener) {
  listeners.add(listener);
}

export function markDirty(...names) {
  for (const name of names) dirty.add(name);
  if (scheduled) return;
  scheduled = true;
  // A hidden page draws nothing; it catches up when it is shown.
  requestAnimationFrame(flush);
}

function flush() {
  scheduled = false;
  const names = dirty;
  dirty = new Set();
  performance.mark("update-begins");
  for (const listener of listeners) listener(names);
  performance.measure("zonewise-update", "update-begins");
}

function applyRows(name, rows) {
  const table = store.tables[name] ?? (store.tables[name] = new Map());
  for (const [key, row] of Object.entries(rows)) {
    if (row === null) table.delete(key);
    else table.set(key, row);
  }
}

function applyState(state) {
  store.about = state.about;
  for (const name of Object.keys(store.tables)) store.tables[name].clear();
  for (const [name, rows] of Object.entries(state.tables)) applyRows(name, rows);
  store.bucketSeconds = state.history.bucketSeconds;
  store.buckets = state.history.buckets;
  store.history.clear();
  for (const [key, triples] of Object.entries(state.history.services)) {
    store.history.set(key, new Map(triples.map(([number, inZone, across]) => [number, [inZone, across]])));
  }
  store.recentSeconds = state.history.recentSeconds;
  store.recent = state.history.recent;
  markDirty(...Object.keys(store.tables), "about", "traffic");
}

function applyTraffic(sample) {
  store.recent.push(sample);
  while (store.recent.length > 1 && sample.at - store.recent[0].at >= store.recentSeconds) store.recent.shift();
  const number = Math.floor(sample.at / store.bucketSeconds);
  let totalInZone = 0;
  let totalAcross = 0;
  for (const [key, [inZone, across]] of Object.entries(sample.services)) {
    add(key, number, inZone, across);
    totalInZone += inZone;
    totalAcross += across;
  }
  if (totalInZone + totalAcross) add("*", number, totalInZone, totalAcross);
  markDirty("traffic");
}

function add(key, number, inZone, across) {
  let buckets = store.history.get(key);
  if (!buckets) store.history.set(key, (buckets = new Map()));
  const before = buckets.get(number) ?? [0, 0];
  buckets.set(number, [before[0] + inZone, before[1] + across]);
  for (const old of buckets.keys()) {
    if (old > number - store.buckets) break;
    buckets.delete(old);
  }
}

/** Samples of the last minute; none if no proxy answers. */
function recentSamples() {
  return store.tables.proxies.get("all")?.answering === 0 ? [] : store.recent;
}

/** Bytes per second between zones over the last minute. */
export function zoneFlows() {
  const seconds = recentSamples().reduce((sum, sample) => sum + sample.seconds, 0) || 1;
  const byZones = new Map();
  for (const sample of recentSamples()) {
    for (const flow of sample.flows) {
      const key = JSON.stringify([flow.clientZone, flow.endpointZone]);
      const total = byZones.get(key) ?? { from: flow.clientZone, to: flow.endpointZone, rate: 0 };
      total.rate += flow.bytes / seconds;
      byZones.set(key, total);
    }
  }
  return [...byZones.values()];
}

/** In-zone share of the last minute, for one Service or `*` for all; null if nothing was measured. */
export function measuredShare(key) {
  let inZone = 0;
  let across = 0;
  for (const { services } of recentSamples()) {
    const entries = key === "*" ? Object.values(services) : [services[key] ?? [0, 0]];
    for (const bytes of entries) {
      inZone += bytes[0];
      across += bytes[1];
    }
  }
  return inZone + across ? inZone / (inZone + across) : null;
}

/** Parts of the policy that stock components can't implement. Headless Services have no proxy. */
export function lossTexts(row) {
  return row.headless ? row.losses : row.losses.map((text) => `stock proxies can't: ${text}`);
}

/** In-zone shares by bucket: [{at, share, bytes}], in order of time. */
export function shareHistory(key) {
  const history = store.history.get(key);
  if (!history) return [];
  return [...history].sort((a, b) => a[0] - b[0]).filter(([, [inZone, across]]) => inZone + across).map(([number, [inZone, across]]) => ({
    at: number * store.bucketSeconds, share: inZone / (inZone + across), bytes: inZone + across,
  }));
}

export function connect(onState) {
  const source = new EventSource("/events");
  source.addEventListener("all", (event) => {
    applyState(JSON.parse(event.data));
    onState("live");
  });
  source.addEventListener("change", (event) => {
    const changed = JSON.parse(event.data);
    for (const [name, rows] of Object.entries(changed)) applyRows(name, rows);
    markDirty(...Object.keys(changed));
  });
  source.addEventListener("traffic", (event) => applyTraffic(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    onState("lost");
    // A refused stream is not retried by the browser: reload, which shows the login form if needed.
    if (source.readyState === EventSource.CLOSED) setTimeout(() => location.reload(), 5000);
  });
}
