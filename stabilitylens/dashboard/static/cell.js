// What a click opens: the cell's series with its neighbours, and the rules that judge it.
import { askCell } from "./api.js";
import { drawCurves } from "./curves.js";
import { el, fill } from "./dom.js";
import { drill } from "./pointing.js";
import { colourOf, on, set, seriesOf, span, state } from "./state.js";
import { css } from "./theme.js";
import { MARKS, number, place as placeOf } from "./words.js";

// Rows of a map are layers, or, where one layer was opened, its heads.
function parameters({ run, row, inner, first, last }) {
  const [from, to] = span();
  const opened = state.row !== null;
  return {
    run, series: state.series, row: opened ? state.row : row, inner: opened ? row : inner,
    near_first: first, near_last: last, from, to, columns: 800,
  };
}

export async function openCell(cursor) {
  set({ cursor, step: cursor.last });
  try {
    const cell = await askCell(parameters(cursor));
    set({
      cell: { ...cell, run: cursor.run, series: state.series }, step: cell.step,
      cursor: { ...cursor, row: state.row === null ? cell.row : cell.inner ?? cell.row, first: cell.step, last: cell.step },
    });
  } catch (error) {
    set({ cell: { error: error.message } });
  }
}

export function refreshCell() {
  if (state.cursor && state.cell && !state.cell.error) {
    const inner = state.row === null ? state.cell.inner : undefined;
    return askCell(parameters({ ...state.cursor, inner })).then((cell) => {
      set({ cell: { ...cell, run: state.cursor?.run, series: state.series } });
    }).catch(() => set({ cell: null }));
  }
  return null;
}

const HINT = "Click a cell for its series, its neighbours and the rules that judge it; drag over a map to zoom, double-click for the whole run. "
  + "With keys: Tab to a map, arrows move, Enter opens, D shows the heads of a layer, plus and minus zoom, Home shows all, Esc goes back.";

const named = (cell, line) => {
  const [outer, ...rest] = cell.axes;
  const inside = cell.inner === null ? "" : `, ${rest.join(" ")} ${line.inner}`;
  return `${outer} ${line.row}${inside}`;
};

function lines(cell) {
  const looks = { own: { colour: css(colourOf(cell.run)), width: 2.2 }, row: { colour: css("--soft"), dash: "dot", width: 1.3 }, inner: { colour: css("--link"), dash: "dash", width: 1.3 } };
  const drawn = cell.lines.map((line) => ({ ...line, ...looks[line.what], name: named(cell, line), infinite: true }));
  return [...drawn.slice(1), drawn[0]];
}

function ruling(cell, rule) {
  const mine = (state.verdicts.get(cell.run)?.findings ?? []).filter((finding) => finding.code === rule.code);
  const here = mine.filter((f) => f.verdict === "fired" && f.where.layer === cell.layer && (f.where.head === undefined || f.where.head === cell.inner));
  return { finding: here[0] ?? mine[0], here: here.length > 0 };
}

function verdict({ finding, here }) {
  if (!finding) return "not judged yet";
  if (finding.verdict === "not_evaluated") return `not evaluated: ${finding.lacks}`;
  if (finding.verdict === "clear") return "clear in this run";
  return here ? finding.message : `fired elsewhere: ${placeOf(finding.where)}; clear here`;
}

function card(cell, rule) {
  const found = ruling(cell, rule);
  const severity = found.here ? found.finding.severity ?? "info" : found.finding?.verdict === "clear" ? "clear" : "unknown";
  return el("li", { class: `rule ${severity}` }, el("b", {}, `${MARKS[severity] ?? ""} ${rule.code} ${rule.name}`), ` ${verdict(found)}`,
    el("details", {}, el("summary", {}, "what it flags"), el("p", { class: "prose" }, rule.summary), el("p", { class: "prose" }, rule.flags)));
}

function limits(cell) {
  return cell.rules.map((rule) => ruling(cell, rule)).filter(({ finding, here }) =>
    here && finding.threshold !== null && finding.target?.series === cell.series && near(cell, finding.observed))
    .map(({ finding }) => ({ value: finding.threshold, text: `threshold ${number(finding.threshold)}` }));
}

// a threshold is drawn only where what it was compared with is on this curve
const near = (cell, observed) => typeof observed === "number" && cell.lines[0].y.some((v) => Math.abs(v - observed) <= 1e-3 * Math.abs(observed));

export function cellView() {
  const head = el("figcaption");
  const plot = el("div", { class: "plot" });
  const rules = el("ul", { class: "rules" });
  const box = el("figure", { class: "card cell", "aria-live": "polite" }, head, plot, rules);

  function draw() {
    const { cell } = state;
    plot.hidden = !cell || Boolean(cell.error);
    if (!cell || cell.error) {
      fill(head, el("span", { class: "note" }, cell?.error ?? HINT));
      fill(rules);
      return;
    }
    const series = seriesOf(cell.run, cell.series);
    const heads = el("button", { class: "link", onclick: drill }, `all ${cell.axes.slice(1).join(" ")}s of this ${cell.axes[0]} (D)`);
    const close = el("button", { class: "link", onclick: () => set({ cell: null, cursor: null }) }, "close (Esc)");
    fill(head, el("b", {}, `${series?.metric ?? ""} of ${named(cell, cell.lines[0])}`), cell.label ? ` (${cell.label})` : "",
      ` of ${cell.run}: ${number(cell.value)} at step ${cell.step}. `,
      el("span", { class: "note" }, `Dotted: the ${cell.axes[0]}s beside it${cell.inner === null ? "" : `; dashed: the ${cell.axes.slice(1).join(" ")}s beside it`}. `),
      cell.inner !== null && state.row === null ? heads : null, " ", close);
    fill(rules, ...(cell.rules.length ? cell.rules.map((rule) => card(cell, rule)) : [el("li", { class: "note" }, "no rule judges this metric")]));
    drawCurves(plot, { lines: lines(cell), limits: limits(cell), height: 220, title: series?.unit && series.unit !== "1" ? series.unit : "" });
  }

  on(["cell", "theme", "width", "verdicts"], draw);
  draw();
  return box;
}
