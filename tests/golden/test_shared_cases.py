"""The constructed cases, each through the command line; see :mod:`tests.cases`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cases import MismatchError, cases_in, check_case, run

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"
FOUND = cases_in(CASES) if CASES.is_dir() else []

pytestmark = pytest.mark.skipif(not FOUND, reason="the shared cases are not on this machine")


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("case", FOUND, ids=lambda case: case.name)
def test_case_has_its_right_outcome(case: Path, tmp_path: Path) -> None:
    check_case(case, tmp_path)


@pytest.mark.parametrize(
    ("name", "path", "wrong"),
    [
        ("c01", ("steps", "0", "2", "compute_us"), 561),
        ("c01", ("prefetch", "0", "2", "hidden_us"), 1),
        ("c02", ("messages", 0, "code"), "other"),
        ("c21", ("kernel_count", "0", "comm"), 2),
        ("c26", ("messages", 0, "must_mention"), ["another word"]),
        ("c49", ("clock_offset_us", "1"), 351),
        ("c57", ("unmatched",), []),
        ("c69", ("by_order", 0, "skew_us"), 21),
        ("c70", ("memory", "0", "cuda:0", "end_bytes"), 1),
        ("c73", ("ledger", "padded_bytes", "3"), 4081),
        ("c74", ("parsed", "hostfile_ok", "worker-1"), 5),
    ],
)
def test_a_wrong_answer_is_a_mismatch(name: str, path: tuple[str | int, ...], wrong: object, tmp_path: Path) -> None:
    """What compares the cases would notice."""
    (case,) = CASES.glob(f"{name}_*")
    copy = tmp_path / case.name
    copy.mkdir()
    for file in case.iterdir():
        shutil.copyfile(file, copy / file.name)
    expected = json.loads((copy / "expected.json").read_text())
    place = expected
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = wrong
    (copy / "expected.json").write_text(json.dumps(expected))
    with pytest.raises(MismatchError):
        check_case(copy, tmp_path / "scratch")


def test_each_case_is_a_line_and_the_last_line_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(CASES, ["c31", "c74"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 passed, 0 failed"
