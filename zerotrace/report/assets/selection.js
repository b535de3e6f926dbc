// The selection: a window of its own, whose time is summed by category for each rank shown, exactly.

const SELECTED = ["compute", "overlapped", "exposed", "copy", "idle"];

/** Time of each category in [start, end); what is left is idle: a sum of whole nanoseconds, as in the partition. */
function sumsOf(set, start, end) {
  const sums = Object.fromEntries(ROLES.map((role) => [role, set.roles[role]().busy(start, end)]));
  return { ...sums, idle: end - start - sums.compute - sums.exposed - sums.copy };
}

class Selection {
  constructor(timeline) {
    this.timeline = timeline;
    timeline.byId("clear").addEventListener("click", () => timeline.act("clear"));
  }

  /** Shows in the table what is selected now; says it aloud when it has changed. */
  follow() {
    const { view } = this.timeline;
    const { selection } = view;
    this.timeline.byId("selection").hidden = !selection;
    const key = selection && `${selection.start},${selection.end}/${view.page}/${view.groupsPerPage()}`;
    if (!selection || key === this.shown) {
      this.shown = key;
      return;
    }
    this.shown = key;
    const { start, end } = selection;
    const rows = view.visibleSets().map((set) => ({ group: set.group, ...sumsOf(set, start, end) }));
    this.timeline.byId("selection-text").textContent = `Selected: ${shortTime(end - start)}, ${this.#where(start)}.`;
    document.querySelector("#selection-table tbody").replaceChildren(...rows.map((row) => this.#row(row, end - start)));
  }

  #where(start) {
    return whenText(this.timeline, this.timeline.current, start).replace("starts", "from").replace(" into the run", " of the run").replace(/ into (the window|step)/, " of $1");
  }

  #row({ group, ...sums }, span) {
    const row = document.createElement("tr");
    const cell = (value, text, name = "td") => {
      const element = document.createElement(name);
      if (name === "th") element.scope = "row";
      const data = document.createElement("data");
      data.value = String(value);
      data.textContent = text;
      element.append(data);
      row.append(element);
    };
    cell(group.rank, String(group.rank), "th");
    cell(group.device ?? "", String(group.device ?? "–"));
    for (const name of SELECTED) cell(sums[name], (sums[name] / 1e6).toLocaleString("en-US", { minimumFractionDigits: 3, maximumFractionDigits: 3 }));
    cell(span, (span / 1e6).toLocaleString("en-US", { minimumFractionDigits: 3, maximumFractionDigits: 3 }));
    return row;
  }

  /** The selection in one sentence, for the current rank. */
  words() {
    const { view, current } = this.timeline;
    const { start, end } = view.selection;
    const sums = sumsOf(this.timeline.setOf(current), start, end);
    const names = { ...SUMMARY_LABELS, idle: "idle" };
    return `Selected ${shortTime(end - start)}. Rank ${current.rank}: ${SELECTED.map((name) => `${names[name]} ${shortTime(sums[name])}`).join(", ")}.`;
  }
}
