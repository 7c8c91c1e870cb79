// Records and films, races by map, runs, diagnostics, and messages.

import { byId, count, duration, el, labelled, medalBadge, raceTime } from "./format.js";
import { isOwn, on, store } from "./store.js";
import { choose, player } from "./player.js";

function showRecords() {
  const { best_runs: records, films } = store.files;
  const fastest = new Map();
  for (const { map, time_ms } of records) fastest.set(map, Math.min(fastest.get(map) ?? Infinity, time_ms));
  const hasMaps = fastest.size > 1;
  byId("records-about").textContent = records.length ? `${count(records.length)}` : "";
  if (!records.length) {
    byId("records-table").replaceChildren(el("tbody", {}, el("tr", {}, el("td", { class: "muted" }, "The first race that finishes is the first record."))));
  } else {
    byId("records-table").replaceChildren(el("tbody", {}, ...records.map(({ name, map, time_ms, driven_s, file, driver }) => el("tr", { class: player.race?.id?.startsWith(`best-${name}-`) ? "current" : "" },
      el("td", {}, el("b", {}, raceTime(time_ms)), " ", medalBadge(time_ms, store.run?.medals_ms[map])),
      hasMaps ? el("td", {}, map) : null,
      el("td", { class: "number muted" }, time_ms === fastest.get(map) ? "best" : `+${((time_ms - fastest.get(map)) / 1000).toFixed(2)}`),
      el("td", { class: "muted", title: new Date(driven_s * 1000).toLocaleString() }, ago(driven_s)),
      el("td", {}, el("button", { type: "button", onclick: () => watchRecord(name) }, "watch")),
      el("td", {}, el("a", { href: fileAddress(file), download: true, title: "inputs file, which TMInterface plays" }, "inputs")),
      el("td", {}, driver ? el("a", { href: fileAddress(driver), download: true, title: "the network that drove it, which scripts/evaluate.py drives" }, "driver") : null),
    ))));
  }
  byId("films").replaceChildren(...(films.length ? [el("h3", {}, "Films"), el("div", { class: "scroll tall" }, el("table", {}, el("tbody", {}, ...films.map((film) => el("tr", {},
    el("td", {}, film.name),
    el("td", { class: "number muted" }, `${film.mb} MB`),
    el("td", {}, el("button", { type: "button", onclick: () => showFilm(film) }, "play")),
    el("td", {}, el("a", { href: fileAddress(film.file), download: film.name }, "download")),
  )))))] : []));
}

const fileAddress = (file) => `files/${file.split("/").map(encodeURIComponent).join("/")}`;

function ago(seconds) {
  const age = Math.max(0, (store.state?.now ?? Date.now() / 1000) - seconds);
  if (age < 90) return `${Math.round(age)} s ago`;
  if (age < 5400) return `${Math.round(age / 60)} min ago`;
  if (age < 129600) return `${Math.round(age / 3600)} h ago`;
  return new Date(seconds * 1000).toLocaleDateString();
}

function watchRecord(name) {
  choose(`record:${name}`);
  if (byId("live").getBoundingClientRect().bottom < 200 || innerWidth < 960) document.querySelector(".race-card").scrollIntoView({ block: "start" });
}

function showFilm(film) {
  const address = fileAddress(film.file);
  byId("film").replaceChildren(el("video", { src: address, controls: true, autoplay: true, loop: true }));
  byId("film-dialog").showModal();
}

function showPictures() {
  const sets = [...new Set(store.files.pictures.map(setOf))], select = byId("picture-set");
  byId("diagnostics").hidden = byId("diagnostics-link").hidden = !sets.length;
  const chosen = sets.includes(select.value) && select.value !== select.options[0]?.value ? select.value : sets[0];
  select.replaceChildren(...sets.map((name) => el("option", { value: name }, name)));
  if (chosen) select.value = chosen;
  byId("pictures").replaceChildren(...store.files.pictures.filter((entry) => setOf(entry) === select.value).map((entry) => el("button", { type: "button", onclick: () => showPicture(entry) },
    el("img", { src: fileAddress(entry.file), alt: entry.title, loading: "lazy" }), el("span", {}, entry.title))));
}

const setOf = ({ map, frames }) => `${map}, ${count(frames)} frames`;

function showPicture({ file, title, caption }) {
  byId("film").replaceChildren(el("h3", {}, title), el("img", { src: fileAddress(file), alt: title }), el("p", { class: "muted" }, caption));
  byId("film-dialog").showModal();
}

byId("picture-set").addEventListener("change", showPictures);
byId("film-dialog").addEventListener("close", () => byId("film").replaceChildren());

function showEpisodes(rows) {
  const heads = ["environment", "", "episodes", "return", "best", "last", "length"];
  const numbers = (row) => [row.races, row.return, row.furthest, row.last, row.length].map((number) => el("td", { class: "number" }, `${Number(number.toPrecision(5))}`));
  byId("maps-table").replaceChildren(
    el("thead", {}, el("tr", {}, ...heads.map((text, index) => el("th", { class: index > 1 ? "number" : "" }, text)))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, el("td", {}, row.map), el("td", { class: "muted" }, row.kind), ...numbers(row)))),
  );
}

function showMaps() {
  const rows = [...(store.state?.table ?? [])].sort((a, b) => a.map.localeCompare(b.map) || b.kind.localeCompare(a.kind));
  if (isOwn()) return showEpisodes(rows);
  const heads = ["map", "", "races", "finished", "recent", "best", "last", "median"];
  const distance = (row, metres) => `${Math.round(metres)} ${row.unit}`;
  byId("maps-table").replaceChildren(
    el("thead", {}, el("tr", {}, ...heads.map((text, index) => el("th", { class: index > 1 ? "number" : "" }, text)))),
    el("tbody", {}, ...rows.map((row) => labelled(heads, el("tr", {},
      el("td", {}, row.map),
      el("td", { class: "muted" }, row.kind),
      el("td", { class: "number" }, count(row.races)),
      el("td", { class: "number" }, row.races ? `${Math.round((100 * row.finished) / row.races)}%` : "–"),
      el("td", { class: `number ${row.n_recent && row.recent === row.n_recent ? "win" : ""}` }, `${row.recent}/${row.n_recent}`),
      el("td", { class: "number" }, row.best_ms === null ? distance(row, row.furthest) : raceTime(row.best_ms), " ", medalBadge(row.best_ms, store.run?.medals_ms[row.map])),
      el("td", { class: "number" }, row.last_ms === null ? distance(row, row.last) : raceTime(row.last_ms)),
      el("td", { class: "number" }, raceTime(row.median_ms)),
    )))),
  );
}

let runsShown = "";

/** The runs in the same folder, the newest first; a run by itself needs no list. */
function showRuns({ runs }) {
  byId("runs").hidden = byId("runs-link").hidden = runs.length < 2;
  const stamp = JSON.stringify([runs, store.run?.name]);
  if (stamp === runsShown) return;
  runsShown = stamp;
  const heads = ["run", "", "best", "finished", "frames", "races", "trained"];
  const number = (figure, show = count) => el("td", { class: "number" }, figure === undefined ? "–" : show(figure));
  byId("runs-table").replaceChildren(
    el("thead", {}, el("tr", {}, ...heads.map((text, index) => el("th", { class: index > 1 ? "number" : "" }, text)))),
    el("tbody", {}, ...runs.map(({ name, is_running: isRunning, written_s: writtenS, figures, best }) => labelled(heads, el("tr", { class: name === store.run?.name ? "current" : "" },
      el("td", {}, el("a", { href: `/runs/${encodeURIComponent(name)}/` }, name)),
      el("td", { class: isRunning ? "win" : "muted" }, isRunning ? "training" : ago(writtenS)),
      el("td", { class: "number" }, best ? `${raceTime(best[1])} ${best[0]}` : "–"),
      number(figures.races_total ? figures.races_finished_total / figures.races_total : undefined, (share) => `${Math.round(100 * share)}%`),
      number(figures.frames_total), number(figures.races_total), number(figures.training_seconds_total, duration),
    )))),
  );
}

function showLog(told) {
  const list = byId("log");
  const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
  const line = ({ time, level, text }) => el("li", { class: level }, el("time", {}, time), el("span", {}, text));
  if (told.reset) list.replaceChildren(...store.log.map(line));
  else list.append(...told.messages.map(line));
  while (list.children.length > 500) list.firstChild.remove();
  if (isAtEnd || told.reset) list.scrollTop = list.scrollHeight;
}

on("files", () => { showRecords(); showPictures(); });
on("run", showRecords);
on("run", () => {
  document.body.classList.toggle("own", isOwn());
  document.querySelector("#maps h2").textContent = isOwn() ? "Episodes" : "Races by map";
});
on("race", showRecords);
on("state", showMaps);
on("state", showRuns);
on("log", showLog);
byId("warnings-only").addEventListener("change", (event) => byId("log").classList.toggle("warnings-only", event.target.checked));
