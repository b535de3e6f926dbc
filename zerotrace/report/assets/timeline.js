// The timeline: keeps the picture true to the view, says in words what is drawn, and jumps between intervals.

const WIDE_SIDES = [MARGIN.l, MARGIN.r];

class Timeline {
  constructor({ groups, bands, meetings, late, names }) {
    this.names = names;
    this.meetings = meetings;
    this.late = late;
    this.measuring = false;
    this.bands = new Map(bands.map((found) => [found.rank, found]));
    this.sets = groups.map((group) => new LaneSet(group));
    this.view = new View(this.sets);
    this.byId = (name) => document.getElementById(`timeline-${name}`);
    this.box = this.byId("box");
    this.plot = this.byId("plot");
    this.current = this.sets[0].group;
    this.severalDevices = new Set(groups.map(({ rank }) => rank)).size < groups.length;
    this.drawn = Promise.resolve();
    this.view.addEventListener("change", () => {
      this.pointer.hideTip();
      this.redraw();
    });
    this.marks = new Marks(this);
    this.selection = new Selection(this);
    this.toolbar = new Toolbar(this);
    this.pointer = new Pointer(this);
    connectKeys(this);
    this.byId("details").addEventListener("toggle", () => this.#fillTable());
    new ResizeObserver(() => this.width !== this.#measuredWidth() && this.started && this.redraw()).observe(this.box);
  }

  /** The lanes of a group. */
  setOf(group) {
    return this.sets.find((set) => set.group === group);
  }

  #measuredWidth() {
    return Math.max(this.box.clientWidth, MIN_WIDTH) - MARGIN.l - MARGIN.r;
  }

  /** Draws in the next frame; many calls before it are one. Resolves when the newest picture stands. */
  redraw() {
    this.started = true;
    this.pending ??= new Promise((resolve) => {
      // A page in the background gets no frames, and must be ready all the same.
      (document.hidden ? setTimeout : requestAnimationFrame)(async () => {
        await this.drawn;
        this.pending = null;
        this.drawn = this.#draw();
        resolve(this.drawn);
      });
    });
    return this.pending;
  }

  async #draw() {
    await startPlotly();
    const narrow = this.box.clientWidth < NARROW.below && !this.severalDevices;
    this.box.classList.toggle("narrow", narrow);
    [MARGIN.l, MARGIN.r] = narrow ? [NARROW.l, NARROW.r] : WIDE_SIDES;
    this.byId("labels").style.width = `${MARGIN.l}px`;
    this.width = this.#measuredWidth();
    this.picture = pictureOf(this.view, this.width, this.bands, this.current);
    await drawTimeline(this.plot, this.view, this.picture, this.width, this.names, this.marked);
    this.placeLabels();
    this.marks.draw();
    this.selection.follow();
    this.#say();
    this.#fillTable();
  }

  #say() {
    const { picture } = this;
    const count = picture.total.toLocaleString("en-US");
    const lanes = `${picture.rows.length.toLocaleString("en-US")} ${picture.rows.length === 1 ? "lane" : "lanes"}`;
    const narrow = picture.narrow ? `, of which ${picture.narrow.toLocaleString("en-US")} narrower than a pixel show as a shade` : "";
    this.byId("mode").textContent = picture.exact
      ? `Single intervals: ${count} on ${lanes} in this window${narrow}.`
      : `Busy share per ${shortTime(picture.bin)}; ${count} intervals on ${lanes} in this window, zoom in for single ones.`;
    this.plot.dataset.mode = picture.exact ? "exact" : "heat";
    const { step } = rulerOrigin(this.view);
    const title = this.byId("title");
    title.textContent = step === null || step < 0 ? "Timeline" : `Timeline, step ${step}`;
    this.toolbar.follow();
  }

  /** Makes a group the one that keys are for. */
  choose(group) {
    if (group === this.current) return;
    this.current = group;
    // With one lane a rank the bands are those of the current one.
    if (this.view.lanes !== "all" && this.bands.size) this.redraw();
    else this.placeLabels();
  }

  /** Names of ranks and lanes, as HTML beside the figure: the ranks are buttons that open their streams. */
  placeLabels() {
    const labels = this.byId("labels");
    const focused = document.activeElement?.dataset?.group;
    labels.replaceChildren();
    const { severalDevices } = this;
    const place = (element, unit) => {
      element.style.top = `${MARGIN.t + unit * UNIT_PX}px`;
      labels.append(element);
    };
    for (const { set, top } of this.picture.groups) {
      const { group } = set;
      const owner = document.createElement("button");
      const open = this.view.opened.has(group.id);
      owner.type = "button";
      owner.className = group === this.current && this.sets.length > 1 ? "owner current" : "owner";
      owner.dataset.group = group.id;
      owner.textContent = severalDevices ? `rank ${group.rank}, dev ${group.device}` : `rank ${group.rank}`;
      owner.title = `${open ? "Hide" : "Show"} each ${group.device === null ? "thread" : "stream"} of rank ${group.rank}`;
      owner.setAttribute("aria-expanded", String(open));
      owner.addEventListener("click", () => {
        this.current = group;
        this.view.toggle(group.id);
      });
      place(owner, top + LANE_UNITS / 2);
      if (group.id === focused) owner.focus();
    }
    for (const { bands, label: text, top } of this.picture.bands) {
      const label = document.createElement("span");
      label.className = "band";
      label.textContent = this.view.lanes === "all" ? text : `${text}, rank ${bands.rank}`;
      place(label, top + BAND_UNITS / 2);
    }
    for (const { lane, top } of this.picture.rows) {
      const single = this.view.lanes !== "all" && lane instanceof SummaryLane;
      // One lane a rank: the rank's own label stands there, and the toolbar says which lane it is.
      if (single && severalDevices) continue;
      const label = document.createElement("span");
      label.className = "lane";
      label.textContent = lane.label;
      place(label, top + LANE_UNITS / 2);
    }
  }

  #fillTable() {
    if (!this.byId("details").open || !this.picture) return;
    const { start, end } = this.view;
    const rows = this.picture.rows.map(({ lane }) => {
      const busy = lane.busySegments().busy(start, end);
      const cells = [
        [lane.group.rank, lane.group.rank],
        [lane.group.device ?? "", lane.group.device ?? "–"],
        [lane.label, lane.label],
        [busy, (busy / 1e6).toLocaleString("en-US", { minimumFractionDigits: 3, maximumFractionDigits: 3 })],
        [busy / (end - start), percentText(busy / (end - start))],
        [lane.numMarks(start, end), lane.numMarks(start, end).toLocaleString("en-US")],
      ];
      const row = document.createElement("tr");
      row.dataset.lane = lane.key;
      for (const [value, text] of cells) {
        const data = document.createElement("data");
        data.value = String(value);
        data.textContent = String(text);
        const cell = document.createElement("td");
        cell.append(data);
        row.append(cell);
      }
      return row;
    });
    document.querySelector("#lane-table tbody").replaceChildren(...rows);
  }

  /** Everything that a key or a button can do; false for an unknown one. */
  act(action) {
    const actions = {
      left: () => this.view.move(-0.2),
      right: () => this.view.move(0.2),
      in: () => this.view.zoom(1 / 1.5),
      out: () => this.view.zoom(1.5),
      home: () => this.view.home(),
      next: () => this.jump(1),
      previous: () => this.jump(-1),
      nextLate: () => this.jumpLate(1),
      previousLate: () => this.jumpLate(-1),
      nextCollective: () => this.jumpCollective(1),
      previousCollective: () => this.jumpCollective(-1),
      // What the keyboard measures is what one sees; a pointer drags from border to border.
      measure: () => this.select(this.view.start, this.view.end),
      toggleMeasure: () => {
        this.measuring = !this.measuring;
        this.toolbar.follow();
      },
      clear: () => this.clear(),
      escape: () => this.escape(),
    };
    actions[action]?.();
    return action in actions;
  }

  /**
   * Which of the intervals of the current rank comes next (1) or before (-1): from the one jumped to before, or from the
   * window's border once that one was left behind. Null where there is none; the status then says `none`.
   */
  #pick(kind, starts, direction, none, noun) {
    const { view, marked, current } = this;
    const status = this.byId("status");
    if (!starts.length) {
      status.textContent = none;
      return null;
    }
    const seen = marked?.kind === kind && marked.group === current && marked.to > view.start && marked.from < view.end;
    const border = direction > 0 ? lowerBound(starts, view.start) : lowerBound(starts, view.end) - 1;
    const index = seen ? marked.index + direction : border;
    if (index >= 0 && index < starts.length) return index;
    status.textContent = `No ${direction > 0 ? "later" : "earlier"} ${noun} on rank ${current.rank}.`;
    return null;
  }

  #whereText(group, start) {
    const step = group.stepAt(start);
    return step ? `${shortTime(start - step.start_ns)} into ${step.step < 0 ? "the window" : `step ${step.step}`}` : "outside of all steps";
  }

  /** Goes to what was picked, marks it, says it, and shows its tip if it has one. */
  #goTo(marked, words, lines = null) {
    this.marked = marked;
    this.pointer.hideTip();
    this.byId("status").textContent = words;
    this.view.reveal(marked.group);
    this.#bringIntoView(marked.from, marked.to);
    if (lines) this.redraw().then(() => this.marked === marked && this.pointer.showAt(lines, (Math.max(marked.from, this.view.start) + Math.min(marked.to, this.view.end)) / 2));
  }

  /** To the next (1) or previous (-1) exposed interval of the current rank. */
  jump(direction) {
    const set = this.setOf(this.current);
    const { group } = set;
    const lane = set.summary.find(({ role }) => role === "exposed");
    const segments = lane.busySegments();
    const index = this.#pick("exposed", segments.start, direction, `Rank ${group.rank} has no exposed communication.`, "exposed interval");
    if (index === null) return;
    const [start, end] = [segments.start[index], segments.end[index]];
    const { longest } = longestRow(lane, start, end);
    const position = `${(index + 1).toLocaleString("en-US")} of ${segments.length.toLocaleString("en-US")}`;
    const name = shortName(this.names[group.name[longest]] ?? "");
    const words = `Rank ${group.rank}, exposed interval ${position}: ${shortTime(end - start)}, ${this.#whereText(group, start)}; ${name}${bandText(this, group.rank, start)}`;
    this.#goTo({ kind: "exposed", group, lane, index, from: start, to: end }, words);
  }

  /** To the next or previous collective of the current rank that was found on other ranks too. */
  jumpCollective(direction) {
    const set = this.setOf(this.current);
    const { group } = set;
    const rows = set.matched();
    const index = this.#pick("collective", rows.map((row) => group.start[row]), direction, `Rank ${group.rank} has no collective that was found on other ranks.`, "collective");
    if (index === null) return;
    const row = rows[index];
    const lines = [this.names[group.name[row]] || "(no name)", ...describeRow(this, group, row)];
    const words = `Rank ${group.rank}, collective ${(index + 1).toLocaleString("en-US")} of ${rows.length.toLocaleString("en-US")}: ${lines.slice(2).join("; ")}`;
    this.#goTo({ kind: "collective", group, row, index, from: group.start[row], to: group.end[row] }, words, lines);
  }

  /** To the next or previous prefetch of the current rank that holds compute back. */
  jumpLate(direction) {
    const group = this.current;
    const gathers = lateGathers(this, group);
    const none = page.timeline.num_late === null ? page.timeline.late_note : `Rank ${group.rank} ${page.timeline.late_note}`;
    const index = this.#pick("gather", gathers.map(({ from }) => from), direction, none, "late gather");
    if (index === null) return;
    const gather = gathers[index];
    const lines = describeGather(this, group, gather);
    const words = `Rank ${group.rank}, late gather ${(index + 1).toLocaleString("en-US")} of ${gathers.length.toLocaleString("en-US")}: ${lines.join("; ")}`;
    this.#goTo({ kind: "gather", group, index, from: gather.from, to: gather.to, need: gather.need }, words, lines);
  }

  /** Selects a window and says what is in it. */
  select(from, to) {
    this.view.select(from, to);
    if (this.view.selection) this.byId("status").textContent = this.selection.words();
  }

  /** Takes away what is marked: first the tip and its collective, then the selection. */
  escape() {
    const marked = this.pointer.showsTip() || this.marked;
    this.pointer.hideTip();
    this.marked = null;
    this.measuring = false;
    if (marked) this.redraw();
    else this.clear();
  }

  clear() {
    this.view.select(NaN, NaN);
    this.byId("status").textContent = "Nothing is selected.";
    this.box.focus({ preventScroll: true });
  }

  /** Moves so that the interval can be read: at least some pixels wide, with room on both sides. */
  #bringIntoView(start, end) {
    const { view } = this;
    const width = end - start;
    const legible = width >= view.span / 60 && width <= view.span * 0.7;
    const span = legible ? view.span : Math.max(width * 6, 2000);
    const inside = legible && start >= view.start && end <= view.end;
    if (inside) this.redraw();
    else view.show((start + end - span) / 2, (start + end + span) / 2);
  }
}
