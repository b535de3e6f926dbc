"""Texts of any length in places that have room for some."""

from __future__ import annotations

from zlib import crc32

#: The longest line that is shown whole. C++ names of kernels reach 3,000 characters.
LONGEST_SHOWN = 4_000

_END = 500


def shortened(text: str, longest: int = LONGEST_SHOWN) -> str:
    """The text, or its beginning and end with what lies between counted, where it is longer than ``longest``.

    Texts that differ stay apart: what was left out is told by a checksum too.
    """
    if len(text) <= longest:
        return text
    left_out = text[longest - _END : -_END]
    mark = crc32(left_out.encode("utf-8", "surrogatepass"))
    return f"{text[: longest - _END]} […{len(left_out):,} more characters, {mark:08x}…] {text[-_END:]}"


def spelled_out(text: str) -> str:
    r"""The text with every character that has no glyph spelled out: ``\x1b``, ``\n``, ``\u202e``."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
