"""The one place where every Parquet table is defined: field, unit, meaning, version.

Names carry their unit: ``_ns`` int64 nanoseconds, ``_bytes`` int64 (a mean: float64), ``_ratio`` a fraction, ``num_`` a
count. A null means *unknown*. Readers accept added nullable columns and refuse a newer major version.
"""

from __future__ import annotations

import pyarrow as pa
from msgspec import Struct

from zerotrace.model import OWNER_MEANINGS

TABLES_VERSION = "1.0"

_NAME = pa.dictionary(pa.int32(), pa.string())


class Column(Struct, frozen=True):
    """One column of a table."""

    name: str
    type: pa.DataType
    doc: str
    nullable: bool = True


class TableSchema(Struct, frozen=True):
    """One Parquet table."""

    name: str
    doc: str
    columns: tuple[Column, ...]
    sort_by: tuple[str, ...]

    def arrow(self) -> pa.Schema:
        """The Arrow schema, with docs as field metadata and name and version as schema metadata."""
        fields = [pa.field(c.name, c.type, c.nullable, metadata={"doc": c.doc}) for c in self.columns]
        return pa.schema(fields, metadata={"zerotrace.table": self.name, "zerotrace.version": TABLES_VERSION})


EVENTS = TableSchema(
    name="events",
    doc="Every X event of one rank that an analysis needs, on the absolute clock. One folder a rank: events/rank=0/.",
    sort_by=("device", "stream", "start_ns"),
    columns=(
        Column("event", pa.int64(), "Position in traceEvents of the file.", nullable=False),
        Column("cat", _NAME, "Kineto category, in today's lower-case spelling."),
        Column("name", _NAME, "Name of the event."),
        Column("category", _NAME, "compute, comm or copy; null where the row is no time that is taken apart."),
        Column("start_ns", pa.int64(), "Start, nanoseconds since the Unix epoch.", nullable=False),
        Column("dur_ns", pa.int64(), "Duration.", nullable=False),
        Column("step", pa.int32(), "Step window in which the event starts; null outside of all of them."),
        Column("device", pa.int32(), "Device index on the host (cuda_sync rows too); null for host rows."),
        Column("stream", pa.int64(), "Stream of the device (cuda_sync rows too); null for host rows."),
        Column("pid", pa.int64(), "Process id; null where the trace has a text."),
        Column("tid", pa.int64(), "Thread id (stream number on device rows); null where the trace has none."),
        Column("correlation", pa.int64(), "Links a runtime call to the device rows that it launched."),
        Column("external_id", pa.int64(), "Links a device row to the operator that launched it."),
        Column("transfer_bytes", pa.int64(), "Bytes of a copy or set."),
        Column("collective", _NAME, "Collective name, from the row or from its record_param_comms."),
        Column("group_name", _NAME, "Process group name."),
        Column("group_ranks", _NAME, "Member ranks, as the trace spells them."),
        Column("group_size", pa.int32(), "Members of the process group."),
        Column("seq", pa.int64(), "Sequence number of the collective in its group."),
        Column("dtype", _NAME, "Element type of the collective."),
        Column("in_elements", pa.int64(), "Elements that each rank puts in."),
        Column("out_elements", pa.int64(), "Elements that each rank gets out."),
        Column("src_rank", pa.int32(), "Sender of a point-to-point transfer."),
        Column("dst_rank", pa.int32(), "Receiver of a point-to-point transfer."),
        Column("wait_on_stream", pa.int64(), "Stream that a cuda_sync row waits for; null where unknown."),
        Column("wait_on_correlation", pa.int64(), "Correlation of the event record that it waits for."),
        Column("launch_shape", _NAME, "Grid and block of a kernel: 17x1x1/256x1x1."),
    ),
)  # fmt: skip

STEPS = TableSchema(
    name="steps",
    doc="The step windows of every rank.",
    sort_by=("rank", "step"),
    columns=(
        Column("rank", pa.int32(), "Global rank.", nullable=False),
        Column("step", pa.int32(), "Number of the ProfilerStep; -1 for the window all.", nullable=False),
        Column("start_ns", pa.int64(), "Start, nanoseconds since the Unix epoch.", nullable=False),
        Column("end_ns", pa.int64(), "End (exclusive).", nullable=False),
    ),
)  # fmt: skip

PARTITION = TableSchema(
    name="partition",
    doc="One row a rank, device and step. span = compute + exposed + copy_only + idle; comm = overlapped + exposed; "
    "exposed = transfer + wait = queued + sync + shadow; idle = host_bound + stalled + tail + unlinked.",
    sort_by=("rank", "device", "step"),
    columns=(
        Column("rank", pa.int32(), "Global rank.", nullable=False),
        Column("device", pa.int32(), "Device index on the host; null in host mode."),
        Column("step", pa.int32(), "Number of the ProfilerStep; -1 for the window all.", nullable=False),
        Column("start_ns", pa.int64(), "Start of the window, nanoseconds since the Unix epoch.", nullable=False),
        Column("span_ns", pa.int64(), "Length of the window.", nullable=False),
        Column("compute_ns", pa.int64(), "Union of compute rows; null where the window holds no device row."),
        Column("comm_ns", pa.int64(), "Union of communication rows."),
        Column("overlapped_ns", pa.int64(), "Communication with compute running: |comm ∩ compute|."),
        Column("exposed_ns", pa.int64(), "Communication with no compute running: |comm \\ compute|."),
        Column("copy_only_ns", pa.int64(), "Copies and sets under neither compute nor communication."),
        Column("idle_ns", pa.int64(), "The rest of the window."),
        Column("exposed_transfer_ns", pa.int64(), "Exposed after the last member of the collective has started."),
        Column("exposed_wait_ns", pa.int64(), "Exposed before that: waiting for a late rank."),
        Column("blocking_queued_ns", pa.int64(), "Exposed, and the next compute kernel had been launched."),
        Column("blocking_sync_ns", pa.int64(), "Exposed, and the host was inside a synchronising call."),
        Column("shadow_ns", pa.int64(), "Exposed, and the host was busy elsewhere: nothing to win."),
        Column("host_bound_ns", pa.int64(), "Idle until the next row had been launched."),
        Column("stalled_ns", pa.int64(), "Idle after that: launched, but held back."),
        Column("tail_ns", pa.int64(), "Idle after the window's last row."),
        Column("unlinked_ns", pa.int64(), "Idle before rows whose launch is not in the trace."),
    ),
)  # fmt: skip

COLLECTIVES = TableSchema(
    name="collectives",
    doc="One row a collective and member rank. Rows with the same `collective` are one collective; null is unmatched.",
    sort_by=("rank", "start_ns"),
    columns=(
        Column("collective", pa.int64(), "Number of the matched collective, from 0 on; null where no peer matches."),
        Column("rank", pa.int32(), "Global rank.", nullable=False),
        Column("device", pa.int32(), "Device index on the host; null in host mode."),
        Column("event", pa.int64(), "Row of the rank's events table.", nullable=False),
        Column("step", pa.int32(), "Step in which it was launched; null outside of all."),
        Column("phase", _NAME, "forward, backward or step, in which it was launched; null where no label says."),
        Column("name", _NAME, "Collective, or what the kernel's name says of it."),
        Column("group", _NAME, "Member ranks and group name; null where the trace does not say."),
        Column("group_size", pa.int32(), "Members of the group."),
        Column("seq", pa.int64(), "Sequence number in the group."),
        Column("dtype", _NAME, "Element type."),
        Column("size_bytes", pa.int64(), "S: output of gathers, input of everything else."),
        Column("start_ns", pa.int64(), "Start on the rank's own clock, ns since the Unix epoch.", nullable=False),
        Column("end_ns", pa.int64(), "End (exclusive), on the rank's own clock.", nullable=False),
        Column("arrival_ns", pa.int64(), "Latest start over the members, on the clock of the lowest rank's host."),
        Column("wait_ns", pa.int64(), "arrival − (start − clock_offset): how long this rank waited for the last one."),
        Column("skew_ns", pa.int64(), "arrival − earliest start."),
        Column("transfer_ns", pa.int64(), "Shortest duration over the members."),
        Column("last_rank", pa.int32(), "Who arrived last; null where several did."),
        Column("num_members", pa.int32(), "Members whose rows were found; fewer than the group has: wait is a bound."),
        Column("clock_offset_ns", pa.int64(), "How far this rank's clock is ahead; null where nothing tells."),
        Column("profiler_start_ns", pa.int64(), "wait_ns where it is for a profiler that started later; else null."),
        Column("matched_by", _NAME, "Seq, or order: where the trace has no Seq."),
        Column("algbw_gbps", pa.float64(), "S / transfer, 1e9 bytes a second."),
        Column("busbw_gbps", pa.float64(), "algbw × 2(n−1)/n, (n−1)/n or 1, by kind of collective."),
        Column("gather", pa.int64(), "The parameter gather that it belongs to, by its number in gathers."),
    ),
)  # fmt: skip

GATHERS = TableSchema(
    name="gathers",
    doc="One row a parameter gather of stage 3 and rank: a submission of parameters with all collectives that it "
    "launches. hidden + exposed = transfer + wait = gather.",
    sort_by=("rank", "gather"),
    columns=(
        Column("rank", pa.int32(), "Global rank.", nullable=False),
        Column("gather", pa.int64(), "Number of the gather on its rank, in the order of submission.", nullable=False),
        Column("submission", pa.int64(), "Running number that the label gives it; the same on all ranks."),
        Column("step", pa.int32(), "Step in which it starts (by launch: was submitted); null outside of all."),
        Column("device", pa.int32(), "Device index on the host; null in host mode."),
        Column("kind", _NAME, "demand, prefetch or refresh; null where unknown."),
        Column("phase", _NAME, "forward, backward or step; null where unknown."),
        Column("module", _NAME, "Module in whose turn it was submitted; the empty text is the root."),
        Column("num_params", pa.int64(), "Parameters in it."),
        Column("parameters", _NAME, "The first of them, comma-separated, in the order of their creation."),
        Column("bytes", pa.int64(), "Bytes of the whole parameters; where inferred, of what the collective puts out."),
        Column("num_collectives", pa.int64(), "Collectives that it launched.", nullable=False),
        Column("submit_ns", pa.int64(), "When the host began it, nanoseconds since the Unix epoch.", nullable=False),
        Column("start_ns", pa.int64(), "Start of its first collective; null where none is in the trace."),
        Column("end_ns", pa.int64(), "End of its last collective (exclusive)."),
        Column("need_ns", pa.int64(), "Start of the first compute of the first module that uses a parameter of it."),
        Column("need_module", _NAME, "That module."),
        Column("slack_ns", pa.int64(), "need − end."),
        Column("gather_ns", pa.int64(), "Time in which any of its collectives runs."),
        Column("hidden_ns", pa.int64(), "Of it, with compute running on the same device."),
        Column("exposed_ns", pa.int64(), "The rest of it."),
        Column("blocking_ns", pa.int64(), "Of the exposed time, what holds compute back."),
        Column("transfer_ns", pa.int64(), "Of the gather, after the last rank had arrived; null where unmatched."),
        Column("wait_ns", pa.int64(), "The rest: waiting for a late rank."),
        Column("hidden_transfer_ns", pa.int64(), "Of the transfer, with compute running."),
        Column("late", pa.bool_(), "A prefetch that holds compute back."),
        Column("cold", pa.bool_(), "Submitted in a step without prefetch, for want of a complete trace of modules."),
        Column("inferred", pa.bool_(), "Told from the order of calls and not by a label.", nullable=False),
    ),
)  # fmt: skip

WIRE = TableSchema(
    name="wire",
    doc="Bytes on the wire: one row a rank, step, and kind and role of collective.",
    sort_by=("rank", "step"),
    columns=(
        Column("rank", pa.int32(), "Global rank.", nullable=False),
        Column("step", pa.int32(), "Step in which the collectives were launched.", nullable=False),
        Column("kind", _NAME, "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, send, recv or "
               "other."),
        Column("role", _NAME, "gradients, parameters, updated (parameters after the optimizer step), control, other."),
        Column("phase", _NAME, "forward, backward or step; null where no label says."),
        Column("dtype", _NAME, "Element type."),
        Column("group_size", pa.int32(), "Members of the group, n."),
        Column("num_calls", pa.int64(), "Collectives.", nullable=False),
        Column("elements", pa.int64(), "Elements of S; null where the trace does not say of all."),
        Column("size_bytes", pa.int64(), "S: output of gathers, input of everything else."),
        Column("sent_bytes", pa.float64(), "Sent by the rank, as the mean over the members of a ring: S × 2(n−1)/n for "
               "all-reduce, S × (n−1)/n for the others."),
    ),
)  # fmt: skip

MEMORY = TableSchema(
    name="memory",
    doc="Bytes by owner over the memory window: one row at its beginning, and one after each event of the allocator's "
    "history that changes what is allocated or reserved. The columns of owners add up to allocated_bytes.",
    sort_by=("rank", "device", "event"),
    columns=(
        Column("rank", pa.int32(), "Global rank; -1 for a snapshot by itself.", nullable=False),
        Column("device", pa.int32(), "Device index on the host.", nullable=False),
        Column("event", pa.int64(), "Place in the history, from 0 on; -1 for the beginning.", nullable=False),
        Column("time_ns", pa.int64(), "Nanoseconds since the Unix epoch, to the microsecond.", nullable=False),
        Column("allocated_bytes", pa.int64(), "Σ allocated blocks.", nullable=False),
        Column("reserved_bytes", pa.int64(), "Σ segments.", nullable=False),
        *(
            Column(f"{owner.value}_bytes", pa.int64(), f"Of these: {meaning}.", nullable=False)
            for owner, meaning in OWNER_MEANINGS.items()
        ),
    ),
)  # fmt: skip

_OWN_TIME = (
    ("compute_ns", "time in which compute runs."),
    ("copy_ns", "copies under neither compute nor communication."),
    ("comm_ns", "collectives of other groups with no compute beside them."),
    ("host_bound_ns", "idle until the next row had been launched; null in host mode."),
    ("rest_ns", "launched but held back, or without a launch in the trace."),
)

STRAGGLERS = TableSchema(
    name="stragglers",
    doc="One row a rank and step: how the rank arrives at collectives. Lateness is the start of the last rank less "
    "that of the rank before it. own = compute + copy + comm + host_bound + rest; late = own − before + began.",
    sort_by=("rank", "step"),
    columns=(
        Column("rank", pa.int32(), "Global rank.", nullable=False),
        Column("step", pa.int32(), "Step in which the collectives were launched; null outside of all."),
        Column("num_collectives", pa.int64(), "Matched collectives of which the rank is a member.", nullable=False),
        Column("num_last", pa.int64(), "Of these, at which it started last.", nullable=False),
        Column("num_late", pa.int64(), "Of these, last by more than a tie; what follows is of these.", nullable=False),
        Column("num_independent", pa.int64(), "Of these, not the same delay seen again.", nullable=False),
        Column("delay_ns", pa.int64(), "What is new in the lateness of the independent ones, summed.", nullable=False),
        Column("late_ns", pa.int64(), "Lateness, summed.", nullable=False),
        Column("median_late_ns", pa.float64(), "Median lateness; null where it is never late."),
        Column("began_ns", pa.int64(), "How much later than the rank before its own time began.", nullable=False),
        Column("own_ns", pa.int64(), "Own time since the group's previous collective, summed.", nullable=False),
        *(Column(f"own_{name}", pa.int64(), f"Of it, {doc}") for name, doc in _OWN_TIME),
        Column("before_ns", pa.int64(), "Own time of the rank before it in the same intervals.", nullable=False),
        *(Column(f"before_{name}", pa.int64(), f"Of it, {doc}") for name, doc in _OWN_TIME),
        Column("num_together", pa.int64(), "Collectives at which its group is late together; null where in none."),
        Column("together_ns", pa.int64(), "Lateness of that group, summed: its first start less the others' last."),
    ),
)  # fmt: skip

OVERLAP_TAX = TableSchema(
    name="overlap_tax",
    doc="One row a rank and kind of compute kernel (name, launch shape) that runs beside communication for any time. "
    "Beside: at least half of its time has communication beside it; alone: none has.",
    sort_by=("rank", "device", "name", "launch_shape"),
    columns=(
        Column("rank", pa.int32(), "Global rank.", nullable=False),
        Column("device", pa.int32(), "Device index on the host.", nullable=False),
        Column("name", _NAME, "Name of the kernel.", nullable=False),
        Column("launch_shape", _NAME, "Grid and block; null where the trace does not say."),
        Column("num_alone", pa.int64(), "Kernels alone.", nullable=False),
        Column("num_beside", pa.int64(), "Kernels beside communication.", nullable=False),
        Column("num_between", pa.int64(), "Kernels of which less than half is: on neither side.", nullable=False),
        Column("alone_ns", pa.float64(), "Median duration alone."),
        Column("beside_ns", pa.float64(), "Median duration beside communication."),
        Column("lost_ns", pa.float64(), "num_beside × (beside − alone), over all steps; null where not compared."),
        Column("error_ns", pa.float64(), "Half of the 95 % interval of lost_ns."),
        Column("not_compared", _NAME, "few, mixed or no_shape; null where the two are compared."),
    ),
)  # fmt: skip

HTA_OVERLAP = TableSchema(
    name="hta_overlap",
    doc="HTA's overlap and temporal breakdown beside ours, over the rows that HTA keeps, each row whole.",
    sort_by=("rank",),
    columns=(
        Column("rank", pa.int32(), "Global rank.", nullable=False),
        Column("hta_overlap_percent", pa.float64(), "HTA's overlap, rounded by HTA; null without communication."),
        Column("our_overlap_percent", pa.float64(), "Ours over the same rows."),
        Column("hta_compute_ns", pa.int64(), "HTA's compute time."),
        Column("our_compute_ns", pa.int64(), "Ours."),
        Column("hta_non_compute_ns", pa.int64(), "HTA's busy time without compute."),
        Column("our_non_compute_ns", pa.int64(), "Ours."),
        Column("hta_idle_ns", pa.int64(), "HTA's idle time, between the first and the last device row."),
        Column("our_idle_ns", pa.int64(), "Ours over the same stretch."),
        Column("hta_total_ns", pa.int64(), "HTA's 100 %: from the first to the last device row."),
        Column("our_total_ns", pa.int64(), "Ours."),
        Column("note", _NAME, "Why the two differ; null where they agree."),
    ),
)  # fmt: skip

HTA_IDLE = TableSchema(
    name="hta_idle",
    doc="HTA's idle breakdown of each stream.",
    sort_by=("rank", "stream", "reason"),
    columns=(
        Column("rank", pa.int32(), "Global rank.", nullable=False),
        Column("stream", pa.int64(), "Stream of the device.", nullable=False),
        Column("reason", _NAME, "host_wait, kernel_wait or other, as HTA names them.", nullable=False),
        Column("idle_ns", pa.int64(), "Idle time of that reason.", nullable=False),
        Column("ratio", pa.float64(), "Its part of the stream's idle time, rounded by HTA."),
    ),
)  # fmt: skip

HTA_KERNELS = TableSchema(
    name="hta_kernels",
    doc="HTA's kernel breakdown: the time during which these kinds of kernel run, over all ranks.",
    sort_by=("kernel_type",),
    columns=(
        Column("kernel_type", _NAME, "Kind, or kinds that overlap, as HTA names them.", nullable=False),
        Column("total_ns", pa.int64(), "Time, summed over ranks.", nullable=False),
        Column("percent", pa.float64(), "Its part of the total, rounded by HTA."),
    ),
)  # fmt: skip

TABLES: tuple[TableSchema, ...] = (
    EVENTS,
    STEPS,
    PARTITION,
    COLLECTIVES,
    GATHERS,
    MEMORY,
    WIRE,
    STRAGGLERS,
    OVERLAP_TAX,
    HTA_OVERLAP,
    HTA_IDLE,
    HTA_KERNELS,
)
