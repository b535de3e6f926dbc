// The figures beside the bars of the steps and the timeline: each is drawn when it comes into view, and again when its
// width or the theme changes. Python says what is drawn and in which role; here roles get their colours.

const heatColour = (colours, share) => mixed(colours.lane, colours.exposed, 0.06 + 0.94 * share);

/** Of two colours of text, the one that stands out more on a colour. */
function textOver(colour, candidates) {
  const channels = (text) => (text.startsWith("#") ? [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16)) : text.match(/\d+/g).map(Number));
  const linear = (value) => (value <= 10 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const light = (text) => channels(text).reduce((sum, value, i) => sum + [0.2126, 0.7152, 0.0722][i] * linear(value), 0.05);
  const contrast = (text) => Math.max(light(text), light(colour)) / Math.min(light(text), light(colour));
  return candidates.reduce((best, text) => (contrast(text) > contrast(best) ? text : best));
}

/** Lines of theory across columns, on a wider one of the background's colour. */
const LINES = {
  halo: (colours) => ({ color: colours.background, width: 4 }),
  paper: (colours) => ({ color: colours.text, width: 2, dash: "2px,3px" }),
  ledger: (colours) => ({ color: colours.text, width: 2 }),
};

function paintChart(traces, colours) {
  return traces.map((trace) => {
    const { role } = trace.meta;
    if (role === "guide") return { ...trace, line: { color: colours.muted, width: 1, dash: "dot" }, textfont: { color: colours.muted, size: 11 } };
    if (role in LINES) return { ...trace, line: { simplify: false, ...LINES[role](colours) } };
    if (role === "heat") return { ...trace, colorscale: [[0, heatColour(colours, 0)], [1, heatColour(colours, 1)]], hoverongaps: false };
    if (role === "cells") {
      const color = trace.meta.shares.map((share) => textOver(heatColour(colours, share), [colours.text, colours.on_exposed]));
      return { ...trace, textfont: { color, size: 12, family: FONT } };
    }
    if (trace.stackgroup) {
      // an area is filled as a bar of its role is
      const { color, line, pattern } = paintBars([trace], colours)[0].marker;
      return { ...trace, fillcolor: color, fillpattern: pattern, line: { ...trace.line, color: line.color ?? color, width: line.width } };
    }
    if (trace.type === "bar" || role === "total") return paintBars([trace], colours)[0];
    return { ...trace, marker: { ...trace.marker, color: colours[role], opacity: 0.85, line: { color: colours.background, width: 0.7 } } };
  });
}

async function drawChart(element) {
  await startPlotly();
  const { data, layout } = page.charts[element.id];
  const colours = theme();
  // A column has a width below which its name would run into the next one's.
  const least = layout.meta?.columns ? layout.meta.columns * layout.meta.column_px + layout.margin.l + layout.margin.r : 0;
  const width = Math.max(element.parentElement.clientWidth, MIN_WIDTH, least);
  element.style.width = `${width}px`;
  const axis = (own) => ({ gridcolor: colours.border, layer: "below traces", ...own });
  const styled = layoutWith(colours, { ...layout, width, xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis) });
  if (layout.meta?.end_px) {
    // Room for the figure at the end of the longest bar, however narrow the chart is.
    const plotWidth = width - layout.margin.l - layout.margin.r;
    styled.xaxis.range = [0, (layout.xaxis.range[1] * plotWidth) / (plotWidth - layout.meta.end_px)];
    styled.xaxis.nticks = Math.max(3, Math.min(9, Math.floor(plotWidth / 70)));
  }
  // The lines of equal bandwidth stand too close for their names where it is narrow.
  const shown = data.map((trace) => (trace.meta.role === "guide" && width < 480 ? { ...trace, mode: "lines" } : trace));
  await Plotly.react(element, paintChart(shown, colours), styled, { ...CONFIG, displayModeBar: false });
}

const isDrawn = (element) => element.classList.contains("js-plotly-plot");

/** All charts of the page: a promise for each that resolves once it has come into view and is drawn. */
function connectCharts() {
  const charts = [...document.querySelectorAll("[data-chart]")];
  for (const chart of charts) {
    new ResizeObserver(() => isDrawn(chart) && drawChart(chart)).observe(chart.parentElement);
  }
  return charts.map((chart) => whenNear(chart, () => drawChart(chart)));
}

function repaintCharts() {
  for (const chart of document.querySelectorAll("[data-chart]")) if (isDrawn(chart)) drawChart(chart);
}
