// Late gathers: prefetches that hold compute back, with their need.

/** The late gathers of a group, in the order of their start. */
function lateGathers(timeline, group) {
  return (timeline.late[group.id] ?? []).map(([from, to, need, slack, blocking, bytes, phase, module, needed]) => ({
    from, to, need, slack, blocking, bytes, phase: timeline.names[phase], module: timeline.names[module], needed: timeline.names[needed],
  }));
}

function slackText(slack) {
  if (slack === null) return "its need is not in the trace";
  return slack >= 0 ? `slack ${nsText(slack)}: it ends so long before its need` : `slack −${nsText(-slack)}: it ends so long after its need`;
}

/** The lines of the tip, the name first. */
function describeGather(timeline, group, gather) {
  return [
    `late prefetch for ${gather.needed}`,
    `rank ${group.rank} · submitted at ${gather.module} in ${gather.phase}${gather.bytes === null ? "" : ` · ${bytesText(gather.bytes)}`}`,
    whenText(timeline, group, gather.from),
    `lasts ${nsText(gather.to - gather.from)}, holds compute back for ${nsText(gather.blocking)}`,
    slackText(gather.slack),
  ];
}
