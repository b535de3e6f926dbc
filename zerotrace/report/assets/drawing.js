// The picture of a window as plotly is given it: one heat map, one path a role, names, ruler.

const UNIT_PX = 5;
const MARGIN = { l: 150, r: 12, t: 28, b: 4 };
/** Room for the names on a telephone, where a rank has one device: the chart then needs no scrolling sideways. */
const NARROW = { below: 560, l: 124, r: 6 };
const PALEST = 0.16;
const INSET_UNITS = 0.6;
const MIN_NAME_PX = 52;
const CHARACTER_PX = 6.1;

/** One heat map for all roles: role k takes the values k (barely busy) to k + 1 (busy all of the time). */
function heatTrace(picture, colours) {
  const empty = new Array(picture.bins).fill(null);
  const z = new Array(picture.height).fill(empty);
  for (const { top, heat } of picture.rows) {
    const line = Array.from(heat.share, (share, k) => (heat.touched[k] ? heat.role[k] + share * 0.999 : null));
    for (let unit = 0; unit < LANE_UNITS; unit++) z[top + unit] = line;
  }
  const colorscale = ROLES.flatMap((role, k) => [
    [k / 4, mixed(colours.lane, colours[role], PALEST)],
    [(k + 0.999) / 4, colours[role]],
  ]);
  colorscale.push([1, colours.copy]);
  return {
    type: "heatmap", z, x0: picture.start + picture.bin / 2, dx: picture.bin, y0: 0.5, dy: 1,
    zmin: 0, zmax: 4, zsmooth: false, showscale: false, hoverinfo: "skip", colorscale,
  };
}

/** Exact shapes: one path a role, so that 2,500 intervals are a few SVG elements. Clipped to what is near the window. */
function markTraces(picture, colours) {
  const span = picture.end - picture.start;
  const [low, high] = [picture.start - span * 0.02, picture.end + span * 0.02];
  const paths = new Map();
  for (const { top, marks } of picture.rows) {
    for (const { role, from, to, depth } of marks) {
      // A seam between neighbours only where it takes little of them.
      const key = `${role}${to - from >= 5 * picture.bin ? " seam" : ""}`;
      if (!paths.has(key)) paths.set(key, { role, seam: key !== role, x: [], y: [] });
      const { x, y } = paths.get(key);
      const [a, b] = [Math.max(from, low), Math.min(to, high)];
      const upper = top + depth * INSET_UNITS;
      x.push(a, b, b, a, a, null);
      y.push(upper, upper, top + LANE_UNITS, top + LANE_UNITS, upper, null);
    }
  }
  return [...paths.values()].map(({ role, seam, x, y }) => ({
    type: "scatter", mode: "lines", x, y, fill: "toself", fillcolor: colours[role], hoverinfo: "skip", meta: { role },
    line: { color: colours.background, width: seam ? 0.6 : 0, simplify: false },
    ...(role === "exposed" && { fillpattern: { shape: "/", size: 7, solidity: 0.14, bgcolor: colours.exposed, fgcolor: colours.hatch, fillmode: "overlay" } }),
  }));
}

/** `at::native::foo_kernel<…>(…)` as `foo_kernel`: what fits into a bar. The whole name is in the tip. */
function shortName(name) {
  let depth = 0;
  let plain = "";
  for (const character of name) {
    if (character === "<") depth += 1;
    if (!depth) plain += character;
    if (character === ">") depth = Math.max(0, depth - 1);
  }
  plain = plain.replace(/\(anonymous namespace\)/g, "").replace(/\(.*$/, "").trim();
  return plain.split(/::|\s/).filter(Boolean).pop() ?? name;
}

/** The name of a mark; one that stands for several rows is named after the longest, with how many more there are. */
function markName(lane, mark, names) {
  if (mark.row >= 0) return shortName(names[lane.group.name[mark.row]]);
  const { longest, count } = longestRow(lane, mark.from, mark.to, 64);
  if (longest < 0) return "";
  return shortName(names[lane.group.name[longest]]) + (count > 1 ? ` +${count - 1}` : "");
}

/** Whether a mark nested in this one lies over [a, b), where the name would stand. */
function isCovered(marks, index, a, b) {
  for (let k = index + 1; k < marks.length && marks[k].from < b; k++) {
    if (marks[k].depth > marks[index].depth && marks[k].to > a) return true;
  }
  return false;
}

function nameTrace(picture, colours, names) {
  const trace = { type: "scatter", mode: "text", x: [], y: [], text: [], hoverinfo: "skip", cliponaxis: true, textfont: { size: 10, family: FONT, color: [] } };
  for (const { lane, top, marks } of picture.rows) {
    for (const [index, mark] of marks.entries()) {
      const from = Math.max(mark.from, picture.start);
      const to = Math.min(mark.to, picture.end);
      const room = (to - from) / picture.bin;
      if (room < MIN_NAME_PX) continue;
      const name = markName(lane, mark, names);
      const fits = Math.floor((room - 8) / CHARACTER_PX);
      const half = (Math.min(name.length, fits) * CHARACTER_PX * picture.bin) / 2;
      if (isCovered(marks, index, (from + to) / 2 - half, (from + to) / 2 + half)) continue;
      trace.x.push((from + to) / 2);
      trace.y.push(top + LANE_UNITS / 2);
      trace.text.push(plotlyText(name.length > fits ? `${name.slice(0, fits - 1)}…` : name));
      trace.textfont.color.push(textOn(colours, mark.role));
    }
  }
  return trace;
}

/** Zero of the ruler: the start of the step in which the window begins, else of the first step, else of the run. */
function rulerOrigin(view) {
  const [set] = view.visibleSets();
  const windows = set.group.windows;
  const within = windows.filter((window) => window.start_ns <= view.start + 0.02 * view.span);
  const chosen = within.at(-1) ?? windows[0];
  return chosen ? { time: chosen.start_ns, step: chosen.step } : { time: view.extent.start, step: null };
}

/** About one tick a hundred pixels, at round distances; labels with as many digits as tell them apart. */
function rulerTicks(view, origin, width) {
  const raw = view.span / Math.max(2, width / 104);
  const power = 10 ** Math.floor(Math.log10(raw));
  const distance = power * [1, 2, 5, 10].find((factor) => factor * power >= raw);
  const digits = Math.min(6, Math.max(0, 6 - Math.floor(Math.log10(distance))));
  const values = [];
  const first = Math.ceil((view.start - origin) / distance);
  for (let k = first; k * distance + origin <= view.end; k++) values.push(k * distance);
  return { tickvals: values.map((value) => value + origin), ticktext: values.map((value) => `${(value / 1e6).toFixed(digits).replace("-", "−")} ms`) };
}

/** Tracks of the lanes, borders of the steps, the interval jumped to. */
function rulerShapes(picture, view, colours, marked) {
  const shapes = picture.rows.map(({ top }) => ({
    type: "rect", layer: "below", x0: 0, x1: 1, xref: "paper", y0: top, y1: top + LANE_UNITS, line: { width: 0 }, fillcolor: colours.lane,
  }));
  const annotations = [];
  for (const { top } of picture.bands) {
    shapes.push({ type: "rect", layer: "below", x0: 0, x1: 1, xref: "paper", y0: top, y1: top + BAND_UNITS, line: { width: 0 }, fillcolor: colours.lane });
  }
  for (const { set, head, bottom } of picture.groups) {
    for (const { step, start_ns, end_ns } of set.group.windows) {
      for (const time of new Set([start_ns, end_ns])) {
        if (time < view.start || time > view.end) continue;
        shapes.push({ type: "line", x0: time, x1: time, y0: head - 1, y1: bottom, line: { color: colours.muted, width: 1, dash: "2px,2px" } });
      }
      // A label that would be cut off at the right border says less than none.
      if (start_ns < view.start || start_ns > view.end - 44 * picture.bin || step < 0 || view.lanes !== "all") continue;
      annotations.push({ x: start_ns, y: head - 0.2, text: `step ${step}`, showarrow: false, xanchor: "left", yanchor: "bottom", xshift: 2, font: { size: 10, color: colours.muted } });
    }
  }
  const row = marked && picture.rows.find(({ lane }) => lane === marked.lane);
  if (row) {
    shapes.push({ type: "rect", x0: marked.from, x1: marked.to, y0: row.top - 0.4, y1: row.top + LANE_UNITS + 0.4, line: { color: colours.text, width: 1.5 } });
  }
  return { shapes: shapes.slice(0, 1200), annotations: annotations.slice(0, 200) };
}

/** Draws one picture into the element with plotly. */
async function drawTimeline(element, view, picture, width, names, marked) {
  const colours = theme();
  const origin = rulerOrigin(view);
  const traces = [heatTrace(picture, colours)];
  if (picture.bands.length) traces.push(...bandTraces(picture, colours), bandNames(picture, colours, names));
  if (picture.exact) traces.push(...markTraces(picture, colours), nameTrace(picture, colours, names));
  const layout = layoutWith(colours, {
    width: width + MARGIN.l + MARGIN.r,
    height: picture.height * UNIT_PX + MARGIN.t + MARGIN.b,
    margin: MARGIN,
    showlegend: false,
    xaxis: { range: [view.start, view.end], side: "top", fixedrange: true, showgrid: true, gridcolor: colours.border, ...rulerTicks(view, origin.time, width) },
    yaxis: { range: [picture.height, 0], fixedrange: true, showticklabels: false },
    ...rulerShapes(picture, view, colours, marked),
  });
  await Plotly.react(element, traces, layout, { ...CONFIG, staticPlot: true });
}
