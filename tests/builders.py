"""A small language for traces, so that a test shows its trace and its answer on one screen.

    TraceBuilder().step(2, 0, 1000).compute(100, 300).all_gather(250, 400).write(folder)

Times are microseconds, as in Kineto. Each device row gets a launch call shortly before it.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from zerotrace.labels import GatherKind, Label, LabelEvent, Phase, format_label

BASE_TIME_NS = 1_790_000_000_000_000_000
COMPUTE_STREAM, COMM_STREAM = 7, 20


class TraceBuilder:
    """One rank's trace; every method that adds something returns the builder."""

    def __init__(self, rank: int = 0, world_size: int = 1, backend: str = "nccl") -> None:
        self.rank = rank
        self.events: list[Any] = []
        self.metadata: dict[str, Any] = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "Test GPU"}],
            "distributedInfo": {"backend": backend, "rank": rank, "world_size": world_size},
            "baseTimeNanoseconds": BASE_TIME_NS,
        }
        self._correlation = 100

    def step(
        self, number: int, start: float, end: float, *, tid: int = 4000, cat: str = "user_annotation"
    ) -> TraceBuilder:
        """The host window of a step."""
        return self.host(f"ProfilerStep#{number}", start, end, tid=tid, cat=cat)

    def host(
        self, name: str, start: float, end: float, *, tid: int = 4000, cat: str = "cpu_op", **args: Any
    ) -> TraceBuilder:
        """Something on the host."""
        return self.event(ph="X", cat=cat, name=name, pid=4000, tid=tid, ts=start, dur=end - start, args=args)

    def compute(self, start: float, end: float, *, name: str = "gemm_bf16", **where: Any) -> TraceBuilder:
        """A compute kernel."""
        return self.device("kernel", name, start, end, **where)

    def copy(
        self, start: float, end: float, *, name: str = "Memcpy DtoD (Device -> Device)", **where: Any
    ) -> TraceBuilder:
        """A copy between devices."""
        return self.device("gpu_memcpy", name, start, end, **{"bytes": 4096, **where})

    def all_gather(self, start: float, end: float, *, elements: int = 1024, **where: Any) -> TraceBuilder:
        """An all-gather kernel with its metadata."""
        metadata = {"Collective name": "_allgather_base", "In msg nelems": elements, "Out msg nelems": 2 * elements,
                    "Group size": 2, "dtype": "BFloat16", "Process Group Name": "0",
                    "Process Group Ranks": "[0, 1]"}  # fmt: skip
        name = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        return self.device("kernel", name, start, end, **{"stream": COMM_STREAM, **metadata, **where})

    def collective(
        self,
        name: str,
        start: float,
        end: float,
        *,
        elements: int | None,
        ranks: tuple[int, ...] = (0, 1),
        **where: Any,
    ) -> TraceBuilder:
        """A collective kernel with its metadata; ``elements`` are those of S: output of gathers, input of the rest."""
        share = None if elements is None else elements // len(ranks)
        put, got = {"gather": (share, elements), "scatter": (elements, share)}.get(
            next((part for part in ("gather", "scatter") if part in name), ""), (elements, elements)
        )
        metadata = {"Collective name": name, "In msg nelems": put, "Out msg nelems": got, "Group size": len(ranks),
                    "dtype": "BFloat16", "Process Group Name": "0", "Process Group Ranks": str([*ranks])}  # fmt: skip
        kernel = f"ncclDevKernel_{name.strip('_')}(ncclDevKernelArgsStorage<4096ul>)"
        return self.device("kernel", kernel, start, end, **{"stream": COMM_STREAM, **metadata, **where})

    def label(self, label: Label | str, start: float, end: float, *, tid: int = 4000) -> TraceBuilder:
        """A label of a capture, or an annotation of any name."""
        name = label if isinstance(label, str) else format_label(label)
        return self.host(name, start, end, tid=tid, cat="user_annotation")

    def fetch(
        self, module: str, start: float, end: float, *, phase: Phase = Phase.FORWARD, tid: int = 4000
    ) -> TraceBuilder:
        """Stage 3's coordinator at work for a module."""
        return self.label(Label(event=LabelEvent.FETCH, phase=phase, module=module), start, end, tid=tid)

    def gather(
        self, kind: GatherKind, submit: float, start: float, end: float, *, params: str, num_params: int | None = None,
        phase: Phase = Phase.FORWARD, module: str | None = None, elements: int = 1024, tid: int = 4000, **where: Any,
    ) -> TraceBuilder:  # fmt: skip
        """A labelled gather of ``params`` (comma-separated): submitted in 4 µs, with one all-gather in the middle."""
        names = tuple(params.split(","))
        count = len(names) if num_params is None else num_params
        label = Label(event=LabelEvent.GATHER, kind=kind, phase=phase, module=module, params=names, num_params=count,
                      elements=2 * elements, bytes=4 * elements)  # fmt: skip
        self.label(label, submit, submit + 4, tid=tid)
        return self.all_gather(start, end, elements=elements, launched=submit + 1, launch_tid=tid, **where)

    def device(
        self,
        cat: str,
        name: str,
        start: float,
        end: float,
        *,
        stream: int = COMPUTE_STREAM,
        device: int = 0,
        launched: float | None = None,
        launch_tid: int = 4000,
        **args: Any,
    ) -> TraceBuilder:
        """A row of any kind on a device, and the call that launched it (``launched=-1`` for none)."""
        self._correlation += 1
        launched = start - 5 if launched is None else launched
        if launched != -1:
            self.host(
                "cudaLaunchKernel", launched, launched + 2, tid=launch_tid, cat="cuda_runtime",
                correlation=self._correlation,
            )  # fmt: skip
        where = {"device": device, "stream": stream, "correlation": self._correlation, **args}
        return self.event(ph="X", cat=cat, name=name, pid=device, tid=stream, ts=start, dur=end - start, args=where)

    def stream_wait(
        self, at: float, *, stream: int = COMPUTE_STREAM, source: int | None = None, recorded: float | None = None
    ) -> TraceBuilder:
        """A call that makes ``stream`` wait for an event, recorded on ``source`` by a call at ``recorded``.

        Without these two the trace does not say what is waited for.
        """
        record = -1
        if recorded is not None:
            self._correlation += 1
            record = self._correlation
            self.host("cudaEventRecord", recorded, recorded + 1, cat="cuda_runtime", correlation=record)
        self._correlation += 1
        self.host("cudaStreamWaitEvent", at, at + 1, cat="cuda_runtime", correlation=self._correlation)
        named = {"wait_on_stream": -1 if source is None else source, "wait_on_cuda_event_record_corr_id": record}
        return self.sync_row("Stream Wait Event", at, at + 1, stream=stream, **named)

    def sync_call(
        self, name: str, start: float, end: float, kind: str, *, stream: int = -1, tid: int = 4000, **args: Any
    ) -> TraceBuilder:
        """A synchronising call of the host, and the row that says what it waits for."""
        self._correlation += 1
        self.host(name, start, end, tid=tid, cat="cuda_runtime", correlation=self._correlation)
        return self.sync_row(kind, start, end, stream=stream, **args)

    def sync_row(
        self, kind: str, start: float, end: float, *, stream: int, device: int = 0, **args: Any
    ) -> TraceBuilder:
        """A ``cuda_sync`` row of the call before it."""
        where = {"device": device, "stream": stream, "correlation": self._correlation, "cuda_sync_kind": kind, **args}
        return self.event(
            ph="X", cat="cuda_sync", name=kind, pid=device, tid=stream, ts=start, dur=end - start, args=where
        )

    def event(self, **fields: Any) -> TraceBuilder:
        """Any event, as it is."""
        self.events.append(fields)
        return self

    def with_metadata(self, **metadata: Any) -> TraceBuilder:
        """Adds or replaces top-level keys; a value of ``None`` removes the key."""
        self.metadata = {k: v for k, v in {**self.metadata, **metadata}.items() if v is not None}
        return self

    def text(self, *, indent: int | None = None) -> str:
        """The trace as JSON."""
        return json.dumps({**self.metadata, "traceEvents": self.events}, indent=indent)

    def write(self, folder: Path, name: str | None = None, *, zipped: bool = False, indent: int | None = None) -> Path:
        """Writes ``rank_N.json`` (or ``name``) into ``folder``, gzipped or plain whatever the name says."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / (name or f"rank_{self.rank}.json")
        data = self.text(indent=indent).encode()
        path.write_bytes(gzip.compress(data) if zipped else data)
        return path
