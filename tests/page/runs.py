"""Small runs made by hand: events, and the analysis that belongs to them, worked out a second time in another way.

The partition here comes from an occupancy of elementary intervals, not from unions: what the page shows is
checked against arithmetic that shares no code with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct, field
from msgspec.structs import asdict, replace

from zerotrace.analysis.derived import with_derived
from zerotrace.model import (
    Analysis,
    Attribution,
    Category,
    Diagnostic,
    HtaIdle,
    HtaKernelType,
    HtaOverlap,
    HtaReport,
    KernelTime,
    Mode,
    ModelShape,
    RankRecord,
    RankSummary,
    RunManifest,
    Spread,
    StepPartition,
    StepWindow,
    TraceSource,
    Verdict,
)
from zerotrace.schema import EVENTS

EPOCH = 1_764_000_000_000_000_000
US = 1_000
MS = 1_000_000


class Row(Struct, frozen=True):
    """One row of device time; ``start`` in ns after EPOCH."""

    rank: int
    category: str
    start: int
    dur: int
    name: str = "kernel"
    device: int | None = 0
    stream: int | None = 7
    tid: int | None = None
    collective: str | None = None
    dtype: str | None = None
    group_size: int | None = None
    in_elements: int | None = None
    out_elements: int | None = None
    seq: int | None = None

    @property
    def end(self) -> int:
        return self.start + self.dur


class HostRow(Struct, frozen=True):
    """An annotation of the host, such as a label; ``start`` in ns after EPOCH."""

    rank: int
    start: int
    dur: int
    name: str
    tid: int = 1


class Run(Struct, frozen=True):
    """An analysis with its events and with the rows they were made from."""

    analysis: Analysis
    rows: tuple[Row, ...]
    windows: tuple[StepWindow, ...]
    host: tuple[HostRow, ...] = ()

    @property
    def events(self) -> list[tuple[int, pa.Table]]:
        ranks = sorted({row.rank for row in self.rows} | {window.rank for window in self.windows})
        return [
            (
                rank,
                events_table(
                    [row for row in self.rows if row.rank == rank], [row for row in self.host if row.rank == rank]
                ),
            )
            for rank in ranks
        ]

    @property
    def zero(self) -> int:
        """What the page counts from, ns after EPOCH."""
        starts = [row.start for row in self.rows] + [window.start_ns - EPOCH for window in self.windows]
        return min(starts)

    def with_(self, **changes: Any) -> Run:
        return replace(self, analysis=with_derived(replace(self.analysis, **changes)))

    def busy(self, rank: int, role: str, start: int, end: int) -> int:
        """Busy time of a summary lane in [start, end), ns after the page's zero."""
        rows = [row for row in self.rows if row.rank == rank]
        return occupancy(rows, start + self.zero, end + self.zero)[role]


def occupancy(rows: Sequence[Row], start: int, end: int) -> dict[str, int]:
    """Time of each role in [start, end): how many rows of each category cover each elementary interval."""
    borders = {start, end} | {point for row in rows for point in (row.start, row.end)}
    points = np.array(sorted(point for point in borders if start <= point <= end), dtype=np.int64)
    lengths = np.diff(points)
    covered = {}
    for category in ("compute", "comm", "copy"):
        change = np.zeros(len(points) + 1, dtype=np.int64)
        for row in rows:
            if row.category == category and row.end > start and row.start < end:
                change[np.searchsorted(points, max(row.start, start))] += 1
                change[np.searchsorted(points, min(row.end, end))] -= 1
        covered[category] = np.cumsum(change)[: len(lengths)] > 0
    compute, comm, copy = covered["compute"], covered["comm"], covered["copy"]
    masks = {
        "compute": compute,
        "overlapped": comm & compute,
        "exposed": comm & ~compute,
        "copy": copy & ~compute & ~comm,
        "idle": ~(compute | comm | copy),
    }
    return {role: int(lengths[mask].sum()) for role, mask in masks.items()}


def events_table(rows: Sequence[Row], annotations: Sequence[HostRow] = ()) -> pa.Table:
    """Rows in the schema EVENTS, with host rows that are no device time: a launch, and the annotations."""
    columns: dict[str, list[Any]] = {column.name: [None] * len(rows) for column in EVENTS.columns}
    for index, row in enumerate(rows):
        values = {
            "event": index,
            "cat": "kernel" if row.device is not None else "cpu_op",
            # Arrow holds no lone surrogates; analysis.json, the manifest and paths may.
            "name": row.name.encode("utf-8", "replace").decode(),
            "category": row.category,
            "start_ns": EPOCH + row.start,
            "dur_ns": row.dur,
            "device": row.device,
            "stream": row.stream,
            "tid": row.tid,
            "collective": row.collective and row.collective.encode("utf-8", "replace").decode(),
            "dtype": row.dtype and row.dtype.encode("utf-8", "replace").decode(),
            "group_size": row.group_size,
            "in_elements": row.in_elements,
            "out_elements": row.out_elements,
            "seq": row.seq,
        }
        for name, value in values.items():
            columns[name][index] = value
    host: list[dict[str, Any]] = [{"cat": "cuda_runtime", "name": "cudaLaunchKernel", "start_ns": EPOCH, "dur_ns": 5}]
    host += [
        {
            "cat": "user_annotation",
            "name": row.name.encode("utf-8", "replace").decode(),
            "start_ns": EPOCH + row.start,
            "dur_ns": row.dur,
            "tid": row.tid,
        }
        for row in annotations
    ]
    for event, entry in enumerate(host, start=len(rows)):
        for name, values_of_column in columns.items():
            values_of_column.append({"event": event, **entry}.get(name))
    return pa.table({c.name: pa.array(columns[c.name], type=c.type) for c in EVENTS.columns}, schema=EVENTS.arrow())


def make_run(
    rows: Iterable[Row],
    steps: Iterable[tuple[int, int, int, int]] = (),
    *,
    mode: Mode = Mode.DEVICE,
    manifest: RunManifest | None = None,
    diagnostics: Iterable[Diagnostic] = (),
    hta: HtaReport | None = None,
    name: str = "traces/stage3",
    headline: str = "The devices wait for the host.",
) -> Run:
    """Puts a run together.

    Args:
        rows: all rows of device time.
        steps: (rank, step, start, end) of each window, ns after EPOCH.
        mode, manifest, diagnostics, hta, name, headline: go into the analysis as they are.
    """
    rows = tuple(rows)
    windows = tuple(StepWindow(rank=r, step=s, start_ns=EPOCH + a, end_ns=EPOCH + b) for r, s, a, b in steps)
    partition = tuple(_partition(rows, window, mode) for window in windows)
    ranks = tuple(_summary(rank, partition) for rank in sorted({p.rank for p in partition if p.known}))
    all_ranks = sorted({row.rank for row in rows} | {window.rank for window in windows})
    analysis = Analysis(
        zerotrace_version="0.1.0",
        run_name=name,
        mode=mode,
        attribution=Attribution.CLIP,
        sources=tuple(_source(rank, rows) for rank in all_ranks),
        windows=windows,
        partition=partition,
        ranks=ranks,
        verdict=_verdict(ranks, manifest, headline),
        top_kernels=_top_kernels(rows),
        diagnostics=tuple(diagnostics),
        hta=hta,
        manifest=manifest,
        elapsed_s=1.25,
    )
    return Run(with_derived(analysis, num_rows=len(rows)), rows, windows)


def _partition(rows: Sequence[Row], window: StepWindow, mode: Mode) -> StepPartition:
    start, end = window.start_ns - EPOCH, window.end_ns - EPOCH
    own = [row for row in rows if row.rank == window.rank]
    time = occupancy(own, start, end)
    known = any(row.start < end and row.end > start for row in own)
    figure: Callable[[int], int | None] = lambda value: value if known else None  # noqa: E731
    return StepPartition(
        rank=window.rank,
        device=0 if mode is Mode.DEVICE else None,
        step=window.step,
        start_ns=window.start_ns,
        span_ns=window.span_ns,
        compute_ns=figure(time["compute"]),
        comm_ns=figure(time["overlapped"] + time["exposed"]),
        overlapped_ns=figure(time["overlapped"]),
        exposed_ns=figure(time["exposed"]),
        copy_only_ns=figure(time["copy"]),
        idle_ns=figure(time["idle"]),
    )


def _summary(rank: int, partition: Sequence[StepPartition]) -> RankSummary:
    parts = [p for p in partition if p.rank == rank and p.known]
    mean = {
        name: fmean(getattr(p, name) for p in parts)
        for name in ("span_ns", "compute_ns", "comm_ns", "overlapped_ns", "exposed_ns", "copy_only_ns", "idle_ns")
    }
    ratio = mean["overlapped_ns"] / mean["comm_ns"] if mean["comm_ns"] else None
    return RankSummary(
        rank=rank, device=parts[0].device, num_steps=len(parts), overlap_ratio=ratio, outside_steps_ns=0, **mean
    )


def _verdict(ranks: Sequence[RankSummary], manifest: RunManifest | None, headline: str) -> Verdict:
    def spread(values: Iterable[float | None]) -> Spread | None:
        known = [value for value in values if value is not None]
        return Spread(min=min(known), median=median(known), max=max(known)) if known else None

    unprofiled = 4.0 * MS if manifest else None
    span = spread(r.span_ns for r in ranks)
    return Verdict(
        unprofiled_step_ns=unprofiled,
        dilation_ratio=span.median / unprofiled if span and unprofiled else None,
        span_ns=span,
        compute_ns=spread(r.compute_ns for r in ranks),
        exposed_ns=spread(r.exposed_ns for r in ranks),
        overlap_ratio=spread(r.overlap_ratio for r in ranks),
        copy_only_ns=spread(r.copy_only_ns for r in ranks),
        idle_ns=spread(r.idle_ns for r in ranks),
        peak_bytes=spread(r.peak_bytes for r in manifest.ranks) if manifest else None,
        resident_bytes=spread(r.resident_bytes for r in manifest.ranks) if manifest else None,
        headline=headline,
    )


def _source(rank: int, rows: Sequence[Row]) -> TraceSource:
    count = sum(row.rank == rank for row in rows)
    return TraceSource(
        file=f"rank_{rank}.pt.trace.json.gz",
        rank=rank,
        num_bytes=1234,
        digest=f"{rank:032x}",
        num_events=count + 1,
        num_device_rows=count,
        world_size=2,
        backend="nccl",
        host="node0",
        devices=("NVIDIA H200",),
    )


def _top_kernels(rows: Sequence[Row]) -> tuple[KernelTime, ...]:
    totals: dict[tuple[int, str, str], list[int]] = {}
    for row in rows:
        totals.setdefault((row.rank, row.name, row.category), []).append(row.dur)
    kernels = [
        KernelTime(rank=rank, name=name, category=Category(category), count=len(durations), total_ns=sum(durations))
        for (rank, name, category), durations in totals.items()
    ]
    return tuple(sorted(kernels, key=lambda k: (k.rank, -k.total_ns, k.name)))


def manifest(num_ranks: int = 2, device: str = "cuda", **changes: Any) -> RunManifest:
    """A manifest as ``zerotrace capture`` writes it."""
    gauge = None if device == "cpu" else 7 * 1024**3
    record = RunManifest(
        created="2026-01-02T03:04:05+00:00",
        zerotrace_version="0.1.0",
        command=("zerotrace", "capture", "--stage", "3", "--gpus", str(num_ranks)),
        engine="deepspeed",
        stage=3,
        world_size=num_ranks,
        device=device,
        backend="nccl" if device == "cuda" else "gloo",
        model=ModelShape(
            name="gpt2-large", num_layers=36, num_heads=20, hidden_size=1280, vocab_size=50304, num_params=774_090_000
        ),
        micro_batch=4,
        sequence=1024,
        seed=1337,
        ds_config={"zero_optimization": {"stage": 3}},
        versions={"deepspeed": "0.19.8", "torch": "2.11.0", "nccl": "2.28.9"},
        environment={"NCCL_P2P_DISABLE": "1"},
        ranks=tuple(
            RankRecord(
                rank=rank,
                host=0,
                device="NVIDIA H200" if device == "cuda" else "cpu",
                windows=(),
                resident_bytes=gauge,
                peak_bytes=None if gauge is None else 2 * gauge + rank * 1024**3,
            )
            for rank in range(num_ranks)
        ),
    )
    return replace(record, **changes)


def hta_report(ranks: Sequence[int] = (0, 1)) -> HtaReport:
    return HtaReport(
        hta_version="0.5.0",
        overlap=tuple(
            HtaOverlap(
                rank=rank,
                hta_overlap_percent=12.5,
                our_overlap_percent=12.25 if rank == 0 else None,
                hta_compute_ns=5 * MS,
                our_compute_ns=4 * MS,
                hta_non_compute_ns=MS,
                our_non_compute_ns=2 * MS,
                hta_idle_ns=MS,
                our_idle_ns=MS,
                hta_total_ns=7 * MS,
                our_total_ns=7 * MS,
                note="HTA counts Stream Wait Event as compute" if rank == 0 else None,
            )
            for rank in ranks
        ),
        idle=(HtaIdle(rank=0, stream=7, reason="host_wait", idle_ns=MS, ratio=None),),
        kernel_types=(HtaKernelType(kernel_type="COMPUTATION", total_ns=5 * MS, percent=80.0),),
    )


def training_run(num_ranks: int = 2, num_steps: int = 2, **changes: Any) -> Run:
    """Ranks that compute in short kernels, gather beside them and in the open, and copy now and then."""
    rng = np.random.default_rng(7)
    rows: list[Row] = []
    steps = []
    for rank in range(num_ranks):
        for step in range(num_steps):
            begin = step * 6 * MS + rank * 3 * US
            steps.append((rank, step + 2, begin, begin + 6 * MS))
            rows += _step_rows(rank, begin, rng)
    return make_run(rows, steps, **changes)


def _step_rows(rank: int, begin: int, rng: np.random.Generator) -> list[Row]:
    rows = []
    now = begin + 40 * US
    while now < begin + 4 * MS:
        dur = int(rng.integers(1_500, 60_000))
        rows.append(Row(rank, "compute", now, dur, f"void at::native::kernel_{rng.integers(5)}<float, 4>(int)"))
        now += dur + int(rng.integers(200, 30_000))
    for number, offset in enumerate((500, 1_700, 4_200)):
        rows.append(
            Row(
                rank, "comm", begin + offset * US + rank * 11, 600 * US + rank * 1_003,
                "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", stream=20,
                collective="_allgather_base", dtype="BFloat16", group_size=2, in_elements=1_000,
                out_elements=2_000, seq=number,
            )
        )  # fmt: skip
    rows.append(Row(rank, "copy", begin + 5_200 * US, 2 * US, "Memcpy HtoD (Pinned -> Device)"))
    rows.append(Row(rank, "copy", begin + 2 * MS, 90 * US, "Memset (Device)", stream=29))
    return rows


def host_run() -> Run:
    """Two CPU ranks over gloo: operators nested on one thread, gloo calls on another."""
    rows = []
    for rank in range(2):
        for number in range(6):
            at = number * 500 * US
            rows += [
                Row(rank, "compute", at, 300 * US, "aten::linear", device=None, stream=None, tid=101),
                Row(rank, "compute", at + 10 * US, 250 * US, "aten::addmm", device=None, stream=None, tid=101),
                Row(rank, "comm", at + 200 * US, 200 * US, "gloo:all_gather", device=None, stream=None, tid=202),
            ]
    steps = [(rank, 8, 0, 3 * MS) for rank in range(2)]
    return make_run(rows, steps, mode=Mode.HOST, manifest=manifest(device="cpu"), name="traces/cpu")


def labelled_run() -> Run:
    """One step of two ranks with phases and modules: rank 1's host is 40 µs behind."""
    rows, host, steps = [], [], []
    for rank in range(2):
        late = rank * 40 * US
        steps.append((rank, 4, 0, MS))
        rows += [Row(rank, "compute", 100 * US + late + k * 80 * US, 50 * US, f"gemm_{k}") for k in range(10)]
        for phase, start, end in (("forward", 10, 400), ("backward", 410, 800), ("step", 800, 940)):
            host.append(HostRow(rank, start * US + late, (end - start) * US, f"zt1:phase phase={phase}"))
        host.append(HostRow(rank, 20 * US + late, 370 * US, "zt1:forward module= phase=forward"))
        host.append(HostRow(rank, 30 * US + late, 300 * US, "zt1:forward module=blocks.0 phase=forward"))
        host.append(HostRow(rank, 40 * US + late, 100 * US, "zt1:forward module=blocks.0.fc phase=forward"))
        host.append(HostRow(rank, 150 * US + late, 900, "zt1:forward module=blocks.0.act phase=forward"))
        host.append(HostRow(rank, 420 * US + late, 300 * US, "zt1:backward module=blocks.0.fc phase=backward", tid=2))
        host.append(HostRow(rank, 425 * US + late, 5 * US, "zt1:gather kind=demand phase=backward module=x n=1"))
    made = make_run(rows, steps)
    return replace(made, host=tuple(host))


class HostileTexts(Struct):
    """Names that try to leave the place where they are put."""

    script: str = "</script><img src=x onerror=window.hacked=1>"
    comment: str = "<!--<script>window.hacked=1</script>"
    quotes: str = '"\'` onmouseover=window.hacked=1 x="'
    template: str = "{{ 7*7 }}{% raw %}"
    control: str = "nul\x00 bell\x07 escape\x1b[31m newline\nend"
    separators: str = "line\u2028separator\u2029end"
    reordered: str = "\u202egnp.exe\u202c and \u05e9\u05dc\u05d5\u05dd"
    surrogate: str = "lone \udc80 surrogate"
    link: str = '<a href="javascript:window.hacked=1">click</a><b>bold</b>'
    all: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.all = [value for value in asdict(self).values() if isinstance(value, str)]
