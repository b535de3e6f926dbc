// What of the timeline one looks at: the window, which ranks and lanes, which groups are opened. The URL's hash
// holds it, so that a link, a reload and the back button all lead to the same picture.

const GROUPS_PER_PAGE = 8;
const SINGLE_LANES_PER_PAGE = 64;
const MIN_SPAN_NS = 20;
const MOVEMENT_PAUSE_MS = 600;
const HASH_PAUSE_MS = 150;

class View extends EventTarget {
  constructor(sets) {
    super();
    this.sets = sets;
    const windows = page.timeline.windows;
    this.extent = { start: Infinity, end: -Infinity };
    for (const { group } of sets) {
      this.extent.start = Math.min(this.extent.start, group.start[0]);
      for (const end of group.end) if (end > this.extent.end) this.extent.end = end;
    }
    for (const { start_ns, end_ns } of windows) {
      this.extent.start = Math.min(this.extent.start, start_ns);
      this.extent.end = Math.max(this.extent.end, end_ns);
    }
    if (this.extent.end <= this.extent.start) this.extent.end = this.extent.start + MIN_SPAN_NS;
    this.lanes = sets.length > GROUPS_PER_PAGE ? "exposed" : "all";
    this.page = 0;
    this.opened = new Set();
    this.selection = null;
    const steps = this.steps();
    this.first = steps.length ? this.stepWindow(steps[0]) : { ...this.extent };
    this.start = this.first.start;
    this.end = this.first.end;
    this.lastChange = -Infinity;
    this.#readHash();
    window.addEventListener("popstate", () => {
      clearTimeout(this.timer);
      this.timer = undefined;
      // Back before the first movement: there is no hash yet.
      if (!location.hash) Object.assign(this, { start: this.first.start, end: this.first.end, selection: null });
      if (!location.hash || this.#readHash()) this.#changed(false);
    });
  }

  get span() {
    return this.end - this.start;
  }

  /** Numbers of the steps, in order. */
  steps() {
    const numbers = [...new Set(page.timeline.windows.map((window) => window.step))].filter((step) => step >= 0);
    return numbers.sort((a, b) => a - b);
  }

  /** From the first rank's start of a step to the last rank's end. */
  stepWindow(step) {
    const windows = page.timeline.windows.filter((window) => window.step === step);
    return {
      start: Math.min(...windows.map((window) => window.start_ns)),
      end: Math.max(...windows.map((window) => window.end_ns)),
    };
  }

  groupsPerPage() {
    return this.lanes === "all" ? GROUPS_PER_PAGE : SINGLE_LANES_PER_PAGE;
  }

  visibleSets() {
    const from = this.page * this.groupsPerPage();
    return this.sets.slice(from, from + this.groupsPerPage());
  }

  /** Lanes from the top, each set with its own. */
  visibleLanes() {
    return this.visibleSets().map((set) => {
      const summary = this.lanes === "all" ? set.summary : set.summary.filter((lane) => lane.role === this.lanes);
      return { set, lanes: this.opened.has(set.group.id) ? [...summary, ...set.single()] : summary };
    });
  }

  /** Looks at [start, end). Borders are whole nanoseconds, here and so in the hash, the table and the CSV. */
  show(from, to) {
    const [start, end] = [Math.round(from), Math.round(to)];
    const full = this.extent.end - this.extent.start;
    // Some room around the run, so that its borders can be seen.
    const span = Math.round(Math.min(Math.max(end - start, MIN_SPAN_NS), full * 1.1));
    const wished = span === end - start ? start : Math.round((start + end - span) / 2);
    const half = Math.floor(span / 2);
    const low = Math.max(this.extent.start - half, Math.min(wished, this.extent.end - half));
    if (low === this.start && low + span === this.end) return;
    this.start = low;
    this.end = low + span;
    this.#changed(true);
  }

  move(fraction) {
    this.show(this.start + fraction * this.span, this.end + fraction * this.span);
  }

  /** Zooms by `factor` (< 1: in); the time `anchor` stays where it is. */
  zoom(factor, anchor = (this.start + this.end) / 2) {
    this.show(anchor - (anchor - this.start) * factor, anchor + (this.end - anchor) * factor);
  }

  home() {
    this.show(this.first.start, this.first.end);
  }

  toggle(id) {
    if (!this.opened.delete(id)) this.opened.add(id);
    this.#changed(true);
  }

  /** Selects [from, to), in whole nanoseconds inside of the run; without arguments nothing. */
  select(from, to) {
    const had = this.selection;
    this.selection = this.#asSelection(from, to);
    if (had !== this.selection) this.#changed(true);
  }

  #asSelection(from, to) {
    const start = Math.max(this.extent.start, Math.round(from));
    const end = Math.min(this.extent.end, Math.round(to));
    return end > start ? { start, end } : null;
  }

  choose({ lanes = this.lanes, page: number = lanes === this.lanes ? this.page : 0 }) {
    this.lanes = lanes;
    this.page = Math.max(0, Math.min(number, Math.ceil(this.sets.length / this.groupsPerPage()) - 1));
    this.#changed(true);
  }

  /** Turns to the page on which a group stands. */
  reveal(group) {
    const index = this.sets.findIndex((set) => set.group === group);
    const number = Math.floor(index / this.groupsPerPage());
    if (index >= 0 && number !== this.page) this.choose({ page: number });
  }

  hash() {
    const parts = [`t=${this.start},${this.end}`];
    if (this.page) parts.push(`page=${this.page}`);
    if (this.lanes !== (this.sets.length > GROUPS_PER_PAGE ? "exposed" : "all")) parts.push(`lanes=${this.lanes}`);
    if (this.opened.size) parts.push(`open=${[...this.opened].join(",")}`);
    if (this.selection) parts.push(`sel=${this.selection.start},${this.selection.end}`);
    return `#${parts.join("&")}`;
  }

  #readHash() {
    const found = new URLSearchParams(location.hash.slice(1));
    if (!found.has("t")) return false;
    const [start, end] = found.get("t").split(",").map((text) => Math.round(Number(text)));
    if (!(end - start >= MIN_SPAN_NS) || end < this.extent.start || start > this.extent.end) return false;
    this.start = start;
    this.end = end;
    const lanes = found.get("lanes");
    if (lanes === "all" || ROLES.includes(lanes)) this.lanes = lanes;
    this.page = Math.max(0, Math.min(Number(found.get("page")) || 0, Math.ceil(this.sets.length / this.groupsPerPage()) - 1));
    const [from, to] = (found.get("sel") ?? "").split(",").map(Number);
    this.selection = this.#asSelection(from, to);
    const known = new Set(this.sets.map((set) => set.group.id));
    this.opened = new Set((found.get("open") ?? "").split(",").filter((id) => known.has(id)));
    return true;
  }

  #changed(remember) {
    this.dispatchEvent(new Event("change"));
    if (!remember) return;
    // One entry of the history for one movement, not for each frame of it; kept up to date, since a reload may come
    // at any time, but not more often than browsers allow.
    const now = performance.now();
    if (now - this.lastChange > MOVEMENT_PAUSE_MS) history.pushState(null, "", this.hash());
    else this.timer ??= setTimeout(() => this.#updateHash(), HASH_PAUSE_MS);
    this.lastChange = now;
  }

  #updateHash() {
    this.timer = undefined;
    history.replaceState(null, "", this.hash());
  }
}
