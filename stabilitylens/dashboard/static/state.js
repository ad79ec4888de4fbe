// What is shown, in one place; views subscribe to the parts that they draw.

export const state = {
  runs: [], // every run: {name, version, began}
  asked: false, // whether it is known which runs there are
  chosen: [], // names of those that are shown
  about: new Map(), // by name
  verdicts: new Map(),
  anatomy: new Map(),
  series: null, // of the heat maps
  scalar: "loss", // of the curve above them
  row: null, // whose heads are the rows of the map; null for all layers
  view: "each", // or "difference"
  scale: "auto", // or "log", "linear"
  zoom: null, // [first, last] step, null for the whole run
  step: null, // of the scrubber
  maps: new Map(),
  curves: new Map(),
  cursor: null, // {run, row, first, last} of the cell that the keyboard or a click chose
  cell: null, // what the plugin said of it
};

const listeners = new Map();

export function on(names, listener) {
  for (const name of names) {
    if (!listeners.has(name)) listeners.set(name, new Set());
    listeners.get(name).add(listener);
  }
}

export function set(changes) {
  Object.assign(state, changes);
  const told = new Set(Object.keys(changes).flatMap((name) => [...(listeners.get(name) ?? [])]));
  for (const listener of told) listener();
}

export function whole() {
  const abouts = state.chosen.map((name) => state.about.get(name)).filter(Boolean);
  if (!abouts.length) return [0, 1];
  return [Math.min(...abouts.map((a) => a.first)), Math.max(...abouts.map((a) => a.last))];
}

export const span = () => state.zoom ?? whole();

export function zoomTo(first, last) {
  const [begin, end] = whole();
  const least = Math.min(2, end - begin);
  let [a, b] = [Math.max(begin, Math.round(Math.min(first, last))), Math.min(end, Math.round(Math.max(first, last)))];
  if (b - a < least) [a, b] = [Math.max(begin, Math.min(a, end - least)), Math.min(end, Math.max(begin, Math.min(a, end - least)) + least)];
  set({ zoom: a <= begin && b >= end ? null : [a, b] });
}

export const colourOf = (run) => `--run-${Math.max(0, state.chosen.indexOf(run)) % 6}`;

export function seriesOf(run, name = state.series) {
  return state.about.get(run)?.maps.find((series) => series.name === name);
}

export const described = () => state.chosen.map((run) => seriesOf(run)).find(Boolean);
