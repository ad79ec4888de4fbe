// What is shown: runs, metric, side by side or difference, scale, zoom.
import { el, fill, options } from "./dom.js";
import { zoomIn, zoomOut } from "./pointing.js";
import { colourOf, on, set, state } from "./state.js";

// as many as have colours of their own
const MOST = 6;

function toggle(name, chosen) {
  const rest = state.chosen.filter((run) => run !== name);
  set({ chosen: chosen ? [...rest, name].slice(-MOST) : rest, cursor: null, cell: null, zoom: null });
}

function runPicker() {
  const list = el("div", { class: "runlist" });
  const count = el("summary");
  const search = el("input", { type: "search", placeholder: "filter runs", "aria-label": "filter runs", oninput: () => draw() });
  const draw = () => {
    count.textContent = `${state.chosen.length} of ${state.runs.length} runs`;
    const matching = state.runs.filter(({ name }) => name.toLowerCase().includes(search.value.toLowerCase()));
    fill(list, ...matching.slice(0, 500).map(({ name }) => el("label", {},
      el("input", { type: "checkbox", checked: state.chosen.includes(name), onchange: (event) => toggle(name, event.target.checked) }),
      state.chosen.includes(name) ? el("i", { class: "dot", style: `background: var(${colourOf(name)})` }) : null, name)));
  };
  on(["runs", "chosen"], draw);
  const picker = el("details", { class: "picker" }, count, el("div", { class: "card" }, search, list));
  picker.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !picker.open) return;
    picker.open = false;
    count.focus();
  });
  document.addEventListener("pointerdown", (event) => { if (!picker.contains(event.target)) picker.open = false; });
  return picker;
}

function metricPicker() {
  const select = el("select", { "aria-label": "metric", id: "metric", onchange: () => set({ series: select.value, row: null, cursor: null, cell: null }) });
  const draw = () => {
    const found = new Map(state.chosen.flatMap((run) => state.about.get(run)?.maps ?? []).map((series) => [series.name, series]));
    const metrics = [...found.values()];
    const shared = (series) => metrics.filter((other) => other.metric === series.metric).length > 1;
    options(select, metrics.map((s) => ({ value: s.name, text: shared(s) ? `${s.metric} by ${s.axes.join(", ")}` : s.metric, group: s.group })), state.series);
  };
  on(["about", "series", "chosen"], draw);
  return select;
}

function choice(label, name, entries) {
  const select = el("select", { "aria-label": label, id: name, onchange: () => set({ [name]: select.value }) });
  on([name], () => { select.value = state[name]; });
  options(select, entries.map(([value, text]) => ({ value, text })), state[name]);
  return select;
}

export function controls() {
  const button = (text, title, act) => el("button", { title, "aria-label": title, onclick: act }, text);
  const live = el("span", { class: "live", role: "status" });
  on(["live"], () => { live.textContent = state.live ?? ""; });
  return el("header", { class: "controls" }, runPicker(), metricPicker(),
    choice("layout", "view", [["each", "each run"], ["difference", "difference of two"]]),
    choice("colour scale", "scale", [["auto", "scale: auto"], ["log", "scale: log"], ["linear", "scale: linear"]]),
    el("span", { class: "group" }, button("−", "zoom out", zoomOut), button("+", "zoom in", zoomIn), button("all", "whole run", () => set({ zoom: null }))),
    live);
}
