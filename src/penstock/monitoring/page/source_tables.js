// The tables of the sources: all of them, which are captured, and, where `mapping: database` says so, what to decide of
// each. It asks when it is opened, when something is looked for, and every few seconds while it is open.

import { ask, at, closing, count, made, size, tell } from "./dashboard.js";

const EVERY = 3000;
const PAGE = 50;
const KINDS = ["clone", "append", "history"];
const MOODS = {
  captured: "good", part: "good", coming: "busy", changing: "busy", leaving: "busy", "left out": "bad", "not captured": "off",
};
const LABELS = ["Table", "Size", "State", "Arrives", "Actions"];

let offset = 0;
let shown = null;

// ---- What is there, once

const find = made("input", { type: "search", placeholder: "part of a name", autocomplete: "off", id: "source-find" });
const which = made("select", { id: "source-which" },
  made("option", { value: "" }, "all"), made("option", { value: "true" }, "captured"),
  made("option", { value: "false" }, "not captured"));
const counts = made("p", { class: "weak", id: "source-counts", role: "status" });
const who = made("p", { class: "weak", id: "source-who" });
const body = made("tbody", { id: "source-rows" });
const none = made("p", { hidden: "" }, "No table matches.");
const before = made("button", { type: "button" }, "Previous");
const after = made("button", { type: "button" }, "Next");
const where = made("span", { class: "weak" });
const pages = made("nav", { "aria-label": "Pages of the source tables", class: "pages" }, before, where, after);
const details = made("details", {},
  made("summary", {}, made("h2", { id: "source-title" }, "Source tables"), who),
  made("div", { class: "title" }, counts,
    made("label", {}, "Show ", which), made("label", {}, "Find ", find)),
  made("table", {}, made("thead", {}, made("tr", {}, ...LABELS.map((label) => made("th", { scope: "col" }, label)))), body),
  none, pages);
at("source-tables").append(details);

const fields = made("div", { class: "fields" });
const changing = made("dialog", { id: "change", "aria-labelledby": "change-title" }, made("form", { method: "dialog" },
  made("h2", { id: "change-title" }), fields,
  made("p", { class: "weak" }, "Another target or kind means a new copy. What stands at the old target stays there."),
  made("menu", {}, made("button", { value: "no", formnovalidate: "" }, "Cancel"),
    made("button", { value: "yes", class: "strong" }, "Save"))));
document.body.append(changing);

// ---- Deciding

const address = (row) => `/tables/${encodeURIComponent(row.table)}/mapping?${new URLSearchParams({ source: row.source })}`;

async function decide(row, decision, done) {
  const headers = { "If-Match": `"${row.revision}"`, "Content-Type": "application/json" };
  try {
    const empty = decision === null;
    const answer = await ask(address(row), empty ? "DELETE" : "PUT",
      { headers, body: empty ? undefined : JSON.stringify(decision) });
    tell(`${row.table}: ${done}. ${answer.takes_effect}`);
  } catch (error) {
    tell(error.message);
  }
  refresh();
}

async function confirmed(question) {
  at("question").textContent = question;
  at("confirm").returnValue = "no";
  at("confirm").showModal();
  return (await closing(at("confirm"))) === "yes";
}

const names = (row) => row.destinations.map((each) => each.destination).join(", ");

async function capture(row, captured) {
  const question = captured
    ? `Capture ${row.table}? About ${size(row.bytes)} are copied to ${names(row)}, then it is followed.`
    : `Capture ${row.table} no longer? Its rows stay at ${names(row)}; captured again, it is copied anew.`;
  if (await confirmed(question)) decide(row, { ...row.decision, captured }, captured ? "captured" : "captured no longer");
}

async function takeBack(row) {
  if (await confirmed(`Let the file decide about ${row.table}? What was decided here is forgotten.`)) {
    decide(row, null, "as the file says");
  }
}

function choice(each, decided) {
  const target = made("input", { value: decided.target || "", placeholder: each.target, autocomplete: "off", maxlength: 300,
    "aria-label": `target at ${each.destination}` });
  const kind = made("select", { "aria-label": `kind at ${each.destination}` },
    made("option", { value: "" }, "as the file says"), ...KINDS.map((name) => made("option", { value: name }, name)));
  kind.value = decided.kind || "";
  return { name: each.destination, target, kind };
}

async function change(row) {
  const decided = row.decision.destinations;
  const choices = row.destinations.filter((each) => each.takes_target)
    .map((each) => choice(each, decided[each.destination] || {}));
  changing.querySelector("h2").textContent = `How ${row.table} arrives`;
  fields.replaceChildren(...choices.map(({ name, target, kind }) => made("fieldset", {}, made("legend", {}, name),
    made("label", {}, "Target ", target), made("label", {}, "Kind ", kind))));
  changing.returnValue = "no";
  changing.showModal();
  if ((await closing(changing)) !== "yes") return;
  const destinations = { ...decided };
  for (const { name, target, kind } of choices) {
    destinations[name] = { target: target.value.trim() || null, kind: kind.value || null };
  }
  decide(row, { ...row.decision, destinations }, "decided");
}

// ---- A table

function actions(row) {
  if (shown.mapping !== "database" || row.state === "part") return [];
  const offered = [];
  if (row.captured) offered.push(["remove", () => capture(row, false)]);
  else if (row.can_be_followed) offered.push(["capture", () => capture(row, true)]);
  const comes = row.captured || row.can_be_followed;
  if (comes && row.destinations.some((each) => each.takes_target)) offered.push(["change", () => change(row)]);
  if (row.decided_by === "mapping") offered.push(["as the file says", () => takeBack(row)]);
  return offered.map(([word, work]) => {
    const button = made("button", { type: "button", "data-word": word, "aria-label": `${word}: ${row.table} of ${row.source}` }, word);
    button.addEventListener("click", work);
    return button;
  });
}

function arrival(row, each) {
  const hidden = [each.filtered ? "filtered" : null, each.set.length ? `computed: ${each.set.join(", ")}` : null,
    each.drop.length ? `left out: ${each.drop.join(", ")}` : null].filter(Boolean);
  const now = row.captured && each.phase ? ` – ${each.phase.replace("_", " ")}${each.pending ? ", to be copied anew" : ""}` : "";
  const place = each.takes_target ? `${each.destination}: ${each.target} as ${each.kind}` : each.destination;
  return made("p", {}, `${place}${now}`, hidden.length ? made("span", { class: "weak" }, ` (${hidden.join("; ")})`) : null);
}

const rows = new Map(); // what is on the page, so that a button keeps the focus while the page is kept up to date

function line(row) {
  const key = JSON.stringify([row.source, row.table]);
  const said = JSON.stringify([row, shown.mapping]);
  const old = rows.get(key);
  if (old && old.said === said) return old.line;
  const about = [shown.several ? row.source : null, row.type === "table" ? null : row.type,
    row.part_of ? `part of ${row.part_of}` : null].filter(Boolean).join(", ");
  const cells = [
    [row.table, about ? made("p", { class: "weak" }, about) : null],
    [row.rows === null ? size(row.bytes) : `${count(row.rows)} rows, ${size(row.bytes)}`],
    [made("span", { class: `pill ${MOODS[row.state]}` }, row.state === "part" ? "captured as a part" : row.state),
      row.reason && row.state !== "part" ? made("p", { class: row.state === "left out" ? "error" : "weak" }, row.reason) : null,
      row.decided_by === "mapping" ? made("p", { class: "weak" }, "decided here") : null],
    row.captured ? row.destinations.map((each) => arrival(row, each)) : [],
    actions(row),
  ];
  const made_line = made("tr", {}, ...cells.map((inside, place) => made("td", { "data-label": LABELS[place] }, ...inside)));
  made_line.children[1].className = "number";
  made_line.children[4].className = "actions";
  if (old && old.line.contains(document.activeElement)) {
    const word = document.activeElement.dataset.word;
    queueMicrotask(() => (made_line.querySelector(`[data-word="${word}"]`) || made_line.querySelector("button"))?.focus());
  }
  rows.set(key, { line: made_line, said });
  return made_line;
}

// ---- All of it

function show(answer) {
  shown = answer;
  shown.several = new Set(answer.tables.map((row) => row.source)).size > 1;
  who.textContent = answer.mapping === "file" ? "the configuration file decides" : "decided here, before the file";
  counts.textContent = [`${count(answer.matching)} of ${count(answer.total)} tables, ${count(answer.captured)} to be captured`,
    ...answer.errors.map((error) => `${error.reason}. ${error.remedy}`)].join("; ");
  const lines = answer.tables.map(line);
  lines.forEach((each, place) => {
    if (body.children[place] !== each) body.insertBefore(each, body.children[place] || null);
  });
  while (body.children.length > lines.length) body.lastChild.remove();
  if (rows.size > 20 * PAGE) rows.clear();
  none.hidden = lines.length > 0;
  pages.hidden = answer.matching <= PAGE;
  before.disabled = offset === 0;
  after.disabled = offset + PAGE >= answer.matching;
  where.textContent = lines.length ? `${count(offset + 1)}–${count(offset + lines.length)} of ${count(answer.matching)}` : "";
}

let asked = 0;
async function refresh() {
  if (!details.open) return;
  const number = (asked += 1);
  const query = new URLSearchParams({ offset, limit: PAGE });
  if (find.value.trim()) query.set("search", find.value.trim());
  if (which.value) query.set("captured", which.value);
  try {
    const answer = await ask(`/tables?${query}`);
    if (number !== asked) return; // something else was looked for meanwhile
    if (offset && !answer.tables.length) { offset = 0; refresh(); return; }
    show(answer);
  } catch (error) {
    counts.textContent = error instanceof TypeError ? "the pipeline does not answer" : error.message;
  }
}

function turn(by) {
  offset = Math.max(0, offset + by);
  refresh();
}

let waiting;
find.addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => { offset = 0; refresh(); }, 200);
});
which.addEventListener("change", () => { offset = 0; refresh(); });
before.addEventListener("click", () => turn(-PAGE));
after.addEventListener("click", () => turn(PAGE));
details.addEventListener("toggle", () => {
  sessionStorage.setItem("penstock-source-tables", details.open ? "open" : "");
  refresh();
});
details.open = location.hash === "#source-tables" || sessionStorage.getItem("penstock-source-tables") === "open";
setInterval(() => document.hidden || refresh(), EVERY);
