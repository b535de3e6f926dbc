"""Decimal microseconds to nanoseconds, without losing one."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotrace.ingest.times import FLOAT_EXACT_BELOW_US, floats_to_ns, text_to_ns, to_microseconds

kineto_texts = st.builds(
    "{}.{:03d}".format, st.integers(0, int(FLOAT_EXACT_BELOW_US) - 1), st.integers(0, 999)
)  # fmt: skip


@given(st.lists(kineto_texts, min_size=1, max_size=50))
def test_relative_floats_decode_to_what_the_text_says(texts: list[str]) -> None:
    got = floats_to_ns(np.array([float(text) for text in texts]))
    assert got.tolist() == [int(Decimal(text) * 1000) for text in texts]


@given(st.lists(kineto_texts.map("-{}".format), min_size=1, max_size=5))
def test_times_before_the_base_are_exact_too(texts: list[str]) -> None:
    assert floats_to_ns(np.array([float(text) for text in texts])).tolist() == [int(Decimal(t) * 1000) for t in texts]


def test_the_plain_product_would_be_a_nanosecond_off_somewhere() -> None:
    numbers = np.random.default_rng(0)
    pairs = zip(numbers.integers(4 * 10**12, 79 * 10**11, 20_000).tolist(), numbers.integers(0, 1000, 20_000).tolist())
    values = np.array([float(f"{whole}.{part:03d}") for whole, part in pairs])
    assert (floats_to_ns(values) != np.rint(values * 1000).astype(np.int64)).any()


def test_epoch_sized_text_is_exact() -> None:
    assert text_to_ns("1790857026123456.789") == 1_790_857_026_123_456_789


@pytest.mark.parametrize("text", ["1e400", "nan", "abc", "", "-Infinity"])
def test_text_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a number|out of range"):
        text_to_ns(text)


def test_what_is_no_number_becomes_nan() -> None:
    got = to_microseconds([1, 2.5, "3.5", None, "x", [], 1e300, float("inf")])
    assert got[:3].tolist() == [1.0, 2.5, 3.5]
    assert np.isnan(got[3:]).all()
