// Light or dark as TensorBoard is, and, outside of it, as the browser is.

export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function host() {
  try {
    return window.parent !== window ? window.parent.document.body : null;
  } catch {
    return null;
  }
}

export function follow(changed) {
  const outer = host();
  const prefers = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const dark = outer ? outer.classList.contains("dark-mode") : prefers.matches;
    const theme = dark ? "dark" : "light";
    if (document.documentElement.dataset.theme === theme) return;
    document.documentElement.dataset.theme = theme;
    changed();
  };
  if (outer) new MutationObserver(apply).observe(outer, { attributes: true, attributeFilter: ["class"] });
  prefers.addEventListener("change", apply);
  apply();
}
