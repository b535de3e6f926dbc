"""Reads back every number that a page shows, and holds it against the JSON that the page was drawn from.

A number is shown in one of three ways: as ``<data value>``, in the text of a chart whose trace lists it in
``meta.figures``, or within a text that stands word for word in the JSON. Anything else that has a digit must be on the
short lists below.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

#: What tells one rank, step or the like from another.
ORDINALS = re.compile(
    r"\b(?:ZeRO-\d|(?:rank|ranks|step|steps|stage|device|stream|number|Profiled steps?) \d+(?:(?:, | to | and |–)\d+)*)"
)

_WHOLE_ORDINALS = re.compile(ORDINALS.pattern + r"(?![.,]?\d)")

#: The page's own words that hold a number: formulas, units and limits, the same in every page.
OWN_WORDS = (
    "at 1, 10 and", "100 GB/s", "Its 100 % runs", "2Ψ (N−1)/N", "16Ψ; 4Ψ + 12Ψ/N; 2Ψ + 14Ψ/N; 16Ψ/N", "stages 0 to 3",
    "BLAKE2b", "of less than eight pixels", "A GB is 10", "DIR --ranks 3,17", "low (5 %)", "high (95 %)",
    "(1.4826 × the median", "1 % of the median",
)  # fmt: skip

#: Where the page explains its words and keys; where the reader chooses what the timeline shows, and what JavaScript
#: says of that choice (tests/page/test_timeline.py and its neighbours hold it against the tables).
OWN_PLACES = (
    ".words tr:has(th + td + td)", "#help", "#keys", ".page-footer", "#timeline-step", "#timeline-ranks",
    "#timeline-lanes", "#timeline-mode", "#timeline-box", "#timeline-tip", "#timeline-status", "#timeline-selection",
    "#lane-table", "[data-filter]", "#ranks-query", "#rank-map-tip", "#rank-map-status",
)  # fmt: skip

#: Units by which a number that is read differs from the one that is stored. A column whose head names the unit has
#: texts without one.
SCALES = {
    "ns": (1,), "µs": (10**3,), "ms": (10**6, 1e-3), "s": (10**9, 1),
    "B": (1, 10**9), "KiB": (1 << 10,), "MiB": (1 << 20,), "GiB": (1 << 30,),
    "kB": (10**3,), "MB": (10**6,), "GB": (10**9,), "K": (10**3,), "M": (10**6,),
    "%": (0.01, 1), "points": (1,), "×": (1,), "": (1, 10**6, 1 << 30, 10**9, 10**3, 0.01),
}  # fmt: skip

_SHOWN = re.compile(r"[+−±<> ]*(\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?) ?(\S*)")

_READ = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")


@dataclass
class Told:
    """What the JSON of a page holds."""

    numbers: set[float] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, text: str | bytes) -> Told:
        told = cls()
        told._add(json.loads(text))
        return told

    def _add(self, value: Any) -> None:
        if isinstance(value, str):
            self.texts.add(" ".join(value.split()))
        elif isinstance(value, dict):
            for key, item in value.items():
                self._add(key)
                self._add(item)
        elif isinstance(value, list):
            for item in value:
                self._add(item)
        elif value is not None and not isinstance(value, bool):
            self.numbers.add(value)

    def holds(self, text: str) -> bool:
        """Whether a text is one of the JSON, or a part of one: a key by its last name, a name that was cut."""
        return text in self.texts or any(text in longer for longer in self.texts)


def draw_all(page: Page) -> None:
    """Opens every table and draws every chart."""
    page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
    for chart in page.locator("[data-chart], #step-bars, #timeline-box").all():
        chart.scroll_into_view_if_needed()
    page.evaluate("zerotrace.drawn()")


def odd_numbers(page: Page, stored: str | bytes) -> tuple[int, list[str]]:
    """How many numbers a page shows, and those of them that the JSON does not hold, with where they stand.

    Args:
        page: with all tables open and all charts drawn.
        stored: the JSON.
    """
    told, found = Told.of(stored), page.evaluate(_READ, list(OWN_PLACES))
    odd = [*_odd_data(found["data"], told), *_odd_tiles(found["tiles"], told), *_odd_texts(found["texts"], told)]
    for name, chart in found["charts"]:
        odd += [f"{name}: not drawn"] if not chart["isDrawn"] else odd_chart(name, chart, told)
    figures = sum(len(chart["figures"]) for _, chart in found["charts"])
    return len(found["data"]) + len(found["tiles"]) + figures, odd


def _odd_data(data: Collection[Any], told: Told) -> Iterator[str]:
    for value, text, counted, place in data:
        if not value or not any(digit.isdecimal() for digit in value):
            # unknown, or the key of a row
            if _has_digit(_without(text, ())):
                yield f"{place}: {text!r} is shown for no value"
        elif not counted and json.loads(value) not in told.numbers:
            yield f"{place}: {text!r} is {value}, which is not in the JSON"
        elif not reads_as(text, json.loads(value)):
            yield f"{place}: {text!r} is no reading of {value}"


def _odd_tiles(tiles: Collection[Any], told: Told) -> Iterator[str]:
    for name, value in tiles:
        if json.loads(value) not in told.numbers:
            yield f"tile: {name} is {value}, which is not in the JSON"


def _odd_texts(texts: Collection[Any], told: Told) -> Iterator[str]:
    for around, place, kind in texts:
        text = around[0]
        if kind == "pre":
            yield from (f"{place}: {odd!r} is in no text of the JSON" for odd in _odd_input(text, told))
            continue
        # a digit alone is no text, though some name or variable of the JSON is one
        is_stored = any(one in told.texts for one in around if _is_text(one))
        is_stored |= kind == "name" and any(map(told.holds, around[:2]))
        is_own = any(text in words and any(words in one for one in around) for words in OWN_WORDS)
        if not is_stored and not is_own and _has_digit(_without(text, OWN_WORDS)):
            yield f"{place}: {text!r} is neither marked nor a text of the JSON"


def _odd_input(text: str, told: Told) -> Iterator[float | str]:
    """What a run was started with and the JSON does not hold: the configuration, or the words of a command."""
    if text.startswith("{"):
        found = Told.of(text)
        yield from (found.numbers - told.numbers) | (found.texts - told.texts)
        return
    for word in shlex.split(text):
        name, _, value = word.partition("=")
        if word not in told.texts and not {name, value} <= told.texts:
            yield word


def odd_chart(name: str, chart: Any, told: Told) -> Iterator[str]:
    for text, value in chart["figures"]:
        if value not in told.numbers:
            yield f"{name}: {text!r} is {value}, which is not in the JSON"
        elif not reads_as(text, value):
            yield f"{name}: {text!r} is no reading of {value}"
    shown = sorted({text for text, _ in chart["figures"]} | set(chart["guides"]), key=len, reverse=True)
    names = sorted((text for text in told.texts if _has_digit(text) and _is_text(text)), key=len, reverse=True)
    for text in dict.fromkeys(chart["texts"]):
        rest = _without(text, shown)
        if _has_digit(rest) and _has_digit(_without(rest, names)):
            yield f"{name}: {text!r} holds a number that no trace lists"


def reads_as(text: str, value: float) -> bool:
    """Whether a text is a number rounded to the digits that it has."""
    parsed = _SHOWN.fullmatch(text.strip())
    if parsed is None:
        return not _has_digit(text)
    digits, unit = parsed[1].replace(",", ""), parsed[2].removesuffix("/s").removesuffix(",")
    half = (
        0.5000001
        * 10.0 ** -len(digits.partition("e")[0].partition(".")[2])
        * 10.0 ** int(digits.partition("e")[2] or 0)
    )
    if "," in parsed[1] or digits.isdecimal():
        half = max(half, 0.5000001)
    near = [abs(abs(value) - float(digits) * scale) <= half * scale for scale in SCALES.get(unit, ())]
    if text[:1] in "<>":
        return unit == "%" and (0 < value < 0.001 or 0.999 < value < 1)
    sign = -1 if text.lstrip()[:1] == "−" else 1
    return any(near) and (sign > 0 or value < 0)


def _without(text: str, known: Collection[str]) -> str:
    # First those that end where they seem to: the 1 that a chart shows is no part of "step 10". The texts of a picture
    # stand without a space between them, as in "stage 010.41", so that the others come last.
    text = _WHOLE_ORDINALS.sub(" ", text)
    for one in known:
        text = text.replace(one, " ")
    return ORDINALS.sub(" ", text)


def _is_text(text: str) -> bool:
    return len(text) > 2 and any(char.isalpha() for char in text)


def _has_digit(text: str) -> bool:
    return any(char.isdecimal() for char in text)
