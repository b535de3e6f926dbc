// What is marked on top of the picture: the members of one collective with a line that joins them, the gather jumped to
// with its need, and the selection. Outlines alone: nothing is covered, and no interval looks longer than it is.

const SVG = "http://www.w3.org/2000/svg";

class Marks {
  constructor(timeline) {
    this.timeline = timeline;
    this.svg = timeline.byId("marks");
  }

  draw() {
    const { timeline, svg } = this;
    svg.replaceChildren();
    if (!timeline.picture) return;
    this.#selection();
    const { marked } = timeline;
    const pointed = timeline.pointed ?? (marked?.row >= 0 ? marked : null);
    if (pointed) this.#meeting(pointed);
    if (marked?.kind === "gather") this.#gather(marked);
  }

  #add(name, attributes) {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
    this.svg.append(element);
    return element;
  }

  /** Pixel of a time, at the border where it is outside of the window. */
  #x(time) {
    const { view, width } = this.timeline;
    return MARGIN.l + Math.max(0, Math.min(1, (time - view.start) / view.span)) * width;
  }

  #y(unit) {
    return MARGIN.t + unit * UNIT_PX;
  }

  /** The lanes of a group on which its communication can be seen; neighbours are one: `[{top, bottom}]` in pixels. */
  #commLanes(group, lane) {
    const boxes = [];
    for (const row of this.timeline.picture.rows) {
      const role = row.lane.role ?? null;
      const shown = row.lane.group === group && (role === null ? row.lane.index === lane : role === "overlapped" || role === "exposed");
      if (!shown) continue;
      const [top, bottom] = [this.#y(row.top) - 2, this.#y(row.top + LANE_UNITS) + 2];
      if (boxes.length && top - boxes.at(-1).bottom <= UNIT_PX) boxes.at(-1).bottom = bottom;
      else boxes.push({ top, bottom });
    }
    return boxes;
  }

  #outline(boxes, start, end, name) {
    const { view } = this.timeline;
    if (end < view.start || start > view.end) return;
    for (const { top, bottom } of boxes) {
      this.#add("rect", { class: name, x: this.#x(start) - 1, y: top, width: this.#x(end) - this.#x(start) + 2, height: bottom - top, rx: 2 });
    }
  }

  /** The members on all shown ranks; the line goes from start to start, so that its slope is the skew. */
  #meeting({ group, row }) {
    const shown = new Set(this.timeline.picture.groups.map(({ set }) => set.group));
    const members = (this.timeline.meetings?.members(group, row) ?? []).filter((member) => shown.has(member.group));
    let before = null;
    for (const member of members) {
      const [start, end] = [member.group.start[member.row], member.group.end[member.row]];
      const boxes = this.#commLanes(member.group, member.group.lane[member.row]);
      if (!boxes.length) continue;
      this.#outline(boxes, start, end, "member");
      const here = { x: this.#x(start), top: boxes[0].top, bottom: boxes.at(-1).bottom };
      if (before) this.#add("line", { class: "join", x1: before.x, y1: before.bottom, x2: here.x, y2: here.top });
      before = here;
    }
  }

  #gather({ group, from, to, need }) {
    const boxes = this.#commLanes(group, -1);
    if (!boxes.length) return;
    this.#outline(boxes, from, to, "member");
    const { view } = this.timeline;
    if (need === null || need < view.start || need > view.end) return;
    const compute = this.timeline.picture.rows.find(({ lane }) => lane.group === group && lane.role === "compute");
    const top = compute ? this.#y(compute.top) - 4 : boxes[0].top - 4;
    this.#add("line", { class: "need", x1: this.#x(need), x2: this.#x(need), y1: top, y2: boxes.at(-1).bottom + 2 });
    this.#add("text", { class: "need-text", x: this.#x(need) + 3, y: boxes.at(-1).bottom + 2 }).textContent = "need";
  }

  #selection() {
    const { selection, start: low, end: high } = this.timeline.view;
    if (!selection || selection.end < low || selection.start > high) return;
    const [a, b] = [this.#x(selection.start), this.#x(selection.end)];
    const height = this.#y(this.timeline.picture.height);
    this.#add("rect", { class: "chosen", x: a, y: MARGIN.t, width: b - a, height: height - MARGIN.t });
    for (const [time, x] of [[selection.start, a], [selection.end, b]]) {
      if (time >= low && time <= high) this.#add("line", { class: "chosen-border", x1: x, x2: x, y1: MARGIN.t, y2: height });
    }
  }
}
