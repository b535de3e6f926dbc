"""What a finished capture says: one line a rank, or JSON, and the next command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zerotrace.cli.terminal import print_data, printable, shell_path
from zerotrace.units import format_bytes, format_ns

if TYPE_CHECKING:
    from zerotrace.capture.complete import CaptureResult
    from zerotrace.model import RankRecord, RunManifest


def print_result(result: CaptureResult, *, as_json: bool) -> None:
    """Print what a capture has measured, its folder on stdout, and the next command."""
    if result.manifest is None or result.folder is None:
        _print_part(result.folder)
        return
    if as_json:
        print_data(json.dumps(summarise(result.folder, result.manifest), indent=1) + "\n")
    else:
        for record in result.manifest.ranks:
            talk(describe(record))
        click.echo(str(result.folder))
    for note in result.manifest.notes:
        talk(f"Note: {note}")
    if labels := result.manifest.labels:
        for hook, reason in labels.missing.items():
            talk(f"Note: the trace has no labels of the kind {hook!r}: {reason}.")
    if any(record.trace_file for record in result.manifest.ranks):
        talk("Next:")
        talk(f"zerotrace analyze {shell_path(result.folder)}")


def talk(text: str) -> None:
    """Say something that is no result."""
    click.echo(printable(text), err=True)


def _print_part(folder: Path | None) -> None:
    """On a machine that is not node 0."""
    if folder is None:
        talk("This node is done; its traces are in the folder of node 0, which both share.")
        return
    click.echo(str(folder))
    talk(f"This node is done. Copy the traces in {folder} into the folder of node 0, then analyze that.")


def summarise(folder: Path, manifest: RunManifest) -> dict[str, Any]:
    """A capture for ``--json``."""
    return {
        "folder": str(folder),
        "engine": manifest.engine,
        "stage": manifest.stage,
        "world_size": manifest.world_size,
        "device": manifest.device,
        "backend": manifest.backend,
        "model": manifest.model.name,
        "num_params": manifest.model.num_params,
        "ranks": [
            {
                "rank": record.rank,
                "median_step_ns": _median_steps(record),
                "resident_bytes": record.resident_bytes,
                "peak_bytes": record.peak_bytes,
                "reserved_bytes": record.reserved_bytes,
                "device_used_bytes": record.device_used_bytes,
                "trace_file": record.trace_file,
                "light_trace_file": record.light_trace_file,
                "owners_file": record.owners_file,
                "snapshot_file": record.snapshot_file,
            }
            for record in manifest.ranks
        ],
        "label_overhead_ratio": manifest.labels.overhead_ratio if manifest.labels else None,
        "notes": list(manifest.notes),
    }


def describe(record: RankRecord) -> str:
    """What a rank measured, in one line."""
    times = (f"{kind} step {format_ns(median_ns)}" for kind, median_ns in _median_steps(record).items())
    parts = [f"Rank {record.rank}", *times]
    if record.resident_bytes is not None:
        parts += [f"resident {format_bytes(record.resident_bytes)}", f"peak {format_bytes(record.peak_bytes)}"]
    return ", ".join(parts)


def _median_steps(record: RankRecord) -> dict[str, float]:
    """Median step of each window, nanoseconds."""
    from statistics import median

    windows = (window for window in record.windows if window.kind.value != "warmup")
    return {window.kind.value: median(window.step_ns) for window in windows}
