// Questions to the plugin's own routes, and nowhere else.

const HERE = new URL(".", import.meta.url);

export function link(route, parameters = {}) {
  const url = new URL(route, HERE);
  url.search = "";
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined) url.searchParams.set(name, value);
  }
  return url;
}

export async function ask(route, parameters = {}) {
  const answer = await fetch(link(route, parameters), { credentials: "same-origin" });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

function bytes(text) {
  const binary = atob(text);
  const out = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) out[i] = binary.charCodeAt(i);
  return out;
}

const floats = (text) => new Float32Array(bytes(text).buffer);
const doubles = (text) => new Float64Array(bytes(text).buffer);

export async function askMap(parameters) {
  const map = await ask("map", parameters);
  return {
    ...map, first: doubles(map.first), last: doubles(map.last), low: floats(map.low), high: floats(map.high), bad: bytes(map.bad),
    edge: map.worse === "high" ? "high" : "low",
  };
}

const line = (each) => ({ ...each, x: doubles(each.x), y: doubles(each.y) });

export async function askCurve(parameters) {
  return line(await ask("curve", parameters));
}

export async function askCell(parameters) {
  const cell = await ask("cell", parameters);
  return { ...cell, lines: cell.lines.map(line) };
}

let loading = null;

export function plotly() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = new URL("plotly.js", HERE);
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("plotly's script could not be loaded"));
    document.head.append(script);
  });
  return loading;
}
