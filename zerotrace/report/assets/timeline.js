// The timeline: keeps the picture true to the view, says in words what is drawn, and jumps between intervals.

const WIDE_SIDES = [MARGIN.l, MARGIN.r];

class Timeline {
  constructor({ groups, bands, names }) {
    this.names = names;
    this.bands = new Map(bands.map((found) => [found.rank, found]));
    this.sets = groups.map((group) => new LaneSet(group));
    this.view = new View(this.sets);
    this.byId = (name) => document.getElementById(`timeline-${name}`);
    this.box = this.byId("box");
    this.plot = this.byId("plot");
    this.current = this.sets[0].group;
    this.severalDevices = new Set(groups.map(({ rank }) => rank)).size < groups.length;
    this.drawn = Promise.resolve();
    this.view.addEventListener("change", () => this.redraw());
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
    };
    actions[action]?.();
    return action in actions;
  }

  /** To the next (1) or previous (-1) exposed interval of the current rank. */
  jump(direction) {
    const set = this.setOf(this.current);
    const lane = set.summary.find(({ role }) => role === "exposed");
    const segments = lane.busySegments();
    const status = this.byId("status");
    if (!segments.length) {
      status.textContent = `Rank ${set.group.rank} has no exposed communication.`;
      return;
    }
    // From the interval jumped to before, or from the window's border once that one was left behind.
    const seen = this.marked?.lane === lane && this.marked.to > this.view.start && this.marked.from < this.view.end;
    const from = seen ? this.marked.from : direction > 0 ? this.view.start - 1 : this.view.end;
    const index = direction > 0 ? upperBound(segments.start, from) : lowerBound(segments.start, from) - 1;
    if (index < 0 || index >= segments.length) {
      status.textContent = `No ${direction > 0 ? "later" : "earlier"} exposed interval on rank ${set.group.rank}.`;
      return;
    }
    const [start, end] = [segments.start[index], segments.end[index]];
    this.marked = { lane, from: start, to: end };
    const { longest } = longestRow(lane, start, end);
    const step = set.group.stepAt(start);
    const where = step ? `${shortTime(start - step.start_ns)} into ${step.step < 0 ? "the window" : `step ${step.step}`}` : "outside of all steps";
    const position = `${(index + 1).toLocaleString("en-US")} of ${segments.length.toLocaleString("en-US")}`;
    const name = shortName(this.names[set.group.name[longest]] ?? "");
    status.textContent = `Rank ${set.group.rank}, exposed interval ${position}: ${shortTime(end - start)}, ${where}; ${name}${bandText(this, set.group.rank, start)}`;
    this.view.reveal(set.group);
    this.#bringIntoView(start, end);
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
