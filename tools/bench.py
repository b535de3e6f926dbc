"""Times zerotrace, HTA and plain readers on the same traces, as whole processes, in turn.

    python tools/bench.py traces/stage3 --big 300MB --big 2GB --write docs/benchmarks.md

In each round every reader runs once, one right after the other, so that a machine that slows down slows all of them.
The first round warms the disk cache and is not counted; of a large trace, which was just written, there is none. What
counts are medians over rounds, and the median of the ratios that are taken round by round.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from resource import struct_rusage

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.big_trace import write_trace
from tools.readers import READERS
from zerotrace.units import format_bytes, parse_bytes

OURS = "zerotrace analyze, tables alone"
WHOLE = "zerotrace analyze, with the page and HTA's figures"
FLOOR = READERS["typed"]
#: What zerotrace may take at most of what unpacking and decoding alone take.
BAR = 2.5

_PACKAGES = ("HolisticTraceAnalysis", "pandas", "numpy", "pyarrow", "msgspec", "isal")
_WORDS = f"""# Benchmarks

Written by `make bench`, with nothing else at work on the machine. Each reader is a process of its own, from its start
to its end; in each round all run in turn. Figures are medians over the rounds; how many times zerotrace's time a reader
takes is told round by round (least to most in brackets). The peak is resident memory of the largest process. zerotrace
reads several traces in several processes, and so does HTA; the plain readers take one after another. Of a capture,
zerotrace reads its memory snapshots, too, and the others do not. HTA is asked for its load, its overlap and its
temporal breakdown, with its rounding of times off and its last step kept.

*Typed decode* is msgspec on the whole text, for the fields that an analysis needs and no others: no reader of whole
traces in Python can be much faster. On a single large trace zerotrace is to stay below {BAR} times that. Large traces
are made by `tools/big_trace.py`: python frames with stacks, operators with shapes, launches, flows, kernels and
collectives.

"""

_RANK_FILE = re.compile(r"rank_(\d+)\.(?!owners|snapshot).*json")
_READER_FILE = Path(__file__).with_name("readers.py")


@dataclass(frozen=True)
class Timing:
    """One run of a command, as the operating system accounts for it."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    """Of the largest process of it."""


@dataclass(frozen=True)
class Failure:
    """A run that did not end well."""

    why: str


@dataclass(frozen=True)
class Input:
    """Traces to read."""

    name: str
    folder: Path
    files: dict[int, Path]
    """By rank."""
    rounds: int
    """That are counted."""
    is_warm: bool = False
    """Whether the disk cache has them, so that no round has to warm it."""

    @property
    def num_bytes(self) -> int:
        """Of the files."""
        return sum(path.stat().st_size for path in self.files.values())


Results = dict[str, list[Timing | Failure]]


def timed(command: Sequence[str], limit_s: float) -> Timing | Failure:
    """Runs a command to its end."""
    start = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True)
        try:
            status, usage = _wait(process.pid, start + limit_s)
        except BaseException:  # it is in a session of its own, which Ctrl-C does not reach
            os.killpg(process.pid, signal.SIGKILL)
            raise
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if wall >= limit_s:
            return Failure(f"more than {limit_s:.0f} s")
        if process.returncode:
            said.seek(0)
            last = (said.read().decode(errors="replace").strip().splitlines() or ["nothing said"])[-1]
            if (
                process.returncode == -signal.SIGKILL
                or "MemoryError" in last
                or any(words in last for words in ("malloc", "bad_alloc", "Unable to allocate"))
            ):
                return Failure("out of memory")
            return Failure(f"ended with {process.returncode}: {re.sub(r'/[^ ]*/', '', last)[:80]}")
    return Timing(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def _wait(pid: int, deadline: float) -> tuple[int, struct_rusage]:
    pause = 0.001
    while True:
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        if ended:
            return status, usage
        if time.perf_counter() > deadline:
            os.killpg(pid, 9)
            _, status, usage = os.wait4(pid, 0)
            return status, usage
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)


def commands(given: Input, out: Path, options: argparse.Namespace) -> dict[str, list[str]]:
    """What runs in each round, by name, in this order."""
    files = json.dumps({rank: str(path.resolve()) for rank, path in given.files.items()})
    found = {
        name: [sys.executable, str(_READER_FILE), key, files]
        for key, name in READERS.items()
        if key != "hta" or options.hta
    }
    if options.hta:
        found[READERS["hta"]].append(str(options.hta_memory))
    own = [sys.executable, "-m", "zerotrace", "analyze", str(given.folder), "--force", "--quiet", "--out", str(out)]
    own += ["--max-trace-size", "64GiB"]
    found[OURS] = [*own, "--no-report", "--no-hta"]
    if options.everything:
        found[WHOLE] = own
    return found


def measure(given: Input, out: Path, options: argparse.Namespace) -> Results:
    """Runs all readers in turn, and says how each went."""
    results: Results = {}
    running = commands(given, out, options)
    for number in range(given.is_warm, given.rounds + 1):
        for name, command in list(running.items()):
            outcome = timed(command, options.time_limit)
            say(f"{given.name}, round {number} of {given.rounds}, {name}: {_told(outcome)}")
            if isinstance(outcome, Failure):
                del running[name]  # it would fail again
            if number or isinstance(outcome, Failure):
                results.setdefault(name, []).append(outcome)
    return {name: results[name] for name in commands(given, out, options)}


def table(given: Input, results: Results) -> str:
    """The results of one input as Markdown."""
    ours = [run for run in results[OURS] if isinstance(run, Timing)]
    lines = [
        f"## {given.name}",
        "",
        f"{len(given.files)} trace{'s' if len(given.files) > 1 else ''}, {format_bytes(given.num_bytes)} packed; "
        f"{given.rounds} round{'s' if given.rounds > 1 else ''}.",
        "",
        "| reader | seconds | of the CPU | peak of a process | zerotrace's time × |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, runs in results.items():
        good = [run for run in runs if isinstance(run, Timing)]
        if len(good) < len(runs) or not good:
            why = next(run.why for run in runs if isinstance(run, Failure))
            lines.append(f"| {name} | {why} | – | – | – |")
            continue
        wall, cpu = (statistics.median(getattr(run, key) for run in good) for key in ("wall_s", "cpu_s"))
        peak = statistics.median(run.peak_bytes for run in good)
        ratios = [run.wall_s / own.wall_s for run, own in zip(good, ours)]
        ratio = f"{statistics.median(ratios):.2f}" if ratios and name != OURS else "1" if name == OURS else "–"
        spread = f" ({min(ratios):.2f} to {max(ratios):.2f})" if len(ratios) > 1 and name != OURS else ""
        lines.append(f"| {name} | {_three(wall)} | {_three(cpu)} | {format_bytes(peak)} | {ratio}{spread} |")
    # What a capture has beside its traces, snapshots of memory, no other reader takes.
    verdict = _against_the_floor(results, ours) if len(given.files) == 1 else []
    return "\n".join([*lines, "", *verdict]) + "\n"


def _against_the_floor(results: Results, ours: Sequence[Timing]) -> list[str]:
    floor = [run for run in results.get(FLOOR, []) if isinstance(run, Timing)]
    if not floor or not ours:
        return []
    ratio = statistics.median(own.wall_s / low.wall_s for own, low in zip(ours, floor))
    verdict = "within" if ratio <= BAR else "above"
    return [f"zerotrace takes {ratio:.2f} times as long as {FLOOR} alone, {verdict} the bar of {BAR} times.", ""]


def machine() -> str:
    """The machine and the versions, without a name or a path."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return "\n".join(
        [
            f"- {_cpu()}, {os.cpu_count()} cores, {format_bytes(memory)}",
            f"- {platform.system()} {platform.release().split('-')[0]}, Python {platform.python_version()}",
            f"- zerotrace {version('zerotrace')}, " + ", ".join(f"{name} {version(name)}" for name in _PACKAGES),
        ]
    )


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()


def document(tables: Sequence[str]) -> str:
    """docs/benchmarks.md."""
    return f"{_WORDS}{machine()}\n\n" + "\n".join(tables)


def trace_files(folder: Path) -> dict[int, Path]:
    """The traces of a run by rank."""
    named = [(_RANK_FILE.match(path.name), path) for path in sorted(folder.iterdir())]
    return {int(found[1]): path for found, path in named if found}


def say(line: str) -> None:
    """Talk."""
    print(line, file=sys.stderr, flush=True)


def _told(outcome: Timing | Failure) -> str:
    if isinstance(outcome, Failure):
        return outcome.why
    return f"{outcome.wall_s:.2f} s, {format_bytes(outcome.peak_bytes)}"


def _three(seconds: float) -> str:
    return f"{seconds:.2f}" if seconds < 10 else f"{seconds:.1f}"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("runs", nargs="*", type=Path, help="folders of traces named rank_N")
    parser.add_argument("--big", action="append", type=parse_bytes, default=[], metavar="SIZE",
                        help="a trace that is made for this, with a text of so many bytes; repeatable")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds of runs and of traces below 1 GB (5)")
    parser.add_argument("--big-rounds", type=int, default=1, help="counted rounds of larger traces (1)")
    parser.add_argument("--hta", action=argparse.BooleanOptionalAction, default=True, help="run HTA, too")
    parser.add_argument("--hta-memory", type=parse_bytes, default=parse_bytes("16GiB"), metavar="SIZE",
                        help="address space that HTA may take (16GiB)")  # fmt: skip
    parser.add_argument("--everything", action="store_true", help="time zerotrace with the page and HTA's figures, too")
    parser.add_argument("--time-limit", type=float, default=900, metavar="SECONDS", help="for one run (900)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the results there, as Markdown")
    options = parser.parse_args(arguments)
    if not options.runs and not options.big:
        parser.error("nothing to read: give a folder of traces, or --big SIZE")
    return options


def main() -> None:
    """Prints, and writes, the tables."""
    options = parse()
    # pip compiled HTA when it installed it; a checkout is compiled when it first runs, if that is allowed at all
    compileall.compile_dir(Path(__file__).resolve().parents[1] / "zerotrace", quiet=1)
    work = Path(tempfile.mkdtemp(prefix="zerotrace-bench-"))
    tables = []
    try:
        for folder in options.runs:
            given = Input(f"`{folder.resolve().name}`", folder, trace_files(folder), options.rounds)
            tables.append(table(given, measure(given, work / "out", options)))
        for number, size in enumerate(options.big):
            folder = work / f"big-{number}"
            folder.mkdir()
            text = write_trace(folder / "rank_0.json.gz", size)
            is_large = text >= 10**9
            rounds = options.big_rounds if is_large else options.rounds
            given = Input(f"A trace of {format_bytes(text)}", folder, trace_files(folder), rounds, is_warm=is_large)
            tables.append(table(given, measure(given, work / "out", options)))
            shutil.rmtree(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print("\n".join(tables))
    if options.write is not None:
        options.write.write_text(document(tables), encoding="utf-8")


if __name__ == "__main__":
    main()
