// Curves over frames, drawn by uPlot.

import { byId, el, fetchJson, short } from "./format.js";
import { isOwn, on, store } from "./store.js";

const HEIGHT = 220;
const COLOURS = ["#f5b14c", "#6ea8fe", "#4cc38a", "#b197fc", "#ff6b6b", "#63e6be"];
const MEDALS = { author: "#63e6be", gold: "#ffd43b", silver: "#ced4da", bronze: "#e8915a" };

/** Joins curves [x, y] into uPlot's columns: one ascending x for all. */
function aligned(curves) {
  const xs = [...new Set(curves.flatMap((curve) => curve.map(([x]) => x)))].sort((a, b) => a - b);
  const at = new Map(xs.map((x, index) => [x, index]));
  const columns = curves.map((curve) => {
    const column = new Array(xs.length).fill(undefined);
    for (const [x, y] of curve) column[at.get(x)] = y;
    return column;
  });
  return [xs, ...columns];
}

/** A chart in a figure; `curvesOf()` gives its curves, [{label, points, isDots, isStep}]. */
class Chart {
  constructor(title, curvesOf, options = {}) {
    this.curvesOf = curvesOf;
    this.options = options;
    this.box = el("div", { class: "chart" });
    this.figure = el("figure", {}, el("figcaption", {}, el("span", {}, title), options.control ?? null), this.box);
    this.labels = "";
    this.isDirty = true;
  }

  draw() {
    if (!this.isDirty || !this.box.clientWidth) return;
    this.isDirty = false;
    const curves = this.curvesOf().filter(({ points }) => points.length);
    const labels = curves.map(({ label }) => label).join("|");
    if (!curves.length) {
      this.plot?.destroy();
      this.plot = null;
      this.box.replaceChildren(el("p", { class: "empty" }, this.options.empty ?? "nothing yet"));
      this.labels = "";
      return;
    }
    const data = aligned(curves.map(({ points }) => points));
    if (this.isOverTime()) data[0] = data[0].map(hoursAt);
    if (this.plot && this.labels === labels) {
      if (!this.isZoomed()) this.plot.setData(data);
      else this.plot.setData(data, false);
      return;
    }
    this.plot?.destroy();
    this.box.replaceChildren();
    this.labels = labels;
    this.plot = new uPlot(this.config(curves), data, this.box);
  }

  isOverTime() {
    return !this.options.labelX && byId("curves-axis").value === "hours";
  }

  isZoomed() {
    const { min, max } = this.plot.scales.x, xs = this.plot.data[0];
    return min > xs[0] || max < xs[xs.length - 1];
  }

  config(curves) {
    const axis = { stroke: "#93a0b0", grid: { stroke: "#212833", width: 1 }, ticks: { stroke: "#212833" }, font: "11px system-ui, sans-serif" };
    const format = this.options.format ?? short, formatX = this.options.formatX ?? (this.isOverTime() ? ofHours : short);
    const unit = this.options.unit ? ` ${this.options.unit}` : "";
    const labelX = this.options.labelX ?? (this.isOverTime() ? "time" : "frames");
    return {
      width: this.box.clientWidth,
      height: HEIGHT,
      cursor: { points: { size: 6 } },
      legend: { markers: { width: 2, stroke: (plot, index) => (index ? plot.series[index].points.fill(plot, index) : null) } },
      scales: { x: { time: false }, y: { range: this.options.range ?? ((_, low, high) => padded(low, high)) } },
      axes: [
        { ...axis, values: (_, ticks) => ticks.map(formatX), space: 60, size: 32, label: labelX, labelSize: 16, labelGap: 0, labelFont: axis.font },
        { ...axis, values: (_, ticks) => ticks.map((tick) => format(tick) + unit), size: 58 },
      ],
      series: [
        { label: labelX, value: (plot, _, series, index) => shown(plot.data[series], index, formatX) },
        ...curves.map(({ label, isDots, isStep, colour }, index) => ({
          label,
          stroke: colour ?? COLOURS[index % COLOURS.length],
          width: isDots ? 0 : 1.8,
          paths: isDots ? () => null : isStep ? uPlot.paths.stepped({ align: 1 }) : undefined,
          points: { show: Boolean(isDots), size: 4, width: 0, fill: colour ?? COLOURS[index % COLOURS.length] },
          spanGaps: true,
          value: (plot, _, series, index) => shown(plot.data[series], index, format),
        })),
      ],
      hooks: { draw: this.options.draw ? [this.options.draw] : [] },
    };
  }

  resize() {
    if (this.plot && this.box.clientWidth) this.plot.setSize({ width: this.box.clientWidth, height: HEIGHT });
  }
}

/** A legend's value: the last one up to the cursor, or the newest one without a cursor. */
function shown(column, index, format) {
  for (let at = index ?? column.length - 1; at >= 0; at--) if (column[at] !== null && column[at] !== undefined) return format(column[at]);
  return "–";
}

function padded(low, high) {
  if (low === null || high === null) return [0, 1];
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  return [low - room, high + room];
}

/** Hours of training at a frame count: all figures know their frames, and one is the hours. */
function hoursAt(frames) {
  const hours = figure("train/total/training_h");
  if (!hours.length) return 0;
  let low = 0, high = hours.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (hours[middle][0] < frames) low = middle + 1;
    else high = middle;
  }
  const [beginFrames, beginHours] = low > 0 ? hours[low - 1] : [0, 0], [endFrames, endHours] = hours[low];
  return beginHours + ((frames - beginFrames) / Math.max(endFrames - beginFrames, 1)) * (endHours - beginHours);
}

const ofHours = (hours) => (hours < 2 ? `${Number((60 * hours).toPrecision(3))} min` : `${Number(hours.toPrecision(3))} h`);
const share = () => [0, 1.02];
const percent = (value) => `${Math.round(value * 100)}%`;
const mapShown = () => byId("curves-map").value;
const raceCurve = (kind, column) => (store.curves[`${mapShown()}/${kind}`] ?? []).filter((point) => point[column] !== null).map((point) => [point[0], point[column]]);
const figure = (name) => store.figures[name] ?? [];

const mapFigure = (name, kind) => figure(`rollout/${name}/${kind}/${mapShown()}`);

function bestSoFar() {
  const kinds = ["evaluated", "explored"];
  const races = kinds.flatMap((kind) => [...raceCurve(kind, 1), ...mapFigure("best_time_s", kind)]).sort((a, b) => a[0] - b[0]);
  const best = [];
  for (const [frames, time] of races) if (!best.length || time < best[best.length - 1][1]) best.push([frames, time]);
  if (best.length) best.push([races[races.length - 1][0], best[best.length - 1][1]]);
  return best;
}

/** The slowest races of the beginning shall not flatten all that comes after. */
function timeRange(plot, low, high) {
  const times = plot.data.slice(1).flat().filter((time) => time !== null && time !== undefined).sort((a, b) => a - b);
  if (!times.length) return padded(low, high);
  const medals = Object.values(store.run?.medals_ms[mapShown()] ?? {}).map((ms) => ms / 1000);
  const top = times[Math.floor(0.97 * (times.length - 1))];
  return padded(Math.min(times[0], ...medals.filter((time) => time > 0.8 * times[0])), top);
}

function drawMedals(plot) {
  const medals = store.run?.medals_ms[mapShown()] ?? {}, { ctx, bbox } = plot;
  ctx.save();
  ctx.setLineDash([6, 6]);
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.textAlign = "left"; // not the axis's, which would write over its numbers
  ctx.textBaseline = "bottom";
  for (const [name, ms] of Object.entries(medals)) {
    const y = plot.valToPos(ms / 1000, "y", true);
    if (y < bbox.top || y > bbox.top + bbox.height) continue;
    ctx.strokeStyle = ctx.fillStyle = MEDALS[name];
    ctx.globalAlpha = 0.75;
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
    ctx.fillText(name, bbox.left + 6 * devicePixelRatio, y - 2 * devicePixelRatio);
  }
  ctx.restore();
}

const waiting = () => Object.keys(store.figures).filter((name) => name.startsWith("waiting/")).map((name) => ({ label: name.slice(8).replace("_", " "), points: figure(name) }));

const anyFigure = el("select", { "aria-label": "Figure" });
let chosenPoints = [];

async function loadChosen() {
  const name = anyFigure.value;
  if (name) chosenPoints = store.figures[name] ?? (await fetchJson(`api/figure?name=${encodeURIComponent(name)}`).catch(() => []));
}

const charts = [
  new Chart("Race times", () => [
    { label: "evaluation", points: raceCurve("evaluated", 1), isDots: true, colour: "#f5b14c" },
    { label: "exploration", points: raceCurve("explored", 1), isDots: true, colour: "#6ea8fe99" },
    { label: "best", points: bestSoFar(), isStep: true, colour: "#4cc38a" },
  ], { range: timeRange, draw: drawMedals, empty: "no finished race yet", format: (s) => `${Number(s.toFixed(2))}`, unit: "s" }),
  new Chart("Finished: share of the last ten races", () => [
    { label: "evaluation", points: mapFigure("finish_rate", "evaluated"), colour: "#f5b14c" },
    { label: "exploration", points: mapFigure("finish_rate", "explored"), colour: "#6ea8fe" },
  ], { range: share, format: percent }),
  new Chart("Metres reached", () => [
    { label: "evaluation", points: raceCurve("evaluated", 2), isDots: true, colour: "#f5b14c" },
    { label: "exploration", points: raceCurve("explored", 2), isDots: true, colour: "#6ea8fe99" },
  ], { unit: "m" }),
  new Chart("Loss", () => [
    { label: "loss", points: figure("train/loss") },
    { label: "test loss", points: figure("train/test_loss") },
  ]),
  new Chart("Mean Q", () => [{ label: "mean Q", points: figure("train/mean_q"), colour: "#b197fc" }]),
  new Chart("Gradient norm", () => [{ label: "gradient norm", points: figure("train/grad_norm"), colour: "#ff6b6b" }]),
  new Chart("Frames per second", () => [{ label: "frames/s", points: figure("train/speed/actions_per_s"), colour: "#4cc38a" }], { range: (_, __, high) => [0, (high || 1) * 1.08] }),
  new Chart("Shares of time spent waiting", waiting, { range: share, format: percent }),
  new Chart("", () => [{ label: anyFigure.value, points: chosenPoints, colour: "#63e6be" }], { control: anyFigure, empty: "no figures yet" }),
];

byId("charts").append(...charts.map(({ figure }) => figure));

const visible = new Set();
const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) visible.add(target);
    else visible.delete(target);
  }
  drawCharts();
}, { rootMargin: "200px" });
for (const { figure } of charts) observer.observe(figure);

export function drawCharts() {
  for (const chart of charts) if (visible.has(chart.figure)) chart.draw();
}

const renew = (isRenewed) => {
  for (const chart of charts) if (isRenewed(chart)) chart.isDirty = true;
};
new ResizeObserver(() => { for (const chart of charts) chart.resize(); renew(() => true); drawCharts(); }).observe(byId("charts"));

function offer(select, names, wanted) {
  if ([...select.options].map(({ value }) => value).join() === names.join()) return;
  const chosen = names.includes(select.value) ? select.value : wanted ?? names[0];
  select.replaceChildren(...names.map((name) => el("option", { value: name }, name)));
  if (chosen !== undefined) select.value = chosen;
}

function offerMaps() {
  const driven = Object.keys(store.curves).map((name) => name.slice(0, name.lastIndexOf("/")));
  const names = [...new Set([...(store.run?.maps ?? []).filter((name) => driven.includes(name)), ...driven])];
  offer(byId("curves-map"), names);
  byId("curves-map").hidden = names.length < 2;
}

on("races", () => { offerMaps(); renew((chart) => charts.indexOf(chart) < 3); drawCharts(); });
on("run", () => {
  charts[2].figure.querySelector("span").textContent = isOwn() ? "Return" : "Metres reached";
  charts[2].options.unit = isOwn() ? "" : "m";
  offerMaps();
  renew(() => true);
});
on("figures", async (told) => {
  offer(anyFigure, store.figureNames, store.figureNames.find((name) => name.startsWith("train/schedule/epsilon")));
  if (told.reset || told.names || anyFigure.value in told.curves) await loadChosen();
  renew(() => true);
  drawCharts();
});
setInterval(async () => {
  if (document.hidden || anyFigure.value in store.figures || !visible.has(charts[8].figure)) return;
  await loadChosen();
  charts[8].isDirty = true;
  drawCharts();
}, 10000);
byId("curves-axis").addEventListener("change", () => {
  for (const chart of charts) chart.labels = ""; // which makes it anew
  renew(() => true);
  drawCharts();
});
byId("curves-map").addEventListener("change", () => { renew(() => true); drawCharts(); });
anyFigure.addEventListener("change", async () => { await loadChosen(); charts[8].isDirty = true; drawCharts(); });

export { Chart };
