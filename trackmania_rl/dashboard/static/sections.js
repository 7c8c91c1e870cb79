// Where the watched race wins or loses time: against the map's best race, and against the pace of a medal.

import { byId, el, fetchJson, lead, raceTime } from "./format.js";
import { on, store } from "./store.js";
import { shownShape } from "./map.js";
import { player } from "./player.js";
import { Chart } from "./charts.js";

const N_EQUAL_SECTIONS = 8;
const DELTA_EVERY_M = 2;
const best = new Map(); // map -> {name, race}

/** Race time in ms at which a race first was that far; null if it never came there. */
function timeAt(race, metres) {
  let furthest = -Infinity;
  for (let k = 0; k < race.m.length; k++) {
    if (race.m[k] >= metres) {
      if (k === 0 || race.m[k] === furthest) return race.t[k];
      return race.t[k - 1] + ((metres - furthest) / (race.m[k] - furthest)) * (race.t[k] - race.t[k - 1]);
    }
    furthest = Math.max(furthest, race.m[k]);
  }
  return null;
}

const reached = (race) => race.m.reduce((furthest, m) => Math.max(furthest, m), 0);

/** Ends of the sections: the map's checkpoints, or equal parts where it has none. */
function sectionEnds(shape) {
  const gates = shape.gates.slice(1).map((gate) => gate[5]);
  if (gates.length > 1) return gates.map((end, index) => [index === gates.length - 1 ? "finish" : `checkpoint ${index + 1}`, end]);
  return Array.from({ length: N_EQUAL_SECTIONS }, (_, index) => {
    const end = (shape.length_m * (index + 1)) / N_EQUAL_SECTIONS;
    return [`${Math.round(end)} m`, end];
  });
}

/** When a race ends a section; the finish is its official time. */
function sectionTimes(race, ends) {
  return ends.map(([, end], index) => (index === ends.length - 1 ? (race.finished ? race.time_ms : null) : timeAt(race, end)));
}

const chart = new Chart("", () => {
  const race = player.race, reference = race && best.get(race.map)?.race;
  if (!reference || reference.id === race.id) return [];
  const points = [], length = Math.min(reached(race), reached(reference));
  for (let m = DELTA_EVERY_M; m < length; m += DELTA_EVERY_M) points.push([m, (timeAt(race, m) - timeAt(reference, m)) / 1000]);
  return [{ label: "seconds behind the best race", points, colour: "#f5b14c" }];
}, { labelX: "m", formatX: (m) => `${Math.round(m)}`, format: (s) => s.toFixed(2), empty: "The line appears with a race that is not the best one.", draw: drawZero });

function drawZero(plot) {
  const { ctx, bbox } = plot, y = plot.valToPos(0, "y", true);
  if (y < bbox.top || y > bbox.top + bbox.height) return;
  ctx.save();
  ctx.strokeStyle = "#4cc38a";
  ctx.setLineDash([4, 4]);
  ctx.beginPath();
  ctx.moveTo(bbox.left, y);
  ctx.lineTo(bbox.left + bbox.width, y);
  ctx.stroke();
  ctx.restore();
}

byId("delta-chart").append(chart.box);
new ResizeObserver(() => chart.resize()).observe(byId("delta-chart"));

async function loadBest(map) {
  const record = store.files.best_runs.filter((entry) => entry.map === map).sort((a, b) => a.time_ms - b.time_ms)[0];
  if (!record || best.get(map)?.name === record.name) return;
  const before = best.get(map);
  best.set(map, { name: record.name, race: before?.race ?? null });
  try {
    best.set(map, { name: record.name, race: await fetchJson(`/api/record/${encodeURIComponent(record.name)}`) });
  } catch { /* the real game alone can drive it: the fastest race that was watched stands for it */ }
  show();
}

function show() {
  const race = player.race, shape = shownShape();
  if (!race || !shape || (shape.name !== race.map && shape.name !== race.track)) return;
  const reference = best.get(race.map)?.race ?? null;
  const medals = store.run?.medals_ms[race.map] ?? {};
  const medalName = ["author", "gold", "silver", "bronze"].find((name) => medals[name] !== undefined);
  const ends = sectionEnds(shape), own = sectionTimes(race, ends), splits = store.state?.splits[race.map];
  const told = splits?.best_ms.length === ends.length ? splits : null; // races.jsonl has the times of every race
  const theirs = reference ? sectionTimes(reference, ends) : told?.best_ms ?? null;
  // A medal is one time for the whole map: its pace is the best race's, slowed down or sped up as a whole.
  const pace = medalName && theirs && theirs[theirs.length - 1] ? theirs.map((time) => (time * medals[medalName]) / theirs[theirs.length - 1]) : null;
  const parts = (times) => times.map((time, index) => (time === null || (index && times[index - 1] === null) ? null : time - (index ? times[index - 1] : 0)));
  const ownParts = parts(own), theirParts = theirs && parts(theirs), paceParts = pace && parts(pace);
  const recentParts = told?.recent_ms.length === ends.length && theirParts ? parts(told.recent_ms) : null;
  const lost = ownParts.map((time, index) => (time === null || !theirParts || theirParts[index] === null ? null : time - theirParts[index]));
  const widest = Math.max(200, ...lost.map((ms) => Math.abs(ms ?? 0)));
  byId("sections-table").replaceChildren(
    el("thead", {}, el("tr", {}, ...["to", "this race", "section", ...(theirs ? ["best", "won or lost", ""] : []), ...(recentParts ? ["recent evaluated races"] : []), ...(pace ? [`on ${medalName} pace`] : [])].map((text, index) => el("th", { class: index ? "number" : "" }, text)))),
    el("tbody", {}, ...ends.map(([name], index) => el("tr", {},
      el("td", {}, name),
      el("td", { class: "number" }, raceTime(rounded(own[index]))),
      el("td", { class: "number" }, raceTime(rounded(ownParts[index]))),
      ...(theirs ? [el("td", { class: "number" }, raceTime(rounded(theirParts[index]))), difference(lost[index]), el("td", {}, bar(lost[index], widest))] : []),
      ...(recentParts ? [difference(recentParts[index] - theirParts[index])] : []),
      ...(pace ? [difference(ownParts[index] === null || paceParts[index] === null ? null : ownParts[index] - paceParts[index])] : []),
    ))),
  );
  const bestMs = reference?.time_ms ?? told?.best_ms.at(-1);
  byId("sections-about").textContent = bestMs ? `the ${race.collector < 0 ? "record" : `${race.kind} race`} that you watch against the best of ${race.map}, ${raceTime(bestMs)}` : `${race.map}: no best race to compare with yet`;
  chart.isDirty = true;
  chart.draw();
}

const rounded = (ms) => (ms === null ? null : Math.round(ms / 10) * 10);

function difference(ms) {
  if (ms === null) return el("td", { class: "number muted" }, "–");
  return el("td", { class: `number ${ms < -4 ? "win" : ms > 4 ? "lose" : ""}` }, lead(rounded(ms)));
}

function bar(ms, widest) {
  const share = (50 * Math.abs(ms ?? 0)) / widest;
  const place = ms < 0 ? `right:50%;width:${share}%;background:var(--green)` : `left:50%;width:${share}%;background:var(--red)`;
  return el("span", { class: "bar" }, ms === null ? null : el("i", { style: place }));
}

on("race", (race) => {
  const known = best.get(race.map);
  if (store.run?.game !== "simulated" && race.finished && (!known?.race || race.time_ms < known.race.time_ms)) best.set(race.map, { name: known?.name, race });
  loadBest(race.map);
  show();
});
on("map", show);
on("races", () => { if (player.race && !player.isPlaying) return; show(); });
on("files", () => { if (player.race) loadBest(player.race.map); });
