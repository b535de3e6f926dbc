"""Repairs of JSON that leave every number as it is: a bad name must not cost the trace."""

from __future__ import annotations

import re
from dataclasses import dataclass

_STRING_OR_REST = re.compile(rb'"(?:[^"\\]|\\.)*"|[^"]+', re.DOTALL)
_CONTROL = re.compile(rb"[\x00-\x1f]")
_NOT_FINITE = re.compile(rb"(?<![\w.])-?(?:NaN|nan|Infinity|infinity|inf)(?![\w.])")


@dataclass(frozen=True)
class Repair:
    """What was replaced, and how often."""

    code: str
    what: str
    count: int


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
    except UnicodeDecodeError:
        decoded = text.decode("utf-8", "replace")
        repairs.append(Repair("encoding_repaired", "byte sequences that are not UTF-8", decoded.count("\ufffd")))
        text = decoded.encode()
    num_control = num_not_finite = 0

    def mend(match: re.Match[bytes]) -> bytes:
        nonlocal num_control, num_not_finite
        piece = match[0]
        if piece.startswith(b'"'):
            piece, count = _CONTROL.subn(b" ", piece)
            num_control += count
        else:
            piece, count = _NOT_FINITE.subn(b"null", piece)
            num_not_finite += count
        return piece

    text = _STRING_OR_REST.sub(mend, text)
    if num_control:
        repairs.append(Repair("json_repaired", "raw control characters in strings", num_control))
    if num_not_finite:
        repairs.append(Repair("json_repaired", "non-finite numbers (NaN, Infinity)", num_not_finite))
    return text, repairs
