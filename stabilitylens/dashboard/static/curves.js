// Curves by plotly, with the margins of the heat maps, so that steps lie above each other.
import { plotly } from "./api.js";
import { BOTTOM, left, right, stepAxis } from "./geometry.js";
import { set, zoomTo } from "./state.js";
import { css } from "./theme.js";
import { plain } from "./words.js";

const CONFIG = { displaylogo: false, displayModeBar: false, doubleClick: false, showTips: false };

function spansDecades(lines) {
  let [least, largest] = [Infinity, -Infinity];
  for (const { y } of lines) {
    for (const v of y) {
      if (!Number.isFinite(v)) continue;
      if (v < least) least = v;
      if (v > largest) largest = v;
    }
  }
  return least > 0 && largest > 30 * least;
}

// What is not finite is a gap, and a cross at the top.
function traces(line) {
  const name = plain(line.name);
  const y = Array.from(line.y, (v) => (Number.isFinite(v) ? v : null));
  const broken = Array.from(line.x).filter((_, i) => line.infinite ? Math.abs(line.y[i]) === Infinity : !Number.isFinite(line.y[i]));
  const out = [{
    x: Array.from(line.x), y, name, type: "scatter", mode: y.length > 80 ? "lines" : "lines+markers", marker: { size: 4 },
    line: { color: line.colour, width: line.width ?? 1.6, dash: line.dash ?? "solid" }, opacity: line.opacity ?? 1,
    connectgaps: false, hovertemplate: `%{y:.4~g} at step %{x}<extra>${name}</extra>`,
  }];
  if (broken.length) {
    const top = y.reduce((most, v) => (v !== null && v > most ? v : most), -Infinity);
    out.push({
      x: broken, y: broken.map(() => (Number.isFinite(top) ? top : 1)), name, type: "scatter", mode: "markers", cliponaxis: false,
      marker: { symbol: "x", size: 9, color: css("--broken") }, hovertemplate: `not finite at step %{x}<extra>${name}</extra>`,
    });
  }
  return out;
}

function band(each) {
  return {
    type: "rect", yref: "paper", y0: 0, y1: 1, x0: each.from, x1: each.to, fillcolor: css(`--${each.severity}`), opacity: each.severity === "info" ? 0.12 : 0.2,
    line: { width: 1.5, color: css(`--${each.severity}`) }, layer: "below",
  };
}

function limit({ value, text }) {
  return {
    type: "line", xref: "paper", x0: 0, x1: 1, y0: value, y1: value, line: { color: css("--error"), width: 1.5, dash: "dash" },
    label: { text: plain(text), textposition: "start", font: { color: css("--error"), size: 11 } },
  };
}

function peaks(bands) {
  return {
    x: bands.map((b) => b.peak), y: bands.map((b) => b.value), type: "scatter", mode: "markers", name: "incident", showlegend: false,
    marker: { symbol: "triangle-down", size: 11, color: bands.map((b) => css(`--${b.severity}`)), line: { color: css("--card"), width: 1 } },
    customdata: bands.map((b) => plain(b.text)), hovertemplate: "%{customdata}<extra></extra>",
  };
}

export async function drawCurves(place, { lines, bands = [], limits = [], height, title }) {
  const Plotly = await plotly();
  const width = place.clientWidth;
  if (!width) return;
  const { a, b } = stepAxis(width);
  const axis = { gridcolor: css("--line"), zeroline: false, linecolor: css("--line"), fixedrange: false };
  const shown = bands.filter((each) => each.value !== null);
  await Plotly.react(place, [...lines.flatMap(traces), ...(shown.length ? [peaks(shown)] : [])], {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", width, height, dragmode: "zoom", showlegend: false,
    font: { color: css("--soft"), size: 11, family: "system-ui, sans-serif" }, margin: { l: left(), r: right(), t: 8, b: BOTTOM },
    hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--ink") } }, hovermode: "closest",
    xaxis: { ...axis, range: [a, b] },
    yaxis: { ...axis, fixedrange: true, title: { text: plain(title), standoff: 4 }, ...(spansDecades(lines) ? { type: "log", dtick: 1, exponentformat: "power" } : { type: "linear" }) },
    shapes: [...bands.filter((each) => each.shade).map(band), ...limits.map(limit)],
  }, CONFIG);
  if (place.dataset.listening) return;
  place.dataset.listening = "yes";
  place.on("plotly_relayout", (change) => {
    if ("xaxis.range[0]" in change) zoomTo(change["xaxis.range[0]"], change["xaxis.range[1]"]);
  });
  place.on("plotly_doubleclick", () => set({ zoom: null }));
}
