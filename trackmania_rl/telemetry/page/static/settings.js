// The settings of the run, and edits of them.

import { byId, el, fetchJson } from "./format.js";
import { on } from "./store.js";

const editToken = document.querySelector("meta[name=edit-token]").content;
const answers = new Map(); // setting -> [text, class] of its last edit, kept when the rows are made anew
let rows = [];
let stamp = null;

async function load() {
  const told = await fetchJson("api/settings");
  rows = told.rows;
  byId("settings-error").textContent = told.error ? `The configuration has a mistake, so the last good one stays in force: ${told.error}` : "";
  byId("settings-error").hidden = !told.error;
  show();
}

function show() {
  const search = byId("settings-search").value.trim().toLowerCase(), liveOnly = byId("live-only").checked;
  const open = new Set([...byId("settings-rows").querySelectorAll("details[open]")].map((group) => group.dataset.group));
  const wanted = rows.filter((row) => (!liveOnly || !row.restart) && (!search || `${row.name} ${row.about}`.toLowerCase().includes(search)));
  const groups = new Map();
  for (const row of wanted) groups.set(row.group, [...(groups.get(row.group) ?? []), row]);
  byId("settings-rows").replaceChildren(...[...groups].map(([name, entries]) => el("details", { "data-group": name, open: Boolean(search) || open.has(name) },
    el("summary", {}, `${name} (${entries.length})`), ...entries.map(setting))));
  if (!wanted.length) byId("settings-rows").replaceChildren(el("p", { class: "empty" }, "no such setting"));
}

/** A value as it is typed: texts without quotes. The server takes both. */
function typed(literal) {
  const text = /^"([A-Za-z][^"\\]*)"$/.exec(literal)?.[1];
  return text === undefined || ["true", "false"].includes(text) ? literal : text;
}

function setting(row) {
  const isSwitch = row.value === "true" || row.value === "false";
  const attributes = { "aria-label": row.name, "data-setting": row.name };
  const field = isSwitch
    ? el("input", { type: "checkbox", role: "switch", disabled: row.restart, ...attributes })
    : el("textarea", { rows: 1, spellcheck: "false", readonly: row.restart, ...attributes });
  const text = () => (isSwitch ? (field.checked ? "true" : "false") : field.value.trim());
  let written = typed(row.value);
  if (isSwitch) field.checked = row.value === "true";
  else field.value = written;
  const button = el("button", { type: "button", hidden: true }, "apply");
  const answer = el("p", { class: "told" });
  const showAnswer = () => {
    const [text, kind] = answers.get(row.name) ?? ["", ""];
    answer.textContent = text;
    answer.className = `told ${kind}`;
    answer.hidden = !text;
  };
  const tell = (...told) => { answers.set(row.name, told); showAnswer(); };
  showAnswer();
  const changed = () => {
    const isChanged = text() !== written;
    field.classList.toggle("changed", isChanged);
    button.hidden = !isChanged;
  };
  field.addEventListener("input", () => { changed(); if (isSwitch) button.click(); });
  field.addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); button.click(); } });
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      const { changed: changes } = await fetchJson("api/settings", {
        method: "POST",
        headers: { "Content-Type": "application/json", "X-Edit-Token": editToken },
        body: JSON.stringify({ name: row.name, text: text() }),
      });
      row.value = written = text();
      changed();
      const list = Object.entries(changes).map(([name, change]) => `${name}: ${change}`).join("; ");
      tell(list ? `written: ${list}` : "the configuration has this value already", "win");
    } catch (error) {
      tell(error.message, "lose");
    } finally {
      button.disabled = false;
    }
  });
  const about = [isSwitch ? "" : row.range, row.unit].filter(Boolean).join(", in ");
  const usual = row.default === "" ? "" : `default ${isSwitch ? (row.default === "true" ? "on" : "off") : typed(row.default)}`;
  return el("div", { class: `setting ${row.is_default ? "" : "differs"}` },
    el("div", {}, el("code", {}, row.name), " ", row.restart ? el("span", { class: "badge" }, "next start") : null, el("small", {}, row.about)),
    el("div", {}, field, el("small", {}, [about, usual].filter(Boolean).join("; "))),
    button, answer);
}

for (const id of ["settings-search", "live-only"]) byId(id).addEventListener("input", show);

on("run", (run) => {
  const isBeingEdited = [...byId("settings-rows").querySelectorAll("textarea.changed")].length > 0 || byId("settings-rows").contains(document.activeElement);
  if (run.settings_stamp === stamp) return;
  const isFirst = stamp === null;
  stamp = run.settings_stamp;
  if (isFirst || !isBeingEdited) load();
});
