// The heat maps of the chosen runs on one scale, or the difference of two of them.
import { differenceScale, gradient, scaleOf } from "./colours.js";
import { difference } from "./difference.js";
import { el, fill } from "./dom.js";
import { rowHeight } from "./geometry.js";
import { heightOf, paint } from "./heatmap.js";
import { listen } from "./pointing.js";
import { colourOf, described, on, set, span, state } from "./state.js";
import { number } from "./words.js";

export function panels() {
  const place = el("div", { class: "panels" });
  const legend = el("div", { class: "legend" });
  const title = el("figcaption");
  let drawn = [];

  function compose() {
    const series = described();
    if (!series) return fill(place, el("p", { class: "note" }, "no layer × step series was recorded yet"));
    caption(title, series);
    const shown = state.chosen.filter((run) => state.maps.has(run));
    const maps = shown.map((run) => ({ run, map: state.maps.get(run), name: run }));
    const scale = scaleOf(maps.map((each) => each.map), state.scale, series.worse);
    const [one, two] = maps;
    let sets = maps.map((each) => ({ ...each, scale }));
    if (state.view === "difference" && one && two) {
      const map = difference(one.map, two.map, scale.log, scale.least);
      sets = [{ run: two.run, map, name: `${two.run} ${scale.log ? "over" : "minus"} ${one.run}`, scale: differenceScale(map, scale.log) }];
    }
    key(legend, sets.length ? sets[0].scale : scale, series);
    const old = new Map(drawn.map((panel) => [panel.name, panel]));
    drawn = sets.map((each) => Object.assign(old.get(each.name) ?? panel(each.name), each));
    fill(place, ...drawn.map((each) => each.element));
    repaint();
    if (drawn.length) performance.mark("map");
  }

  function panel(name) {
    const canvas = el("canvas", { tabindex: "0", role: "application" });
    const head = el("p", { class: "name" });
    const self = { name, canvas, head, element: el("div", { class: "panel" }, head, el("div", { class: "frame" }, canvas, el("div", { class: "at" }))) };
    listen(self);
    return self;
  }

  function repaint() {
    for (const each of drawn) {
      const { map, canvas, head, run } = each;
      const height = rowHeight(map.rows, drawn.length);
      each.rowHeight = height;
      fill(head, el("i", { class: "dot", style: `background: var(${colourOf(run)})` }), each.name);
      canvas.setAttribute("aria-label", `${state.series}, ${map.axis} by step, of ${each.name}. Arrow keys move, Enter opens a cell, D shows its heads, plus and minus zoom, Home shows all.`);
      const cursor = state.cursor && (state.cursor.run === run || state.view === "difference") ? state.cursor : null;
      paint(canvas, map, each.scale, {
        width: place.clientWidth, height: heightOf(map, height), rowHeight: height, cursor, step: state.step ?? span()[1], marks: marks(run),
      });
    }
  }

  on(["maps", "view", "scale", "theme", "chosen"], compose);
  on(["cursor", "step", "verdicts", "width"], repaint);
  return el("figure", { class: "card maps" }, el("div", { class: "row" }, title, legend), place);
}

function caption(title, series) {
  const heads = state.row === null ? "" : `, ${series.axes[0]} ${state.row}`;
  const over = state.row === null && series.axes.length > 1 ? `Shown: the ${series.worse === "high" ? "largest" : "smallest"} over ${series.axes.slice(1).join(" and ")}s.` : "";
  const back = el("button", { class: "link", onclick: () => set({ row: null, cursor: null }) }, "back to all layers (Esc)");
  fill(title, el("b", {}, series.metric + heads), series.unit && series.unit !== "1" ? ` (${series.unit})` : "", " ",
    el("span", { class: "note" }, `${series.definition} ${over}`), state.row === null ? null : back);
}

function key(legend, scale, series) {
  const word = (v) => (scale.difference && scale.log ? `×${number(2 ** v)}` : number(v));
  const bar = el("i", { class: "bar" });
  bar.style.background = gradient(scale);
  fill(legend, word(scale.least), bar, word(scale.largest),
    el("span", { class: "note" }, `${scale.log ? "log" : "linear"}${scale.difference ? ", difference" : `, ${series.worse} is worrying`}`),
    el("span", { class: "note" }, el("i", { class: "swatch hatched" }), "not observed"),
    el("span", { class: "note" }, el("i", { class: "swatch broken" }), "not finite"));
}

function marks(run) {
  if (state.row !== null || state.view === "difference") return [];
  const findings = state.verdicts.get(run)?.findings ?? [];
  return findings.filter((f) => f.verdict === "fired" && f.target?.series === state.series && f.target.row !== null)
    .map((f) => ({ ...f.target, severity: f.severity ?? "info" }));
}
