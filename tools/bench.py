"""Times ``zerotrace analyze`` and HTA on the same traces, as whole processes, in turn.

    python tools/bench.py traces/stage3 [--pairs 5]

Each pair runs HTA and zerotrace right after one another, so that a machine that slows down slows both; the ratio
is taken pair by pair and the median is what counts.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# What a user of HTA writes, with its rounding of times off and its last step kept.
HTA = """
import json, logging, os, sys, warnings
os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
warnings.filterwarnings("ignore")
from hta.trace_analysis import TraceAnalysis
logging.getLogger("hta").setLevel(logging.ERROR)
files = {int(rank): path for rank, path in json.loads(sys.argv[1]).items()}
analysis = TraceAnalysis(trace_files=files, trace_dir=os.path.dirname(next(iter(files.values()))),
                         include_last_profiler_step=True)
if sys.argv[2] == "all":
    analysis.get_comm_comp_overlap(visualize=False)
    analysis.get_temporal_breakdown(visualize=False)
"""


@dataclass(frozen=True)
class Timing:
    """One run of a command, as the operating system accounts for it."""

    wall_s: float
    cpu_s: float
    peak_mib: float


def timed(command: Sequence[str]) -> Timing:
    """Runs a command to its end.

    Raises:
        SystemExit: if it fails.
    """
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{command[0]} ended with {process.returncode}:\n{said.decode(errors='replace')[-2000:]}")
    return Timing(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def compare(title: str, theirs: Sequence[str], ours: Sequence[str], pairs: int) -> float:
    """Times two commands in turn, prints both and returns the median ratio of their wall-clock times."""
    runs = [(timed(theirs), timed(ours)) for _ in range(pairs + 1)][1:]  # the first pair warms the disk cache
    print(title)
    for name, which in (("HTA", 0), ("zerotrace", 1)):
        wall, cpu, peak = (
            statistics.median(getattr(run[which], field) for run in runs) for field in ("wall_s", "cpu_s", "peak_mib")
        )
        print(f"  {name:<10} wall {wall:6.2f} s   cpu {cpu:6.2f} s   peak of one process {peak:5.0f} MiB")
    ratios = [hta.wall_s / own.wall_s for hta, own in runs]
    ratio = statistics.median(ratios)
    print(f"  ratio      {ratio:.2f} (median of {pairs} pairs, {min(ratios):.2f} to {max(ratios):.2f})\n")
    return ratio


def trace_files(folder: Path) -> dict[int, str]:
    """The traces of a run by rank, for HTA, which wants to be told."""
    found = {}
    for path in sorted(folder.iterdir()):
        rank = re.search(r"rank_(\d+).*\.json", path.name)
        if rank:
            found[int(rank[1])] = str(path.resolve())
    return found


def main() -> None:
    """Prints the ratios of the whole: tables alone, and with the page and HTA's own analyses."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path, help="folder of traces named rank_N")
    parser.add_argument("--pairs", type=int, default=5, help="counted pairs of runs (5)")
    options = parser.parse_args()
    files = json.dumps(trace_files(options.run))
    out = Path(tempfile.mkdtemp(prefix="zerotrace-bench-"))
    own = [
        str(Path(sys.executable).with_name("zerotrace")),
        "analyze",
        str(options.run),
        "--force",
        "--out",
        str(out / "a"),
    ]
    hta = [sys.executable, "-c", HTA, files]
    # pip compiled HTA when it installed it; a checkout is compiled when it first runs, if that is allowed at all
    compileall.compile_dir(Path(__file__).resolve().parents[1] / "zerotrace", quiet=1)
    try:
        compare("Tables: HTA load + overlap + temporal breakdown, zerotrace analyze --no-report --no-hta",
                [*hta, "all"], [*own, "--no-report", "--no-hta"], options.pairs)  # fmt: skip
        compare("Everything: HTA load alone, zerotrace analyze with the page and HTA's analyses",
                [*hta, "load"], own, options.pairs)  # fmt: skip
    finally:
        shutil.rmtree(out, ignore_errors=True)


if __name__ == "__main__":
    main()
