// One step for all views: a slider, a line through every chart, and what each run had there.
import { el, fill } from "./dom.js";
import { columnAt, left, right, stepAxis } from "./geometry.js";
import { valueAt } from "./heatmap.js";
import { colourOf, described, on, set, span, state } from "./state.js";
import { number } from "./words.js";

function scalarAt(run, step) {
  const line = state.curves.get(run);
  if (!line || !line.x.length) return number(null);
  let [low, high] = [0, line.x.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (line.x[middle] <= step) low = middle;
    else high = middle - 1;
  }
  const ended = step > line.x.at(-1) ? ` (step ${line.x.at(-1)})` : "";
  return `${number(line.y[low])}${ended}`;
}

function worstRow(map, column) {
  let best = 0;
  const values = map[map.edge];
  const sign = map.edge === "high" ? 1 : -1;
  const rank = (row) => {
    const at = row * map.columns + column;
    return map.bad[at] ? Infinity : Number.isNaN(values[at]) ? -Infinity : sign * values[at];
  };
  for (let row = 1; row < map.rows; row++) if (rank(row) > rank(best)) best = row;
  return best;
}

function reading(run, step) {
  const parts = [`${state.scalar} ${scalarAt(run, step)}`];
  const map = state.maps.get(run);
  const column = map ? columnAt(map, step) : -1;
  if (column >= 0) {
    const row = worstRow(map, column);
    const ended = step > map.last[column] ? ` (step ${map.last[column]})` : "";
    parts.push(`${described()?.metric ?? ""} worst in ${map.axis} ${row}: ${valueAt(map, row, column)}${ended}`);
  }
  return el("span", {}, el("i", { class: "dot", style: `background: var(${colourOf(run)})` }), parts.join(" · "));
}

export function scrubber() {
  const slider = el("input", { type: "range", step: "1", "aria-label": "step", oninput: () => set({ step: Number(slider.value) }) });
  const says = el("output", { class: "reading" });

  function draw() {
    const [first, last] = span();
    slider.style.marginLeft = `${left() - 8}px`;
    slider.style.width = `calc(100% - ${left() + right() - 16}px)`;
    [slider.min, slider.max] = [first, last];
    const step = state.step ?? last;
    slider.value = Math.max(first, Math.min(last, step));
    if (state.chosen.length) fill(says, el("b", {}, `step ${Math.round(step).toLocaleString("en")}`), ...state.chosen.map((run) => reading(run, step)));
    for (const line of document.querySelectorAll(".frame > .at")) {
      const width = line.parentElement.clientWidth;
      const x = stepAxis(width).x(step);
      line.style.transform = `translateX(${x}px)`;
      line.hidden = state.step === null || x < left() - 1 || x > width - right() + 1;
    }
  }

  on(["step", "zoom", "maps", "curves", "width", "chosen"], draw);
  return el("div", { class: "card scrubber" }, slider, says);
}
