// Reading what Python wrote (payload.py has the layout). Times are nanoseconds from the start of the run:
// below 2^53, so that a double holds each of them exactly.

const ESCAPE = 0xffffffff;
const COMM = page.categories.indexOf("comm");

/** Joins the byte planes of one column. */
function readColumn(bytes, { offset, width, count }) {
  const values = new Uint32Array(count);
  for (let plane = 0; plane < width; plane++) {
    const from = offset + plane * count;
    const shift = 8 * plane;
    for (let i = 0; i < count; i++) values[i] |= bytes[from + i] << shift;
  }
  return values;
}

/** The same for numbers of up to six bytes. */
function readWide(bytes, { offset, width, count }) {
  const values = new Float64Array(count);
  for (let plane = 0; plane < width; plane++) {
    const from = offset + plane * count;
    const scale = 256 ** plane;
    for (let i = 0; i < count; i++) values[i] += bytes[from + i] * scale;
  }
  return values;
}

/** Starts and ends of what a header describes: rows of a group, or bands of a rank. */
function readTimes(bytes, header) {
  const deltas = readColumn(bytes, header.columns.start);
  const durations = readColumn(bytes, header.columns.duration);
  const start = new Float64Array(header.count);
  const end = new Float64Array(header.count);
  let now = header.first_ns;
  let bigStarts = 0;
  let bigDurations = 0;
  for (let i = 0; i < header.count; i++) {
    now += deltas[i] === ESCAPE ? header.big_starts[bigStarts++] : deltas[i];
    start[i] = now;
    end[i] = now + (durations[i] === ESCAPE ? header.big_durations[bigDurations++] : durations[i]);
  }
  return { start, end };
}

/** The rows of one rank on one device, sorted by start. */
class Group {
  constructor(bytes, header, device) {
    this.rank = header.rank;
    this.device = header.device;
    this.laneNumbers = header.lanes;
    this.count = header.count;
    this.id = `${header.rank}/${header.device ?? "-"}`;
    this.windows = page.timeline.windows.filter((window) => window.rank === header.rank);
    this.name = readColumn(bytes, header.columns.name);
    this.lane = readColumn(bytes, header.columns.lane);
    this.category = readColumn(bytes, header.columns.category);
    Object.assign(this, readTimes(bytes, header));
    this.#readCollectives(bytes, header);
  }

  /** Collective, sequence number, and which matched collective a row belongs to, are written for rows of communication only. */
  #readCollectives(bytes, header) {
    const collective = readColumn(bytes, header.columns.collective);
    const seq = readColumn(bytes, header.columns.seq);
    this.collective = new Uint32Array(this.count);
    this.seq = new Uint32Array(this.count);
    const meeting = header.columns.meeting ? readColumn(bytes, header.columns.meeting) : null;
    const wait = meeting ? readWide(bytes, header.columns.wait) : null;
    this.meeting = new Uint32Array(this.count);
    this.wait = meeting && new Float64Array(this.count);
    let next = 0;
    for (let i = 0; i < this.count; i++) {
      if (this.category[i] !== COMM) continue;
      if (meeting) [this.meeting[i], this.wait[i]] = [meeting[next], wait[next]];
      this.collective[i] = collective[next];
      this.seq[i] = seq[next++];
    }
  }

  /** The step window that holds this time, or null. */
  stepAt(time) {
    return this.windows.find((window) => window.start_ns <= time && time < window.end_ns) ?? null;
  }
}

/**
 * All of the run: `{groups, bands, meetings, late, names}`. Bands are the phases and modules of each rank that has
 * labels, meetings the matched collectives or null, late the late gathers by group.
 */
async function readTimeline() {
  const bytes = await inflate("timeline-data");
  const { offset, count } = page.timeline.names;
  const names = JSON.parse(new TextDecoder().decode(bytes.subarray(offset, offset + count)));
  const bands = page.timeline.bands.map((header) => new Bands(bytes, header));
  const groups = page.timeline.groups.map((header) => new Group(bytes, header));
  const { late, meetings } = page.timeline;
  const lateGathers = JSON.parse(new TextDecoder().decode(bytes.subarray(late.offset, late.offset + late.count)));
  return { groups, bands, meetings: meetings && new Meetings(bytes, meetings, groups), late: lateGathers, names };
}
