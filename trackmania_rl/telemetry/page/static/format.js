// Numbers and times as people read them, and elements made in one line.

/** "1:02.340" or "22.680" of milliseconds; "–" where there are none. */
export function raceTime(ms) {
  if (ms === null || ms === undefined) return "–";
  const minutes = Math.floor(ms / 60000);
  const seconds = ((ms % 60000) / 1000).toFixed(3);
  return minutes > 0 ? `${minutes}:${seconds.padStart(6, "0")}` : seconds;
}

/** "+0.120" or "−0.040" of milliseconds. */
export function lead(ms) {
  return `${ms > 0 ? "+" : ms < 0 ? "−" : "±"}${(Math.abs(ms) / 1000).toFixed(3)}`;
}

export function count(number) {
  return Math.round(number).toLocaleString("en");
}

/** 12.3k, 4.5M: for axes. */
export function short(number) {
  const size = Math.abs(number);
  if (size >= 1e6) return `${trim(number / 1e6)}M`;
  if (size >= 1e4) return `${trim(number / 1e3)}k`;
  if (size > 0 && size < 1e-3) return number.toExponential(0);
  return `${Number(number.toPrecision(4))}`;
}

function trim(number) {
  return Number(number.toPrecision(3));
}

/** "2 h 5 min", "48 s". */
export function duration(seconds) {
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** Makes an element: el("td", {class: "number"}, "5"). Texts are texts, never HTML. */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** A table's row whose cells know their column's head: on a phone, where rows wrap, it stands beside the value. */
export function labelled(heads, row) {
  [...row.cells].forEach((cell, index) => { cell.dataset.head = heads[index]; });
  return row;
}

export const byId = (id) => document.getElementById(id);

/** Fetches JSON; an error has the server's own text. */
export async function fetchJson(address, options = {}) {
  const response = await fetch(address, options);
  const told = await response.json().catch(() => null);
  if (!response.ok) throw new Error(typeof told?.detail === "string" ? told.detail : `${response.status} ${response.statusText}`);
  return told;
}

/** The medal that a time reaches, or null. */
export function medal(timeMs, medals) {
  if (timeMs === null || timeMs === undefined || !medals) return null;
  return ["author", "gold", "silver", "bronze"].find((name) => medals[name] !== undefined && timeMs <= medals[name]) ?? null;
}

export function medalBadge(timeMs, medals) {
  const name = medal(timeMs, medals);
  return name ? el("span", { class: `medal ${name}` }, name) : null;
}
