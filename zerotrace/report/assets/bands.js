// Bands above the lanes of a rank: its phases and, where there is room, its modules. They come from the labels of a
// capture and are in the host's time: the device may still run what was launched before.

const NUM_PHASES = 3;
const BAND_UNITS = 2.2;
const BAND_PITCH = 2.5;
/** What the two bands of a rank take above its lanes, in whole units: the heat map has no others. */
const BANDS_UNITS = 5;
/** A module narrower than this is left to the one that calls it. */
const MIN_MODULE_PX = 8;

/** Phases and modules of one rank, sorted by start, the longest first. */
class Bands {
  constructor(bytes, header) {
    this.rank = header.rank;
    Object.assign(this, readTimes(bytes, header));
    this.name = readColumn(bytes, header.columns.name);
    this.kind = readColumn(bytes, header.columns.kind);
    const index = (test) => lazily(() => new RowIndex(this, Uint32Array.from(this.kind.keys()).filter((row) => test(this.kind[row]))));
    this.phases = index((kind) => kind < NUM_PHASES);
    this.modules = index((kind) => kind >= NUM_PHASES);
  }

  /** What of one band can be seen in [start, end): `[{from, to, row}]`, callers before what they call. */
  marks(index, start, end, atLeast) {
    const marks = [];
    index.visit(start, end, (row) => {
      if (this.end[row] - this.start[row] >= atLeast) marks.push({ from: this.start[row], to: this.end[row], row });
    });
    return marks;
  }

  /** Phase and innermost module at a time, as rows; -1 where there is none. */
  at(time) {
    const found = { phase: -1, module: -1 };
    this.phases().visit(time, time + 1, (row) => (found.phase = row));
    this.modules().visit(time, time + 1, (row) => (found.module = row));
    return found;
  }
}

/** The two bands of one rank, from `top` on, in a window: `[{bands, label, top, marks}]`. */
function placeBands(bands, top, { start, end, bin }) {
  return [
    { bands, label: "phase", top, marks: bands.marks(bands.phases(), start, end, bin) },
    { bands, label: "module", top: top + BAND_PITCH, marks: bands.marks(bands.modules(), start, end, MIN_MODULE_PX * bin) },
  ];
}

/** The greys of the bands: no category's colour, the later phase the darker; modules are palest. */
function bandColour(colours, kind) {
  return mixed(colours.background, colours.muted, kind < NUM_PHASES ? 0.18 + 0.13 * kind : 0.15);
}

function bandTraces(picture, colours) {
  const span = picture.end - picture.start;
  const [low, high] = [picture.start - span * 0.02, picture.end + span * 0.02];
  const paths = new Map();
  for (const { bands, top, marks } of picture.bands) {
    for (const { from, to, row } of marks) {
      const fill = bandColour(colours, bands.kind[row]);
      if (!paths.has(fill)) paths.set(fill, { x: [], y: [] });
      const { x, y } = paths.get(fill);
      const [a, b] = [Math.max(from, low), Math.min(to, high)];
      x.push(a, b, b, a, a, null);
      y.push(top, top, top + BAND_UNITS, top + BAND_UNITS, top, null);
    }
  }
  return [...paths].map(([fill, { x, y }]) => ({
    type: "scatter", mode: "lines", x, y, fill: "toself", fillcolor: fill, hoverinfo: "skip", meta: { role: "band" },
    line: { color: colours.background, width: 0.8, simplify: false },
  }));
}

/** Where most of a mark can be seen: between those that lie in it, and inside of the window. */
function widestGap(marks, index, start, end) {
  const { from, to } = marks[index];
  let now = Math.max(from, start);
  const until = Math.min(to, end);
  let widest = [now, now];
  for (let k = index + 1; k < marks.length && marks[k].from < until; k++) {
    if (marks[k].from - now > widest[1] - widest[0]) widest = [now, marks[k].from];
    now = Math.max(now, marks[k].to);
  }
  return until - now > widest[1] - widest[0] ? [now, until] : widest;
}

/** Names in the bands; of a module's name the end, which tells it from its neighbours. */
function bandNames(picture, colours, names) {
  const trace = { type: "scatter", mode: "text", x: [], y: [], text: [], hoverinfo: "skip", cliponaxis: true, meta: { role: "band" }, textfont: { size: 9.5, family: FONT, color: colours.text } };
  for (const { bands, top, marks } of picture.bands) {
    for (const [index, { row }] of marks.entries()) {
      const [a, b] = widestGap(marks, index, picture.start, picture.end);
      const fits = Math.floor(((b - a) / picture.bin - 6) / CHARACTER_PX);
      if (fits < 4) continue;
      const name = names[bands.name[row]];
      trace.x.push((a + b) / 2);
      trace.y.push(top + BAND_UNITS / 2);
      trace.text.push(plotlyText(name.length > fits ? `…${name.slice(1 - fits)}` : name));
    }
  }
  return trace;
}

/** The tip on a band: `{lines}`, the name first; null where it is empty. */
function describeBand(timeline, { bands, marks }, time) {
  const mark = marks.findLast(({ from, to }) => from <= time && time < to);
  if (!mark) return null;
  const { row } = mark;
  const lines = [
    timeline.names[bands.name[row]],
    `${page.bandKinds[bands.kind[row]]} of rank ${bands.rank}, on its host: the device may be behind`,
    whenText(timeline, timeline.sets.find(({ group }) => group.rank === bands.rank).group, bands.start[row]),
    `lasts ${nsText(bands.end[row] - bands.start[row])}`,
  ];
  return { lines };
}

/** `, in backward of blocks.3.fc`: where a rank's host is at a time, as far as labels say. */
function bandText(timeline, rank, time) {
  const bands = timeline.bands.get(rank);
  if (!bands) return "";
  const { phase, module } = bands.at(time);
  const parts = [];
  if (phase >= 0) parts.push(`in ${timeline.names[bands.name[phase]]}`);
  if (module >= 0) parts.push(`${phase >= 0 ? "of" : "in"} ${timeline.names[bands.name[module]]}`);
  return parts.length ? `; its host is ${parts.join(" ")}` : "";
}
