// How one handles the timeline: toolbar, keys, pointer.

class Toolbar {
  constructor(timeline) {
    this.timeline = timeline;
    this.#fill();
  }

  /** Shows in the fields what the view is now, however it came to be so. */
  follow() {
    const { view, byId } = this.timeline;
    const steps = byId("step");
    const shown = [...steps.options].findIndex(({ value }) => {
      const [start, end] = value.split(",").map(Number);
      return value && start === view.start && end === view.end;
    });
    steps.selectedIndex = Math.max(0, shown);
    if (byId("lanes").value !== view.lanes) {
      byId("lanes").value = view.lanes;
      this.#fillRanks();
    }
    byId("ranks").value = String(view.page);
    byId("measure").setAttribute("aria-pressed", String(this.timeline.measuring));
  }

  #fill() {
    const { view, sets } = this.timeline;
    const option = (text, value) => new Option(text, value);
    const border = ({ start, end }) => `${start},${end}`;
    const steps = this.timeline.byId("step");
    steps.append(option("as drawn", ""), option("whole run", border(view.extent)));
    for (const step of view.steps()) steps.append(option(`step ${step}`, border(view.stepWindow(step))));
    steps.addEventListener("change", () => steps.value && view.show(...steps.value.split(",").map(Number)));
    const lanes = this.timeline.byId("lanes");
    lanes.append(option("all", "all"));
    for (const { role, label } of sets[0].summary) lanes.append(option(`${label}, all ranks`, role));
    lanes.addEventListener("change", () => {
      view.choose({ lanes: lanes.value });
      this.#fillRanks();
    });
    this.timeline.byId("ranks").addEventListener("change", (event) => view.choose({ page: Number(event.target.value) }));
    this.#fillRanks();
    for (const button of document.querySelectorAll("[data-action]:not([data-action=clear])")) {
      button.addEventListener("click", () => this.timeline.act(button.dataset.action));
    }
  }

  #fillRanks() {
    const size = this.timeline.view.groupsPerPage();
    const pages = Math.ceil(this.timeline.sets.length / size);
    this.timeline.byId("ranks-label").hidden = pages < 2;
    const name = (index) => this.timeline.sets[Math.min(index, this.timeline.sets.length - 1)].group.rank;
    const options = Array.from({ length: pages }, (_, k) => new Option(`${name(k * size)} to ${name(k * size + size - 1)}`, String(k)));
    this.timeline.byId("ranks").replaceChildren(...options);
    this.timeline.byId("ranks").value = String(this.timeline.view.page);
  }
}

/** Letters work on the whole page unless switched off, arrows where the timeline has the focus. */
function connectKeys(timeline) {
  // With shift: backwards.
  const shifted = { g: "previousLate", c: "previousCollective" };
  const letters = { g: "nextLate", c: "nextCollective", m: "measure", a: "left", d: "right", w: "in", s: "out", ".": "next", ",": "previous", 0: "home" };
  const arrows = { ArrowLeft: "left", ArrowRight: "right", ArrowUp: "in", ArrowDown: "out", Home: "home" };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const inside = timeline.box.contains(event.target);
    // A letter typed into a field, or one that picks an option, is not for us.
    const free = inside || (document.getElementById("global-keys").checked && !event.target.closest?.("input, select, textarea, [contenteditable]"));
    if (event.key === "Escape" && (inside || timeline.pointer.showsTip()) && timeline.act("escape")) return;
    const letter = event.key.toLowerCase();
    const action = (free && ((event.shiftKey && shifted[letter]) || letters[letter])) || (inside && arrows[event.key]);
    if (action && timeline.act(action)) event.preventDefault();
  });
}

/** How far a finger or a pointer may slip in a tap. */
const TAP_PX = 6;

class Pointer {
  constructor(timeline) {
    this.timeline = timeline;
    this.#listen();
  }

  #timeAt(event) {
    const x = event.clientX - this.timeline.box.getBoundingClientRect().left - MARGIN.l;
    return this.timeline.view.start + (Math.max(0, Math.min(x, this.timeline.width)) / this.timeline.width) * this.timeline.view.span;
  }

  #listen() {
    const { box, view } = this.timeline;
    let drag = null;
    box.addEventListener("pointerdown", (event) => {
      this.hideTip();
      // A second finger pinches: that is the browser's to zoom the page with.
      if (!event.isPrimary || event.button !== 0 || event.target.closest("button") || !this.timeline.picture) return;
      const measure = event.altKey || this.timeline.measuring;
      const pan = !measure && (event.shiftKey || event.pointerType === "touch");
      drag = { measure, x: event.clientX, time: this.#timeAt(event), pan, start: view.start, end: view.end };
      box.setPointerCapture(event.pointerId);
      this.#chooseGroup(event);
    });
    box.addEventListener("pointermove", (event) => {
      if (!event.isPrimary) return;
      if (!drag) {
        this.#showTip(event);
        return;
      }
      this.hideTip();
      const moved = event.clientX - drag.x;
      if (drag.pan) {
        if (event.pointerType === "touch" && !drag.moving && Math.abs(moved) <= TAP_PX) return;
        drag.moving = true;
        const shift = (moved / this.timeline.width) * (drag.end - drag.start);
        view.show(drag.start - shift, drag.end - shift);
      } else if (Math.abs(moved) > 3) {
        this.#showBrush(drag.time, this.#timeAt(event));
      }
    });
    const finish = (event) => {
      if (!drag || !event.isPrimary) return;
      const still = event.type === "pointerup" && Math.abs(event.clientX - drag.x) <= TAP_PX;
      const [a, b] = [drag.time, this.#timeAt(event)].sort((x, y) => x - y);
      const zoomed = !drag.pan && event.type === "pointerup" && Math.abs(event.clientX - drag.x) > 3;
      const { measure } = drag;
      drag = null;
      this.timeline.byId("brush").hidden = true;
      if (zoomed && measure) this.timeline.select(a, b);
      else if (zoomed) view.show(a, b);
      if (still && event.pointerType === "touch") this.#showTip(event);
    };
    box.addEventListener("pointerup", finish);
    box.addEventListener("pointercancel", finish);
    // A finger leaves when it is lifted: what its tap showed stays until the next touch, or until the page scrolls.
    box.addEventListener("pointerleave", (event) => event.pointerType === "touch" || this.hideTip());
    document.addEventListener("pointerdown", (event) => box.contains(event.target) || this.hideTip());
    window.addEventListener("scroll", () => this.hideTip(), { passive: true });
    box.addEventListener("dblclick", (event) => event.target.closest("button") || view.home());
    box.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
  }

  /** Only with ctrl (a pinch on a trackpad counts as such), or sideways: else the page scrolls, as it should. */
  #wheel(event) {
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : Math.abs(event.deltaX) > Math.abs(event.deltaY) ? event.deltaX : 0;
    if (event.ctrlKey || event.metaKey) this.timeline.view.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.006), this.#timeAt(event));
    else if (sideways) this.#moveBy((sideways / this.timeline.width) * this.timeline.view.span);
    else return;
    event.preventDefault();
  }

  /** Moves by whole nanoseconds; what is left over counts with the next turn of the wheel. */
  #moveBy(time) {
    const { view } = this.timeline;
    this.rest = (this.rest ?? 0) + time;
    const whole = Math.trunc(this.rest);
    this.rest -= whole;
    view.show(view.start + whole, view.end + whole);
  }

  #showBrush(a, b) {
    const pixel = (time) => MARGIN.l + ((time - this.timeline.view.start) / this.timeline.view.span) * this.timeline.width;
    const brush = this.timeline.byId("brush");
    brush.hidden = false;
    brush.style.left = `${pixel(Math.min(a, b))}px`;
    brush.style.width = `${Math.abs(pixel(b) - pixel(a))}px`;
  }

  #rowAt(event) {
    const unit = (event.clientY - this.timeline.box.getBoundingClientRect().top - MARGIN.t) / UNIT_PX;
    return this.timeline.picture.rows.find(({ top }) => unit >= top - 0.5 && unit < top + LANE_UNITS + 0.5);
  }

  #bandAt(event) {
    const unit = (event.clientY - this.timeline.box.getBoundingClientRect().top - MARGIN.t) / UNIT_PX;
    return this.timeline.picture.bands.find(({ top }) => unit >= top && unit < top + BAND_UNITS);
  }

  #chooseGroup(event) {
    const row = this.#rowAt(event);
    if (row) this.timeline.choose(row.lane.group);
  }

  showsTip() {
    return !this.timeline.byId("tip").hidden;
  }

  hideTip() {
    this.timeline.byId("tip").hidden = true;
    this.timeline.byId("hair").hidden = true;
    if (!this.timeline.pointed) return;
    this.timeline.pointed = null;
    this.timeline.marks.draw();
  }

  #describe(event) {
    const [row, time] = [this.#rowAt(event), this.#timeAt(event)];
    if (row) return describePlace(this.timeline, row.lane, time);
    const band = this.#bandAt(event);
    return band ? describeBand(this.timeline, band, time) : null;
  }

  #showTip(event) {
    if (!this.timeline.picture) return;
    const x = event.clientX - this.timeline.box.getBoundingClientRect().left - MARGIN.l;
    const found = x >= 0 && x <= this.timeline.width ? this.#describe(event) : null;
    if (!found) {
      this.hideTip();
      return;
    }
    this.timeline.pointed = found.row >= 0 && found.group.meeting[found.row] ? found : null;
    this.timeline.marks.draw();
    const hair = this.timeline.byId("hair");
    hair.hidden = false;
    hair.style.left = `${MARGIN.l + x}px`;
    this.#place(found.lines, event.clientX, event.clientY);
  }

  /** The tip below the lanes at a time, without a pointer; not where the chart is out of sight. */
  showAt(lines, time) {
    const box = this.timeline.box.getBoundingClientRect();
    if (box.bottom < 40 || box.top > innerHeight - 40) return;
    const x = box.left + MARGIN.l + ((time - this.timeline.view.start) / this.timeline.view.span) * this.timeline.width;
    this.#place(lines, x, box.top + MARGIN.t + this.timeline.picture.height * UNIT_PX - 12);
  }

  #place(lines, left, top) {
    const tip = this.timeline.byId("tip");
    tip.replaceChildren(
      ...lines.map((line, index) => {
        const element = document.createElement(index ? "span" : "b");
        element.textContent = line;
        return element;
      }),
    );
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const right = left + 16 + width < innerWidth;
    tip.style.left = `${Math.max(8, right ? left + 16 : left - 16 - width)}px`;
    tip.style.top = `${Math.max(8, Math.min(top + 18, innerHeight - height - 8))}px`;
  }
}
