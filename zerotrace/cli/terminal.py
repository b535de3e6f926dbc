"""Text that may come from a trace or a file name, made harmless for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with every control character spelled out, so that none moves the cursor or sets a colour."""
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode() for char in text
    )
