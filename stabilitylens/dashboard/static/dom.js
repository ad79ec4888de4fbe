// Elements whose text is always text: nothing that a log says is ever read as markup.

export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function fill(element, ...children) {
  element.replaceChildren(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function options(select, entries, chosen) {
  const groups = new Map();
  for (const { value, text, group = "" } of entries) {
    const option = el("option", { value, selected: value === chosen }, text);
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(option);
  }
  fill(select, ...[...groups].flatMap(([group, members]) => (group ? [el("optgroup", { label: group }, ...members)] : members)));
  if (chosen !== null && chosen !== undefined) select.value = chosen;
}

