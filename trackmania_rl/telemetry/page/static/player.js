// Plays one race at its own pace: the newest one of the training, one game's, or a record.

import { byId, el, fetchJson, raceTime } from "./format.js";
import { emit, on, store, watch, watchKey } from "./store.js";

const NEXT_AFTER_MS = 1200;
const PICTURE_EVERY_MS = 100;
const NEWEST = "newest";
const LIVE_WITHIN_MS = 8000;

export const player = {
  race: null,
  time: 0, // race time in ms
  isPlaying: true,
  pace: 1,
  moment,
};

let source = NEWEST; // "newest", "game:{collector}:{game}" or "record:{name}"
let loading = null;
let endedAt = null;
let pictureAt = 0;
let isPictureAsked = false;
let pictureUrl = null;
let hasPictures = true;
const openedAt = performance.now();
let isSeen = true;

/** The race's state now, or null; x and z in between two states are interpolated. */
function moment() {
  const race = player.race;
  if (!race?.t.length) return null;
  let low = 0, high = race.t.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (race.t[middle] <= player.time) low = middle;
    else high = middle - 1;
  }
  const next = Math.min(low + 1, race.t.length - 1), before = next > low ? low : Math.max(low - 1, 0);
  const share = next > low ? (player.time - race.t[low]) / (race.t[next] - race.t[low]) : 0;
  return {
    index: low,
    x: race.x[low] + share * (race.x[next] - race.x[low]),
    z: race.z[low] + share * (race.z[next] - race.z[low]),
    dx: race.x[next] - race.x[before],
    dz: race.z[next] - race.z[before],
  };
}

function play(race) {
  player.race = race;
  player.time = 0;
  endedAt = null;
  hasPictures = true;
  byId("seek").max = race.t[race.t.length - 1];
  emit("race", race);
}

async function load(address) {
  if (loading === address) return;
  loading = address;
  try {
    const race = await fetchJson(address);
    if (loading === address) play(race);
  } catch (error) {
    if (loading === address) {
      byId("no-picture").textContent = error.message;
      endedAt = performance.now();
    }
  } finally {
    if (loading === address) loading = null;
  }
}

/** Watches something else. */
export function choose(chosen) {
  source = chosen;
  const [kind, ...rest] = chosen.split(":");
  watch(kind === "game" ? rest.map(Number) : null);
  const option = [...byId("source").options].find((entry) => entry.value === chosen);
  if (option) byId("source").value = chosen;
  setPlaying(true);
  if (kind === "record") load(`api/record/${encodeURIComponent(rest.join(":"))}`);
  else loadNewest(true);
}

function loadNewest(isChosen = false) {
  if (source.startsWith("record:")) return;
  const key = source === NEWEST ? NEWEST : watchKey(source.split(":").slice(1));
  const id = store.newest.get(key) ?? (isChosen ? null : store.newest.get(NEWEST));
  if (id && id !== player.race?.id) load(`api/race/${encodeURIComponent(id)}`);
  else if (player.race && !isChosen) play(player.race);
}

function setPlaying(isPlaying) {
  player.isPlaying = isPlaying;
  byId("play").textContent = isPlaying ? "❚❚" : "▶";
  if (isPlaying && player.race && player.time >= lastTime()) {
    player.time = 0;
    endedAt = null;
  }
}

const lastTime = () => player.race.t[player.race.t.length - 1];

/** Lets time pass; called before each drawing. */
export function advance(passedMs) {
  const race = player.race;
  if (!race) return;
  if (player.isPlaying && endedAt === null) {
    player.time = Math.min(player.time + passedMs * player.pace, lastTime());
    if (player.time >= lastTime()) endedAt = performance.now();
  }
  if (endedAt !== null && player.isPlaying && performance.now() - endedAt > NEXT_AFTER_MS) {
    endedAt = performance.now();
    if (source.startsWith("record:")) play(race);
    else loadNewest();
  }
  show();
  askForPicture();
}

function show() {
  const race = player.race, now = moment(), k = now.index;
  byId("race-time").textContent = raceTime(Math.round(player.time / 10) * 10);
  byId("speed").textContent = Math.round(race.speed[k] * 3.6);
  byId("gear").textContent = race.gear[k] === 0 ? "R" : race.gear[k];
  const isAnalog = race.steer.some((steer) => steer !== 0 && Math.abs(steer) !== 1);
  const keys = { up: race.gas[k], down: race.brake[k], left: race.steer[k] < -0.05, right: race.steer[k] > 0.05 };
  for (const key of byId("keys").querySelectorAll("i")) key.classList.toggle("on", Boolean(keys[key.dataset.key]));
  byId("steer").hidden = !isAnalog;
  byId("steer").value = race.steer[k];
  byId("seek").value = player.time;
  showValues(race.q[k], race.greedy[k]);
}

let bars = [];

function showValues(values, isGreedy) {
  const box = byId("q-values"), names = store.run?.actions ?? [];
  const n = values?.length ?? 0;
  if (bars.length !== n) {
    bars = Array.from({ length: n }, (_, index) => {
      const bar = el("i"), column = el("div", {}, bar, el("span", {}, n === 1 ? "taken" : names[index] ?? `${index}`));
      return { bar, column };
    });
    box.replaceChildren(...bars.map(({ column }) => column));
    byId("q-about").textContent = n ? "" : "(not known of this race)";
  }
  if (!n) return;
  const best = Math.max(...values), worst = Math.min(...values), range = Math.max(best - worst, 1e-6);
  const bestIndex = values.indexOf(best);
  bars.forEach(({ bar, column }, index) => {
    bar.style.height = `${8 + 78 * ((values[index] - worst) / range)}%`;
    column.classList.toggle("best", index === bestIndex);
    column.title = `${names[index] ?? index}: ${values[index].toFixed(3)}`;
  });
  byId("q-about").textContent = n > 1 ? `best ${best.toFixed(3)}, worst ${worst.toFixed(3)}${isGreedy ? "" : " · a random action"}` : values[0].toFixed(3);
}

async function askForPicture() {
  const race = player.race, now = performance.now();
  if (isPictureAsked || !hasPictures || !isSeen || !race?.id || now - pictureAt < PICTURE_EVERY_MS) return;
  const time = Math.floor(player.time / PICTURE_EVERY_MS) * PICTURE_EVERY_MS;
  const address = `api/race/${encodeURIComponent(race.id)}/picture?t=${time}`;
  if (address === pictureUrl) return;
  isPictureAsked = true;
  pictureAt = now;
  try {
    const response = await fetch(address);
    if (response.status === 200) {
      const image = byId("picture"), before = image.src;
      image.src = URL.createObjectURL(await response.blob());
      image.hidden = false;
      byId("no-picture").hidden = true;
      if (before.startsWith("blob:")) URL.revokeObjectURL(before);
      pictureUrl = address;
    } else if (response.status === 204) {
      noPicture("This race has no picture.");
    }
  } catch {
    pictureAt = now + 2000; // the server is away
  } finally {
    isPictureAsked = false;
  }
}

function noPicture(text) {
  hasPictures = false;
  byId("picture").hidden = true;
  byId("no-picture").textContent = text;
  byId("no-picture").hidden = false;
}

// -------------------------------------------------------------------------------------------------------- the choices

let gamesShown = "";

function showChoices() {
  const games = [...new Set(store.cars.map(({ collector, game }) => `${collector}:${game}`))];
  const records = store.files.best_runs;
  const stamp = games.join() + "|" + records.map(({ name }) => name).join();
  if (stamp === gamesShown) return;
  gamesShown = stamp;
  const nameOf = (key) => {
    const [collector, game] = key.split(":").map(Number);
    return collector > 0 ? `collector ${collector + 1}, game ${game + 1}` : `game ${game + 1}`;
  };
  byId("source").replaceChildren(
    el("option", { value: NEWEST }, "newest evaluation race"),
    ...(games.length ? [el("optgroup", { label: "Live" }, ...games.map((key) => el("option", { value: `game:${key}` }, nameOf(key))))] : []),
    el("optgroup", { label: "Records" }, ...records.slice(0, 40).map(({ name, map, time_ms }) => el("option", { value: `record:${name}` }, `${map} ${raceTime(time_ms)}`))),
  );
  if (![...byId("source").options].some((option) => option.value === source)) {
    if (source.startsWith("game:")) byId("source").append(el("option", { value: source }, nameOf(source.slice(5))));
  }
  byId("source").value = source;
}

on("cars", showChoices);
on("files", showChoices);
on("state", ({ is_running: isRunning }) => {
  if (player.race || loading) return;
  byId("no-picture").textContent = isRunning ? "waiting for a race …" : store.files.best_runs.length ? "loading the best race …" : "The training does not run, and no race has finished yet.";
});
on("state", (state) => { // as long as no race is to be seen, or nobody trains, the best one is
  if (player.race || loading || source !== NEWEST || store.newest.size || !store.files.best_runs.length) return;
  if (!state.is_running || performance.now() - openedAt > LIVE_WITHIN_MS) load(`api/record/${encodeURIComponent(store.files.best_runs[0].name)}`);
});
on("newest", () => { if (!player.race || (endedAt !== null && player.isPlaying)) loadNewest(); });
on("race", (race) => {
  const kind = race.collector < 0 ? "record" : race.kind;
  byId("race-kind").textContent = `${kind}${race.finished ? ` · ${raceTime(race.time_ms)}` : " · not finished"}`;
});
byId("source").addEventListener("change", (event) => choose(event.target.value));
byId("play").addEventListener("click", () => setPlaying(!player.isPlaying));
byId("pace").addEventListener("change", (event) => { player.pace = Number(event.target.value); });
byId("seek").addEventListener("input", (event) => {
  player.time = Number(event.target.value);
  endedAt = null;
});
new IntersectionObserver((entries) => { isSeen = entries[entries.length - 1].isIntersecting; }).observe(document.querySelector(".picture"));
