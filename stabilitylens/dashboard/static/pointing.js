// Mouse and keyboard on a heat map: point, drag to zoom, click to open, or the same with keys.
import { openCell } from "./cell.js";
import { el } from "./dom.js";
import { columnAt, left, stepAxis } from "./geometry.js";
import { valueAt } from "./heatmap.js";
import { described, on, set, span, state, zoomTo } from "./state.js";
import { steps } from "./words.js";

const tip = el("div", { class: "tip", hidden: true, role: "status" });

// What it told of may have gone with the run or the map.
on(["chosen", "series", "row"], () => { tip.hidden = true; });

export const tooltip = () => tip;

export function listen(panel) {
  const { canvas } = panel;
  let down = null;
  canvas.addEventListener("pointerdown", (event) => {
    down = event.offsetX;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => hover(panel, event, down));
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("pointerup", (event) => {
    const from = down;
    down = null;
    if (from === null) return;
    const axis = stepAxis(canvas.clientWidth);
    if (Math.abs(event.offsetX - from) > 6) return zoomTo(axis.step(from), axis.step(event.offsetX));
    const found = cellAt(panel, event);
    if (found) openCell({ run: panel.run, ...found });
  });
  canvas.addEventListener("dblclick", () => set({ zoom: null }));
  canvas.addEventListener("keydown", (event) => key(panel, event));
  canvas.addEventListener("focus", () => { if (!state.cursor && panel.map.columns) move(panel, 0, 0); });
}

function cellAt({ map, rowHeight, canvas }, event) {
  const row = map.rows - 1 - Math.floor(event.offsetY / rowHeight);
  const column = columnAt(map, stepAxis(canvas.clientWidth).step(event.offsetX));
  if (row < 0 || row >= map.rows || column < 0 || event.offsetX < left() - 4) return null;
  return { row, column, first: map.first[column], last: map.last[column] };
}

function say(panel, { row, column, first, last }) {
  const { map, name } = panel;
  const label = map.labels[row] ? ` (${map.labels[row]})` : "";
  return `${map.axis} ${row}${label}, ${steps(first, last)}: ${valueAt(map, row, column)} · ${name}`;
}

function hover(panel, event, down) {
  const found = cellAt(panel, event);
  tip.hidden = !found;
  if (!found) return;
  const dragged = down !== null && Math.abs(event.offsetX - down) > 6;
  tip.textContent = dragged ? "release to zoom to these steps" : say(panel, found);
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${event.clientY + 16 + tip.offsetHeight > window.innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 16}px`;
}

function move(panel, across, up) {
  const { map, run } = panel;
  const old = state.cursor;
  const column = old ? columnAt(map, (old.first + old.last) / 2) : map.columns - 1;
  const next = Math.max(0, Math.min(map.columns - 1, column + across));
  const row = Math.max(0, Math.min(map.rows - 1, (old?.row ?? 0) + up));
  const cursor = { run, row, first: map.first[next], last: map.last[next] };
  set({ cursor, step: cursor.last });
  panel.canvas.setAttribute("aria-description", say(panel, { ...cursor, column: next }));
}

function zoomBy(factor) {
  const [first, last] = span();
  const middle = state.step !== null && state.step >= first && state.step <= last ? state.step : (first + last) / 2;
  zoomTo(middle - (middle - first) * factor, middle + (last - middle) * factor);
}

export const zoomIn = () => zoomBy(0.5);
export const zoomOut = () => zoomBy(2);

export function drill() {
  const series = described();
  if (state.row === null && state.cursor && series && series.axes.length > 1) set({ row: state.cursor.row, cursor: null, cell: null });
}

function key(panel, event) {
  const far = event.shiftKey ? 10 : 1;
  const actions = {
    ArrowLeft: () => move(panel, -far, 0), ArrowRight: () => move(panel, far, 0),
    ArrowUp: () => move(panel, 0, far), ArrowDown: () => move(panel, 0, -far),
    Enter: () => state.cursor && openCell({ ...state.cursor, run: panel.run }),
    d: drill, D: drill, "+": zoomIn, "=": zoomIn, "-": zoomOut, Home: () => set({ zoom: null }),
    Escape: () => set(state.row === null ? { cursor: null, cell: null } : { row: null, cursor: null }),
  };
  const action = actions[event.key];
  if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  action();
}
