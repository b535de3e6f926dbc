"""Repairs of JSON that leave every number as it is: a bad name must not cost the trace."""

from __future__ import annotations

import re

from msgspec import Struct

_STRING_OR_REST = re.compile(rb'"(?:[^"\\]|\\.)*"|[^"]+', re.DOTALL)
_CONTROL = re.compile(rb"[\x00-\x1f]")
_NOT_FINITE = re.compile(rb"(?<![\w.])-?(?:NaN|nan|Infinity|infinity|inf)(?![\w.])")

_IN_STRINGS = ("raw control characters in strings", _CONTROL, b" ")
_BETWEEN_STRINGS = ("non-finite numbers (NaN, Infinity)", _NOT_FINITE, b"null")


class Repair(Struct, frozen=True):
    """What was replaced, and how often."""

    code: str
    what: str
    count: int
    offset: int
    """Byte at which the first of them stood."""


def repair_json(text: bytes) -> tuple[bytes, list[Repair]]:
    """Replaces what strict readers refuse and what can be told apart from content.

    Bytes that are not UTF-8 become U+FFFD, raw control characters inside strings become blanks, bare ``NaN``
    and ``Infinity`` become ``null`` (that number is then unknown).

    Returns:
        The text, and one :class:`Repair` for each kind that occurred.
    """
    repairs: list[Repair] = []
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        decoded = text.decode("utf-8", "replace")
        count = decoded.count("\ufffd")
        repairs.append(Repair("encoding_repaired", "byte sequences that are not UTF-8", count, error.start))
        text = decoded.encode()
    places: dict[str, list[int]] = {}

    def mend(match: re.Match[bytes]) -> bytes:
        what, pattern, instead = _IN_STRINGS if match[0].startswith(b'"') else _BETWEEN_STRINGS
        first = pattern.search(match[0])
        if first is None:
            return match[0]
        piece, count = pattern.subn(instead, match[0])
        found = places.setdefault(what, [0, match.start() + first.start()])
        found[0] += count
        return piece

    text = _STRING_OR_REST.sub(mend, text)
    repairs += [Repair("json_repaired", what, count, offset) for what, (count, offset) in places.items()]
    return text, repairs
