// Sets of half-open intervals on the line of time: sorted, disjoint, with the running sum of their lengths,
// so that the busy time of any window is exact and costs two binary searches.

/** First index in the sorted array whose value is > x. */
function upperBound(values, x, low = 0, high = values.length) {
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (values[middle] <= x) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** First index in the sorted array whose value is >= x. */
function lowerBound(values, x, low = 0, high = values.length) {
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (values[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low;
}

class Segments {
  /** Takes the first `length` values of two arrays: sorted, disjoint, not empty unless an event has no length. */
  constructor(start, end, length) {
    this.start = start.subarray(0, length);
    this.end = end.subarray(0, length);
    this.length = length;
    this.sum = new Float64Array(length + 1);
    for (let i = 0; i < length; i++) this.sum[i + 1] = this.sum[i] + (end[i] - start[i]);
  }

  /** Busy time before t. */
  before(t, from = 0) {
    const index = upperBound(this.start, t, from);
    if (index === 0) return 0;
    return this.sum[index - 1] + Math.min(this.end[index - 1], t) - this.start[index - 1];
  }

  /** Busy time inside of [a, b). */
  busy(a, b) {
    return b > a ? this.before(b) - this.before(a) : 0;
  }

  /** Index of the first segment that reaches beyond t, and of the first that starts at or after `b`. */
  range(a, b) {
    return [upperBound(this.end, a), lowerBound(this.start, b)];
  }
}

/** Union of the rows `indices` (all rows if left out), which are sorted by start. */
function unionOf(start, end, indices) {
  const count = indices ? indices.length : start.length;
  const from = new Float64Array(count);
  const to = new Float64Array(count);
  let length = 0;
  for (let i = 0; i < count; i++) {
    const row = indices ? indices[i] : i;
    if (length && start[row] <= to[length - 1]) {
      if (end[row] > to[length - 1]) to[length - 1] = end[row];
    } else {
      from[length] = start[row];
      to[length++] = end[row];
    }
  }
  return new Segments(from, to, length);
}

/** Parts of `a` that lie inside of `b`. */
function intersection(a, b) {
  const from = new Float64Array(a.length + b.length);
  const to = new Float64Array(a.length + b.length);
  let length = 0;
  for (let i = 0, j = 0; i < a.length && j < b.length; ) {
    const low = Math.max(a.start[i], b.start[j]);
    const high = Math.min(a.end[i], b.end[j]);
    if (low < high) {
      from[length] = low;
      to[length++] = high;
    }
    if (a.end[i] < b.end[j]) i++;
    else j++;
  }
  return new Segments(from, to, length);
}

/** Parts of `a` that lie outside of `b`. */
function difference(a, b) {
  const from = new Float64Array(a.length + b.length);
  const to = new Float64Array(a.length + b.length);
  let length = 0;
  for (let i = 0, j = 0; i < a.length; i++) {
    let low = a.start[i];
    while (j < b.length && b.end[j] <= low) j++;
    for (let k = j; k < b.length && b.start[k] < a.end[i]; k++) {
      if (b.start[k] > low) {
        from[length] = low;
        to[length++] = b.start[k];
      }
      low = Math.max(low, b.end[k]);
    }
    if (low < a.end[i]) {
      from[length] = low;
      to[length++] = a.end[i];
    }
  }
  return new Segments(from, to, length);
}

/** Rows of a lane with the latest end so far: finds all that reach into a window, nested ones included. */
class RowIndex {
  constructor(group, indices) {
    this.group = group;
    this.indices = indices;
    this.starts = new Float64Array(indices.length);
    this.latest = new Float64Array(indices.length);
    let latest = -Infinity;
    for (let i = 0; i < indices.length; i++) {
      this.starts[i] = group.start[indices[i]];
      latest = Math.max(latest, group.end[indices[i]]);
      this.latest[i] = latest;
    }
  }

  /** How many places `visit` must look at: an upper bound of the rows that touch [a, b). */
  span(a, b) {
    return [upperBound(this.latest, a), lowerBound(this.starts, b)];
  }

  /** Calls `action(row)` for each row that touches [a, b), one without length at `a` included. */
  visit(a, b, action) {
    const high = lowerBound(this.starts, b);
    for (let i = lowerBound(this.latest, a); i < high; i++) {
      const row = this.indices[i];
      if (this.group.end[row] > a || this.group.start[row] >= a) action(row);
    }
  }
}
