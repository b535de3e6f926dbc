"""What traces are read with beside zerotrace, each as a program of its own: ``python readers.py KEY FILES [BYTES]``.

FILES is JSON, paths by rank. Imports stand inside of each reader, since they are part of what it takes.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

#: By key, what each is called in the tables.
READERS = {
    "gunzip": "gunzip alone",
    "typed": "gunzip + typed decode",
    "json": "gunzip + json.loads",
    "hta": "HTA: load, overlap, temporal breakdown",
}


def gunzip(files: dict[str, str]) -> None:
    """Unpacks each with the fastest that there is."""
    for path in files.values():
        _text(path)


def typed(files: dict[str, str]) -> None:
    """Decodes the fields of complete events that an analysis needs, and skips all else."""
    import string
    from typing import Union

    import msgspec

    args = msgspec.defstruct(
        "Args",
        [(f"field_{number}", Any, msgspec.field(default=None, name=name)) for number, name in enumerate(_ARGS)],
        gc=False,
    )
    fields = [(name, Any, None) for name in ("cat", "name", "pid", "tid", "ts", "dur")]
    event = msgspec.defstruct("Event", [*fields, ("args", args | None, None)], gc=False, tag_field="ph", tag="X")
    others = [
        msgspec.defstruct(f"Other_{phase}", [], gc=False, tag_field="ph", tag=phase)
        for phase in string.ascii_letters
        if phase != "X"
    ]
    document = msgspec.defstruct("Document", [("traceEvents", list[Union[(event, *others)]])], gc=False)
    gc.disable()
    for path in files.values():
        msgspec.json.decode(_text(path), type=document)


def plain_json(files: dict[str, str]) -> None:
    """What a few lines of a notebook do."""
    import gzip

    for path in files.values():
        data = Path(path).read_bytes()
        json.loads(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)


def hta(files: dict[str, str]) -> None:
    """What a user of HTA writes, with its rounding of times off and its last step kept."""
    import logging
    import os
    import warnings

    os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
    warnings.filterwarnings("ignore")
    from hta.trace_analysis import TraceAnalysis

    logging.getLogger("hta").setLevel(logging.ERROR)
    by_rank = {int(rank): path for rank, path in files.items()}
    analysis = TraceAnalysis(
        trace_files=by_rank, trace_dir=str(Path(next(iter(by_rank.values()))).parent), include_last_profiler_step=True
    )
    analysis.get_comm_comp_overlap(visualize=False)
    analysis.get_temporal_breakdown(visualize=False)


# In the order in which Kineto writes them, which makes them quick to find.
_ARGS = (
    "External id", "correlation", "device", "stream", "grid", "block", "Collective name", "In msg nelems",
    "Out msg nelems", "Group size", "dtype", "Process Group Name", "Process Group Ranks", "Seq", "bytes",
    "wait_on_stream", "wait_on_cuda_event_record_corr_id",
)  # fmt: skip


def _text(path: str) -> bytes:
    from isal import igzip

    data = Path(path).read_bytes()
    return igzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def main() -> None:
    """Runs one."""
    key, files, *memory = sys.argv[1:]
    if memory:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (int(memory[0]), int(memory[0])))
    {"gunzip": gunzip, "typed": typed, "json": plain_json, "hta": hta}[key](json.loads(files))


if __name__ == "__main__":
    main()
