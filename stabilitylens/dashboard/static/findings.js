// Every rule's verdict; what fired jumps to its cell.
import { openCell } from "./cell.js";
import { el, fill } from "./dom.js";
import { colourOf, on, seriesOf, set, span, state, whole } from "./state.js";
import { MARKS, number, place } from "./words.js";

const shown = { verdict: "fired", severities: new Set(["error", "warning", "info"]) };
const TITLES = { fired: "fired", not_evaluated: "not evaluated", clear: "clear" };

// Half a run around a finding, unless its steps are on the screen already.
function reveal(steps) {
  const [first, last] = span();
  if (!steps || (steps[0] >= first && steps[1] <= last)) return;
  const [begin, end] = whole();
  const room = Math.max(20, (steps[1] - steps[0]) / 2);
  set({ zoom: [Math.max(begin, steps[0] - room), Math.min(end, steps[1] + room)].map(Math.round) });
}

export function jump(run, finding) {
  const { target } = finding;
  if (!target || !seriesOf(run, target.series)) return target?.steps && set({ step: target.steps[0] });
  set({ series: target.series, row: null, view: "each", cursor: null, cell: null });
  reveal(target.steps);
  const [first, last] = target.steps ?? span();
  if (target.row !== null) openCell({ run, row: target.row, inner: target.inner, first, last });
  else set({ step: first });
  document.querySelector(".maps")?.scrollIntoView({ block: "nearest" });
}

function entry(run, finding) {
  const severity = finding.verdict === "fired" ? finding.severity ?? "info" : finding.verdict === "clear" ? "clear" : "unknown";
  const numbers = finding.observed !== null && finding.threshold !== null ? `. Observed ${number(finding.observed)}, threshold ${number(finding.threshold)}.` : "";
  const text = finding.verdict === "not_evaluated" ? `lacks: ${finding.lacks}` : finding.message.replace(/\.$/, "") + numbers;
  const body = [el("b", {}, `${MARKS[severity] ?? ""} ${finding.verdict === "fired" ? `${severity} ` : ""}${finding.code} ${finding.name}`),
    state.chosen.length > 1 ? el("span", { class: "note" }, el("i", { class: "dot", style: `background: var(${colourOf(run)})` }), run) : null,
    el("span", { class: "where" }, finding.verdict === "fired" ? place(finding.where) : ""), el("span", { class: "text" }, text)];
  const links = finding.sources.map((source) => el("li", {}, /^https?:\/\//.test(source) ? el("a", { href: source, target: "_blank", rel: "noopener noreferrer" }, source) : source));
  const more = finding.verdict === "fired" ? el("details", {}, el("summary", {}, "remedy and sources"), el("p", { class: "prose" }, finding.remedy), el("ul", {}, ...links)) : null;
  const head = finding.target && finding.verdict === "fired"
    ? el("button", { class: "finding-head", onclick: () => jump(run, finding) }, ...body) : el("div", { class: "finding-head" }, ...body);
  return el("li", { class: `finding ${severity}`, "data-code": finding.code }, head, more);
}

export function findingsView() {
  const list = el("ul", { class: "findings" });
  const tabs = el("div", { class: "tabs", role: "group", "aria-label": "verdict" });
  const filter = el("div", { class: "tabs", role: "group", "aria-label": "severity" });
  const note = el("p", { class: "note" });

  function draw() {
    const all = state.chosen.flatMap((run) => (state.verdicts.get(run)?.findings ?? []).map((finding) => ({ run, finding })));
    const of = (verdict) => all.filter(({ finding }) => finding.verdict === verdict);
    fill(tabs, ...Object.entries(TITLES).map(([verdict, title]) => el("button", {
      "aria-pressed": String(shown.verdict === verdict), onclick: () => { shown.verdict = verdict; draw(); },
    }, `${title} ${of(verdict).length}`)));
    filter.hidden = shown.verdict !== "fired";
    fill(filter, ...Object.keys(MARKS).map((severity) => el("button", {
      class: severity, "aria-pressed": String(shown.severities.has(severity)),
      onclick: () => { shown.severities[shown.severities.has(severity) ? "delete" : "add"](severity); draw(); },
    }, `${MARKS[severity]} ${severity} ${of("fired").filter(({ finding }) => (finding.severity ?? "info") === severity).length}`)));
    const listed = of(shown.verdict).filter(({ finding }) => shown.verdict !== "fired" || shown.severities.has(finding.severity ?? "info"));
    const worst = ({ finding }) => Object.keys(MARKS).indexOf(finding.severity ?? "info");
    if (shown.verdict === "fired") listed.sort((a, b) => worst(a) - worst(b));
    fill(list, ...(listed.length ? listed.map(({ run, finding }) => entry(run, finding)) : [el("li", { class: "note" }, "none")]));
    const thinned = state.chosen.flatMap((run) => Object.entries(state.verdicts.get(run)?.thinned ?? {}));
    const notes = state.chosen.flatMap((run) => (state.verdicts.get(run)?.notes ?? []).map((text) => `${run}: ${text}.`));
    const part = thinned.length ? `Judged on a part of the samples, for the record is large (${thinned.map(([name, n]) => `every ${n}th of ${name}`).join(", ")}); stabilitylens postmortem judges all.` : "";
    note.textContent = [...notes, part].filter(Boolean).join(" ");
  }

  on(["verdicts", "chosen"], draw);
  return el("section", { class: "card" }, el("h2", {}, "Findings"), tabs, filter, note, list);
}
