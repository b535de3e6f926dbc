"""Numbers as people read them. Nothing here rounds a number that is stored."""

from __future__ import annotations

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
GIB = 1 << 30


def format_ns(value: float | None) -> str:
    """A duration with the unit that suits its size: ``1.25 s``, ``782 ms``, ``7.90 ms``, ``640 µs``, ``12 ns``.

    Args:
        value: nanoseconds, or ``None`` for unknown.

    Returns:
        Text with three significant digits, ``–`` for unknown.
    """
    if value is None:
        return "–"
    for divisor, unit in ((NS_PER_S, "s"), (NS_PER_MS, "ms"), (NS_PER_US, "µs")):
        if abs(value) >= divisor:
            return f"{_three_digits(value / divisor)} {unit}"
    return f"{value:.0f} ns"


def format_bytes(value: float | None) -> str:
    """A size in binary units: ``6.76 GiB``; ``–`` for unknown."""
    if value is None:
        return "–"
    for exponent, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if abs(value) >= 1024**exponent:
            return f"{_three_digits(value / 1024**exponent)} {unit}"
    return f"{value:.0f} B"


def format_traffic(value: float | None) -> str:
    """Bytes on a wire, in decimal units as bandwidths are: ``1.57 GB``; ``–`` for unknown."""
    if value is None:
        return "–"
    for exponent, unit in ((9, "GB"), (6, "MB"), (3, "kB")):
        if abs(value) >= 10**exponent:
            return f"{_three_digits(value / 10**exponent)} {unit}"
    return f"{value:.3g} B"


def format_signed(value: float) -> str:
    """A part of a ratio with its sign: ``+0.03``, ``−1.00``, ``0.00``."""
    text = f"{abs(value):.2f}"
    if text == "0.00":
        return text
    return f"{'−' if value < 0 else '+'}{text}"


def format_ratio(value: float | None) -> str:
    """A ratio in per cent: ``9.2 %``; ``–`` for unknown."""
    return "–" if value is None else f"{_three_digits(100 * value)} %"


def format_count(value: int) -> str:
    """A count with thousands set apart: ``371,584``."""
    return f"{value:,}"


def parse_count(text: str) -> int:
    """A count as people write it: ``774M``, ``1.5B``, ``774090240``, ``5e8``.

    Raises:
        ValueError: if it is none, or no whole number above zero that int64 holds.
    """
    from decimal import Decimal  # as long to import as all of the command line

    digits = text.strip().replace(",", "").replace("_", "")
    scale = {"K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}.get(digits[-1:].upper(), 1)
    try:
        value = Decimal(digits[:-1] if scale > 1 else digits) * scale
    except ArithmeticError:
        value = Decimal(0)
    if value.is_nan() or not 0 < value < 2**63 or value != int(value):
        raise ValueError(f"{text!r} is no count; write 774M, 1.5B or 774090240")
    return int(value)


def parse_bytes(text: str) -> int:
    """A size as people write it: ``80GiB``, ``80GB`` (1e9), ``512 MiB``, ``1073741824``.

    Raises:
        ValueError: if it is none, or no size above zero that int64 holds.
    """
    import re

    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])(i)?)?B?\s*", text, re.IGNORECASE)
    if found is None:
        raise ValueError(f"{text!r} is no size; write 80GiB, 80GB or a number of bytes")
    number, prefix, binary = found.groups()
    value = float(number) * (1024 if binary else 1000) ** (" KMGT".index(prefix.upper()) if prefix else 0)
    if not 1 <= value < 2**63:
        raise ValueError(f"{text!r} is no size of a memory")
    return int(value)


def _three_digits(value: float) -> str:
    size = abs(value)
    if size >= 99.95:
        return f"{value:.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if size else "0"
