// What the server has told, kept up to date; parts of the page listen to topics.

const MOST_POINTS = 3000;

export const store = {
  run: null,
  state: null,
  files: { best_runs: [], films: [], pictures: [] },
  curves: {}, // of races, by "{map}/{kind}"
  figures: {}, // by name, [frames, value]
  figureNames: [],
  log: [],
  cars: [],
  newest: new Map(), // watch key -> race id
};

const listeners = {};

export function on(topic, act) {
  (listeners[topic] ??= []).push(act);
}

export function emit(topic, data) {
  for (const act of listeners[topic] ?? []) {
    try {
      act(data);
    } catch (error) { // what one part of the page cannot show, the others still do
      console.error(error);
    }
  }
}

/** Whether a user's own environment is played, which has no map: what belongs to races is hidden. */
export const isOwn = () => Boolean(store.run) && !store.run.maps.length && !store.run.generators.length;

export const watchKey = (watch) => (watch ? watch.join(":") : "newest");

function addPoints(curves, told, reset) {
  if (reset) for (const name of Object.keys(curves)) delete curves[name];
  for (const [name, points] of Object.entries(told)) {
    const curve = (curves[name] ??= []);
    const first = points.length ? points[0][0] : Infinity;
    while (curve.length && curve[curve.length - 1][0] >= first) curve.pop(); // a resumed run took them back
    curve.push(...points);
    if (curve.length > MOST_POINTS) curves[name] = curve.filter((_, index) => index % 2 === 1);
  }
}

const take = {
  run: (told) => { store.run = told; },
  state: (told) => { store.state = told; },
  files: (told) => { if (told.best_runs) store.files = told; },
  races: (told) => addPoints(store.curves, told.curves, told.reset),
  figures: (told) => { addPoints(store.figures, told.curves, told.reset); if (told.names) store.figureNames = told.names; },
  log: (told) => { store.log = (told.reset ? [] : store.log).concat(told.messages).slice(-500); },
  cars: (told) => { store.cars = told; },
  newest: (told) => { for (const { watch, id } of told) store.newest.set(watchKey(watch), id); },
};

let socket = null;
let retryMs = 500;
let wanted = null; // the game that this tab watches

export function watch(game) {
  wanted = game;
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ watch: wanted }));
}

/** Connects, and again whenever the connection is lost; a tab that nobody sees needs none. */
export function connect() {
  if (socket || document.hidden) return;
  const address = new URL("live", location.href);
  address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  socket = new WebSocket(address);
  socket.onopen = () => { retryMs = 500; watch(wanted); emit("connection", true); };
  socket.onmessage = (event) => {
    const told = JSON.parse(event.data);
    for (const [topic, data] of Object.entries(told)) take[topic]?.(data);
    for (const [topic, data] of Object.entries(told)) emit(topic, data);
  };
  socket.onclose = () => {
    socket = null;
    store.cars = [];
    emit("connection", false);
    if (!document.hidden) setTimeout(connect, (retryMs = Math.min(retryMs * 2, 10000)));
  };
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) socket?.close();
  else connect();
});
