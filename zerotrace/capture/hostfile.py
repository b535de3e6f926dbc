"""DeepSpeed's hostfile, checked line by line before anything starts: ``worker-1 slots=4``."""

from __future__ import annotations

import re
from pathlib import Path

from zerotrace.errors import CaptureError

# A host must not look like an option of ssh.
_LINE = re.compile(r"(?P<host>(?:[\w.-]+@)?[A-Za-z0-9_\[][\w.:\[\]-]*)\s+slots=(?P<slots>\d+)")

_FORMAT = "One line a host, for example: worker-1 slots=4"


def read_hostfile(path: Path) -> dict[str, int]:
    """The hosts of a hostfile and their slots, in the order of the file.

    DeepSpeed's own reader goes on with the local machine where the file is missing, and takes ``slots=4x`` for 4.

    Raises:
        CaptureError: the file cannot be read, a line is wrong, a host stands twice, or there is no host.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise CaptureError(
            f"The hostfile {path} cannot be read: {reason}.",
            code="hostfile_unreadable",
            hint="Check the path given with --hostfile.",
        ) from error
    hosts: dict[str, int] = {}
    lines_of: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        found = _LINE.fullmatch(entry)
        if found is None or int(found["slots"]) == 0:
            raise _invalid(path, number, line, "expected HOST slots=N, with N above 0")
        name = found["host"].rpartition("@")[2]
        if name in lines_of:
            raise _invalid(path, number, line, f"{name} stands in line {lines_of[name]} already")
        lines_of[name] = number
        hosts[found["host"]] = int(found["slots"])
    if not hosts:
        raise CaptureError(f"The hostfile {path} names no host.", code="hostfile_invalid", hint=_FORMAT)
    return hosts


def slots_of_all(hosts: dict[str, int], asked: int | None) -> int:
    """The number of ranks on each host.

    Args:
        hosts: hosts and their slots.
        asked: ``--gpus``, if it was given.

    Raises:
        CaptureError: the hosts have different slots and none were asked for, or a host has fewer than that.
    """
    fewest = min(hosts, key=lambda host: hosts[host])
    if asked is None:
        if len(set(hosts.values())) > 1:
            listed = ", ".join(f"{host} {slots}" for host, slots in hosts.items())
            raise CaptureError(
                f"The hosts have different numbers of slots ({listed}); a capture has equally many ranks on each.",
                code="hostfile_uneven",
                hint=f"Pass --gpus {hosts[fewest]} to take that many of each.",
            )
        return hosts[fewest]
    if asked > hosts[fewest]:
        raise CaptureError(
            f"--gpus {asked} asks for {asked} ranks on each host, but {fewest} has {hosts[fewest]} slots.",
            code="hostfile_too_few",
            hint=f"Pass --gpus {hosts[fewest]} or less, or correct the hostfile.",
        )
    return asked


def _invalid(path: Path, number: int, line: str, reason: str) -> CaptureError:
    return CaptureError(
        f"The hostfile {path} is wrong in line {number}, {line.strip()!r}: {reason}.",
        code="hostfile_invalid",
        hint=_FORMAT,
    )
