"""What every page is made of: assets, templates with their filters, the policy that names its scripts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import lru_cache
from importlib.resources import files
from typing import Any

import jinja2
from msgspec import Struct
from msgspec.structs import asdict

from zerotrace.report import embed, method, summary
from zerotrace.report.collectives import kind_name
from zerotrace.report.diagnostic_words import others_text, place_text
from zerotrace.report.gather_words import module_name
from zerotrace.report.gathers import slack_name
from zerotrace.report.memory import gap_text
from zerotrace.report.memory_words import signed_bytes
from zerotrace.report.theme import DARK, LIGHT
from zerotrace.report.wire import confirmed_text
from zerotrace.report.words import marked
from zerotrace.texts import shortened
from zerotrace.units import GIB, NS_PER_MS, format_bytes, format_count, format_ns, format_traffic

# Only what the page itself carries may load or run.
_POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)


def render_page(template: str, scripts: Sequence[str], *, version: str, page_data: Any, **more: Any) -> str:
    """One self-contained page.

    Args:
        template: name of the asset, which extends ``shell.html.j2``.
        scripts: names of assets that are joined to one module: each uses what stands above it.
        version: the zerotrace that made the figures.
        page_data: what the scripts draw.
        more: what the template shows.
    """
    plotly, plotly_hash = embed.plotly_script()
    first_script, main_script = _asset("before_paint.js"), "\n".join(_asset(name) for name in scripts)
    policy = _POLICY.format(scripts=" ".join((embed.csp_hash(first_script), embed.csp_hash(main_script), plotly_hash)))
    themes = {"light": plain(LIGHT), "dark": plain(DARK)}
    return (
        _environment()
        .get_template(template)
        .render(
            version=version,
            policy=policy,
            light=LIGHT,
            dark=DARK,
            style=_asset("page.css"),
            first_script=first_script,
            main_script=main_script,
            plotly=plotly,
            page_json=embed.script_json({**page_data, "themes": themes}),
            summary=summary,
            method=method,
            **more,
        )
    )


def plain(value: Any) -> Any:
    """A record as strict JSON has it: enums by value, what is not finite as ``None``, texts of megabytes cut."""
    if isinstance(value, Struct):
        return {name: plain(item) for name, item in asdict(value).items()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {shortened(str(plain(key))): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (int, float)):
        return value
    return shortened(str(value))


def _asset(name: str) -> str:
    return (files("zerotrace.report") / "assets" / name).read_text(encoding="utf-8").replace("\r\n", "\n")


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: shortened(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        ns=format_ns,
        bytes=format_bytes,
        percent=summary.format_percent,
        count=format_count,
        ms=method.milliseconds,
        printable=embed.printable,
        unbroken=marked,
        foldable=lambda text: marked(text, fold=True),
        role=method.kernel_role,
        traffic=lambda value: method.signed(format_traffic(value)),
        figure=_figure,
        signed=_signed,
        kind_name=kind_name,
        others_text=others_text,
        place_text=place_text,
        module_name=module_name,
        slack_name=slack_name,
        confirmed=confirmed_text,
        gib=lambda value: _unitless(value, GIB, 3),
        tenths=lambda value: _unitless(value, NS_PER_MS, 1),
        kilo=lambda value: _unitless(value, 1000, 1),
        saved=lambda value: method.signed(format_bytes(value)),
        gap_text=gap_text,
        signed_bytes=signed_bytes,
        printable_lines=lambda text: "\n".join(embed.printable(line) for line in text.split("\n")),
    )
    return environment


def _unitless(value: float | None, unit: int, digits: int) -> str:
    """A number of a column whose head names the unit; smaller ones keep a digit that says something."""
    if value is None:
        return summary.UNKNOWN
    number = value / unit
    return method.signed(f"{number:.{digits if abs(number) >= 1 or not number else 3}f}")


def _figure(value: float | None) -> str:
    """A number without a unit: ``290``, ``25.24``, ``0.0011``."""
    if value is None:
        return summary.UNKNOWN
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 1000 else f"{value:.3g}"


def _signed(ratio: float) -> str:
    """A part of a ratio with its sign and four digits: ``−0.9992``."""
    return method.signed(f"{ratio:+.4f}") if round(ratio, 4) else "0.0000"
