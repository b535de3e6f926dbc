"""Which files of a folder are traces, and their bytes: told by content, never by suffix."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from isal import igzip

from zerotrace.errors import TraceError
from zerotrace.ingest.unpack import GZIP_MAGIC, BadGzipError
from zerotrace.links import leads_out

_BLANKS = b" \t\r\n\xef\xbb\xbf"
_SNIFF_BYTES = 4096

# An object, or a list of them: many logs begin with a bracket, too ("[rank0] step 1").
_JSON_HEAD = re.compile(rb"\{|\[\s*(?:[\[{\]]|$)")

_NAMED = 4

# What writers call a file that they have not finished, and editors one that was.
_UNFINISHED = (".tmp", ".partial", ".bak", ".orig", "~")

_RANK_IN_NAME = re.compile(r"(?:rank|worker)[_\-.]?(\d{1,9})(?!\d)", re.IGNORECASE)

#: Files that zerotrace itself writes beside the traces, by name and by the end of the name.
OWN_FILES = frozenset({"manifest.json", "tables.json"})
OWN_ENDINGS = (".owners.json", ".snapshot.pickle.gz")


def find_candidates(inputs: Sequence[Path]) -> list[Path]:
    """Files that could be traces, in the order of their names.

    Args:
        inputs: folders (searched one level deep; hidden files and links that lead out are left out) or files (taken
            as they are).

    Returns:
        Paths whose content, after gunzip, begins like JSON or is empty.

    Raises:
        TraceError: ``not_found`` if an input does not exist.
    """
    found: list[Path] = []
    for entry in inputs:
        if entry.is_dir():
            found += [path for path in sorted(entry.iterdir(), key=_natural_key) if _may_be_trace(path)]
        elif entry.is_file():
            found.append(entry)
        else:
            raise TraceError(
                f"{entry} does not exist",
                code="not_found",
                hint="give a folder of Kineto traces, for example one that `zerotrace capture` wrote",
            )
    return found


def digest_file(path: Path) -> str:
    """The digest of a file as it lies on disk, as :class:`~zerotrace.ingest.blocks.TraceText` gives it.

    Raises:
        TraceError: ``unreadable`` if the system refuses.
    """
    digest = hashlib.blake2b(digest_size=16)
    try:
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise unreadable(path, error) from error
    return digest.hexdigest()


def is_named_as_rank(path: Path) -> bool:
    """Whether the name says that the file is a rank's trace: ``rank_3.json``, ``worker3.pt.trace.json.gz``."""
    return rank_in_name(path) is not None


def rank_in_name(path: Path) -> int | None:
    """The rank that a file name states, if it states one."""
    found = _RANK_IN_NAME.search(path.name)
    return int(found[1]) if found else None


def name_of(path: Path) -> str:
    """The file name, for messages and tables."""
    return printable_name(Path(path.name))


def name_run(folder: Path) -> str:
    """A run's folder as a person would name it, without the path of a machine: its last two parts."""
    return printable_name(Path(*folder.resolve().parts[-2:]))


def printable_name(path: Path) -> str:
    """The path as text that any encoding can hold; bytes that are no UTF-8 are spelled out."""
    return str(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def no_traces_in(inputs: Sequence[Path]) -> TraceError:
    """What to say of folders that hold no trace: where there are some, one level below."""
    folders = [entry for entry in inputs if entry.is_dir()]
    inside = [
        folder
        for parent in folders
        for folder in sorted(parent.iterdir(), key=_natural_key)
        if folder.is_dir() and not folder.name.startswith(".") and any(map(_may_be_trace, folder.iterdir()))
    ]
    hint = "give a folder of Kineto traces (JSON or gzip), as torch.profiler or `zerotrace capture` writes them"
    if inside:
        named = ", ".join(printable_name(folder) for folder in inside[:_NAMED])
        hint = f"there are some in folders inside of it: give one of {named}{' …' if len(inside) > _NAMED else ''}"
    where = ", ".join(printable_name(folder) for folder in folders)
    return TraceError(f"{where}: no trace found: there is no JSON file in it", code="no_traces", hint=hint)


def unreadable(path: Path, error: OSError) -> TraceError:
    """What to say of a file that the system does not let be read."""
    return TraceError(
        f"{name_of(path)}: cannot be read: {error.strerror}", code="unreadable", hint="check that it may be read"
    )


def _may_be_trace(path: Path) -> bool:
    if path.name.startswith(".") or path.name in OWN_FILES or leads_out(path) or not path.is_file():
        return False
    if path.name.endswith((*OWN_ENDINGS, *_UNFINISHED)):
        return False
    try:
        with path.open("rb") as stream:
            head = stream.read(_SNIFF_BYTES)
        if head.startswith(GZIP_MAGIC):
            with igzip.open(path, "rb") as stream:
                head = stream.read(_SNIFF_BYTES)
    except (OSError, EOFError, BadGzipError):
        return True  # damaged: let the reader say so
    # An empty .json was meant to be a trace; other empty files are none of our business.
    return _JSON_HEAD.match(head.lstrip(_BLANKS)) is not None or ".json" in path.name


def _natural_key(path: Path) -> tuple[tuple[int, int | str], ...]:
    """Orders ``rank_10`` behind ``rank_9``."""
    pieces: list[tuple[int, int | str]] = []
    number = ""
    for char in path.name + "\0":
        if char.isdecimal() and char.isascii():
            number += char
            continue
        if number:
            pieces.append((0, int(number)))
            number = ""
        pieces.append((1, char))
    return tuple(pieces)
