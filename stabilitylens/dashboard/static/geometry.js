// Where steps and rows lie: the same margins in every chart, so that a step is at one place in all of them.
import { span } from "./state.js";

const narrow = () => window.innerWidth < 700;
export const left = () => (narrow() ? 46 : 62);
export const right = () => (narrow() ? 52 : 96); // the profile of a step stands here
export const BOTTOM = 24;

export function stepAxis(width) {
  const [first, last] = span();
  const half = Math.max((last - first) * 0.004, 0.5);
  const [a, b] = [first - half, last + half];
  const begin = left();
  const inner = Math.max(10, width - left() - right());
  return {
    a, b, inner, begin,
    x: (step) => begin + ((step - a) / (b - a)) * inner,
    step: (x) => a + ((x - begin) / inner) * (b - a),
  };
}

export function rowHeight(rows, panels) {
  const room = Math.max(180, Math.min(420, 620 / Math.max(1, panels)));
  return Math.max(3, Math.min(32, Math.floor(room / Math.max(1, rows))));
}

// A column reaches to half way to its neighbours, never further than three times the usual distance.
export function columnEdges(map) {
  const n = map.columns;
  const gaps = [];
  for (let i = 1; i < n; i++) gaps.push(map.first[i] - map.last[i - 1]);
  const usual = gaps.length ? gaps.slice().sort((p, q) => p - q)[gaps.length >> 1] / 2 : 0.5;
  const near = (gap) => Math.min(gap / 2, 3 * usual);
  const begin = new Float64Array(n);
  const end = new Float64Array(n);
  for (let i = 0; i < n; i++) {
    begin[i] = map.first[i] - (i ? near(gaps[i - 1]) : usual);
    end[i] = map.last[i] + (i < n - 1 ? near(gaps[i]) : usual);
  }
  return { begin, end };
}

export function columnAt(map, step) {
  let best = -1;
  let nearest = Infinity;
  for (let i = 0; i < map.columns; i++) {
    const away = step < map.first[i] ? map.first[i] - step : step > map.last[i] ? step - map.last[i] : 0;
    if (away < nearest) [best, nearest] = [i, away];
  }
  return best;
}

export function ticks(a, b, most) {
  const rough = (b - a) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1e-12)));
  const size = Math.max(1, [1, 2, 5, 10].map((k) => k * power).find((k) => k >= rough));
  const out = [];
  for (let at = Math.ceil(a / size) * size; at <= b; at += size) out.push(at === 0 ? 0 : at);
  return out;
}
