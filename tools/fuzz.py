"""Fuzzes the readers with atheris, one target after the other, for a bounded time.

    python -m pip install atheris              # not in the lock: it is needed for this alone
    python tools/fuzz.py --seconds 150         # each target
    python tools/fuzz.py --seconds 600 mutated snapshot

Each target runs in a process of its own, since libFuzzer ends it; sound inputs are its seeds, with what was found
before (tests/corpus). An input that fails is written to --out, and the exit code is 1. Once mended it belongs into
tests/corpus/TARGET, which tests/unit/test_fuzz.py runs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

_ONE_INPUT_S = 20
_MEMORY_MIB = 3000
_LONGEST = {"trace": 20_000, "manifest": 60_000, "analysis": 200_000}
_LONGEST_PROGRAM = 80
_PROGRAMS = ("mutated", "manifest_fields", "analysis_fields", "snapshot_fields")


def main() -> int:
    """Fuzzes the targets that are named, or all; 1 if any input fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help="mutated, trace, gzip, ...: all by default")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "zerotrace-fuzz")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if options.inside:
        return fuzz(options.inside, options.seconds, options.out)
    from tests.fuzzing import TARGETS

    failed = []
    for target in options.targets or TARGETS:
        command = [sys.executable, __file__, "--inside", target, "--seconds", str(options.seconds)]
        done = subprocess.run([*command, "--out", str(options.out)], check=False)
        print(f"{target}: {'nothing found' if done.returncode == 0 else f'exit code {done.returncode}'}", flush=True)
        if done.returncode:
            failed.append(target)
    print(f"found something: {', '.join(failed)}: see {options.out}" if failed else "nothing found")
    return 1 if failed else 0


def fuzz(target: str, seconds: int, out: Path) -> int:
    """One target; ends the process."""
    try:
        import atheris
    except ImportError:
        print("atheris is not installed: python -m pip install atheris", file=sys.stderr)
        return 2
    with atheris.instrument_imports(include=["zerotrace", "tests.fuzzing"]):
        from tests.fuzzing import CORPUS, TARGETS, seeds
    start = out / "seeds" / target
    start.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds()[target]):
        (start / f"seed-{number}").write_bytes(seed)
    found = CORPUS / target
    longest = _LONGEST_PROGRAM if target in _PROGRAMS else _LONGEST.get(target, 4096)
    flags = [
        f"-max_total_time={seconds}",
        f"-timeout={_ONE_INPUT_S}",
        f"-rss_limit_mb={_MEMORY_MIB}",
        f"-max_len={longest}",
        f"-artifact_prefix={out}/{target}-",
        "-print_final_stats=1",
        "-verbosity=0",
    ]
    atheris.Setup([sys.argv[0], *flags, str(start), *([str(found)] if found.is_dir() else [])], TARGETS[target])
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
