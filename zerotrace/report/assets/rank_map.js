// The map of many ranks: one panel a figure, a line a step, a column a rank. Ranks that share a pixel are never averaged:
// the one furthest from the median of its step is drawn, so that no rank that stands out can be lost.

const MAP_GUTTER = { wide: 58, narrow: 44, below: 560, right: 8 };
const MAP_LINE = { all: 220, least: 3, most: 14 };
const MAP_SHADES = 64;
const MAP_TICK_PX = 70;

const medianOf = (values) => {
  const sorted = values.filter((value) => value >= 0).sort();
  return sorted.length ? sorted[Math.floor((sorted.length - 1) / 2)] : 0;
};

/** One figure of all ranks and steps: values in ns, -1 where unknown. */
class RankFigure {
  constructor(bytes, column, numSteps, numColumns) {
    const values = readWide(bytes, column);
    this.lines = Array.from({ length: numSteps }, (_, k) => values.subarray(k * numColumns, (k + 1) * numColumns).map((value) => value - 1));
    const known = values.filter((value) => value > 0);
    this.low = known.reduce((low, value) => Math.min(low, value - 1), Infinity);
    this.high = known.reduce((high, value) => Math.max(high, value - 1), 0);
    this.medians = this.lines.map(medianOf);
  }

  /** Of columns [from, to) of a line the one furthest from the line's median; -1 where none is known. */
  furthest(line, from, to) {
    let found = -1;
    let most = -1;
    for (let k = from; k < to; k++) {
      const value = this.lines[line][k];
      const distance = Math.abs(value - this.medians[line]);
      if (value >= 0 && distance > most) [found, most] = [k, distance];
    }
    return found;
  }

  share(value) {
    return this.high > this.low ? (value - this.low) / (this.high - this.low) : 0;
  }
}

class RankMap {
  constructor(element, bytes, onStep) {
    const { ranks, devices, steps, figures, table } = page.rankMap;
    Object.assign(this, { element, ranks, devices, steps, onStep });
    this.figures = new Map(Object.entries(figures).map(([name, column]) => [name, new RankFigure(bytes, column, steps.length, ranks.length)]));
    this.table = JSON.parse(new TextDecoder().decode(bytes.subarray(table.offset, table.offset + table.count)));
    this.panels = [...element.querySelectorAll("canvas[data-figure]")];
    this.hair = document.getElementById("rank-map-hair");
    this.tip = document.getElementById("rank-map-tip");
    this.status = document.getElementById("rank-map-status");
    this.severalDevices = new Set(ranks).size < ranks.length;
    this.at = null;
    element.addEventListener("pointermove", (event) => this.#point(event));
    element.addEventListener("pointerdown", (event) => this.#point(event));
    element.addEventListener("pointerleave", () => this.leave());
    element.addEventListener("click", () => this.#enter());
    element.addEventListener("blur", () => this.leave());
    element.addEventListener("keydown", (event) => this.#key(event));
    document.getElementById("ranks-csv").addEventListener("click", ({ target }) => download(this.ranksCsv(), "text/csv", target.dataset.file));
    document.getElementById("rank-steps-csv").addEventListener("click", ({ target }) => download(this.stepsCsv(), "text/csv", target.dataset.file));
  }

  /** Columns [from, to) that bin `k` stands for: those whose middle lies in it. */
  columns(k) {
    const border = (bin) => Math.ceil((bin * this.ranks.length) / this.bins - 0.5);
    return [border(k), border(k + 1)];
  }

  draw() {
    const width = Math.max(this.element.clientWidth, MIN_WIDTH);
    this.left = width < MAP_GUTTER.below ? MAP_GUTTER.narrow : MAP_GUTTER.wide;
    this.plot = width - this.left - MAP_GUTTER.right;
    this.bins = Math.min(this.ranks.length, Math.floor(this.plot));
    this.lineHeight = Math.max(MAP_LINE.least, Math.min(MAP_LINE.most, Math.floor(MAP_LINE.all / this.steps.length)));
    const colours = theme();
    for (const panel of this.panels) this.#drawPanel(panel, width, colours);
    this.#drawAxis(width, colours);
    this.drawn = true;
    this.element.dataset.drawn = String(this.bins);
  }

  #context(canvas, width, height) {
    const scale = window.devicePixelRatio || 1;
    [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
    [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    context.font = `11px ${FONT}`;
    return context;
  }

  #drawPanel(canvas, width, colours) {
    const figure = this.figures.get(canvas.dataset.figure);
    const context = this.#context(canvas, width, this.lineHeight * this.steps.length);
    const shades = Array.from({ length: MAP_SHADES }, (_, k) => mixed(colours.lane, colours[canvas.dataset.role], 0.1 + (0.9 * k) / (MAP_SHADES - 1)));
    const gap = this.lineHeight > 6 ? 1 : 0;
    this.steps.forEach((step, line) => {
      const top = line * this.lineHeight;
      for (let k = 0; k < this.bins; k++) {
        const found = figure.furthest(line, ...this.columns(k));
        if (found < 0) continue;
        context.fillStyle = shades[Math.round(figure.share(figure.lines[line][found]) * (MAP_SHADES - 1))];
        const [a, b] = [Math.round((k * this.plot) / this.bins), Math.round(((k + 1) * this.plot) / this.bins)];
        context.fillRect(this.left + a, top, b - a, this.lineHeight - gap);
      }
      const every = Math.ceil(11 / this.lineHeight);
      if (line % every) return;
      context.fillStyle = colours.muted;
      context.textAlign = "right";
      context.textBaseline = "middle";
      const name = step < 0 ? "all" : this.left > MAP_GUTTER.narrow ? `step ${step}` : String(step);
      context.fillText(name, this.left - 8, top + Math.max(6, (this.lineHeight - gap) / 2));
    });
  }

  #drawAxis(width, colours) {
    const context = this.#context(this.element.querySelector("canvas[data-axis]"), width, 20);
    context.fillStyle = colours.muted;
    context.textAlign = "center";
    context.textBaseline = "bottom";
    const raw = this.ranks.length / Math.max(1, this.plot / MAP_TICK_PX);
    const distance = [1, 2, 4, 8].find((step) => step >= raw) ?? 2 ** Math.ceil(Math.log2(raw));
    for (let column = 0; column < this.ranks.length; column += distance) {
      const x = this.left + ((column + 0.5) * this.plot) / this.ranks.length;
      context.fillRect(Math.round(x), 1, 1, 4);
      context.fillText(String(this.ranks[column]), x, 19);
    }
    context.textAlign = "left";
    context.fillText("rank", 0, 19);
  }

  /** Panel and line of a place in the page; null beside all panels. */
  #lineAt(event) {
    for (const canvas of this.panels) {
      const box = canvas.getBoundingClientRect();
      if (event.clientY < box.top || event.clientY >= box.bottom) continue;
      const x = event.clientX - box.left - this.left;
      if (x < 0 || x >= this.plot) return null;
      const line = Math.min(this.steps.length - 1, Math.floor((event.clientY - box.top) / this.lineHeight));
      return { canvas, line, bin: Math.min(this.bins - 1, Math.floor((x * this.bins) / this.plot)) };
    }
    return null;
  }

  #point(event) {
    if (!this.drawn) return;
    const found = this.#lineAt(event);
    if (!found) return this.leave();
    const [from, to] = this.columns(found.bin);
    const column = this.figures.get(found.canvas.dataset.figure).furthest(found.line, from, to);
    this.#show(column < 0 ? from : column, found.line, [from, to], { x: event.clientX, y: event.clientY });
  }

  #key(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], PageUp: [-16, 0], PageDown: [16, 0], Home: [-Infinity, 0], End: [Infinity, 0] };
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Escape") this.leave();
    if (event.key === "Enter") this.#enter();
    if (!(event.key in moves) || !this.drawn) return;
    event.preventDefault();
    event.stopPropagation();
    const [right, down] = moves[event.key];
    const now = this.at ?? { column: right ? -Math.sign(right) : 0, line: 0 };
    const column = Math.max(0, Math.min(this.ranks.length - 1, now.column + right));
    const line = Math.max(0, Math.min(this.steps.length - 1, now.line + down));
    const box = this.panels[0].getBoundingClientRect();
    this.#show(column, line, [column, column + 1], { x: box.left + this.#centre(column), y: box.top + (line + 1) * this.lineHeight });
    this.status.textContent = this.words(column, line).join("; ");
  }

  #centre(column) {
    return this.left + ((column + 0.5) * this.plot) / this.ranks.length;
  }

  owner(column) {
    return `rank ${this.ranks[column]}${this.severalDevices ? `, device ${this.devices[column]}` : ""}`;
  }

  /** Everything about one place: who and when first. */
  words(column, line) {
    const step = this.steps[line];
    const lines = [`${this.owner(column)}, ${step < 0 ? "the whole trace" : `step ${step}`}`];
    for (const panel of this.panels) {
      const value = this.figures.get(panel.dataset.figure).lines[line][column];
      lines.push(`${panel.previousElementSibling.firstChild.textContent.trim()} ${value < 0 ? "unknown" : nsText(value)}`);
    }
    return lines;
  }

  #show(column, line, [from, to], { x, y }) {
    this.at = { column, line };
    const lines = this.words(column, line);
    if (to - from > 1) lines.push(`furthest from the median of ranks ${this.ranks[from]} to ${this.ranks[to - 1]}, which share this pixel`);
    if (!this.hasLanes(column)) lines.push("has no lanes on this page");
    this.tip.replaceChildren(...lines.map((text, k) => Object.assign(document.createElement(k ? "span" : "b"), { textContent: text })));
    this.tip.hidden = false;
    const box = this.tip.getBoundingClientRect();
    this.tip.style.left = `${Math.max(8, Math.min(x + 14, window.innerWidth - box.width - 8))}px`;
    this.tip.style.top = `${y + 18 + box.height > window.innerHeight ? Math.max(8, y - box.height - 12) : y + 18}px`;
    this.hair.style.left = `${this.#centre(column)}px`;
    this.hair.hidden = false;
  }

  hasLanes(column) {
    return page.timeline.groups.some(({ rank, device }) => rank === this.ranks[column] && (device ?? null) === (this.devices[column] ?? null));
  }

  #enter() {
    if (!this.at || !this.hasLanes(this.at.column)) return;
    const { column, line } = this.at;
    this.onStep([this.ranks[column], this.devices[column], this.steps[line]]);
  }

  leave() {
    this.at = null;
    this.tip.hidden = true;
    this.hair.hidden = true;
  }

  /** The mean step of every rank, names of the columns as in analysis.json. */
  ranksCsv() {
    const [names, ...columns] = this.table;
    return csvText(names, this.ranks.map((_, row) => columns.map((column) => column[row] ?? "")));
  }

  /** What the map draws, exactly. */
  stepsCsv() {
    const figures = [...this.figures];
    const rows = this.ranks.flatMap((rank, column) =>
      this.steps.map((step, line) => [rank, this.devices[column] ?? "", step, ...figures.map(([, figure]) => (figure.lines[line][column] < 0 ? "" : figure.lines[line][column]))]),
    );
    return csvText(["rank", "device", "step", ...figures.map(([name]) => name)], rows);
  }
}
