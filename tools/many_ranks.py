"""Makes a job of many ranks out of the traces of a small one, for measuring what many ranks cost.

    python tools/many_ranks.py traces/stage3 job --ranks 1024

Rank r gets the trace of rank r mod n: another rank in a group of all, and a clock that is some microseconds apart.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from isal import igzip

# As torch does: of more ranks than these, the first and the last are named.
_NAMED_RANKS = 30

_RANK_FILE = re.compile(r"rank_(\d+)\.pt\.trace\.json\.gz")


def write_job(run: Path, out: Path, num_ranks: int) -> None:
    """Writes the traces of ``num_ranks`` ranks.

    Args:
        run: a folder with traces ``rank_N.pt.trace.json.gz`` of one group.
        out: a new folder.
        num_ranks: how many to write.

    Raises:
        FileNotFoundError: there is no trace in ``run``.
    """
    files = sorted(
        (path for path in run.iterdir() if _RANK_FILE.fullmatch(path.name)), key=lambda path: _number(path.name)
    )
    if not files:
        raise FileNotFoundError(f"{run}: no rank_N.pt.trace.json.gz in it")
    texts = [_for_any_rank(igzip.decompress(path.read_bytes()), len(files), num_ranks) for path in files]
    out.mkdir(parents=True)
    for rank in range(num_ranks):
        before, between, base_ns, behind = texts[rank % len(files)]
        shift_ns = rank * 7919 % 5000
        text = b"".join((before, str(rank).encode(), between, str(base_ns + shift_ns).encode(), behind))
        (out / f"rank_{rank}.pt.trace.json.gz").write_bytes(igzip.compress(text, 1))


def _for_any_rank(text: bytes, num_before: int, num_ranks: int) -> tuple[bytes, bytes, int, bytes]:
    """The text for a larger group: before its rank, from there to its base time, that time, and the rest."""
    ranks = list(range(num_ranks))
    listed = str(list(range(num_before)))
    changes = {
        f'"Process Group Ranks": "{listed}"': f'"Process Group Ranks": "{_named(ranks)}"',
        f'"Group size": {num_before}': f'"Group size": {num_ranks}',
        f'"ranks": {listed}': f'"ranks": {ranks}',
        f'"pg_size": {num_before}': f'"pg_size": {num_ranks}',
        f'"world_size": {num_before}': f'"world_size": {num_ranks}',
    }
    for before, instead in changes.items():
        text = text.replace(before.encode(), instead.encode())
    rank = re.search(rb'"distributedInfo":[^\n]*?"rank": (\d+)', text)
    base = re.search(rb'"baseTimeNanoseconds": (\d+)', text)
    if rank is None or base is None or base.start() < rank.end():
        raise ValueError("the traces are not as torch writes them: distributedInfo, then baseTimeNanoseconds")
    return text[: rank.start(1)], text[rank.end(1) : base.start(1)], int(base[1]), text[base.end(1) :]


def _named(ranks: Sequence[int]) -> str:
    if len(ranks) <= _NAMED_RANKS:
        return str(list(ranks))
    return f"[{', '.join(map(str, ranks[: _NAMED_RANKS - 1]))}, ..., {ranks[-1]}]"


def _number(name: str) -> int:
    found = _RANK_FILE.fullmatch(name)
    return int(found[1]) if found else -1


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Make a job of many ranks out of the traces of a small one.")
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--ranks", type=int, default=1024)
    args = parser.parse_args()
    write_job(args.run, args.out, args.ranks)


if __name__ == "__main__":
    main()
