"""Anything as input: an error that says what is wrong, or a result whose identities hold. No hang, no traceback.

``ZEROTRACE_FUZZ=100`` runs a hundred times as many examples; tools/fuzz.py looks longer, and for coverage.
"""

from __future__ import annotations

import gzip
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzzing import CORPUS, RUNS, TARGETS, analyse_files, mutated, seeds
from zerotrace.analysis.run import AnalyzeOptions

MORE = int(os.environ.get("ZEROTRACE_FUZZ", "1"))

_PATIENCE_S = 60


def examples(count: int) -> settings:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    # The ordinary run tries the same inputs each time: what is new is for the longer ones to find.
    return settings(
        max_examples=count * MORE, deadline=None, suppress_health_check=checks, derandomize=MORE == 1, database=None
    )


@contextmanager
def no_hang() -> Iterator[None]:
    """Ends what takes longer than a minute: the largest input here takes a second."""

    def stop(_sig: int, _frame: FrameType | None) -> NoReturn:
        raise TimeoutError("this input takes longer than a minute")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(_PATIENCE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.timeout(300 * MORE)
@pytest.mark.parametrize(
    ("target", "count"), [("mutated", 150), ("manifest_fields", 20), ("analysis_fields", 5), ("snapshot_fields", 60)]
)
def test_records_with_anything_changed_in_them(target: str, count: int) -> None:
    @examples(count)
    @given(st.binary(min_size=4, max_size=48))
    def check(program: bytes) -> None:
        with no_hang():
            TARGETS[target](program)

    check()


@st.composite
def damaged(draw: st.DrawFn, target: str) -> bytes:
    """A sound input with pieces cut out, put in and flipped."""
    data = bytearray(draw(st.sampled_from(seeds()[target])))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(data)))
        end = min(len(data), place + draw(st.integers(0, 12)))
        pieces = st.sampled_from([b"null", b"-1", b"1e999", b"[]", b"{}", b'"x"', b"9" * 30, b"9" * 5000, b"true"])
        data[place:end] = draw(st.binary(max_size=4) | pieces)
    if draw(st.integers(0, 9)) == 0:
        del data[draw(st.integers(0, len(data))) :]
    return bytes(data)


@pytest.mark.timeout(300 * MORE)
@pytest.mark.parametrize(
    ("target", "count"),
    [("trace", 40), ("gzip", 30), ("snapshot", 60), ("owners", 60), ("label", 200), ("manifest", 15), ("analysis", 4)],
)
def test_files_with_bytes_changed_in_them(target: str, count: int) -> None:
    @examples(count)
    @given(damaged(target))
    def check(data: bytes) -> None:
        with no_hang():
            TARGETS[target](data)

    check()


@pytest.mark.parametrize("make", RUNS)
def test_what_the_changes_start_from_is_accepted(make: object) -> None:
    """Else nothing above would come far."""
    texts, _ = mutated(bytes([RUNS.index(make), 0, 0, 1]))  # type: ignore[arg-type]
    files = {f"rank_{rank}.json": text for rank, text in enumerate(texts)}
    analysis = analyse_files(files, AnalyzeOptions(hta=False, jobs=1), page=True)
    assert analysis is not None
    assert len(analysis.sources) == 2
    assert all(part.comm_ns for part in analysis.partition if part.known)


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_was_found_before(path: Path) -> None:
    """Programs of changes mean something else once this code changes, so here are the inputs that they made."""
    data = path.read_bytes()
    with no_hang():
        TARGETS[path.parent.name](gzip.decompress(data) if path.suffix == ".gz" else data)
