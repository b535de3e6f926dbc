// Puts the page to work: theme, dialogs, figures when they come into view, and a small interface for tests and the console.

/** Runs `draw` once the element is near the window, or at once if the page is printed first. */
function whenNear(element, draw) {
  return new Promise((resolve, reject) => {
    const start = lazily(() => Promise.resolve(draw()).then(resolve, reject));
    const observer = new IntersectionObserver(
      (entries) => entries.some((entry) => entry.isIntersecting) && (observer.disconnect(), start()),
      { rootMargin: "300px" },
    );
    observer.observe(element);
    window.addEventListener("beforeprint", start);
  });
}

function connectTheme(repaint) {
  const button = document.getElementById("theme-toggle");
  const say = () => button.setAttribute("aria-pressed", String(themeName() === "dark"));
  button.addEventListener("click", () => {
    const next = themeName() === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("zerotrace-theme", next);
    } catch {
      // The choice then lasts as long as the page.
    }
    say();
    repaint();
  });
  const followSystem = () => document.documentElement.dataset.theme || (say(), repaint());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", followSystem);
  matchMedia("print").addEventListener("change", repaint);
  say();
}

function connectDialogs() {
  const open = (id) => document.getElementById(id).showModal();
  for (const button of document.querySelectorAll("[data-dialog]")) button.addEventListener("click", () => open(button.dataset.dialog));
  for (const dialog of document.querySelectorAll("dialog")) {
    // A click beside the dialog closes it.
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  }
  document.addEventListener("keydown", (event) => {
    if (event.key === "?" && !document.querySelector("dialog[open]") && !event.target.closest?.("input, select, textarea")) open("keys");
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

/**
 * Boxes that scroll: those that hide something say so, by a fade where it goes on and, sideways, by a line above. The
 * fade also tells that a table goes on below, where its last row in sight would look cut off.
 */
function connectScroll() {
  for (const box of document.querySelectorAll(".scroll")) {
    const hint = document.createElement("p");
    hint.className = "scroll-hint";
    hint.textContent = "Wider than the page: scroll it sideways →";
    hint.hidden = true;
    box.before(hint);
    const look = () => {
      const right = box.scrollWidth - box.clientWidth;
      const below = box.scrollHeight - box.clientHeight;
      hint.hidden = right <= 1;
      box.classList.toggle("more-left", box.scrollLeft > 1);
      box.classList.toggle("more-right", right - box.scrollLeft > 1);
      box.classList.toggle("more-below", below - box.scrollTop > 1);
    };
    box.addEventListener("scroll", look, { passive: true });
    const observer = new ResizeObserver(look);
    observer.observe(box);
    for (const child of box.children) observer.observe(child);
  }
}

function connectPrint() {
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("main details:not([open])")];
    for (const element of opened) element.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const element of opened) element.open = false;
  });
}

async function startPage() {
  if (typeof DecompressionStream === "undefined") {
    const note = document.createElement("p");
    note.className = "banner";
    note.textContent = "This browser is too old for the figures (it lacks DecompressionStream); their numbers are in the tables.";
    document.querySelector("main").prepend(note);
    // Nothing that would wait for a figure for ever.
    document.documentElement.classList.remove("scripted");
    return;
  }
  let timeline = null;
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
    repaintCharts();
  };
  connectTheme(repaint);
  connectDialogs();
  connectTables();
  connectPrint();
  connectScroll();
  connectWindows();

  const parts = [];
  if (bars) {
    parts.push(whenNear(bars, () => drawBars(bars, onStep)));
    new ResizeObserver(() => barsDrawn() && drawBars(bars, onStep)).observe(bars.parentElement);
  }
  if (page.timeline.num_intervals) {
    const { groups, names } = await readTimeline();
    timeline = new Timeline(groups, names);
    parts.push(whenNear(timeline.box, () => timeline.redraw()));
  }
  parts.push(...connectCharts());
  document.documentElement.classList.add("ready");
  return { timeline, all: Promise.all(parts) };
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
  /** What is drawn: the mode, ns a bin, and for each lane its marks and the busy share of each bin. */
  picture: async () => {
    const { picture } = (await started).timeline;
    return {
      mode: picture.exact ? "exact" : "heat",
      bin: picture.bin,
      start: picture.start,
      total: picture.total,
      narrow: picture.narrow,
      lanes: Object.fromEntries(picture.rows.map(({ lane, marks, heat }) => [lane.key, { marks, share: Array.from(heat.share), touched: Array.from(heat.touched) }])),
    };
  },
  tableCsv,
};
