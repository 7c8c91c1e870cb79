// Puts the page together: the header, and one loop that draws.

import { byId, count, duration, el, raceTime } from "./format.js";
import { connect, on, store } from "./store.js";
import { advance, player } from "./player.js";
import { drawMap, showMap, shownMap } from "./map.js";
import "./charts.js";
import "./sections.js";
import "./lists.js";
import "./settings.js";

function showHeader() {
  const { run, state } = store;
  if (!run || !state) return;
  byId("run-name").textContent = run.name;
  document.title = `${run.name}: TrackMania training`;
  const light = byId("light");
  light.className = `light ${state.is_running ? "running" : ""}`;
  light.title = state.is_running ? "the training writes races" : "nothing new is written";
  byId("run-state").textContent = state.quiet_s === null ? "no race yet" : state.is_running ? "training" : `last written ${duration(state.quiet_s)} ago`;
  const best = [...new Set(state.table.map(({ map }) => map))].map((map) => {
    const times = [...state.table.filter((row) => row.map === map && row.best_ms !== null).map((row) => row.best_ms), ...store.files.best_runs.filter((record) => record.map === map).map((record) => record.time_ms)];
    return times.length ? [map, Math.min(...times)] : null;
  }).filter(Boolean);
  const facts = [
    ["frames", count(state.frames)],
    ["races", count(state.races)],
    ["trained", duration(state.training_s)],
    ...(state.is_running ? [["frames/s", count(state.frames_per_s)]] : []),
    ...best.slice(0, 3).map(([map, ms]) => [`best ${map}`, raceTime(ms)]),
  ];
  byId("facts").replaceChildren(...facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

on("state", showHeader);
on("run", showHeader);
on("connection", (isOpen) => {
  const trouble = byId("trouble");
  trouble.hidden = isOpen;
  if (!isOpen) {
    byId("light").className = "light lost";
    trouble.textContent = "The page's server does not answer: it has ended, or the training that it belongs to has. Trying again …";
  }
});
on("trouble", (text) => { byId("trouble").textContent = text; byId("trouble").hidden = false; });
on("race", (race) => { // the map of the race that is watched, of a generated track its own
  const name = store.run?.generators.includes(race.map) ? race.track : race.map;
  if (name !== shownMap()) showMap(name);
  const choice = byId("map-choice");
  if ([...choice.options].some((option) => option.value === name)) choice.value = name;
});

const DRAW_EVERY_MS = 60; // a screen's every frame would take a quarter of two cores, where a training shares them

let before = performance.now();
function draw(now) {
  requestAnimationFrame(draw);
  if (now - before < DRAW_EVERY_MS) return;
  advance(Math.min(now - before, 250));
  before = now;
  drawMap();
}

connect();
requestAnimationFrame(draw);
window.pageState = { store, player }; // for tests, and for the curious
