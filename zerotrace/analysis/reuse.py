"""Whether a result on disk is the one that is asked for: the same inputs, version and options, and nothing missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import Struct, field

from zerotrace.analysis.diagnostics import MEMORY_FAILED, RANK_FAILED
from zerotrace.errors import StoreError, TraceError
from zerotrace.ingest.files import digest_file, printable_name
from zerotrace.model import ANALYSIS_VERSION, Analysis
from zerotrace.site import Site
from zerotrace.store import ANALYSIS_FILE, MANIFEST_FILE, read_analysis
from zerotrace.version import VERSION

# Options that only add to a result: one made without them is completed without asking, and one made with them holds
# what is asked for without them.
_ADDING = ("report", "hta", "baseline")


class Request(Struct, frozen=True, kw_only=True):
    """What determines a result, beside the content of its inputs."""

    run_folder: Path
    run_name: str
    files: Sequence[Path]
    """What is read, beside the manifest: files that could be traces, logs, snapshots and owners files."""
    options: Mapping[str, Any]
    site: Site = field(default_factory=Site)
    """Where the files lie."""

    def digest(self, path: Path) -> str:
        """The digest of a file, wherever it lies.

        Raises:
            TraceError: ``unreadable`` if the system refuses.
            StoreError: it cannot be fetched.
        """
        with self.site.file(path).whole() as here:
            return digest_file(here)

    def marks(self) -> dict[str, str]:
        """What a store says of each file, by its name within the run; empty for a run on this machine."""
        marks = {path: self.site.mark(path) for path in (*self.files, self.run_folder / MANIFEST_FILE)}
        return {_name(path, self.run_folder): mark for path, mark in marks.items() if mark is not None}


class Standing(Struct, frozen=True, kw_only=True):
    """What an existing result is to a request."""

    current: Analysis | None = None
    """The result, if it is just what is asked for."""
    replaceable: bool = False
    """Whether it holds a part of what is asked for and nothing else."""
    reason: str | None = None
    """Why it is not current."""


def name_inputs(request: Request, digests: Mapping[Path, str]) -> dict[str, str]:
    """Digests of all files, and of the manifest, by their names within the run.

    Args:
        request: says where the run lies.
        digests: digest of each file.

    Raises:
        TraceError: ``unreadable`` if the system refuses the manifest.
    """
    manifest = request.run_folder / MANIFEST_FILE
    found = {**digests, manifest: digest_file(manifest)} if manifest.is_file() else digests
    return {_name(path, request.run_folder): digest for path, digest in found.items()}


def standing(target: Path, request: Request) -> Standing:
    """Compares the result in ``target`` with what is asked for."""
    if not (target / ANALYSIS_FILE).is_file():
        return Standing()
    try:
        old = read_analysis(target)
    except StoreError as error:
        return Standing(reason=f"its {ANALYSIS_FILE} cannot be read ({error})")
    if old.zerotrace_version != VERSION:
        return Standing(reason=f"it was written by zerotrace {old.zerotrace_version}")
    # Only now is it worth reading every file: there is a result that could be the one.
    inputs = name_inputs(request, {path: _digest_now(request, path, old) for path in request.files})
    failed = {note.file for note in old.diagnostics if note.code in (RANK_FAILED, MEMORY_FAILED)}
    changed = [
        name
        for name in sorted({*old.inputs, *inputs})
        if old.inputs.get(name) != inputs.get(name) and PurePosixPath(name).name not in failed
    ]
    if changed or old.run_name != request.run_name:
        what = ", ".join(changed[:4]) + (" …" if len(changed) > 4 else "") if changed else f"the run {old.run_name}"
        return Standing(reason=f"it was made from other files ({what})")
    other = {key for key in request.options if old.options.get(key) != request.options[key]}
    differ = other - {key for key in _ADDING if not (old.options.get(key) and request.options[key])}
    if differ:
        named = ", ".join(f"{key}: {_plain(old.options.get(key))}" for key in sorted(differ))
        return Standing(reason=f"it was made with other options ({named})")
    missing = [name for name in old.outputs if not (target / name).is_file()]
    wants_more = _is_older(old.schema_version) or any(
        request.options[key] and not old.options.get(key) for key in _ADDING
    )
    if failed or missing or wants_more:
        # Completing it writes the folder anew: nothing that is in it may be lost by that.
        more = [key for key in _ADDING if old.options.get(key) and not request.options[key]]
        foreign = sorted({path.name for path in target.iterdir()} - _own(old))
        if (failed or wants_more) and (more or foreign):
            return Standing(reason=f"it holds more than is asked for ({', '.join([*more, *foreign])})")
        # What failed may go well this time, or with a file that was put right.
        return Standing(replaceable=True, reason="a rank failed in it" if failed else "it is not complete")
    return Standing(current=old)


def _digest_now(request: Request, path: Path, old: Analysis) -> str:
    """The digest of a file; that of the old result where its store says that it has not changed since."""
    name, mark = _name(path, request.run_folder), request.site.mark(path)
    if mark is not None and name in old.inputs and old.store_marks.get(name) == mark:
        return old.inputs[name]
    try:
        return request.digest(path)
    except TraceError:
        return ""  # as of no file; the reader will say why


def _is_older(version: str) -> bool:
    """Whether a file of this version of the format lacks figures that it would have now."""
    minor = version.partition(".")[2]
    return len(minor) < 9 and minor.isdecimal() and int(minor) < int(ANALYSIS_VERSION.partition(".")[2])


def _own(analysis: Analysis) -> set[str]:
    """What the folder of a result holds by itself, at its top."""
    return {ANALYSIS_FILE, *(name.split("/")[0] for name in analysis.outputs)}


def _plain(value: Any) -> str:
    """An option's value without the digest that a baseline's name carries."""
    return "none" if value is None else str(value).partition(", manifest ")[0]


def _name(path: Path, run_folder: Path) -> str:
    return printable_name((path.parent.resolve() / path.name).relative_to(run_folder.resolve()))
