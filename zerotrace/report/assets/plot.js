// plotly and its colours. plotly.js travels compressed and is started once, when the first figure comes into view.

const CONFIG = { displaylogo: false, showSendToCloud: false, showEditInChartStudio: false, plotlyServerURL: "", responsive: false };
const FONT = '-apple-system, BlinkMacSystemFont, "Segoe UI", Roboto, "Helvetica Neue", Arial, "Liberation Sans", system-ui, sans-serif';

const MIN_WIDTH = 260;

function mixed(from, to, share) {
  const channel = (colour, i) => parseInt(colour.slice(1 + 2 * i, 3 + 2 * i), 16);
  return `rgb(${[0, 1, 2].map((i) => Math.round(channel(from, i) + (channel(to, i) - channel(from, i)) * share)).join(",")})`;
}

const startPlotly = lazily(async () => {
  const script = document.createElement("script");
  script.textContent = new TextDecoder().decode(await inflate("plotly-source"));
  document.head.append(script);
  script.remove();
});

/** The theme in use: the stored choice, else the system's; paper is always light. */
function themeName() {
  if (matchMedia("print").matches) return "light";
  const chosen = document.documentElement.dataset.theme;
  return chosen ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

const theme = () => page.themes[themeName()];

/** Our own template: no colour or font of plotly's is left. */
function layoutWith(colours, layout) {
  const axis = { zeroline: false, showgrid: false, showline: false, ticks: "", color: colours.muted, automargin: false };
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: FONT, size: 12, color: colours.muted },
    hoverlabel: { bgcolor: colours.background, bordercolor: colours.border, font: { family: FONT, size: 12.5, color: colours.text }, align: "left" },
    ...layout,
    xaxis: { ...axis, ...layout.xaxis },
    yaxis: { ...axis, ...layout.yaxis },
  };
}

const textOn = (colours, role) =>
  ({ compute: colours.on_compute, overlapped: colours.on_exposed, exposed: colours.on_exposed, waiting: colours.on_waiting, host: colours.on_idle, copy: colours.on_copy, idle: colours.on_idle })[role];

/** plotly reads a little HTML in its texts; names from traces are shown, not read. */
function plotlyText(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/** Paints the traces of "Where the step goes" by the role that each of them names. */
function paintBars(traces, colours) {
  return traces.map((trace) => {
    const { role } = trace.meta;
    if (role === "total") return { ...trace, textfont: { color: colours.text, size: 12, family: FONT, weight: 600 } };
    if (role === "unknown") {
      const marker = { color: "rgba(0,0,0,0)", line: { color: colours.idle, width: 1.5 } };
      return { ...trace, marker, textfont: { color: colours.muted } };
    }
    const marker = { color: colours[role], line: { width: 0 } };
    if (role === "host") Object.assign(marker, { color: colours.idle_fill, line: { color: colours.idle, width: 1 } });
    if (role === "idle") Object.assign(marker, { color: colours.idle_other, line: { color: colours.idle, width: 1 } });
    if (role === "waiting") marker.line = { color: colours.exposed, width: 1 };
    if (role === "exposed") marker.pattern = { shape: "/", size: 7, solidity: 0.14, fillmode: "overlay", bgcolor: colours.exposed, fgcolor: colours.hatch };
    return { ...trace, marker, textfont: { color: textOn(colours, role), size: 11.5 } };
  });
}

const TOTAL_PX = 56;

/** Draws the bars of section 2; a click on one leads to its step in the timeline. */
async function drawBars(element, onStep) {
  await startPlotly();
  const { data, layout } = page.stepFigure;
  const colours = theme();
  const width = Math.max(element.clientWidth, MIN_WIDTH);
  const plotWidth = width - layout.margin.l - layout.margin.r;
  // Room for the total at the end of the longest bar, however narrow the figure is.
  const range = [0, layout.xaxis.range[1] * Math.max(1, plotWidth / (plotWidth - TOTAL_PX) / 1.11)];
  const nticks = Math.max(3, Math.min(9, Math.floor(plotWidth / 70)));
  const styled = layoutWith(colours, { ...layout, width, xaxis: { ...layout.xaxis, range, showgrid: true, gridcolor: colours.border, layer: "below traces", nticks } });
  const first = !element.classList.contains("js-plotly-plot");
  await Plotly.react(element, paintBars(data, colours), styled, { ...CONFIG, displayModeBar: false });
  if (first) element.on("plotly_click", ({ points }) => points[0].customdata && onStep(points[0].customdata));
}
