// The model from its input to its output; each part has the colour and the mark of the worst that was found of it.
import { el, fill } from "./dom.js";
import { jump } from "./findings.js";
import { on, set, state } from "./state.js";
import { MARKS } from "./words.js";

let shown = null;

function box(run, part) {
  const severity = part.severity ?? "none";
  const finding = part.found.length ? state.verdicts.get(run)?.findings[part.found[0]] : null;
  const way = part.steps.length ? part.steps.map(([text, norm]) => el("span", { class: norm ? "step norm" : "step" }, text)) : [part.title];
  const after = part.after ? el("span", { class: "step norm" }, part.after) : null;
  const content = [MARKS[part.severity] ? el("span", { class: "mark" }, MARKS[part.severity]) : null, ...way, part.layer === null ? null : el("span", { class: "plus" }, "⊕"), after];
  const title = `${part.title}${finding ? `: ${finding.message}` : ""}`;
  return finding
    ? el("button", { class: `part ${severity}`, title, onclick: () => jump(run, finding) }, ...content)
    : el("span", { class: `part ${severity}`, title }, ...content);
}

function rows(run, parts) {
  const grouped = [];
  for (const part of parts) {
    const last = grouped.at(-1);
    if (part.layer !== null && last && last.layer === part.layer) last.parts.push(part);
    else grouped.push({ layer: part.layer, parts: [part] });
  }
  return grouped.map(({ layer, parts: members }) => el("li", {}, el("span", { class: "number" }, layer === null ? "" : String(layer)), el("span", { class: "parts" }, ...members.map((part) => box(run, part)))));
}

export function anatomyView() {
  const title = el("p", { class: "note" });
  const picture = el("ol", { class: "anatomy" });
  const which = el("div", { class: "tabs" });
  const ways = el("p", { class: "note" });

  function draw() {
    if (!state.chosen.includes(shown)) shown = state.chosen[0] ?? null;
    fill(which, ...(state.chosen.length > 1 ? state.chosen.map((run) => el("button", {
      "aria-pressed": String(run === shown), onclick: () => { shown = run; set({ anatomy: state.anatomy }); },
    }, run)) : []));
    const anatomy = state.anatomy.get(shown);
    title.textContent = anatomy?.headline || "the recording says nothing of the model's anatomy";
    fill(picture, ...rows(shown, anatomy?.parts ?? []));
    ways.textContent = (anatomy?.ways ?? []).map((way) => `q, k: ${way.join(" → ")}`).join("; ");
  }

  on(["anatomy", "chosen"], draw);
  return el("section", { class: "card" }, el("h2", {}, "Anatomy"), which, title, picture, ways);
}
