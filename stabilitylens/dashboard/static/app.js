// Puts the views together, loads what they need, and follows runs that grow.
import { ask, askCurve, askMap, link } from "./api.js";
import { anatomyView } from "./anatomy.js";
import { cellView, refreshCell } from "./cell.js";
import { controls } from "./controls.js";
import { el, fill } from "./dom.js";
import { findingsView } from "./findings.js";
import { stepAxis } from "./geometry.js";
import { lossView } from "./loss.js";
import { panels } from "./panels.js";
import { tooltip } from "./pointing.js";
import { scrubber } from "./scrubber.js";
import { colourOf, on, seriesOf, set, span, state } from "./state.js";
import { follow } from "./theme.js";

// milliseconds between two looks at what grew: two of them are less than five seconds
const EVERY = 2000;
const COLUMN = 2; // pixels
// runs that are shown until others are chosen
const AT_FIRST = 2;

const main = el("main", { class: "app" });
let asked = 0;

const width = () => document.querySelector(".panels")?.clientWidth ?? 800;

async function each(ask) {
  const found = await Promise.all(state.chosen.map(async (run) => {
    try {
      return [run, await ask(run)];
    } catch (error) {
      set({ live: `${run}: ${error.message}` });
      return null;
    }
  }));
  return new Map(found.filter(Boolean));
}

async function loadAbout() {
  const about = await each((run) => ask("about", { run }));
  const names = [...about.values()].flatMap((a) => a.maps.map((series) => series.name));
  const scalars = [...about.values()].flatMap((a) => a.curves.map((curve) => curve.name));
  const series = names.includes(state.series) ? state.series : names[0] ?? null;
  const scalar = scalars.includes(state.scalar) ? state.scalar : scalars[0] ?? "loss";
  Object.assign(state, { series, scalar });
  set({ about });
}

async function loadMaps() {
  const mine = ++asked;
  const [from, to] = span();
  const columns = Math.max(50, Math.floor(stepAxis(width()).inner / COLUMN));
  const maps = await each((run) => (seriesOf(run) ? askMap({ run, series: state.series, from, to, columns, row: state.row }) : null));
  if (mine === asked) set({ maps: new Map([...maps].filter(([, map]) => map)) });
}

async function loadCurves() {
  const [from, to] = span();
  const has = (run) => state.about.get(run)?.curves.some((curve) => curve.name === state.scalar);
  const curves = await each((run) => (has(run) ? askCurve({ run, series: state.scalar, from, to, columns: 1000 }) : null));
  set({ curves: new Map([...curves].filter(([, curve]) => curve)) });
}

async function loadVerdicts() {
  const verdicts = await each((run) => ask("verdicts", { run }));
  set({ verdicts });
  set({ anatomy: await each((run) => ask("anatomy", { run })) });
}

async function loadAll() {
  await loadAbout();
  await Promise.all([loadMaps(), loadCurves()]);
  await Promise.all([loadVerdicts(), refreshCell()]);
}

// Of the names in order, those of the runs that were begun last.
function newest(runs) {
  const last = new Set([...runs].sort((a, b) => b.began - a.began).slice(0, AT_FIRST));
  return runs.filter((run) => last.has(run)).map(({ name }) => name);
}

// A cell of a run that is no longer there is not open any more.
const closed = (names) => (state.cursor && !names.has(state.cursor.run) ? { cursor: null, cell: null, row: null } : {});

function stale() {
  const now = new Map(state.runs.map(({ name, version }) => [name, version]));
  return state.chosen.some((run) => state.about.get(run)?.version !== now.get(run));
}

async function look() {
  if (!document.hidden) {
    try {
      const runs = await ask("runs");
      const names = new Set(runs.map(({ name }) => name));
      if (!state.asked || JSON.stringify(runs) !== JSON.stringify(state.runs)) set({ runs, asked: true });
      if (!state.chosen.length && runs.length) set({ chosen: newest(runs) });
      else if (state.chosen.some((name) => !names.has(name))) set({ chosen: state.chosen.filter((name) => names.has(name)), ...closed(names) });
      else if (stale()) await loadAll();
      else if (state.chosen.some((run) => state.verdicts.get(run)?.version !== state.about.get(run)?.version)) await loadVerdicts();
      set({ live: runs.length ? "" : "no recording below the log directory yet" });
    } catch (error) {
      set({ live: `TensorBoard does not answer: ${error.message}` });
    }
  }
  setTimeout(look, EVERY);
}

function headlines() {
  const list = el("ul", { class: "headlines" });
  const draw = () => fill(list, ...state.chosen.map((run) => {
    const verdicts = state.verdicts.get(run);
    return el("li", {}, el("i", { class: "dot", style: `background: var(${colourOf(run)})` }), el("b", {}, run), ` ${verdicts ? verdicts.headline : "judging …"} `,
      el("a", { href: link("report", { run }), target: "_blank", rel: "noopener" }, "report"));
  }));
  on(["verdicts", "chosen"], draw);
  return list;
}

function wire() {
  on(["chosen"], loadAll);
  on(["series", "row"], () => { loadMaps(); });
  on(["scalar"], loadCurves);
  on(["zoom"], () => { loadMaps(); loadCurves(); refreshCell(); });
  let timer = 0;
  new ResizeObserver(() => {
    clearTimeout(timer);
    timer = setTimeout(() => { set({ width: width() }); loadMaps(); }, 120);
  }).observe(main);
}

export async function start(body) {
  document.head.append(el("meta", { name: "viewport", content: "width=device-width, initial-scale=1" }));
  const sheet = el("link", { rel: "stylesheet", href: new URL("style.css", import.meta.url) });
  const ready = new Promise((resolve) => { sheet.onload = sheet.onerror = resolve; });
  document.head.append(sheet);
  document.documentElement.lang = "en";
  await ready;
  fill(main, controls(), headlines(), el("div", { class: "columns" },
    el("div", { class: "charts" }, lossView(), panels(), scrubber(), cellView()),
    el("aside", {}, findingsView(), anatomyView())), tooltip());
  body.append(main);
  follow(() => set({ theme: document.documentElement.dataset.theme }));
  wire();
  await look();
}
