"""Every rank's snapshot and owners file to a measurement, side by side."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path, PurePosixPath

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from zerotrace.analysis.diagnostics import MEMORY_FAILED
from zerotrace.analysis.engines import Engine, Lost, Processes, require_visible, spread
from zerotrace.analysis.memory.belonging import check_files
from zerotrace.analysis.memory.measure import engine_alone, measure
from zerotrace.errors import SnapshotError
from zerotrace.ingest.owners import Owners, read_owners
from zerotrace.ingest.snapshot import Snapshot, read_snapshot
from zerotrace.links import LINK_HINT, is_there, leads_out
from zerotrace.model import Diagnostic, Level, MemoryCurve, RankMemory, RankRecord, RunManifest
from zerotrace.schema import MEMORY
from zerotrace.site import Site, SiteFile
from zerotrace.units import format_bytes

# A replay that misses the gauge by more than this part of it deserves a word.
_TOLERANCE = 0.01

_PUT_BACK = "put the file back, or capture again"


class MeasuredRanks(Struct, frozen=True, kw_only=True):
    """What the memory windows of a run left, measured."""

    ranks: tuple[RankMemory, ...]
    curve: MemoryCurve | None
    """Of the rank with the highest peak."""
    timeline: pa.Table | None
    """Rows of :data:`zerotrace.schema.MEMORY`; ``None`` where no rank has a snapshot."""
    diagnostics: tuple[Diagnostic, ...]
    digests: Mapping[Path, str]
    """Of each file that was read."""


def memory_files(run_folder: Path, manifest: RunManifest | None) -> list[Path]:
    """The snapshots and owners files that the manifest names and that are there."""
    named = [name for record in manifest.ranks for name in _names(record)] if manifest is not None else []
    paths = [run_folder / name for name in named]
    return [path for path in paths if is_there(path) and not leads_out(path)]


def measure_ranks(
    run_folder: Path,
    manifest: RunManifest,
    ranks: Collection[int],
    engine: Engine | None = None,
    site: Site | None = None,
) -> MeasuredRanks:
    """Measures the memory of every rank.

    A file that is missing, damaged or refused costs the figures of its rank, and is said; nothing else. So does a
    process that is lost twice.

    Args:
        run_folder: where the manifest lies.
        manifest: names the files and holds the gauges.
        ranks: those of the run that are analysed.
        engine: where they are read; by default in one process a core.
        site: where the files lie; on this machine by default.

    Raises:
        EngineError: if workers of a cluster do not see the files.
    """
    engine, site = engine or Processes(), site or Site()
    records = [record for record in manifest.ranks if record.rank in ranks]
    place = run_folder.absolute() if engine.is_elsewhere else run_folder
    work = []
    for record in records:
        files = [_file(site, place, name) for name in (record.owners_file, record.snapshot_file)]
        here = [file.path for file in files if file is not None and file.source is None and is_there(file.path)]
        work.append((place, record, *files, here if engine.is_elsewhere else ()))
    # Those that have no snapshot are done at once.
    num_slow = max(len([record for record in records if record.snapshot_file]), 1)
    parts: dict[int, _Part] = {}
    with closing(spread(engine, _measure_rank, work, at_once=num_slow)) as measured:
        for number, part in measured:
            parts[number] = _unmeasured(records[number], part) if isinstance(part, Lost) else part
    found = [parts[number] for number in range(len(records))]
    timelines = [part.timeline for part in found if part.timeline is not None]
    return MeasuredRanks(
        ranks=tuple(part.memory for part in found),
        curve=max(found, key=lambda part: part.memory.peak_bytes or 0).curve if found else None,
        timeline=pa.concat_tables(timelines).replace_schema_metadata(MEMORY.arrow().metadata) if timelines else None,
        diagnostics=tuple(note for part in found for note in part.diagnostics),
        digests={run_folder / name: digest for part in found for name, digest in part.digests.items()},
    )


class _Part(Struct, frozen=True, kw_only=True):
    memory: RankMemory
    curve: MemoryCurve | None
    timeline: pa.Table | None
    diagnostics: tuple[Diagnostic, ...]
    digests: Mapping[str, str]
    """Of each file that was read, by its name."""


def _unmeasured(record: RankRecord, lost: Lost) -> _Part:
    file = record.snapshot_file or record.owners_file or ""
    note = Diagnostic(
        code=MEMORY_FAILED,
        level=Level.ERROR,
        file=file,
        message=f"{file}: not read: {lost.reason}, and so it was when it was tried again; nothing is known of the "
        "memory of its rank but its gauges",
        hint="most often the machine ran out of memory: give --jobs 1, or read it on a larger one",
    )
    memory = RankMemory(rank=record.rank, device=None, resident=(), resident_bytes=None)
    return _Part(memory=_with_gauges(memory, record), curve=None, timeline=None, diagnostics=(note,), digests={})


def _measure_rank(
    run_folder: Path,
    record: RankRecord,
    owners_file: SiteFile | None,
    snapshot_file: SiteFile | None,
    expected: Sequence[Path],
) -> _Part:
    require_visible(*expected)
    # a snapshot makes hundreds of thousands of objects and no cycles
    gc_was_on = gc.isenabled()
    gc.disable()
    try:
        return _measure(run_folder, record, owners_file, snapshot_file)
    finally:
        if gc_was_on:
            gc.enable()


def _measure(
    run_folder: Path, record: RankRecord, owners_file: SiteFile | None, snapshot_file: SiteFile | None
) -> _Part:
    notes: list[Diagnostic] = list(_leads_elsewhere(run_folder, record))
    digests: dict[str, str] = {}
    owners: Owners | None = None
    snapshots: list[Snapshot] = []
    for file in (owners_file, snapshot_file):
        if file is not None and not _has(file):
            message = f"{file.path.name}: named in the manifest, and not there"
            notes.append(_warn("memory_file_missing", message, file.path.name, _PUT_BACK))
    if owners_file is not None and _has(owners_file):
        try:
            with owners_file.whole() as path:
                owners, digests[owners_file.path.name] = read_owners(path)
        except SnapshotError as error:
            notes.append(_warn(error.code, str(error), owners_file.path.name, error.hint))
    if snapshot_file is not None and _has(snapshot_file):
        try:
            with snapshot_file.whole() as path:
                snapshots, digests[snapshot_file.path.name] = read_snapshot(path)
        except SnapshotError as error:
            notes.append(_warn(error.code, str(error), snapshot_file.path.name, error.hint))
    believed = check_files(
        record, owners, snapshots[0] if snapshots else None, record.owners_file or "", record.snapshot_file or ""
    )
    notes += believed.diagnostics
    memory = RankMemory(rank=record.rank, device=None, resident=(), resident_bytes=None)
    timeline: pa.Table | None = None
    curve: MemoryCurve | None = None
    if owners is not None and believed.use_owners:
        memory = replace(
            memory, resident=engine_alone([*owners.storages, *owners.unlocated]), owners_file=record.owners_file
        )
    else:
        owners = None
    if snapshots and believed.use_snapshot:
        measured = measure(
            snapshots[0], owners.storages if owners else (), record.rank, owners.unlocated if owners else ()
        )
        memory = replace(
            measured.memory, snapshot_file=record.snapshot_file, owners_file=memory.owners_file,
            window_peak_bytes=owners.peak_bytes if owners else None,
        )  # fmt: skip
        timeline, curve = measured.timeline, measured.curve
        notes += _doubts(memory, len(snapshots), record.snapshot_file or "")
    return _Part(
        memory=_with_gauges(memory, record), curve=curve, timeline=timeline, diagnostics=tuple(notes), digests=digests
    )


def _with_gauges(memory: RankMemory, record: RankRecord) -> RankMemory:
    used, reserved = record.device_used_bytes, record.reserved_bytes
    return replace(
        memory,
        timed_resident_bytes=record.resident_bytes,
        timed_peak_bytes=record.peak_bytes,
        device_used_bytes=used,
        context_bytes=used - reserved if used is not None and reserved is not None else None,
    )


def _doubts(memory: RankMemory, num_devices: int, file: str) -> Sequence[Diagnostic]:
    notes = []
    if num_devices > 1:
        message = f"{file}: the process held memory on {num_devices} devices; figures are of device {memory.device}"
        hint = "a rank should work on one device: set CUDA_VISIBLE_DEVICES, or torch.cuda.set_device, before it begins"
        notes.append(_warn("memory_other_devices", message, file, hint))
    peak, gauge = memory.peak_bytes, memory.window_peak_bytes
    if peak is not None and gauge and abs(peak - gauge) > _TOLERANCE * gauge:
        message = f"{file}: the replayed peak is {format_bytes(peak)}, the gauge says {format_bytes(gauge)}"
        hint = "the history may have lost its beginning: record it with a larger max_entries"
        notes.append(_warn("memory_replay_differs", message, file, hint))
    return notes


def _names(record: RankRecord) -> list[str]:
    named = (record.owners_file, record.snapshot_file)
    return [name for name in named if name is not None and _is_beside(name)]


def _file(site: Site, run_folder: Path, name: str | None) -> SiteFile | None:
    path = run_folder / name if name is not None and _is_beside(name) else None
    return None if path is None or leads_out(path) else site.file(path)  # as `_leads_elsewhere` says


def _has(file: SiteFile) -> bool:
    return file.source is not None or is_there(file.path)


def _is_beside(name: str) -> bool:
    """Whether a name is that of a file in the run's folder: a manifest may come from anywhere, and name anything."""
    return Path(name).name == name and name not in ("", "..")


def _leads_elsewhere(run_folder: Path, record: RankRecord) -> Iterator[Diagnostic]:
    """What the manifest names outside of the run's folder, by path or by link.

    Only the light trace has a folder of its own inside.
    """
    named = {
        "trace_file": (record.trace_file, 1),
        "light_trace_file": (record.light_trace_file, 2),
        "owners_file": (record.owners_file, 1),
        "snapshot_file": (record.snapshot_file, 1),
    }
    for key, (name, depth) in named.items():
        if name is None:
            continue
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not 1 <= len(path.parts) <= depth:
            message = (
                f"manifest.json: {key} of rank {record.rank} is {name!r}, which leads out of the run's folder; "
                "expected the name of a file inside; it is not read"
            )
            yield _warn("manifest_path_refused", message, "manifest.json", "put the file into the folder, and its name")
    for name in _names(record):
        if leads_out(run_folder / name):
            message = f"{name}: a link that leads out of the folder; it was not followed"
            yield _warn("link_refused", message, name, LINK_HINT)


def _warn(code: str, message: str, file: str, hint: str | None = None) -> Diagnostic:
    return Diagnostic(code=code, level=Level.WARNING, file=file, message=message, hint=hint)
