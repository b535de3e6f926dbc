// Matched collectives: the rows of all ranks that are one, who waits in it for whom, and what its members share.

/** Ranks whose waits the tip spells out; of more it names those that wait longest. */
const MAX_WAITS = 8;

class Meetings {
  constructor(bytes, header, groups) {
    for (const [name, column] of Object.entries(header)) this[name] = readWide(bytes, column);
    this.groups = groups;
    this.count = this.transfer_ns.length;
    this.table = lazily(() => this.#index());
  }

  /** Rows by collective: those of number k stand at `first[k]` to `first[k + 1]`. */
  #index() {
    const first = new Uint32Array(this.count + 1);
    const each = (action) => this.groups.forEach((group, g) => group.meeting.forEach((number, row) => number && number <= this.count && action(number - 1, g, row)));
    each((number) => (first[number + 1] += 1));
    for (let k = 0; k < this.count; k++) first[k + 1] += first[k];
    const next = first.slice();
    const owner = new Uint32Array(first[this.count]);
    const rows = new Uint32Array(first[this.count]);
    each((number, g, row) => {
      owner[next[number]] = g;
      rows[next[number]++] = row;
    });
    return { first, owner, rows };
  }

  /** The members of the collective that a row belongs to: `[{group, row}]` in the order of ranks, none if unmatched. */
  members(group, row) {
    const number = group.meeting[row] - 1;
    if (number < 0) return [];
    const { first, owner, rows } = this.table();
    return Array.from({ length: first[number + 1] - first[number] }, (_, k) => ({ group: this.groups[owner[first[number] + k]], row: rows[first[number] + k] }));
  }

  /** What the members share, null where it is unknown. */
  shared(group, row) {
    const number = group.meeting[row] - 1;
    const of = (column) => (column[number] ? column[number] - 1 : null);
    const kb = of(this.busbw_kb);
    return {
      size: of(this.size_bytes), skew: of(this.skew_ns), transfer: of(this.transfer_ns), last: of(this.last_rank),
      members: of(this.num_members), group: of(this.group_size), busbw: kb === null ? null : kb / 1e6,
    };
  }
}

/** Who waits for whom: lines of the tip on a row of a collective. */
function describeMeeting(timeline, group, row) {
  const { meetings } = timeline;
  if (!meetings?.count) return [];
  const members = meetings.members(group, row);
  if (!members.length) return [group.collective[row] ? "without a partner in the traces of other ranks" : null].filter(Boolean);
  const { size, skew, transfer, last, members: found, group: size_of_group, busbw } = meetings.shared(group, row);
  const lines = [];
  if (last !== null) {
    const own = group.rank === last ? "this rank comes last, the others wait for it" : `waits ${nsText(group.wait[row])} for rank ${last}, which comes last`;
    lines.push(found > 1 ? own : `rank ${last} comes last`);
  } else lines.push(skew ? `several ranks come last; this one waits ${nsText(group.wait[row])}` : "all ranks come at one moment: nobody waits");
  const waits = members.map((member) => ({ rank: member.group.rank, wait: member.group.wait[member.row] }));
  const longest = waits.length > MAX_WAITS ? [...waits].sort((a, b) => b.wait - a.wait).slice(0, MAX_WAITS) : waits;
  const rest = waits.length > MAX_WAITS ? ` · ${waits.length - MAX_WAITS} others wait less` : "";
  // Of many ranks some have lanes: what the others wait is not on the page.
  const elsewhere = page.rankMap && found > members.length ? ` · ${found - members.length} members have no lanes here` : "";
  if (skew) lines.push(`waits: ${longest.map(({ rank, wait }) => `rank ${rank} ${nsText(wait)}`).join(" · ")}${rest}${elsewhere}`);
  const parts = [`skew ${nsText(skew)}`, `transfer ${nsText(transfer)}`, size !== null && bytesText(size), busbw !== null && `${Number(busbw.toPrecision(3))} GB/s on the bus`];
  lines.push(parts.filter(Boolean).join(" · "));
  if (size_of_group !== null && found < size_of_group) lines.push(`${found} of ${size_of_group} members are in the traces: waits are lower bounds`);
  return lines;
}
