// The second map minus the first; as factors, in powers of two, where the scale is logarithmic and begins at a floor.
import { columnAt } from "./geometry.js";

export function difference(one, two, log, floor) {
  const rows = Math.min(one.rows, two.rows);
  const values = new Float32Array(rows * two.columns).fill(NaN);
  const bad = new Uint8Array(rows * two.columns);
  let [least, largest] = [null, null];
  for (let column = 0; column < two.columns; column++) {
    const other = partner(one, two, column);
    for (let row = 0; row < rows && other >= 0; row++) {
      const [a, b] = [row * one.columns + other, row * two.columns + column];
      const at = row * two.columns + column;
      bad[at] = one.bad[a] | two.bad[b];
      const [x, y] = [one[one.edge][a], two[two.edge][b]];
      const value = log ? Math.log2(Math.max(y, floor) / Math.max(x, floor)) : y - x;
      if (bad[at] || !Number.isFinite(value)) continue;
      values[at] = value;
      least = least === null ? value : Math.min(least, value);
      largest = largest === null ? value : Math.max(largest, value);
    }
  }
  return { ...two, rows, low: values, high: values, bad, least, largest };
}

// The column of the first map at the same steps; none where that run has nothing near.
function partner(one, two, column) {
  const middle = (two.first[column] + two.last[column]) / 2;
  const found = columnAt(one, middle);
  if (found < 0) return -1;
  const width = Math.max(two.last[column] - two.first[column], one.last[found] - one.first[found]);
  const apart = column + 1 < two.columns ? two.first[column + 1] - two.last[column] : column ? two.first[column] - two.last[column - 1] : 1;
  const away = Math.max(one.first[found] - middle, middle - one.last[found], 0);
  return away <= width + apart ? found : -1;
}
