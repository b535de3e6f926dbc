// Lanes: what the timeline has one line for. Each group has four summary lanes, which are the partition of the step
// (compute, overlapped, exposed, copy only), and one lane a stream, or a thread in host mode. All are built when
// first looked at: at a million rows a lane costs some ten milliseconds.

const ROLES = ["compute", "overlapped", "exposed", "copy"];
const SUMMARY_LABELS = { compute: "compute", overlapped: "overlapped comm", exposed: "exposed comm", copy: "copy only" };

function rowsWhere(group, test) {
  const found = new Uint32Array(group.count);
  let length = 0;
  for (let i = 0; i < group.count; i++) if (test(i)) found[length++] = i;
  return found.slice(0, length);
}

/** The lanes of one group. */
class LaneSet {
  constructor(group) {
    this.group = group;
    const rows = (category) => lazily(() => rowsWhere(group, (i) => group.category[i] === page.categories.indexOf(category)));
    this.rows = { compute: rows("compute"), comm: rows("comm"), copy: rows("copy") };
    const union = (category) => lazily(() => unionOf(group.start, group.end, this.rows[category]()));
    this.union = { compute: union("compute"), comm: union("comm"), copy: union("copy") };
    this.roles = {
      compute: this.union.compute,
      overlapped: lazily(() => intersection(this.union.comm(), this.union.compute())),
      exposed: lazily(() => difference(this.union.comm(), this.union.compute())),
      copy: lazily(() => difference(difference(this.union.copy(), this.union.compute()), this.union.comm())),
    };
    this.summary = ROLES.filter((role) => role !== "copy" || page.mode === "device").map((role) => new SummaryLane(this, role));
    this.matched = lazily(() => Array.from(this.rows.comm().filter((row) => group.meeting[row])));
    this.single = lazily(() => group.laneNumbers.map((number, index) => new RowLane(this, number, index)));
  }
}

/** One role of the partition: the union over all streams of the device. */
class SummaryLane {
  constructor(set, role) {
    this.group = set.group;
    this.role = role;
    this.label = SUMMARY_LABELS[role];
    this.key = `${set.group.id}/${role}`;
    this.busySegments = set.roles[role];
    this.parts = lazily(() => [{ role, segments: this.busySegments() }]);
    const category = role === "overlapped" || role === "exposed" ? "comm" : role;
    this.rowIndex = lazily(() => new RowIndex(set.group, set.rows[category]()));
  }

  numMarks(a, b) {
    const [low, high] = this.busySegments().range(a, b);
    return Math.max(0, high - low);
  }

  /** Calls `action(role, start, end, row)` for each mark in [a, b); the row is -1: a mark may stand for several. */
  visitMarks(a, b, action) {
    const segments = this.busySegments();
    const [low, high] = segments.range(a, b);
    for (let i = low; i < high; i++) action(this.role, segments.start[i], segments.end[i], -1);
  }
}

/** One stream of a device or one thread of a host, row by row. */
class RowLane {
  constructor(set, number, index) {
    const group = set.group;
    this.set = set;
    this.group = group;
    this.index = index;
    this.label = `${group.device === null ? "thread" : "stream"} ${number ?? "unknown"}`;
    this.key = `${group.id}/${this.label}`;
    const rows = lazily(() => rowsWhere(group, (i) => group.lane[i] === index));
    this.rowIndex = lazily(() => new RowIndex(group, rows()));
    this.busySegments = lazily(() => unionOf(group.start, group.end, rows()));
    this.parts = lazily(() => this.#split(rows()));
  }

  /** Communication is told apart by what the whole device does meanwhile, as in the partition. */
  #split(rows) {
    const { group, set } = this;
    const of = (category) => {
      const code = page.categories.indexOf(category);
      return unionOf(group.start, group.end, rows.filter((row) => group.category[row] === code));
    };
    const comm = of("comm");
    const compute = set.union.compute();
    return [
      { role: "compute", segments: of("compute") },
      { role: "overlapped", segments: intersection(comm, compute) },
      { role: "exposed", segments: difference(comm, compute) },
      { role: "copy", segments: of("copy") },
    ].filter((part) => part.segments.length);
  }

  numMarks(a, b) {
    const [low, high] = this.rowIndex().span(a, b);
    return Math.max(0, high - low);
  }

  visitMarks(a, b, action) {
    const { group, set } = this;
    this.rowIndex().visit(a, b, (row) => {
      const start = group.start[row];
      const end = group.end[row];
      if (group.category[row] !== COMM) {
        action(page.categories[group.category[row]], start, end, row);
        return;
      }
      // A row of communication is cut where compute starts and ends beside it.
      const compute = set.union.compute();
      const [low, high] = compute.range(start, end);
      let now = start;
      for (let i = low; i < high; i++) {
        if (compute.start[i] > now) action("exposed", now, compute.start[i], row);
        const until = Math.min(compute.end[i], end);
        action("overlapped", Math.max(compute.start[i], now), until, row);
        now = until;
      }
      if (now < end || start === end) action("exposed", now, end, row);
    });
  }
}

/** The row with most time inside of [a, b), and how many rows touch it; `limit` rows are looked at. */
function longestRow(lane, a, b, limit = 4096) {
  const index = lane.rowIndex();
  const { group } = lane;
  let longest = -1;
  let most = -1;
  let count = 0;
  const [low, high] = index.span(a, b);
  for (let i = low; i < Math.min(high, low + limit); i++) {
    const row = index.indices[i];
    if (group.end[row] <= a && group.start[row] < a) continue;
    count += 1;
    const inside = Math.min(group.end[row], b) - Math.max(group.start[row], a);
    // Of two that fill all of it the later one is the inner one: the operator that was called.
    if (inside >= most) [most, longest] = [inside, row];
  }
  return { longest, count: count + Math.max(0, high - low - limit) };
}
