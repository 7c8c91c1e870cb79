// The map from above: the road, its virtual checkpoints, every game's car, and the race that is watched.

import { byId, el, fetchJson } from "./format.js";
import { on, store } from "./store.js";
import { player } from "./player.js";

const TOP_KMH = 400;
const CAR_IS_OLD_S = 15;
const PIECE = 16; // points of the road that are drawn together, the lowest pieces first
const canvas = byId("map");
const context = canvas.getContext("2d");
const roadCanvas = document.createElement("canvas"); // the road changes only with the view
const view = { x: 0, z: 0, scale: 1, isFitted: true, isTurned: false }; // x and z are the middle, in metres
const trails = new Map(); // of cars, "collector:game" -> their last places

let shape = null;
let isRoadDrawn = false;
let askedFor = null;

export function shownMap() {
  return shape?.name ?? null;
}

/** Shows a map; one that cannot be drawn leaves a note. */
export async function showMap(name) {
  if (!name || askedFor === name) return;
  askedFor = name;
  const note = byId("map-note");
  try {
    const told = await fetchJson(`api/map/${encodeURIComponent(name)}`);
    if (askedFor !== name) return;
    shape = told;
    note.hidden = true;
  } catch (error) {
    shape = null;
    note.textContent = error.message;
    note.hidden = false;
  }
  byId("map-facts").textContent = shape ? `${Math.round(shape.length_m)} m, ${shape.gates.length - 2} checkpoints${shape.n_laps > 1 ? `, ${shape.n_laps} laps` : ""}` : "";
  trails.clear();
  fit();
}

export function fit() {
  view.isFitted = true;
  isRoadDrawn = false;
}

function fitNow() {
  const width = canvas.clientWidth, height = canvas.clientHeight;
  const xs = shape.points.map((point) => point[0]), zs = shape.points.map((point) => point[1]);
  const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...zs), Math.max(...zs)];
  const scaleOf = (across, down) => Math.min((width - 90) / Math.max(across, 1), (height - 80) / Math.max(down, 1));
  view.isTurned = scaleOf(bottom - top, right - left) > 1.15 * scaleOf(right - left, bottom - top);
  view.scale = view.isTurned ? scaleOf(bottom - top, right - left) : scaleOf(right - left, bottom - top);
  view.x = (left + right) / 2;
  view.z = (top + bottom) / 2;
}

/** Seen from above, x to the right and z down, as y is up; or turned by a right angle: never mirrored. */
function toScreen(x, z) {
  const [across, down] = turned(x - view.x, z - view.z);
  return [canvas.clientWidth / 2 + across * view.scale, canvas.clientHeight / 2 + down * view.scale];
}

const turned = (dx, dz) => (view.isTurned ? [dz, -dx] : [dx, dz]);
const turnedBack = (across, down) => (view.isTurned ? [-down, across] : [across, down]);

export function speedColour(kmh) {
  const share = Math.min(Math.max(kmh / TOP_KMH, 0), 1);
  return `hsl(${240 - 225 * share} 80% ${58 + 4 * share}%)`;
}

function drawRoad() {
  const ratio = devicePixelRatio || 1;
  roadCanvas.width = canvas.width;
  roadCanvas.height = canvas.height;
  const road = roadCanvas.getContext("2d");
  road.setTransform(ratio, 0, 0, ratio, 0, 0);
  road.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
  const points = shape.points;
  const pieces = [];
  for (let begin = 0; begin + 1 < points.length; begin += PIECE) pieces.push(begin);
  pieces.sort((a, b) => points[a][4] - points[b][4]);
  for (const begin of pieces) {
    const end = Math.min(begin + PIECE + 1, points.length);
    drawPiece(road, Math.max(0, begin - 1), end, 1.5, "#5b6778");
    drawPiece(road, Math.max(0, begin - 2), Math.min(end + 1, points.length), 0, "#2b333f");
  }
  drawZones(road);
  shape.gates.forEach((gate, index) => drawGate(road, gate, index === 0 ? "#4cc38a" : index === shape.gates.length - 1 ? "#ffffff" : "#6ea8fe", index));
  isRoadDrawn = true;
}

function drawPiece(road, begin, end, wider, colour) {
  const points = shape.points, left = [], right = [];
  for (let k = begin; k < end; k++) {
    const [x, z, half, hasRoad] = points[k];
    if (!hasRoad) { strip(); continue; }
    const before = points[Math.max(0, k - 1)], after = points[Math.min(points.length - 1, k + 1)];
    const dx = after[0] - before[0], dz = after[1] - before[1], length = Math.hypot(dx, dz) || 1;
    const side = half + wider / view.scale;
    left.push(toScreen(x + (dz / length) * side, z - (dx / length) * side));
    right.push(toScreen(x - (dz / length) * side, z + (dx / length) * side));
  }
  strip();
  function strip() {
    if (left.length > 1) {
      road.fillStyle = colour;
      road.beginPath();
      for (const [x, y] of left) road.lineTo(x, y);
      for (const [x, y] of right.reverse()) road.lineTo(x, y);
      road.closePath();
      road.fill();
    }
    left.length = right.length = 0;
  }
}

/** Virtual checkpoints: as many of them as can be told apart. */
function drawZones(road) {
  const points = shape.points;
  const spacing = shape.length_m / Math.max(points.length - 1, 1);
  const wanted = 7 / view.scale; // metres between two dots
  const every = Math.max(1, Math.ceil(wanted / shape.zone_m)) * shape.zone_m;
  road.fillStyle = "#7d8ba0";
  for (let station = 0; station < shape.length_m; station += every) {
    const at = station / spacing, k = Math.min(Math.floor(at), points.length - 2), share = at - k;
    const [x, y] = toScreen(points[k][0] + share * (points[k + 1][0] - points[k][0]), points[k][1] + share * (points[k + 1][1] - points[k][1]));
    road.fillRect(x - 0.9, y - 0.9, 1.8, 1.8);
  }
}

function drawGate(road, [x, z, acrossX, acrossZ, half], colour, index) {
  const [ax, ay] = toScreen(x + acrossX * half, z + acrossZ * half), [bx, by] = toScreen(x - acrossX * half, z - acrossZ * half);
  road.strokeStyle = colour;
  road.lineWidth = 3;
  road.beginPath();
  road.moveTo(ax, ay);
  road.lineTo(bx, by);
  road.stroke();
  const label = index === 0 ? "start" : index === shape.gates.length - 1 ? "finish" : `${index}`;
  road.fillStyle = colour;
  road.font = "600 11px system-ui, sans-serif";
  road.textAlign = "center";
  const width = Math.hypot(ax - bx, ay - by) || 1;
  road.fillText(label, ax + (18 * (ax - bx)) / width, ay + (12 * (ay - by)) / width + 4);
}

function drawRace(race, time) {
  if (!race || (race.map !== shape.name && race.track !== shape.name)) return;
  context.lineWidth = 2.5;
  context.lineCap = "round";
  let before = null;
  for (let k = 0; k < race.t.length && race.t[k] <= time; k++) {
    const here = toScreen(race.x[k], race.z[k]);
    if (before) {
      context.strokeStyle = speedColour(race.speed[k] * 3.6);
      context.beginPath();
      context.moveTo(...before);
      context.lineTo(...here);
      context.stroke();
    }
    before = here;
  }
  const now = player.moment();
  if (!now) return;
  const [x, y] = toScreen(now.x, now.z);
  const size = Math.min(Math.max(2.2 * view.scale, 8), 22);
  context.save();
  context.translate(x, y);
  const [across, down] = turned(now.dx, now.dz);
  context.rotate(Math.atan2(down, across));
  context.fillStyle = "#fff";
  context.strokeStyle = "#000";
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(size, 0);
  context.lineTo(-size * 0.7, size * 0.6);
  context.lineTo(-size * 0.35, 0);
  context.lineTo(-size * 0.7, -size * 0.6);
  context.closePath();
  context.fill();
  context.stroke();
  context.restore();
}

function drawCars() {
  let shown = 0;
  for (const { collector, game, map_name: map, track, position: [x, , z], is_explo: isExplored, age_s: age } of store.cars) {
    if (age > CAR_IS_OLD_S || (map !== shape.name && track !== shape.name)) continue;
    shown++;
    const colour = isExplored ? "#6ea8fe" : "#f5b14c";
    const trail = trails.get(`${collector}:${game}`) ?? [];
    context.fillStyle = colour;
    trail.forEach(([tx, tz], index) => {
      context.globalAlpha = 0.08 + 0.28 * (index / trail.length);
      disc(...toScreen(tx, tz), 3);
    });
    context.globalAlpha = 1;
    const [px, py] = toScreen(x, z);
    disc(px, py, 6);
    context.fillStyle = "#0d1015";
    context.font = "700 8px system-ui, sans-serif";
    context.textAlign = "center";
    context.fillText(`${game + 1}`, px, py + 3);
  }
  byId("n-cars").textContent = store.cars.length ? `${store.cars.length} games, ${shown} cars here` : "";
}

function disc(x, y, radius) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.fill();
}

on("cars", () => {
  for (const { collector, game, position: [x, , z] } of store.cars) {
    const key = `${collector}:${game}`;
    const trail = trails.get(key) ?? [];
    trail.push([x, z]);
    trails.set(key, trail.slice(-6));
  }
});

export function drawMap() {
  const ratio = devicePixelRatio || 1;
  const width = Math.round(canvas.clientWidth * ratio), height = Math.round(canvas.clientHeight * ratio);
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
    isRoadDrawn = false;
  }
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, width, height);
  if (!shape || !width || !height) return;
  if (view.isFitted && !isRoadDrawn) fitNow();
  const now = player.moment();
  if (byId("follow").checked && now && player.race && (player.race.map === shape.name || player.race.track === shape.name)) {
    if (view.isFitted) view.scale = Math.max(view.scale, 3);
    view.isFitted = false;
    [view.x, view.z] = [now.x, now.z];
    isRoadDrawn = false;
  }
  if (!isRoadDrawn) drawRoad();
  context.drawImage(roadCanvas, 0, 0);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  drawCars();
  drawRace(player.race, player.time);
}

// ------------------------------------------------------------------------------------------- moving and zooming the view

const fingers = new Map();

function zoom(factor, x, y) {
  const box = canvas.getBoundingClientRect();
  const [dx, dz] = turnedBack((x - box.left - canvas.clientWidth / 2) / view.scale, (y - box.top - canvas.clientHeight / 2) / view.scale);
  const scale = Math.min(Math.max(view.scale * factor, 0.05), 40);
  view.x += dx * (1 - view.scale / scale);
  view.z += dz * (1 - view.scale / scale);
  view.scale = scale;
  view.isFitted = isRoadDrawn = false;
}

canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  zoom(Math.exp(-event.deltaY / 400), event.clientX, event.clientY);
}, { passive: false });

canvas.addEventListener("pointerdown", (event) => {
  canvas.setPointerCapture(event.pointerId);
  fingers.set(event.pointerId, [event.clientX, event.clientY]);
});

canvas.addEventListener("pointermove", (event) => {
  const before = fingers.get(event.pointerId);
  if (!before) return;
  const now = [event.clientX, event.clientY];
  if (fingers.size === 1) {
    const [dx, dz] = turnedBack((now[0] - before[0]) / view.scale, (now[1] - before[1]) / view.scale);
    view.x -= dx;
    view.z -= dz;
    view.isFitted = isRoadDrawn = false;
    byId("follow").checked = false;
  } else {
    const other = [...fingers].find(([id]) => id !== event.pointerId)[1];
    const apart = ([x, y]) => Math.hypot(x - other[0], y - other[1]);
    zoom(apart(now) / Math.max(apart(before), 1), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
  }
  fingers.set(event.pointerId, now);
});

for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (event) => fingers.delete(event.pointerId));

byId("fit").addEventListener("click", () => {
  byId("follow").checked = false;
  fit();
});
byId("scale-top").textContent = `${TOP_KMH} km/h`;
byId("map-choice").addEventListener("change", (event) => showMap(event.target.value));

on("run", (run) => {
  const choice = byId("map-choice");
  choice.replaceChildren(...run.maps.map((name) => el("option", { value: name }, name)));
  choice.hidden = run.maps.length < 2;
  askedFor = null; // its file may have been edited
  showMap(shape && run.maps.includes(shape.name) ? shape.name : run.maps[0]);
  if (!run.maps.length && !shape) {
    byId("map-note").textContent = "Tracks are generated: the map appears with the first race that is watched.";
    byId("map-note").hidden = false;
  }
});
