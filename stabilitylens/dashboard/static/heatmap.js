// Draws one map on a canvas: rows by steps, and beside it the profile of the scrubbed step.
import { brokenColour, hatch } from "./colours.js";
import { BOTTOM, columnAt, columnEdges, right, stepAxis, ticks } from "./geometry.js";
import { css } from "./theme.js";
import { number } from "./words.js";

export function paint(canvas, map, scale, { width, height, rowHeight, cursor, step, marks }) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const axis = stepAxis(width);
  const body = rowHeight * map.rows;
  cells(pen, map, scale, axis, body);
  frame(pen, map, axis, rowHeight, body);
  profile(pen, map, scale, width, rowHeight, body, step);
  outline(pen, map, axis, rowHeight, body, cursor, marks);
}

// The cells as an image of one pixel each, stretched column by column over the hatched ground.
function cells(pen, map, scale, axis, body) {
  if (!map.columns) return;
  const image = new ImageData(map.columns, map.rows);
  const values = map[map.edge];
  const broken = brokenColour();
  for (let row = 0; row < map.rows; row++) {
    for (let column = 0; column < map.columns; column++) {
      const value = values[row * map.columns + column];
      const bad = map.bad[row * map.columns + column];
      if (!bad && !Number.isFinite(value)) continue;
      const colour = bad ? broken : scale.colours[scale.level(value)];
      const at = 4 * ((map.rows - 1 - row) * map.columns + column);
      image.data.set(colour, at);
      image.data[at + 3] = 255;
    }
  }
  const source = document.createElement("canvas");
  [source.width, source.height] = [map.columns, map.rows];
  source.getContext("2d").putImageData(image, 0, 0);
  const edges = columnEdges(map);
  pen.save();
  pen.beginPath();
  pen.rect(axis.begin, 0, axis.inner, body);
  pen.clip();
  pen.imageSmoothingEnabled = false;
  pen.fillStyle = hatch(pen);
  for (let column = 0; column < map.columns; column++) {
    const x = Math.floor(axis.x(edges.begin[column]));
    const w = Math.max(1, Math.ceil(axis.x(edges.end[column])) - x);
    pen.fillRect(x, 0, w, body);
    pen.drawImage(source, column, 0, 1, map.rows, x, 0, w, body);
  }
  pen.restore();
}

function frame(pen, map, axis, rowHeight, body) {
  pen.fillStyle = css("--soft");
  pen.strokeStyle = css("--line");
  pen.font = "11px system-ui, sans-serif";
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  pen.strokeRect(axis.begin - 0.5, -0.5, axis.inner + 1, body + 1);
  const stride = Math.max(1, Math.ceil(14 / rowHeight));
  for (let row = 0; row < map.rows; row += stride) pen.fillText(String(row), axis.begin - 6, body - (row + 0.5) * rowHeight);
  pen.save();
  pen.translate(12, body / 2);
  pen.rotate(-Math.PI / 2);
  pen.textAlign = "center";
  pen.fillText(map.axis, 0, 0);
  pen.restore();
  pen.textAlign = "center";
  const end = axis.begin + axis.inner - 16;
  for (const at of ticks(axis.a, axis.b, axis.inner / 90)) pen.fillText(at.toLocaleString("en"), Math.min(axis.x(at), end), body + 12);
}

function profile(pen, map, scale, width, rowHeight, body, step) {
  const column = columnAt(map, step);
  if (column < 0) return;
  const room = right() - 14;
  const left = width - room - 4;
  for (let row = 0; row < map.rows; row++) {
    const at = row * map.columns + column;
    const value = map[map.edge][at];
    const y = body - (row + 1) * rowHeight;
    if (map.bad[at]) pen.fillStyle = css("--broken");
    else if (Number.isFinite(value)) pen.fillStyle = `rgb(${scale.colours[scale.level(value)].join(" ")})`;
    else pen.fillStyle = hatch(pen);
    const share = map.bad[at] || !Number.isFinite(value) ? 1 : 0.04 + 0.96 * (scale.level(value) / 255);
    pen.fillRect(left, y, room * share, Math.max(1, rowHeight - 1));
  }
  pen.fillStyle = css("--soft");
  pen.textAlign = "right";
  pen.fillText(`at ${Math.round(nearest(map, column, step)).toLocaleString("en")}`, width - 2, body + 12);
}

const nearest = (map, column, step) => Math.max(map.first[column], Math.min(map.last[column], step));

function outline(pen, map, axis, rowHeight, body, cursor, marks) {
  const edges = columnEdges(map);
  for (const mark of marks) {
    if (mark.row === null || mark.row >= map.rows) continue;
    const begin = mark.steps ? axis.x(mark.steps[0]) : axis.begin;
    const x = Math.max(axis.begin + 5, Math.min(axis.begin + axis.inner - 5, begin));
    const y = body - (mark.row + 0.5) * rowHeight;
    pen.beginPath();
    pen.moveTo(x - 5, y - 5);
    pen.lineTo(x + 4, y);
    pen.lineTo(x - 5, y + 5);
    pen.closePath();
    pen.fillStyle = css(`--${mark.severity}`);
    pen.fill();
    pen.lineWidth = 1.2;
    pen.strokeStyle = css("--card");
    pen.stroke();
  }
  if (!cursor) return;
  const column = columnAt(map, (cursor.first + cursor.last) / 2);
  if (column < 0 || cursor.row >= map.rows) return;
  const x = Math.max(axis.begin, axis.x(edges.begin[column]));
  const w = Math.max(4, Math.min(axis.begin + axis.inner, axis.x(edges.end[column])) - x);
  const y = body - (cursor.row + 1) * rowHeight;
  for (const [colour, line] of [[css("--card"), 4], [css("--ink"), 2]]) {
    pen.strokeStyle = colour;
    pen.lineWidth = line;
    pen.strokeRect(x - 1, y - 1, w + 2, rowHeight + 2);
  }
}

export function valueAt(map, row, column) {
  const at = row * map.columns + column;
  if (map.bad[at]) return "not finite";
  const [low, high] = [map.low[at], map.high[at]];
  if (Number.isNaN(low)) return "not observed";
  return low === high ? number(low) : `${number(low)} to ${number(high)}`;
}

export const heightOf = (map, rowHeight) => map.rows * rowHeight + BOTTOM;
