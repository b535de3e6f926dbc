"""The bytes of the timeline: what goes in comes out, to the nanosecond."""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from msgspec.structs import replace

from tests.page.runs import EPOCH, HostileTexts, HostRow, Row, Run, events_table, labelled_run, make_run, training_run
from zerotrace.report.bands import BAND_KINDS
from zerotrace.report.embed import csp_hash, gzip_base64, printable, script_json
from zerotrace.report.payload import Column, Group, TimelinePayload, encode_timeline
from zerotrace.report.rows import CATEGORIES
from zerotrace.schema import COLLECTIVES

SECOND = 1_000_000_000


def read(data: bytes, column: Column) -> npt.NDArray[np.int64]:
    planes = np.frombuffer(data, np.uint8, column.width * column.count, column.offset).reshape(column.width, -1)
    return sum((plane.astype(np.int64) << (8 * k) for k, plane in enumerate(planes)), np.zeros(column.count, np.int64))


def decode(payload: TimelinePayload, group: Group) -> list[tuple[object, ...]]:
    """(start after EPOCH, duration, name, lane, category) of each row of a group."""
    columns = {name: read(payload.data, column) for name, column in group.columns.items()}
    names = json.loads(payload.data[payload.names.offset : payload.names.offset + payload.names.count])
    starts, big_starts, big_durations = [], list(group.big_starts), list(group.big_durations)
    now = group.first_ns + group.base_ns - EPOCH
    for delta in columns["start"].tolist():
        now += big_starts.pop(0) if delta == 0xFFFFFFFF else delta
        starts.append(now)
    durations = [big_durations.pop(0) if d == 0xFFFFFFFF else d for d in columns["duration"].tolist()]
    assert (big_starts, big_durations) == ([], [])
    texts = [names[i] for i in columns["name"]]
    lanes = [group.lanes[i] for i in columns["lane"]]
    return list(zip(starts, durations, texts, lanes, [CATEGORIES[i] for i in columns["category"]]))


def encode(run: Run) -> TimelinePayload:
    return encode_timeline(run.analysis, run.events)


def expected(rows: list[Row]) -> list[tuple[object, ...]]:
    ordered = sorted(rows, key=lambda row: (row.start, -row.dur))
    return [(r.start, r.dur, r.name, r.tid if r.device is None else r.stream, r.category) for r in ordered]


def test_every_row_comes_back_exactly() -> None:
    run = training_run(num_ranks=3)
    payload = encode(run)
    assert payload.num_intervals == len(run.rows)
    for group in payload.groups:
        assert decode(payload, group) == expected([row for row in run.rows if row.rank == group.rank])


def test_gaps_and_durations_beyond_four_seconds_are_exact() -> None:
    edge = 0xFFFFFFFF
    rows = [
        Row(0, "compute", 5, 7),
        Row(0, "compute", 5 + edge - 1, edge - 1),
        Row(0, "compute", 5 + edge - 1 + edge, edge),
        Row(0, "comm", 86_400 * SECOND + 1, 3_600 * SECOND + 1),
        Row(0, "copy", 86_400 * SECOND + 1 + edge + 1, 0),
    ]
    payload = encode(make_run(rows))
    assert decode(payload, payload.groups[0]) == expected(rows)


def test_rows_of_two_devices_are_two_groups() -> None:
    rows = [
        Row(0, "compute", 0, 5, device=0),
        Row(0, "compute", 2, 9, device=1),
        Row(0, "comm", 3, 1, device=None, tid=9),
    ]
    payload = encode(make_run(rows))
    assert [(g.rank, g.device, g.count) for g in payload.groups] == [(0, None, 1), (0, 0, 1), (0, 1, 1)]
    assert payload.groups[0].lanes == (9,)


def test_streams_and_threads_may_be_unknown() -> None:
    rows = [Row(0, "compute", 0, 5, stream=None), Row(0, "compute", 9, 5, stream=3)]
    payload = encode(make_run(rows))
    assert payload.groups[0].lanes == (None, 3)
    assert decode(payload, payload.groups[0]) == expected(rows)


@pytest.mark.parametrize(("num_lanes", "width"), [(65_536, 2), (65_537, 4)])
def test_lanes_beyond_two_bytes_keep_their_streams(num_lanes: int, width: int) -> None:
    table = events_table([Row(0, "compute", 0, 5)])
    columns = {name: table[name].take(pa.array([0] * num_lanes)) for name in table.column_names}
    streams = np.arange(num_lanes)[::-1]
    columns |= {"stream": pa.array(streams, type=table["stream"].type), "start_ns": pa.array(streams + EPOCH)}
    payload = encode_timeline(make_run([]).analysis, [(0, pa.table(columns).select(table.column_names))])
    (group,) = payload.groups
    assert group.columns["lane"].width == width
    assert [row[3] for row in decode(payload, group)] == list(range(num_lanes))


def decode_bands(payload: TimelinePayload, index: int, base: int) -> list[tuple[object, ...]]:
    """(start after EPOCH, duration, kind, name) of each band."""
    found = payload.bands[index]
    columns = {name: read(payload.data, column).tolist() for name, column in found.columns.items()}
    names = json.loads(payload.data[payload.names.offset : payload.names.offset + payload.names.count])
    starts = np.cumsum([found.first_ns + base - EPOCH, *columns["start"][1:]]).tolist()
    kinds = [BAND_KINDS[kind] for kind in columns["kind"]]
    return list(zip(starts, columns["duration"], kinds, [names[name] for name in columns["name"]]))


def test_phases_and_modules_come_back_exactly() -> None:
    payload = encode(labelled_run())
    assert [found.rank for found in payload.bands] == [0, 1]
    assert payload.band_note is None
    assert decode_bands(payload, 1, payload.groups[1].base_ns) == [
        (50_000, 390_000, "forward", "forward"),
        (60_000, 370_000, "module forward", "(root)"),
        (70_000, 300_000, "module forward", "blocks.0"),
        (80_000, 100_000, "module forward", "blocks.0.fc"),
        (190_000, 900, "module forward", "blocks.0.act"),
        (450_000, 390_000, "backward", "backward"),
        (460_000, 300_000, "module backward", "blocks.0.fc"),
        (840_000, 140_000, "step", "step"),
    ]


def test_bands_may_begin_before_the_first_row_and_need_a_rank_that_is_drawn() -> None:
    early = [HostRow(0, 5, 90, "zt1:phase phase=forward"), HostRow(3, 5, 90, "zt1:phase phase=forward")]
    payload = encode(replace(make_run([Row(0, "compute", 100, 5)]), host=tuple(early)))
    assert [(found.rank, found.first_ns) for found in payload.bands] == [(0, -95)]


def test_damaged_labels_are_no_bands() -> None:
    host = [
        HostRow(0, 5, 90, name) for name in ("zt1:phase", "zt9:phase phase=forward", "zt1:forward", "zt1:phase phase=x")
    ]
    payload = encode(replace(make_run([Row(0, "compute", 100, 5)]), host=tuple(host)))
    assert payload.bands == ()
    assert "no labels" in (payload.band_note or "")


def test_matched_collectives_come_back_exactly() -> None:
    rows = [Row(rank, "comm", start, 9, collective="c") for rank in (0, 1) for start in (10, 50, 90)]
    rows.append(Row(0, "compute", 0, 100))
    wait = 5_000_000_000_000
    columns = {
        "collective": [1, 0, None, 0, 1], "rank": [0, 0, 0, 1, 1], "event": [0, 2, 1, 0, 2],
        "group_size": [2] * 5, "size_bytes": [None, 8, None, 8, None], "wait_ns": [0, wait, None, 0, 7],
        "skew_ns": [7, wait, None, wait, 7], "transfer_ns": [3, 4, None, 4, 3], "last_rank": [None, 1, None, 1, None],
        "num_members": [2, 2, None, 2, 2], "busbw_gbps": [None, 1.25, None, 1.25, None],
    }  # fmt: skip
    table = pa.table(columns, schema=pa.schema([COLLECTIVES.arrow().field(name) for name in columns]))
    run = make_run(rows)
    payload = encode_timeline(run.analysis, run.events, {"collectives": table})
    assert payload.meetings is not None
    shared = {name: read(payload.data, column).tolist() for name, column in payload.meetings.items()}
    assert shared == {
        "group_size": [3, 3], "size_bytes": [9, 0], "skew_ns": [wait + 1, 8], "transfer_ns": [5, 4],
        "last_rank": [2, 0], "num_members": [3, 3], "busbw_kb": [1_250_001, 0],
    }  # fmt: skip
    first, second = (group.columns for group in payload.groups)
    assert read(payload.data, first["meeting"]).tolist() == [2, 0, 1]
    assert read(payload.data, first["wait"]).tolist() == [0, 0, wait]
    assert read(payload.data, second["meeting"]).tolist() == [1, 0, 2]
    assert read(payload.data, second["wait"]).tolist() == [0, 0, 7]


def test_without_a_table_nothing_of_collectives_is_written() -> None:
    payload = encode(training_run())
    assert payload.meetings is None
    assert not {"meeting", "wait"} & set(payload.groups[0].columns)


def test_nested_rows_come_longest_first() -> None:
    rows = [Row(0, "compute", 0, 5, "inner"), Row(0, "compute", 0, 50, "outer")]
    payload = encode(make_run(rows))
    assert [row[2] for row in decode(payload, payload.groups[0])] == ["outer", "inner"]


def test_a_run_without_rows_has_no_groups() -> None:
    payload = encode(make_run([], [(0, 2, 0, 1000)]))
    assert payload.groups == ()
    assert payload.num_intervals == 0
    assert [(w.step, w.start_ns, w.end_ns) for w in payload.windows] == [(2, 0, 1000)]


def test_clocks_that_lie_too_far_apart_are_told_and_kept_exact() -> None:
    rows = [Row(0, "compute", 0, 5), Row(1, "compute", -EPOCH + 12, 5)]
    payload = encode(make_run(rows))
    assert payload.note is not None
    for group in payload.groups:
        assert group.first_ns == 0
        assert decode(payload, group) == expected([row for row in rows if row.rank == group.rank])


def test_collectives_carry_their_bytes_where_the_type_is_known() -> None:
    gather = {"collective": "_allgather_base", "group_size": 2, "in_elements": 10, "out_elements": 20}
    rows = [
        Row(0, "comm", 0, 5, dtype="BFloat16", seq=0, **gather),
        Row(0, "comm", 10, 5, dtype="BFloat16", seq=1, **gather),
        Row(0, "comm", 20, 5, dtype="Mystery", seq=2, **gather),
        Row(0, "comm", 30, 5),
        Row(0, "compute", 40, 5),
    ]
    payload = encode(make_run(rows))
    assert [(c.name, c.dtype, c.in_bytes, c.out_bytes) for c in payload.collectives] == [
        ("_allgather_base", "BFloat16", 20, 40),
        ("_allgather_base", "Mystery", None, None),
    ]
    columns = payload.groups[0].columns
    assert read(payload.data, columns["collective"]).tolist() == [1, 1, 2, 0]
    assert read(payload.data, columns["seq"]).tolist() == [1, 2, 3, 0]


def test_random_rows_come_back_exactly() -> None:
    rng = np.random.default_rng(3)
    starts = rng.choice(10**12, size=400, replace=False).tolist()
    rows = [
        Row(0, CATEGORIES[rng.integers(3)], start, int(rng.integers(10**6)), f"k{rng.integers(9)}", stream=start % 4)
        for start in starts
    ]
    payload = encode(make_run(rows))
    assert decode(payload, payload.groups[0]) == expected(rows)


def test_the_same_run_gives_the_same_bytes() -> None:
    run = training_run()
    assert gzip_base64(encode(run).data) == gzip_base64(encode(run).data)


@pytest.mark.parametrize("text", HostileTexts().all)
def test_json_in_a_script_block_cannot_end_it_and_reads_the_same(text: str) -> None:
    embedded = script_json({"name": text})
    assert not set("<>&\u2028\u2029") & set(embedded)
    assert json.loads(embedded) == {"name": text}
    embedded.encode()


def test_json_refuses_what_is_not_a_number() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        script_json(float("nan"))


def test_names_are_spelled_out_where_one_cannot_see_them() -> None:
    assert printable("a\x00b\u202ec\ud800") == "a\\u0000b\\u202ec\\ud800"
    assert printable("Ψ kernel<int> \u05e9") == "Ψ kernel<int> \u05e9"


def test_script_hash_is_that_of_the_standard() -> None:
    # The example of the CSP specification.
    assert csp_hash("alert('Hello, world.');") == "'sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng='"
