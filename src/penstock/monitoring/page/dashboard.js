// The dashboard: asks the server every two seconds, and shows what it says. Whatever comes from there is put in
// as text, never as markup.

import { storage } from "/assets/storage.js";

const EVERY = 2000;
const PATIENCE = 5000; // for an answer to a look
const LONGEST = 30_000; // for any other
const SERIES = 4;
const STALE = 10; // seconds after which what is shown is no longer known
const BEGINNING = new Set(["startup", "streaming"]); // conditions that come true by themselves
const BUSY = new Set(["init", "data_sync", "finished_copy", "paused"]);
const at = (id) => document.getElementById(id);

let measure = "lag_seconds";
let shown = null; // the last status
let points = [];
let now = Date.now(); // by the server's clock

// ---- The server

const token = () => sessionStorage.getItem("penstock-token");

async function ask(path, method = "GET", { headers = {}, body, patience = LONGEST } = {}) {
  if (token()) headers.Authorization = `Bearer ${token()}`;
  const signal = AbortSignal.timeout(patience);
  const answer = await fetch(path, { method, headers, body, signal, cache: "no-store" });
  if (answer.status === 401) at("token").hidden = false;
  const said = await answer.json();
  now = Date.parse(answer.headers.get("date")) || Date.now();
  if (!answer.ok && said.error) throw new Error(`${said.error.reason}. ${said.error.remedy}`);
  return said;
}

async function login() {
  at("login").showModal();
  if ((await closing(at("login"))) === "yes") {
    sessionStorage.setItem("penstock-token", at("given").value);
    at("given").value = "";
    at("token").hidden = true;
    refresh();
  }
}

const closing = (dialog) =>
  new Promise((done) => dialog.addEventListener("close", () => done(dialog.returnValue), { once: true }));

async function act(action, table, row) {
  const questions = {
    reload: `Copy ${table} anew for ${row.destination}? The others go on meanwhile.`,
    pause: `Pause ${table} for ${row.destination}? Its changes wait in the spool, which grows.`,
  };
  if (questions[action]) {
    at("question").textContent = questions[action];
    at("confirm").returnValue = "no";
    at("confirm").showModal();
    if ((await closing(at("confirm"))) !== "yes") return;
  }
  const where = new URLSearchParams({ source: row.source, destination: row.destination });
  try {
    await ask(`/tables/${encodeURIComponent(table)}/${action}?${where}`, "POST");
    tell(`${table}: asked to ${action}`);
  } catch (error) {
    tell(error.message);
  }
  refresh();
}

export { ask, at, closing, count, made, size, tell };

let telling;
function tell(sentence) {
  at("told").textContent = sentence;
  clearTimeout(telling);
  telling = setTimeout(() => (at("told").textContent = ""), 6000);
}

// ---- Words

const UNITS = ["B", "kB", "MB", "GB", "TB"];
function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  let unit = 0;
  while (bytes >= 1024 && unit < UNITS.length - 1) { bytes /= 1024; unit += 1; }
  return `${unit && bytes < 100 ? bytes.toFixed(1) : Math.round(bytes)} ${UNITS[unit]}`;
}
function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${Math.round(seconds / 86400)} days`;
}
const count = (number) => Number(number).toLocaleString("en");
const clock = (text) => (text ? text.slice(0, 19).replace("T", " ") : "–");

function made(tag, attributes = {}, ...inside) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...inside.filter((each) => each !== null && each !== undefined));
  return element;
}

const sentence = (error) => {
  const place = Object.entries(error.where || {}).map(([key, value]) => `${key} ${value}`).join(", ");
  return `${error.reason}${place ? ` (${place})` : ""}. ${error.remedy || ""}`;
};

// ---- The way of a change

function stop(name, failing, ...lines) {
  const facts = lines.filter(Boolean).map((line) => made("li", {}, made("p", {}, line)));
  return made("div", { class: failing ? "stop failing" : "stop" }, made("h3", {}, name), made("ul", {}, ...facts));
}
const arrow = (label) => made("div", { class: "arrow" }, label, made("i", { "aria-hidden": "true" }));

function way(source, destinations) {
  const capture = source.capture;
  const ends = made("div", { class: "ends" });
  for (const destination of destinations) {
    const stream = destination.streams.find((each) => each.source === source.name);
    if (!stream) continue;
    const rate = stream.rates ? `${count(Math.round(stream.rates.rows))} changes/s` : "";
    ends.append(made("div", { class: "row" }, arrow(rate), stop(
      destination.name, Boolean(stream.error), `${destination.type}, ${count(stream.rows)} changes`,
      stream.error ? `waits since ${clock(stream.waiting_since)}`
        : `${span(stream.lag_seconds)} behind (${size(stream.lag_bytes)})`,
      stream.last_batch ? `last batch ${clock(stream.last_batch.at).slice(-8)}, took ${span(stream.last_batch.seconds)}` : null,
    )));
  }
  const isSeen = capture.changes !== null; // it may be on another machine
  const rate = source.rates && isSeen ? `${count(Math.round(source.rates.changes))} changes/s` : "";
  return made("div", { class: "way" },
    stop(source.name, Boolean(source.error), source.error ? "it cannot be reached" : `slot ${source.slot_state}`,
      source.error ? null : `${size(source.retained_bytes)} of WAL kept`,
      source.left_out.length ? `${source.left_out.length} tables left out` : null),
    arrow(rate),
    stop("spool", Boolean(capture.error), ...(isSeen ? [`capture ${capture.state}`, size(capture.spooled_bytes)] : ["not seen from here"])),
    ends);
}

// ---- The chart

const NAMESPACE = "http://www.w3.org/2000/svg";
function drawn(tag, attributes, text) {
  const element = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function round125(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= value);
}

function chart() {
  const names = [...new Set(points.flatMap((point) => Object.keys(point[measure] || {})))];
  const words = { lag_seconds: span, lag_bytes: size, rows: (each) => count(Math.round(each)) }[measure];
  const highest = Math.max(...points.flatMap((p) => Object.values(p[measure] || {}).map((v) => v || 0)), 0);
  const top = round125(Math.max(highest, measure === "lag_bytes" ? 1024 : 1));
  const [left, right, low, high] = [64, 890, 165, 10];
  const last = points.length ? points[points.length - 1].at : 0;
  const x = (time) => right - ((last - time) / 3600) * (right - left);
  const y = (value) => low - (Math.min(value, top) / top) * (low - high);
  const parts = [];
  for (const part of [0, 0.5, 1]) {
    parts.push(drawn("line", { class: "grid", x1: left, x2: right, y1: y(top * part), y2: y(top * part) }));
    parts.push(drawn("text", { x: left - 6, y: y(top * part) + 4, "text-anchor": "end" }, words(top * part)));
  }
  for (const minutes of [60, 45, 30, 15, 0]) {
    const label = minutes ? `−${minutes} min` : "now";
    parts.push(drawn("text", { x: x(last - minutes * 60), y: 184, "text-anchor": minutes ? "middle" : "end" }, label));
  }
  names.forEach((name, number) => {
    let path = "";
    let pen = "M";
    for (const point of points) {
      const value = (point[measure] || {})[name];
      if (value === null || value === undefined) { pen = "M"; continue; }
      path += `${pen}${x(point.at).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = "L";
    }
    parts.push(drawn("path", { d: path || "M0 0", class: `series-${number % SERIES}` }));
  });
  at("chart").replaceChildren(...parts);
  const newest = points.length ? points[points.length - 1][measure] || {} : {};
  at("legend").replaceChildren(...names.map((name, number) =>
    made("li", { class: `series-${number % SERIES}` }, made("span", {}, `${name}: ${words(newest[name] ?? null)}`))));
  const told = names.map((name) => `${name} ${words(newest[name] ?? null)}`).join(", ");
  at("chart").setAttribute("aria-label", `The last hour, now: ${told || "nothing yet"}`);
}

// ---- The tables

const known = new Map(); // rows of the page, so that a button keeps the focus while the page is kept up to date

function tableRow(row) {
  const key = JSON.stringify([row.source, row.destination, row.table]);
  let parts = known.get(key);
  if (!parts) {
    const cells = ["Table", "Destination", "Phase", "Copied rows", "Complete through", "Actions"].map((label) =>
      made("td", { "data-label": label }));
    cells[3].className = cells[4].className = "number";
    cells[5].className = "actions";
    parts = { line: made("tr", {}, ...cells), cells, said: "" };
    known.set(key, parts);
  }
  const said = JSON.stringify(row);
  if (said === parts.said) return parts.line;
  parts.said = said;
  const [name, destination, phase, rows, through, actions] = parts.cells;
  name.replaceChildren(row.table, ...(row.error ? [made("p", { class: "error" }, sentence(row.error))] : []));
  destination.replaceChildren(row.target === row.table ? row.destination : `${row.destination}: ${row.target}`);
  const mood = row.phase === "ready" ? "good" : BUSY.has(row.phase) ? "busy" : "bad";
  phase.replaceChildren(made("span", { class: `pill ${mood}` }, row.phase.replace("_", " ")));
  if (row.copy) {
    const part = row.copy.total_bytes ? row.copy.bytes / row.copy.total_bytes : 0;
    const left = row.copy.seconds_left === null ? "" : `, ${span(row.copy.seconds_left)} left`;
    rows.replaceChildren(made("progress", { value: part, max: 1, "aria-label": `copy of ${row.table}` }),
      ` ${Math.round(part * 100)} %${left}`);
  } else {
    rows.replaceChildren(count(row.rows));
  }
  through.replaceChildren(clock(row.complete_through));
  const wanted = [row.phase === "paused" ? "resume" : row.error ? "retry" : "pause", "reload"];
  if (actions.dataset.wanted !== wanted.join()) {
    actions.dataset.wanted = wanted.join();
    actions.replaceChildren(...wanted.map((action) => {
      const button = made("button", { type: "button", "aria-label": `${action} ${row.table} for ${row.destination}` }, action);
      button.addEventListener("click", () => act(action, row.table, row));
      return button;
    }));
  }
  return parts.line;
}

function tables() {
  const wanted = at("find").value.trim().toLowerCase();
  const rows = shown.destinations.flatMap((destination) =>
    destination.tables.map((table) => ({ ...table, destination: destination.name })));
  const order = { errored: 0, data_sync: 1, finished_copy: 2, init: 3, paused: 4, ready: 5 };
  rows.sort((a, b) => order[a.phase] - order[b.phase] || a.table.localeCompare(b.table));
  const found = rows.filter((row) =>
    [row.table, row.phase, row.destination, row.source].some((text) => text.toLowerCase().includes(wanted)));
  const lines = found.map(tableRow);
  const body = at("rows");
  lines.forEach((line, place) => {
    if (body.children[place] !== line) body.insertBefore(line, body.children[place] || null);
  });
  while (body.children.length > lines.length) body.lastChild.remove();
  at("none").hidden = found.length > 0 || rows.length === 0;
  const phases = new Map();
  for (const row of rows) phases.set(row.phase, (phases.get(row.phase) || 0) + 1);
  at("counts").textContent = [...phases].map(([phase, number]) => `${number} ${phase.replace("_", " ")}`).join(", ");
}

// ---- All of it

function mood(status, failing) {
  const age = Math.round((now - Date.parse(status.at)) / 1000);
  if (!status.at || age > STALE) return ["bad", `nothing is known since ${status.at ? span(age) : "the start"}`];
  if (!failing.length) return ["good", "everything works"];
  if (failing.every((each) => BEGINNING.has(each.name))) return ["busy", "begins"];
  return ["bad", failing.length === 1 ? "one thing does not work" : `${failing.length} things do not work`];
}

function show(status, events) {
  shown = status;
  document.title = `${status.pipeline} – Penstock`;
  at("pipeline").textContent = status.pipeline;
  const state = at("state");
  const failing = (status.conditions || []).filter((each) => !each.ok);
  const [kind, word] = mood(status, failing);
  state.className = `pill ${kind}`;
  if (state.textContent !== word) state.textContent = word;
  at("since").textContent = status.running
    ? `runs: ${status.running}${status.uptime_seconds ? `, for ${span(status.uptime_seconds)}` : ""}` : "does not run";
  at("troubles").hidden = failing.length === 0;
  at("troubles").className = kind;
  at("troubles").replaceChildren(made("ul", {}, ...failing.map((each) =>
    made("li", {}, made("b", {}, each.name), ` ${each.reason}. ${each.remedy}`))));
  at("flow").replaceChildren(...(status.sources || []).map((source) => way(source, status.destinations)));
  if (status.destinations) tables();
  at("consumers").replaceChildren(...(status.sources || []).flatMap((source) => source.consumers.map((each) =>
    made("tr", {}, made("td", { "data-label": "Reader" }, each.table ? `${each.name} (${each.table})` : each.name),
      made("td", { "data-label": "Source" }, source.name),
      made("td", { class: "number", "data-label": "Behind" }, size(each.behind_bytes)),
      made("td", { class: "number", "data-label": "Kept" }, size(each.kept_bytes))))));
  storage(status, { made, size, count, clock });
  at("events").replaceChildren(...events.map((each) => {
    const { timestamp, level, event, ...fields } = each;
    const more = Object.entries(fields).map(([key, value]) => `${key} ${value}`).join(", ");
    return made("li", { class: level }, made("time", {}, clock(timestamp).slice(-8)),
      made("span", {}, made("b", {}, event), more ? ` – ${more}` : ""));
  }));
  const memory = Object.entries(status.memory_bytes || {}).map(([what, bytes]) => `${what} ${size(bytes)}`);
  at("memory").textContent = memory.length ? `Memory: ${memory.join(", ")}` : "";
}

let asking = false;
async function refresh() {
  if (asking) return;
  asking = true;
  try {
    const [status, history, told] = await Promise.all(
      ["/status", "/history", "/events"].map((path) => ask(path, "GET", { patience: PATIENCE })));
    points = history.points;
    show(status, told.events);
    chart();
  } catch (error) {
    const silent = error instanceof TypeError || error.name === "TimeoutError";
    at("state").className = "pill bad";
    at("state").textContent = silent ? "the pipeline does not answer" : error.message;
  } finally {
    asking = false;
  }
}

at("find").addEventListener("input", () => shown && tables());
at("token").addEventListener("click", login);
at("measures").addEventListener("click", (event) => {
  const chosen = event.target.closest("button");
  if (!chosen) return;
  measure = chosen.dataset.measure;
  for (const button of at("measures").children) button.setAttribute("aria-pressed", String(button === chosen));
  chart();
});
refresh();
setInterval(() => document.hidden || refresh(), EVERY);
document.addEventListener("visibilitychange", () => document.hidden || refresh());
