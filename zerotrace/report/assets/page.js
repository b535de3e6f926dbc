// Puts the report to work: bars, timeline, the charts of its sections, and a small interface for tests and the console.

function connectKeyChoice() {
  document.addEventListener("keydown", (event) => {
    if (event.key === "?" && !document.querySelector("dialog[open]") && !event.target.closest?.("input, select, textarea")) {
      document.getElementById("keys").showModal();
    }
  });
  // Single-letter keys can be switched off: speech input may type letters (WCAG 2.1.4).
  const keys = document.getElementById("global-keys");
  try {
    keys.checked = localStorage.getItem("zerotrace-keys") !== "off";
    keys.addEventListener("change", () => localStorage.setItem("zerotrace-keys", keys.checked ? "on" : "off"));
  } catch {
    keys.checked = true;
  }
}

/** Links into the timeline: the hash moves it (see view.js), and here it comes into sight. */
function connectWindows() {
  for (const link of document.querySelectorAll("a[data-window]")) {
    link.addEventListener("click", () => {
      document.getElementById("timeline").scrollIntoView();
      document.getElementById("timeline-box")?.focus({ preventScroll: true });
    });
  }
}

async function startPage() {
  if (isTooOld()) return;
  let timeline = null;
  let map = null;
  const bars = document.getElementById("step-bars");
  const barsDrawn = () => bars?.classList.contains("js-plotly-plot");
  const onStep = ([rank, device, step]) => {
    if (!timeline || step === null) return;
    timeline.current = timeline.sets.find(({ group }) => group.rank === rank && group.device === device)?.group ?? timeline.current;
    timeline.view.reveal(timeline.current);
    const { start, end } = step < 0 ? timeline.view.extent : timeline.view.stepWindow(step);
    timeline.view.show(start, end);
    document.getElementById("timeline").scrollIntoView();
  };
  const repaint = () => {
    if (barsDrawn()) drawBars(bars, onStep);
    if (timeline?.started) timeline.redraw();
    if (map?.drawn) map.draw();
    repaintCharts();
  };
  connectPage(repaint);
  connectKeyChoice();
  connectWindows();

  const parts = [];
  if (bars) {
    parts.push(whenNear(bars, () => drawBars(bars, onStep)));
    new ResizeObserver(() => barsDrawn() && drawBars(bars, onStep)).observe(bars.parentElement);
  }
  if (page.timeline.num_intervals) {
    timeline = new Timeline(await readTimeline());
    parts.push(whenNear(timeline.box, () => timeline.redraw()));
  }
  const mapped = document.getElementById("rank-map");
  if (mapped) {
    map = new RankMap(mapped, await inflate("ranks-data"), onStep);
    parts.push(whenNear(mapped, () => map.draw()));
    new ResizeObserver(() => map.drawn && map.draw()).observe(mapped);
  }
  parts.push(...connectCharts());
  document.documentElement.classList.add("ready");
  return { timeline, map, all: Promise.all(parts) };
}

const started = startPage();

/**
 * For tests and the console. Times are nanoseconds from the start of the run; lanes are named
 * `rank/device/compute|overlapped|exposed|copy` or `rank/device/stream 7`, with `-` for the device of a host.
 */
window.zerotrace = {
  /** Resolves when the data are read and the page answers. */
  ready: started.then(() => true),
  /** Resolves when every figure that came into view is drawn. */
  drawn: async () => {
    const { timeline, all } = await started;
    await all;
    await timeline?.pending;
    await timeline?.drawn;
  },
  lanes: async () => (await started).timeline.sets.flatMap((set) => [...set.summary, ...set.single()].map((lane) => lane.key)),
  /** Exact busy time of a lane in [start, end), ns. */
  busy: async (key, start, end) => {
    const lanes = (await started).timeline.sets.flatMap((set) => [...set.summary, ...set.single()]);
    return lanes.find((lane) => lane.key === key).busySegments().busy(start, end);
  },
  window: async () => {
    const { view } = (await started).timeline;
    return { start: view.start, end: view.end };
  },
  show: async (start, end) => {
    const { timeline } = await started;
    timeline.view.show(start, end);
    await timeline.redraw();
  },
  /** The selection and its time by category on each rank shown, ns; null where nothing is selected. */
  selection: async () => {
    const { view } = (await started).timeline;
    if (!view.selection) return null;
    const { start, end } = view.selection;
    return { start, end, ranks: view.visibleSets().map((set) => ({ group: set.group.id, ...sumsOf(set, start, end) })) };
  },
  /** What is drawn: the mode, ns a bin, and for each lane its marks and the busy share of each bin. */
  picture: async () => {
    const { picture } = (await started).timeline;
    return {
      mode: picture.exact ? "exact" : "heat",
      bin: picture.bin,
      start: picture.start,
      total: picture.total,
      narrow: picture.narrow,
      bands: picture.bands.map(({ bands, label, marks }) => ({ rank: bands.rank, label, marks: marks.map(({ from, to, row }) => ({ from, to, kind: page.bandKinds[bands.kind[row]] })) })),
      lanes: Object.fromEntries(picture.rows.map(({ lane, marks, heat }) => [lane.key, { marks, share: Array.from(heat.share), touched: Array.from(heat.touched) }])),
    };
  },
  /** What the map of many ranks draws: for each figure and step the rank that stands in each column of pixels. */
  ranks: async () => {
    const { map } = await started;
    const drawn = [...map.figures].map(([name, figure]) => [name, map.steps.map((_, line) => Array.from({ length: map.bins }, (_, k) => map.ranks[figure.furthest(line, ...map.columns(k))] ?? null))]);
    return { steps: map.steps, drawn: Object.fromEntries(drawn) };
  },
  ranksCsv: async () => (await started).map.ranksCsv(),
  rankStepsCsv: async () => (await started).map.stepsCsv(),
  tableCsv,
};
