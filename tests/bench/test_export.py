"""What a Perfetto trace of a million events costs: run alone, with -s and -m bench."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.units import format_bytes, format_count

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
_REPEATS = 15
_CODE = """
import resource, sys
from pathlib import Path
from zerotrace.export import export_perfetto
done = export_perfetto(Path(sys.argv[1]), Path(sys.argv[2]))
print(done.num_slices, done.num_bytes, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_a_million_events_a_rank_stay_far_below_a_gib(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, folder, _ = analyze([ROOT / "traces" / "stage3"], tmp_path / "analysis", AnalyzeOptions(hta=False))
    for path in folder.glob("events/*/*.parquet"):
        # The same step again and again, each 2 s later.
        with path.open("rb") as stream:
            table = pq.read_table(stream)
        again = []
        for number in range(_REPEATS):
            later = table
            for column, by in (("start_ns", 2_000_000_000), ("event", 10_000_000)):
                place = table.schema.get_field_index(column)
                later = later.set_column(place, table.schema.field(column), pc.add(table[column], number * by))
            again.append(later)
        pq.write_table(pa.concat_tables(again).replace_schema_metadata(table.schema.metadata), path)
    started = time.perf_counter()
    command = [sys.executable, "-c", _CODE, str(folder), str(tmp_path / "out.pftrace")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    taken = time.perf_counter() - started
    slices, size, memory = map(int, done.stdout.split())
    shutil.rmtree(folder)
    with capsys.disabled():
        print(f"\n{format_count(slices)} slices: {taken:.1f} s, {format_bytes(size)}, {format_bytes(memory)} of memory")
    assert slices > 2_000_000
    assert memory < 1 << 30
