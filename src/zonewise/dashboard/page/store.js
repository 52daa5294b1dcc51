// What the server said, as tables of rows by name; views hear at most once per frame which tables changed.

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

export function touch(...names) {
  for (const name of names) dirty.add(name);
  if (scheduled) return;
  scheduled = true;
  // A page that is not looked at draws nothing, and catches up at once when it is.
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

function take(name, rows) {
  const table = store.tables[name] ?? (store.tables[name] = new Map());
  for (const [key, row] of Object.entries(rows)) {
    if (row === null) table.delete(key);
    else table.set(key, row);
  }
}

function takeAll(said) {
  store.about = said.about;
  for (const name of Object.keys(store.tables)) store.tables[name].clear();
  for (const [name, rows] of Object.entries(said.tables)) take(name, rows);
  store.bucketSeconds = said.history.bucketSeconds;
  store.buckets = said.history.buckets;
  store.history.clear();
  for (const [key, triples] of Object.entries(said.history.services)) {
    store.history.set(key, new Map(triples.map(([number, stayed, crossed]) => [number, [stayed, crossed]])));
  }
  store.recentSeconds = said.history.recentSeconds;
  store.recent = said.history.recent;
  touch(...Object.keys(store.tables), "about", "traffic");
}

function takeTraffic(said) {
  store.recent.push(said);
  while (store.recent.length > 1 && said.at - store.recent[0].at >= store.recentSeconds) store.recent.shift();
  const number = Math.floor(said.at / store.bucketSeconds);
  let stayedInAll = 0;
  let crossedInAll = 0;
  for (const [key, [stayed, crossed]] of Object.entries(said.services)) {
    add(key, number, stayed, crossed);
    stayedInAll += stayed;
    crossedInAll += crossed;
  }
  if (stayedInAll + crossedInAll) add("*", number, stayedInAll, crossedInAll);
  touch("traffic");
}

function add(key, number, stayed, crossed) {
  let buckets = store.history.get(key);
  if (!buckets) store.history.set(key, (buckets = new Map()));
  const before = buckets.get(number) ?? [0, 0];
  buckets.set(number, [before[0] + stayed, before[1] + crossed]);
  for (const old of buckets.keys()) {
    if (old > number - store.buckets) break;
    buckets.delete(old);
  }
}

/** What was measured in the last minute; nothing once no proxy answers any more. */
function recent() {
  return store.tables.proxies.get("all")?.answering === 0 ? [] : store.recent;
}

/** Bytes per second between zones over the last minute. */
export function flows() {
  const seconds = recent().reduce((sum, said) => sum + said.seconds, 0) || 1;
  const found = new Map();
  for (const said of recent()) {
    for (const flow of said.flows) {
      const key = JSON.stringify([flow.clientZone, flow.endpointZone]);
      const known = found.get(key) ?? { from: flow.clientZone, to: flow.endpointZone, rate: 0 };
      known.rate += flow.bytes / seconds;
      found.set(key, known);
    }
  }
  return [...found.values()];
}

/** The share that stayed in its zone in that minute, of one Service or `*` for all; null where nothing was measured. */
export function measured(key) {
  let stayed = 0;
  let crossed = 0;
  for (const { services } of recent()) {
    const told = key === "*" ? Object.values(services) : [services[key] ?? [0, 0]];
    for (const bytes of told) {
      stayed += bytes[0];
      crossed += bytes[1];
    }
  }
  return stayed + crossed ? stayed / (stayed + crossed) : null;
}

/** What stock components won't do of what a Service asks. Headless ones are no proxy's. */
export function losses(row) {
  return row.headless ? row.losses : row.losses.map((text) => `stock proxies can't: ${text}`);
}

/** Shares by bucket for a chart: [{at, share, bytes}], in order of time. */
export function shares(key) {
  const history = store.history.get(key);
  if (!history) return [];
  return [...history].sort((a, b) => a[0] - b[0]).filter(([, [stayed, crossed]]) => stayed + crossed).map(([number, [stayed, crossed]]) => ({
    at: number * store.bucketSeconds, share: stayed / (stayed + crossed), bytes: stayed + crossed,
  }));
}

export function connect(onState) {
  const source = new EventSource("/events");
  source.addEventListener("all", (event) => {
    takeAll(JSON.parse(event.data));
    onState("live");
  });
  source.addEventListener("change", (event) => {
    const changed = JSON.parse(event.data);
    for (const [name, rows] of Object.entries(changed)) take(name, rows);
    touch(...Object.keys(changed));
  });
  source.addEventListener("traffic", (event) => takeTraffic(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    onState("lost");
    // A server that refuses ends the source for good: ask again who may look.
    if (source.readyState === EventSource.CLOSED) setTimeout(() => location.reload(), 5000);
  });
}
