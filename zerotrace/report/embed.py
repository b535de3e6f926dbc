"""Putting data into a page safely: JSON that cannot end its script, compressed bytes, script hashes.

A page carries names from traces, paths and command lines: all of them untrusted. Jinja escapes what
stands in markup, :func:`script_json` what stands in a data block, and the content security policy names
the hash of every script that may run, so that a slip in one of them still executes nothing.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from functools import lru_cache
from typing import Any

from zerotrace.texts import shortened

# What ends or reopens a script block, or ends a line in older JavaScript.
_SCRIPT_ESCAPES = {
    ord("<"): "\\u003c",
    ord(">"): "\\u003e",
    ord("&"): "\\u0026",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}

# Control characters, bidirectional overrides, lone surrogates: invisible, or able to reorder what stands beside them.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def printable(text: str) -> str:
    r"""A name as it may be shown: characters that one cannot see are spelled out, ``\u202e`` for example.

    One of megabytes is cut.
    """
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", shortened(text))


def script_json(value: Any) -> str:
    """Strict JSON for the inside of ``<script type="application/json">``.

    Raises:
        ValueError: a float is not finite; unknown numbers are ``None``.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # A lone surrogate is legal in a Python string and cannot be encoded in UTF-8.
    return text.translate(_SCRIPT_ESCAPES).encode("utf-8", "backslashreplace").decode()


def gzip_base64(data: bytes, level: int = 6) -> str:
    """Bytes as base64 of gzip, the same text for the same bytes (no time stamp inside)."""
    return base64.b64encode(gzip.compress(data, compresslevel=level, mtime=0)).decode("ascii")


def csp_hash(script: str) -> str:
    """The source expression that allows exactly this inline script in a content security policy."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii") + "'"


@lru_cache(maxsize=1)
def plotly_script() -> tuple[str, str]:
    """plotly.js as base64 of gzip, and its hash for the content security policy."""
    from plotly.offline import get_plotlyjs

    # Script text has no carriage returns once a browser has parsed it; the hash must agree.
    source = get_plotlyjs().replace("\r\n", "\n")
    return gzip_base64(source.encode()), csp_hash(source)
