// The words of the tip: what runs at one place of the timeline, exactly.

const nsText = (value) => `${Math.round(value).toLocaleString("en-US")} ns`;

/** A duration with the unit that suits it, three digits. */
function shortTime(value) {
  const [divisor, unit] = value < 1e3 ? [1, "ns"] : value < 1e6 ? [1e3, "µs"] : value < 1e10 ? [1e6, "ms"] : [1e9, "s"];
  return `${Number((value / divisor).toPrecision(3)).toLocaleString("en-US")} ${unit}`;
}

/** As summary.format_percent in Python: one digit behind the point. */
function percentText(share) {
  if (share > 0 && share < 0.0005) return "< 0.1 %";
  return share >= 0.9995 && share < 1 ? "> 99.9 %" : `${(100 * share).toFixed(1)} %`;
}

function bytesText(value) {
  if (value === null) return null;
  const index = value < 1e3 ? 0 : Math.min(3, Math.floor(Math.log10(value) / 3));
  return `${Number((value / 1000 ** index).toPrecision(3))} ${["B", "kB", "MB", "GB"][index]}`;
}

/** The tip at one place: `{lines, group, row}`, the name first in the lines; null where the lane is idle. */
function describePlace(timeline, lane, time) {
  const { bin, start, bins, exact } = timeline.picture;
  const k = Math.max(0, Math.min(bins - 1, Math.floor((time - start) / bin)));
  const [a, b] = [start + k * bin, start + (k + 1) * bin];
  const busy = lane.busySegments().busy(a, b);
  const { longest, count } = longestRow(lane, a, b);
  if (longest < 0 || (busy === 0 && lane instanceof SummaryLane && !lane.numMarks(a, b))) return null;
  const lines = [timeline.names[lane.group.name[longest]] || "(no name)", ...describeRow(timeline, lane.group, longest)];
  if (count > 1 || !exact) {
    const all = count > 1 ? `; ${count.toLocaleString("en-US")} here, the longest is named` : "";
    lines.push(`${percentText(busy / bin)} busy in this pixel of ${shortTime(bin)}${all}`);
  }
  return { lines, group: lane.group, row: longest };
}

/** When something of a group's rank starts, in its step. */
function whenText(timeline, group, start) {
  const step = group.stepAt(start);
  if (step) return `starts ${((start - step.start_ns) / 1e6).toFixed(6)} ms into ${step.step < 0 ? "the window" : `step ${step.step}`}`;
  return `starts ${((start - timeline.view.extent.start) / 1e6).toFixed(6)} ms into the run, outside of all steps`;
}

function describeRow(timeline, group, row) {
  const [start, end] = [group.start[row], group.end[row]];
  const number = group.laneNumbers[group.lane[row]] ?? "unknown";
  const owner = `rank ${group.rank}, ${group.device === null ? "thread" : `device ${group.device}, stream`} ${number}`;
  const lines = [`${page.categories[group.category[row]]} · ${owner}`];
  lines.push(whenText(timeline, group, start));
  lines.push(`lasts ${nsText(end - start)}`);
  if (group.category[row] === COMM) {
    // A row is communication all of the time: what is exposed while it runs is its own exposed part.
    lines.push(`${nsText(timeline.setOf(group).roles.exposed().busy(start, end))} of it exposed: transfer, or waiting for a rank`);
  }
  if (group.collective[row]) lines.push(describeCollective(group, row));
  if (group.category[row] === COMM) lines.push(...describeMeeting(timeline, group, row));
  return lines;
}

function describeCollective(group, row) {
  const { name, group_name, group_size, dtype, in_bytes, out_bytes } = page.timeline.collectives[group.collective[row] - 1];
  const parts = [name];
  if (group_size !== null || group_name) parts.push(`group ${group_name ?? ""}${group_size === null ? "" : ` of ${group_size} ranks`}`.replace("  ", " "));
  if (dtype) parts.push(dtype);
  if (in_bytes !== null) parts.push(`${bytesText(in_bytes)} in`);
  if (out_bytes !== null) parts.push(`${bytesText(out_bytes)} out`);
  if (group.seq[row]) parts.push(`seq ${(group.seq[row] - 1).toLocaleString("en-US")}`);
  return parts.join(" · ");
}
