"""Progress: bars on a terminal, nothing into a pipe, nothing with --quiet."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from tests.builders import TraceBuilder
from zerotrace.analysis.progress import Board, Meter, ReadingPhase, TraceProgress
from zerotrace.cli.watch import trace_row, whole_row

ROOT = Path(__file__).resolve().parents[2]
PLAIN = ("--no-hta", "--no-report")
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")},
    "PYTHONPATH": str(ROOT),
    "TERM": "xterm",
}


class Clock:
    """A pace of so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.now = seconds

    def seconds(self, has_begun: bool) -> float:
        return self.now if has_begun else 0.0


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    for rank in range(3):
        trace = TraceBuilder(rank, 3).step(2, 0, 500_000).all_gather(150, 250)
        for number in range(20_000):
            trace.compute(300 + 20 * number, 310 + 20 * number)
        trace.write(tmp_path / "run")
    return tmp_path / "run"


def on_a_terminal(*words: str, columns: int = 80) -> tuple[int, str, str]:
    """The command with stderr on a terminal of its own: exit code, stdout, and what the terminal got."""
    ours, theirs = pty.openpty()
    import fcntl
    import struct
    import termios

    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [sys.executable, "-m", "zerotrace", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=ENVIRONMENT, text=True) as child:
        os.close(theirs)
        shown = b""
        while True:
            try:
                block = os.read(ours, 1 << 16)
            except OSError:  # how Linux says that the other side has gone
                break
            if not block:
                break
            shown += block
        os.close(ours)
        assert child.stdout is not None
        printed = child.stdout.read()
    return child.returncode, printed, shown.decode()


def rows(shown: str) -> list[str]:
    """Rows of text, without what moves the cursor or colours."""
    return [row for row in re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\r", shown)) if row.strip()]


def test_a_terminal_shows_each_rank_and_all_of_them(run_folder: Path) -> None:
    code, printed, shown = on_a_terminal("analyze", str(run_folder), *PLAIN, "--jobs", "2")
    assert code == 0, shown
    assert printed.endswith("analysis\n")
    text = rows(shown)
    assert max(cell_len(row) for row in text) <= 80
    joined = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert re.search(r"rank [012] ", joined)
    assert re.search(r"3 of 3 read +━+ +100 % +\S+ [kM]B/s +\S+ [kM]? ?ev/s +0:00 left", joined), joined[-2000:]
    assert "Putting the ranks together …" in joined
    # The terminal is left as it was: the cursor is there, and nothing stays.
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


def test_a_narrow_terminal_is_not_wrapped(run_folder: Path) -> None:
    _, _, shown = on_a_terminal("analyze", str(run_folder), *PLAIN, columns=50)
    assert max(cell_len(row) for row in rows(shown)) <= 50


def test_a_pipe_gets_no_progress(run_folder: Path) -> None:
    command = [sys.executable, "-m", "zerotrace", "analyze", str(run_folder), *PLAIN]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout


def test_quiet_leaves_the_summary_and_errors(run_folder: Path) -> None:
    code, printed, shown = on_a_terminal("analyze", str(run_folder), *PLAIN, "--quiet")
    assert (code, shown) == (0, "")
    assert "3 ranks" in printed
    assert "Tables:" not in printed
    again = on_a_terminal("analyze", str(run_folder), *PLAIN, "--quiet")
    assert again == (0, printed, "")  # that it is the earlier result is talk
    code, _, shown = on_a_terminal("analyze", str(run_folder / "nowhere"), "--quiet")
    assert code == 1
    assert "does not exist" in shown


def test_an_analysis_that_fails_leaves_the_terminal_in_order(run_folder: Path) -> None:
    (run_folder / "rank_1.json").write_bytes((run_folder / "rank_0.json").read_bytes())
    code, _, shown = on_a_terminal("analyze", str(run_folder), *PLAIN)
    assert code == 1
    assert shown.rindex("rank_1.json") > shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


# ------------------------------------------------------------------ the board


def test_workers_write_where_the_first_reads(tmp_path: Path) -> None:
    board = Board(tmp_path / "board", 3)
    meter = board.meter(1)
    meter.begin(ReadingPhase.FETCHING, 100)
    meter.advance(60)
    assert board.read()[1] == TraceProgress(phase=ReadingPhase.FETCHING, total_bytes=100, num_bytes=60)
    meter.begin(ReadingPhase.READING, 100)
    meter.advance(30, 5)
    meter.advance(30, 6)
    assert board.read()[1] == TraceProgress(phase=ReadingPhase.READING, total_bytes=100, num_bytes=60, num_events=11)
    meter.end()
    assert board.read() == [
        TraceProgress(),
        TraceProgress(phase=ReadingPhase.DONE, total_bytes=100, num_bytes=100, num_events=11),
        TraceProgress(),
    ]


def test_a_worker_that_does_not_see_the_board_goes_on(tmp_path: Path) -> None:
    meter = Meter(tmp_path / "elsewhere" / "board", 0)
    meter.begin(ReadingPhase.READING, 10)
    meter.advance(10, 1)
    meter.end()


def test_rates_and_time_left() -> None:
    trace = TraceProgress(phase=ReadingPhase.READING, total_bytes=100_000_000, num_bytes=25_000_000, num_events=500_000)
    one = trace_row("rank_12.pt.trace.json.gz", trace, Clock(2))
    assert one.name.strip() == "rank 12"
    assert (one.part, one.rate, one.events, one.left) == ("25 %", "12.5 MB/s", "250 k ev/s", "0:06 left")
    waiting = TraceProgress()
    fetching = TraceProgress(phase=ReadingPhase.FETCHING, total_bytes=100_000_000, num_bytes=90_000_000)
    every = whole_row([trace, waiting, fetching], [100_000_000] * 3, Clock(2))
    assert every.name.strip() == "0 of 3 read"
    # What is fetched is not read yet.
    assert (every.num_bytes, every.total, every.left) == (25_000_000, 300_000_000, "0:22 left")


@pytest.mark.parametrize("name", ["x" * 300 + ".json", "rank_999999999.json", "evil\x1b[2J.json", "トレース" * 9])
def test_names_fit_their_column(name: str) -> None:
    fields = trace_row(name, TraceProgress(phase=ReadingPhase.FETCHING, total_bytes=9, num_bytes=3), Clock(9e9))
    assert cell_len(fields.name) == 20
    assert "\x1b" not in fields.name
