// The loss, or another scalar, of all chosen runs above the maps, with incidents as bands.
import { drawCurves } from "./curves.js";
import { el, fill, options } from "./dom.js";
import { colourOf, on, set, state } from "./state.js";
import { css } from "./theme.js";
import { spaced } from "./words.js";

function valueNear(line, step) {
  let best = null;
  for (let i = 0; i < line.x.length; i++) {
    if (Number.isFinite(line.y[i]) && (best === null || Math.abs(line.x[i] - step) < Math.abs(line.x[best] - step))) best = i;
  }
  return best === null ? null : line.y[best];
}

// Kinds that are of the whole record: a band of all steps would only tint the plot.
const THROUGHOUT = new Set(["plateau"]);

// Why there is no curve; null where there is one.
function why(lines) {
  if (lines.length) return null;
  if (!state.asked || state.chosen.some((run) => !state.about.has(run))) return "loading …";
  if (!state.runs.length) return "No recording below the log directory yet: pass a folder below it to stabilitylens.attach, and its run appears here.";
  if (!state.chosen.length) return "No run is chosen: open the list of runs above.";
  const recorded = state.chosen.some((run) => state.about.get(run).curves.length);
  return recorded ? "loading …" : "No scalar was recorded yet.";
}

function bands(lines) {
  return lines.flatMap((line) => (state.verdicts.get(line.run)?.incidents ?? [])
    .filter((incident) => incident.metric === state.scalar)
    .map((incident) => ({
      from: incident.start_step, to: incident.end_step, peak: incident.peak_step, severity: incident.severity,
      value: THROUGHOUT.has(incident.kind) ? null : valueNear(line, incident.peak_step), shade: !THROUGHOUT.has(incident.kind), text: `${spaced(incident.kind)}: ${incident.explanation}`, run: line.run, kind: incident.kind,
    })));
}

export function lossView() {
  const choice = el("select", { "aria-label": "scalar", onchange: (event) => set({ scalar: event.target.value }) });
  const key = el("span", { class: "key" });
  const said = el("ul", { class: "incidents" });
  const plot = el("div", { class: "plot" });
  const frame = el("div", { class: "frame" }, plot, el("div", { class: "at" }));
  const note = el("p", { class: "note" });

  function draw() {
    const lines = state.chosen.filter((run) => state.curves.has(run)).map((run) => ({
      ...state.curves.get(run), run, name: run, colour: css(colourOf(run)),
    }));
    const names = [...new Set(state.chosen.flatMap((run) => state.about.get(run)?.curves.map((curve) => curve.name) ?? []))];
    options(choice, names.map((name) => ({ value: name, text: name })), state.scalar);
    fill(key, ...state.chosen.map((run) => el("span", {}, el("i", { class: "dot", style: `background: var(${colourOf(run)})` }), run)));
    const found = bands(lines);
    fill(said, ...found.slice(0, 12).map((each) => el("li", {}, el("button", {
      class: `incident ${each.severity}`, title: each.text, onclick: () => set({ step: each.peak }),
    }, each.shade ? `${spaced(each.kind)} at ${each.peak}` : `${spaced(each.kind)} throughout`))));
    const reason = why(lines);
    note.textContent = reason ?? "";
    note.hidden = reason === null;
    frame.hidden = reason !== null;
    if (reason === null) drawCurves(plot, { lines, bands: found, height: 190, title: "" });
  }

  on(["curves", "verdicts", "theme", "width", "chosen", "runs", "about"], draw);
  draw();
  return el("figure", { class: "card loss" }, el("div", { class: "row" }, choice, key, said), note, frame);
}
