"""Sentences that know which of their parts are figures of the run, so that a page can mark each with its exact value.

They are plain texts to whoever needs no more: a terminal, the hover of a chart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from markupsafe import Markup

from zerotrace.report.embed import printable
from zerotrace.units import format_count

_NUMBER_WITH_UNIT = re.compile(r"((?:× )?\d[\d.,–]*(?: (?:ns|µs|ms|s|%|×|[KMG]?i?B|[KMB])\b| %| ×)|× \d[\d.]*)")


class Shown(str):
    """A figure as one reads it.

    Attributes:
        value: the figure as the JSON of the page has it; ``None`` for unknown.
        of_page: whether it counts what the page lists, and is no figure of the run.
    """

    __slots__ = ("of_page", "value")

    value: float | None
    of_page: bool


class Named(str):
    """A text out of the JSON of the page, in its own words: a name, a version."""

    __slots__ = ()


class Words(str):
    """A text in parts: words, :class:`Shown` and :class:`Named`."""

    __slots__ = ("parts",)

    parts: tuple[str, ...]


def shown(value: float | None, form: Callable[[Any], str] = str) -> Shown:
    """A figure in the form in which one reads it."""
    text = Shown(form(value))
    text.value, text.of_page = value, False
    return text


def counted(count: int) -> Shown:
    """How many of something the page lists."""
    text = shown(count, format_count)
    text.of_page = True
    return text


def tell(pattern: str, *parts: str) -> Words:
    """The pattern, with the parts in its places: ``tell("{} of {}", shown(1), shown(2))``."""
    own = pattern.split("{}")
    if len(own) != len(parts) + 1:
        raise ValueError(f"{len(parts)} parts for {pattern!r}")
    return _words([own[0], *(piece for part, text in zip(parts, own[1:]) for piece in (part, text))])


def joined(separator: str, texts: Iterable[str]) -> Words:
    """Like ``str.join``."""
    pieces = [piece for text in texts for piece in (separator, text)]
    return _words(pieces[1:])


def marked(text: str, fold: bool = False) -> Markup:
    """A text for the page: figures marked with their values, and no number parted from its unit at the end of a line.

    Args:
        text: of any kind.
        fold: whether a range may go on a second line after its dash, where it does not fit on one.
    """
    found = Markup("")
    for part in parts_of(text):
        if fold and found.endswith("–"):
            found += Markup("<wbr>")
        found += _marked_part(part, fold)
    return found


def parts_of(text: str) -> tuple[str, ...]:
    """The parts of a text; itself, where it has none."""
    return text.parts if isinstance(text, Words) else (text,)


def figures_in(value: Any) -> Iterator[Shown]:
    """The figures in texts, lists of texts and the like."""
    if isinstance(value, str):
        yield from (part for part in parts_of(value) if isinstance(part, Shown))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from figures_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from figures_in(item)


def _words(pieces: Iterable[str]) -> Words:
    parts = tuple(part for piece in pieces for part in parts_of(piece) if part)
    words = Words("".join(parts))
    words.parts = parts
    return words


def _marked_part(part: str, fold: bool) -> Markup:
    if isinstance(part, Shown):
        kind = "n counted" if part.of_page else "n"
        value = "" if part.value is None else part.value
        return Markup('<data class="{}" value="{}">{}</data>').format(kind, value, str(part))
    if isinstance(part, Named):
        return Markup("<bdi>{}</bdi>").format(_unbroken(part))
    if fold:
        return Markup("<wbr>").join(_unbroken(piece) for piece in re.split(r"(?<=\S–)(?=\S)", part))
    return _unbroken(part)


def _unbroken(text: str) -> Markup:
    parts = _NUMBER_WITH_UNIT.split(printable(text))
    kept = (Markup("<span class=n>{}</span>").format(part) if index % 2 else part for index, part in enumerate(parts))
    return Markup("").join(kept)
