"""Numbers as people read them."""

from __future__ import annotations

import pytest

from zerotrace.units import (
    format_bytes,
    format_count,
    format_ns,
    format_ratio,
    format_signed,
    format_traffic,
    parse_bytes,
    parse_count,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0 ns"), (999, "999 ns"), (1_000, "1.00 µs"), (2_900_000, "2.90 ms"), (62_541_963, "62.5 ms"),
     (782_000_000, "782 ms"), (1_250_000_000, "1.25 s"), (-3_000, "-3.00 µs")],
)  # fmt: skip
def test_durations(value: float | None, text: str) -> None:
    assert format_ns(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (12, "12 B"), (2048, "2.00 KiB"), (7_260_978_688, "6.76 GiB"), (2**34, "16.0 GiB")]
)
def test_sizes(value: float | None, text: str) -> None:
    assert format_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0 B"),
        (8, "8 B"),
        (7.5, "7.5 B"),
        (1_203_200, "1.20 MB"),
        (1_569_152_008, "1.57 GB"),
        (999, "999 B"),
    ],
)
def test_traffic_is_decimal_as_bandwidths_are(value: float | None, text: str) -> None:
    assert format_traffic(value) == text


def test_parts_of_a_ratio_have_a_sign_unless_they_are_nothing() -> None:
    assert [format_signed(value) for value in (0.0356, -0.9992, 0.001, -0.001)] == ["+0.04", "−1.00", "0.00", "0.00"]


def test_ratios_and_counts() -> None:
    assert [format_ratio(value) for value in (None, 0, 0.0915, 1)] == ["–", "0 %", "9.15 %", "100 %"]
    assert format_count(371584) == "371,584"


@pytest.mark.parametrize(
    ("text", "count"),
    [("774M", 774_000_000), ("1.5B", 1_500_000_000), ("774090240", 774_090_240), ("774,090,240", 774_090_240),
     ("5e8", 500_000_000), ("0.5k", 500), (" 7_0 ", 70)],
)  # fmt: skip
def test_counts_as_people_write_them(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "M", "x", "0", "-1M", "1.5", "1e400", "nan", "inf", "1.0000001M"])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no count"):
        parse_count(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GiB", 80 << 30),
        ("80 GB", 80 * 10**9),
        ("1.5 MiB", 3 << 19),
        ("24G", 24 * 10**9),
        ("512", 512),
        ("2kib", 2048),
    ],
)
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "1e3", "80 apples", "0", "nan", "99999999TiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_bytes(text)
