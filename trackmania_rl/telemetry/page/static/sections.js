// Where the watched race wins or loses time: against the map's best race, and against the pace of a medal.

import { byId, el, fetchJson, labelled, lead, raceTime } from "./format.js";
import { on } from "./store.js";
import { player } from "./player.js";
import { Chart } from "./charts.js";

let told = null; // by the server, of the race that is watched
let fastest = ""; // records of the maps: a new one is another best race

const chart = new Chart("", () => [{ label: "seconds behind the best race", points: told?.behind ?? [], colour: "#f5b14c" }], {
  labelX: "m",
  formatX: (m) => `${Math.round(m)}`,
  format: (s) => s.toFixed(2),
  empty: "The line appears with a race that is not the best one.",
  draw: drawZero,
});

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
new ResizeObserver(() => { chart.resize(); chart.draw(); }).observe(byId("delta-chart"));

async function load(race) {
  try {
    const compared = await fetchJson(`api/race/${encodeURIComponent(race.id)}/sections`);
    if (player.race?.id === race.id) show(race, compared);
  } catch (error) {
    byId("sections-about").textContent = error.message;
  }
}

function show(race, compared) {
  told = compared;
  const { rows, medal, best_ms: bestMs } = told;
  const has = (key) => rows.some((row) => row[key] !== null);
  const widest = Math.max(200, ...rows.map(({ lost_ms: lost }) => Math.abs(lost ?? 0)));
  const columns = [
    ["to", (row) => el("td", {}, row.name)],
    ["this race", (row) => number(row.at_ms)],
    ["section", (row) => number(row.section_ms)],
    has("best_ms") && ["best", (row) => number(row.best_ms)],
    has("lost_ms") && ["won or lost", (row) => difference(row.lost_ms)],
    has("lost_ms") && ["", (row) => el("td", {}, bar(row.lost_ms, widest))],
    has("recent_lost_ms") && ["recent evaluation races", (row) => difference(row.recent_lost_ms)],
    has("pace_lost_ms") && [`on ${medal} pace`, (row) => difference(row.pace_lost_ms)],
  ].filter(Boolean);
  byId("sections-table").replaceChildren(
    el("thead", {}, el("tr", {}, ...columns.map(([head], index) => el("th", { class: index ? "number" : "" }, head)))),
    el("tbody", {}, ...rows.map((row) => labelled(columns.map(([head]) => head), el("tr", {}, ...columns.map(([, cell]) => cell(row)))))),
  );
  const kind = race.collector < 0 ? "record" : `${race.kind} race`;
  byId("sections-about").textContent = bestMs ? `the ${kind} that you watch against the best of ${race.map}, ${raceTime(bestMs)}` : `${race.map}: no best race to compare with yet`;
  if (!told.behind.some(([, seconds]) => seconds !== 0)) told.behind = [];
  chart.isDirty = true;
  chart.draw();
}

const rounded = (ms) => Math.round(ms / 10) * 10;
const number = (ms) => el("td", { class: "number" }, ms === null ? "–" : raceTime(rounded(ms)));

function difference(ms) {
  if (ms === null) return el("td", { class: "number muted" }, "–");
  return el("td", { class: `number ${ms < -4 ? "win" : ms > 4 ? "lose" : ""}` }, lead(rounded(ms)));
}

function bar(ms, widest) {
  const share = (50 * Math.abs(ms ?? 0)) / widest;
  const place = ms < 0 ? `right:50%;width:${share}%;background:var(--green)` : `left:50%;width:${share}%;background:var(--red)`;
  return el("span", { class: "bar" }, ms === null ? null : el("i", { style: place }));
}

on("race", load);
on("files", ({ best_runs: records }) => {
  const now = records.map(({ name }) => name).join();
  if (now !== fastest && player.race) load(player.race);
  fastest = now;
});
