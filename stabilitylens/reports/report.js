"use strict";
// Draws the pictures of a report from the data embedded in the page, and draws them again when the colours change.
(() => {
  const data = JSON.parse(document.getElementById("figures").textContent);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const colourOf = (run) => css(`run-${run % 6}`);
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;"); // plotly reads some HTML
  const number = (v) => Math.abs(v) >= 1000 && Math.abs(v) < 1e6 ? Math.round(v).toLocaleString("en") : String(Number(v.toPrecision(3)));
  const config = { displaylogo: false, displayModeBar: false };
  const viridis = css("viridis").split(",").map((colour, i, all) => [i / (all.length - 1), colour.trim()]);
  const broken = "%{customdata}<extra></extra>";

  function layout(place, extra) {
    const axis = { gridcolor: css("line"), zeroline: false, linecolor: css("line"), automargin: true };
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: css("ink"), size: 12, family: "system-ui, sans-serif" },
      margin: { l: 8, r: 8, t: 8, b: 8 }, hoverlabel: { bgcolor: css("card"), bordercolor: css("line"), font: { color: css("ink") } },
      showlegend: false, width: place.clientWidth, ...extra,
      xaxis: { ...axis, title: { text: "step", standoff: 4 }, ...(extra.xaxis || {}) }, yaxis: { ...axis, ...(extra.yaxis || {}) },
    };
  }

  function lineTraces(figure) {
    return figure.lines.flatMap((line) => {
      const name = plain(data.runs[line.run]), colour = colourOf(line.run);
      const values = line.y.filter((y) => y !== null);
      const top = values.length ? values.reduce((a, b) => Math.max(a, b)) : 1;
      const curve = { x: line.x, y: line.y, name, type: "scatter", mode: line.x.length > 60 ? "lines" : "lines+markers",
        marker: { size: 4 }, line: { color: colour, width: 1.6 }, connectgaps: false, hovertemplate: `%{y:.4~g} at step %{x}<extra>${name}</extra>` };
      const gaps = { x: line.broken, y: line.broken.map(() => top), name, type: "scatter", mode: "markers", cliponaxis: false,
        marker: { symbol: "x", size: 9, color: css("broken") }, hovertemplate: `not finite at step %{x}<extra>${name}</extra>` };
      return line.broken.length ? [curve, gaps] : [curve];
    });
  }

  // the gravest first: a label that would lie on another goes to the row above, or is left to the hover
  function labels(place, figure) {
    const ends = figure.lines.flatMap((line) => (line.x.length ? [line.x[0], line.x[line.x.length - 1]] : []));
    const low = Math.min(...ends), scale = (place.clientWidth - 60) / Math.max(1, Math.max(...ends) - low), rows = [[], [], []];
    return figure.bands.flatMap((b) => {
      const at = (b.peak - low) * scale, half = 3.4 * b.kind.length + 4;
      const row = rows.findIndex((taken) => taken.every(([x, w]) => Math.abs(x - at) > w + half));
      if (row < 0) return [];
      rows[row].push([at, half]);
      return [{ x: b.peak, xref: "x", y: 1, yref: "paper", yanchor: "bottom", yshift: 14 * row, text: plain(b.kind), showarrow: false,
        font: { size: 11, color: css(b.severity) }, row }];
    });
  }

  function drawCurve(place, figure, height) {
    const bands = figure.bands.map((band) => ({ type: "rect", yref: "paper", y0: 0, y1: 1, x0: band.from, x1: band.to,
      fillcolor: css(band.severity), opacity: 0.22, line: { width: 1.5, color: css(band.severity) }, layer: "below" }));
    const span = figure.span ? [{ type: "rect", yref: "paper", y0: 0, y1: 1, x0: figure.span[0], x1: figure.span[1],
      fillcolor: css("soft"), opacity: 0.12, line: { width: 0 }, layer: "below" }] : [];
    const limit = figure.threshold == null ? [] : [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: figure.threshold,
      y1: figure.threshold, line: { color: css("error"), width: 1.5, dash: "dash" },
      label: { text: `threshold ${number(figure.threshold)}`, textposition: "start", font: { color: css("error"), size: 11 } } }];
    const peaks = { x: figure.bands.map((b) => b.peak), y: figure.bands.map((b) => b.y), type: "scatter", mode: "markers",
      marker: { symbol: "triangle-down", size: 11, color: figure.bands.map((b) => css(b.severity)), line: { color: css("card"), width: 1 } },
      customdata: figure.bands.map((b) => plain(`${b.kind}: ${b.text}`)), hovertemplate: broken, name: "incident" };
    const found = labels(place, figure), notes = found.map(({ row, ...note }) => note);
    const room = found.length ? 22 + 14 * Math.max(...found.map((each) => each.row)) : 8;
    Plotly.react(place, [...lineTraces(figure), ...(figure.bands.length ? [peaks] : [])], layout(place, {
      height, shapes: [...span, ...bands, ...limit], annotations: notes, margin: { l: 8, r: 12, t: room, b: 8 },
      yaxis: figure.log ? { type: "log", dtick: 1, exponentformat: "power" } : {}, dragmode: "zoom",
    }), config);
  }

  function drawWindow(place, figure) {
    const { band, panels } = figure, n = panels.length, colour = css(band.severity), wide = Math.max(1, figure.to - figure.from);
    const axes = {}, traces = [], names = [];
    panels.forEach((panel, i) => {
      const y = i ? `y${i + 1}` : "y", top = 1 - i / n, base = { gridcolor: css("line"), zeroline: false, linecolor: css("line"), automargin: true };
      axes[i ? `yaxis${i + 1}` : "yaxis"] = { ...base, domain: [1 - (i + 1) / n + (i + 1 < n ? 0.03 : 0), top - (i ? 0.09 : 0)], nticks: 4,
        ...(panel.log ? { type: "log", dtick: 1, exponentformat: "power" } : {}) };
      traces.push(...lineTraces(panel).map((trace) => ({ ...trace, yaxis: y, xaxis: "x" })));
      if (n > 1) names.push({ xref: "paper", x: 0, xanchor: "left", yref: "paper", y: i ? top - 0.09 : 1, yanchor: "bottom", showarrow: false,
        text: plain(panel.title), font: { size: 11, color: css("soft") } });
      if (figure.on === i && band.y !== null) traces.push({ x: [band.peak], y: [band.y], yaxis: y, type: "scatter", mode: "markers", name: "incident",
        marker: { symbol: "triangle-down", size: 11, color: colour, line: { color: css("card"), width: 1 } },
        customdata: [plain(band.text)], hovertemplate: broken });
    });
    const mark = (x, dash) => ({ type: "line", yref: "paper", y0: 0, y1: 1, x0: x, x1: x, layer: "below", line: { color: colour, width: 1, dash } });
    const say = (x, text, xanchor, row) => ({ x, xref: "x", xanchor, y: 1, yref: "paper", yanchor: "bottom", yshift: 13 * row, text, showarrow: false,
      font: { size: 11, color: colour } });
    const shapes = [{ type: "rect", yref: "paper", y0: 0, y1: 1, x0: band.from, x1: band.to, fillcolor: colour, opacity: 0.12, line: { width: 0 }, layer: "below" },
      mark(band.from, "dot"), mark(band.peak, "solid"), mark(band.to, "dot")];
    const marks = [say(band.from, `start ${band.from}`, "right", 1), say(band.peak, `peak ${band.peak}`, "center", 2), say(band.to, `end ${band.to}`, "left", 1)];
    Plotly.react(place, traces, layout(place, { height: 130 + 80 * n, shapes, annotations: [...names, ...marks], margin: { l: 8, r: 12, t: 46, b: 8 },
      xaxis: { range: [figure.from - 0.04 * wide, figure.to + 0.04 * wide], anchor: n > 1 ? `y${n}` : "y" }, ...axes, dragmode: "zoom" }), config);
  }

  function drawMap(place, figure, panel) {
    const scaled = (v) => (v === null ? null : figure.log ? Math.log10(v) : v);
    const hover = panel.z.map((row, r) => row.map((v, c) => plain(
      [panel.rows[r], panel.who && v !== null ? `${figure.inner} ${panel.who[r][c]}` : "", `step ${panel.x[c]}`, v === null ? "" : number(v)]
        .filter(Boolean).join(", "))));
    const rows = panel.rows.map((_, r) => r);
    const same = { x: panel.x, y: rows, type: "heatmap", showscale: false, hoverongaps: false };
    const heat = { ...same, z: panel.z.map((row) => row.map(scaled)), zmin: scaled(figure.low), zmax: scaled(figure.high),
      colorscale: viridis, reversescale: figure.worse === "low", customdata: hover, hovertemplate: broken };
    const lost = panel.z.map((row) => row.map(() => null));
    panel.broken.forEach(([r, c]) => { lost[r][c] = 1; });
    const bad = { ...same, z: lost, colorscale: [[0, css("broken")], [1, css("broken")]],
      customdata: hover.map((row) => row.map((text) => `${text}, not finite`)), hovertemplate: broken };
    const stride = Math.max(1, Math.ceil(rows.length / 16));
    Plotly.react(place, panel.broken.length ? [heat, bad] : [heat], layout(place, {
      height: Math.min(460, Math.max(140, 60 + 22 * rows.length)),
      yaxis: { title: { text: figure.axis, standoff: 4 }, tickvals: rows.filter((r) => r % stride === 0), showgrid: false },
      xaxis: { showgrid: false },
    }), config);
  }

  const drawings = [
    ...data.curves.map((figure) => [figure.id, (place) => drawCurve(place, figure, 260)]),
    ...data.windows.map((figure) => [figure.id, (place) => drawWindow(place, figure)]),
    ...data.maps.flatMap((figure) => figure.panels.map((panel, i) => [`${figure.id}-${i}`, (place) => drawMap(place, figure, panel)])),
    ...data.findings.map((figure, i) => [`finding-${i}`, (place) => drawCurve(place, figure, 190)]),
  ];
  const byPlace = new Map(drawings.map(([id, draw]) => [document.getElementById(id), draw]).filter(([place]) => place));
  // a place is drawn when it first has a width, as when its <details> opens, and again when the width changes
  const watcher = new ResizeObserver((entries) => entries.forEach(({ target, contentRect }) => {
    if (contentRect.width > 0 && Math.round(contentRect.width) !== target.drawnAt) draw(target);
  }));
  function draw(place) {
    place.drawnAt = Math.round(place.clientWidth);
    byPlace.get(place)(place);
  }
  byPlace.forEach((_, place) => watcher.observe(place));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => byPlace.forEach((_, place) => place.drawnAt && draw(place)));
})();
