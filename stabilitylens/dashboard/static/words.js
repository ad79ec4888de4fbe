// Numbers and places as people read them.

export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "not observed";
  if (typeof value === "string") return value;
  if (!Number.isFinite(value)) return "not finite";
  const size = Math.abs(value);
  if (size >= 1000 && size < 1e6) return Math.round(value).toLocaleString("en");
  if (size !== 0 && (size >= 1e6 || size < 1e-4)) return value.toExponential(2);
  return String(Number(value.toPrecision(3)));
}

export const steps = (first, last) => (first === last ? `step ${first}` : `steps ${first} to ${last}`);

// plotly reads some HTML in names and hover texts
export const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;");

export const spaced = (text) => String(text).replaceAll("_", " ");

// shapes beside the colours, so that neither is needed alone
export const MARKS = { error: "▲", warning: "◆", info: "●" };

export function place(where) {
  const parts = [];
  if (where.layer !== undefined) parts.push(`layer ${where.layer}`);
  else if (where.layer_name) parts.push(where.layer_name);
  if (where.head !== undefined) parts.push(`head ${where.head}`);
  if (where.steps) parts.push(steps(...where.steps));
  return parts.join(", ") || "the whole model";
}
