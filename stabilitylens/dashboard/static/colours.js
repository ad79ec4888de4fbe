// From values to colours: viridis, and for differences blue to orange, both readable without telling red from green.
import { css } from "./theme.js";

const VIRIDIS = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"];
const LEVELS = 256;

const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

function ramp(stops) {
  const colours = stops.map(rgb);
  return Array.from({ length: LEVELS }, (_, i) => {
    const at = (i / (LEVELS - 1)) * (colours.length - 1);
    const k = Math.min(Math.floor(at), colours.length - 2);
    return colours[k].map((c, j) => Math.round(c + (colours[k + 1][j] - c) * (at - k)));
  });
}

const palette = (worse) => ramp(worse === "low" ? [...VIRIDIS].reverse() : VIRIDIS);
const diverging = () => ramp(["#2c7bb6", css("--middle"), "#e66101"]);

export const brokenColour = () => rgb(css("--broken"));

// few values that are not positive, as logits may have, do not forbid a logarithmic scale: they have its lowest colour
const POSITIVE = 0.95;

// One scale for all maps: the worrying end is at least a factor of 2 off, so that noise looks like noise.
export function scaleOf(maps, choice, worse) {
  const known = maps.filter((map) => map.least !== null);
  let least = Math.min(...known.map((map) => map.least));
  let largest = Math.max(...known.map((map) => map.largest));
  if (!known.length) [least, largest] = [0, 1];
  const floor = Math.min(...known.map((map) => map.floor ?? Infinity));
  const can = known.length > 0 && Number.isFinite(floor) && largest > 0 && known.every((map) => map.positive >= POSITIVE);
  const log = can && (choice === "log" || (choice === "auto" && largest > 30 * floor));
  if (log) least = floor;
  if (least > 0 && worse === "high") largest = Math.max(largest, 2 * least);
  if (least > 0 && worse === "low") least = Math.min(least, largest / 2);
  const [low, high] = log ? [Math.log(least), Math.log(largest)] : [least, largest];
  const factor = high > low ? (LEVELS - 1) / (high - low) : 0;
  const level = (v) => Math.max(0, Math.min(LEVELS - 1, Math.round(((log ? Math.log(Math.max(v, least)) : v) - low) * factor)));
  return { least, largest, log, level, colours: palette(worse), difference: false };
}

export function differenceScale(map, log) {
  const most = Math.max(Math.abs(map.least ?? 0), Math.abs(map.largest ?? 0)) || 1;
  const level = (v) => Math.max(0, Math.min(LEVELS - 1, Math.round(((v / most + 1) / 2) * (LEVELS - 1))));
  return { least: -most, largest: most, log, level, colours: diverging(), difference: true };
}

export function gradient(scale) {
  const stops = Array.from({ length: 16 }, (_, i) => scale.colours[Math.round((i / 15) * (LEVELS - 1))]);
  return `linear-gradient(to right, ${stops.map((c) => `rgb(${c.join(" ")})`).join(", ")})`;
}

let pattern = null;
let patternOf = "";

export function hatch(context) {
  const key = css("--hatch-ground") + css("--hatch-line");
  if (pattern && patternOf === key) return pattern;
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const pen = tile.getContext("2d");
  pen.fillStyle = css("--hatch-ground");
  pen.fillRect(0, 0, 6, 6);
  pen.strokeStyle = css("--hatch-line");
  pen.lineWidth = 1.4;
  for (const x of [-6, 0, 6]) {
    pen.beginPath();
    pen.moveTo(x - 1, 7);
    pen.lineTo(x + 7, -1);
    pen.stroke();
  }
  [pattern, patternOf] = [context.createPattern(tile, "repeat"), key];
  return pattern;
}
