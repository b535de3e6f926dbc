// What the timeline shows of a window, on two levels. Many intervals: for each pixel the true busy share, from the exact
// intervals. Few: each interval as an exact mark. In both what is narrower than a pixel becomes a shade of that pixel:
// it is never widened to be seen, and never left out.

const MAX_EXACT_MARKS = 2500;
const LANE_UNITS = 3;
const MAX_DEPTH = 3;

/**
 * Places of all lanes from the top, in units of UNIT_PX:
 * `{rows: [{lane, top}], groups: [{set, head, top, bottom}], banded: [{bands, top}], height}`.
 *
 * Each group whose rank has bands has them above its lanes; with one lane a rank, those of `current` stand above all.
 */
function placeLanes(visible, single, bandsOf, current) {
  const rows = [];
  const groups = [];
  const banded = [];
  let unit = 0;
  const placeBandsOf = (set) => {
    const bands = bandsOf.get(set.group.rank);
    if (!bands) return;
    banded.push({ bands, top: unit });
    unit += BANDS_UNITS;
  };
  if (single && visible.length) placeBandsOf((visible.find(({ set }) => set.group === current) ?? visible[0]).set);
  for (const { set, lanes } of visible) {
    if (!single || lanes.length > 1) unit += 3;
    const head = unit;
    if (!single) placeBandsOf(set);
    const top = unit;
    for (const lane of lanes) {
      rows.push({ lane, top: unit });
      unit += LANE_UNITS + 1;
    }
    groups.push({ set, head, top, bottom: unit - 1 });
  }
  return { rows, groups, banded, height: Math.max(unit, 1) };
}

/** The busy share of each bin and whether anything at all, however short, lies in it. */
function busyShares(segments, start, bin, bins) {
  const share = new Float64Array(bins);
  const touched = new Uint8Array(bins);
  let index = lowerBound(segments.start, start);
  let before = segments.before(start);
  for (let k = 0; k < bins; k++) {
    const low = start + k * bin;
    const high = start + (k + 1) * bin;
    const next = lowerBound(segments.start, high, index);
    const reach = next > 0 ? segments.sum[next - 1] + Math.min(segments.end[next - 1], high) - segments.start[next - 1] : 0;
    share[k] = Math.min(1, (reach - before) / bin);
    touched[k] = next > index || (next > 0 && segments.end[next - 1] > low) ? 1 : 0;
    before = reach;
    index = next;
  }
  return { share, touched };
}

/** One line of the heat map: for each bin the role that takes most of it, and the share of all. */
function heatOfLane(lane, start, bin, bins) {
  const parts = lane.parts().map(({ role, segments }) => ({ role: ROLES.indexOf(role), ...busyShares(segments, start, bin, bins) }));
  const total = parts.length === 1 ? parts[0] : busyShares(lane.busySegments(), start, bin, bins);
  const role = new Uint8Array(bins);
  for (let k = 0; k < bins; k++) {
    let most = -1;
    for (const part of parts) {
      const weight = part.touched[k] ? part.share[k] : -1;
      if (weight > most) [most, role[k]] = [weight, part.role];
    }
  }
  return { role, share: total.share, touched: total.touched };
}

/** The marks of a lane at least a pixel wide, as shapes; the narrower ones as shares of their bins. */
function exactOfLane(lane, start, end, bin, bins) {
  const marks = [];
  const open = [];
  const heat = { role: new Uint8Array(bins), share: new Float64Array(bins), touched: new Uint8Array(bins) };
  let narrow = 0;
  lane.visitMarks(start, end, (role, from, to, row) => {
    // A row that reaches into the window may be cut into pieces that do not.
    if (to < start || from >= end || (to === start && from < to)) return;
    // Rows come by start, the longest first: what is still open here encloses this one (operators call operators).
    while (open.length && open.at(-1) <= from) open.pop();
    if (to - from >= bin) {
      marks.push({ role, from, to, row, depth: Math.min(open.length, MAX_DEPTH) });
      open.push(to);
      return;
    }
    narrow += 1;
    const first = Math.max(0, Math.floor((from - start) / bin));
    const last = Math.min(bins - 1, Math.floor((to - start) / bin));
    for (let k = first; k <= last; k++) {
      const inside = Math.min(to, start + (k + 1) * bin) - Math.max(from, start + k * bin);
      if (inside <= 0 && to > from) continue;
      heat.share[k] = Math.min(1, heat.share[k] + Math.max(0, inside) / bin);
      heat.touched[k] = 1;
      heat.role[k] = ROLES.indexOf(role);
    }
  });
  return { marks, heat, narrow };
}

/** What the window shows: either level, ready to be drawn, and to be checked by a test. */
function pictureOf(view, width, bandsOf, current) {
  const visible = view.visibleLanes();
  const places = placeLanes(visible, view.lanes !== "all", bandsOf, current);
  const bins = Math.max(1, Math.round(width));
  const bin = view.span / bins;
  let total = 0;
  for (const { lane } of places.rows) total += lane.numMarks(view.start, view.end);
  const exact = total <= MAX_EXACT_MARKS;
  let narrow = 0;
  const rows = places.rows.map(({ lane, top }) => {
    if (!exact) return { lane, top, marks: [], heat: heatOfLane(lane, view.start, bin, bins) };
    const drawn = exactOfLane(lane, view.start, view.end, bin, bins);
    narrow += drawn.narrow;
    return { lane, top, ...drawn };
  });
  const bands = places.banded.flatMap((place) => placeBands(place.bands, place.top, { start: view.start, end: view.end, bin }));
  return { ...places, rows, bands, start: view.start, end: view.end, bin, bins, exact, total, narrow };
}
