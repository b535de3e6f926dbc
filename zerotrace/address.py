"""Addresses of folders and files that lie elsewhere, as fsspec writes them."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from msgspec import Struct

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")
_HERE = ("file", "local")
_WEB = ("http", "https")


class Url(Struct, frozen=True):
    """An address that fsspec knows: ``s3://bucket/run``. What is shown of it has no user, password or signature."""

    address: str

    @property
    def protocol(self) -> str:
        """Before ``://``."""
        return self.address.partition("://")[0].lower()

    @property
    def parts(self) -> tuple[str, ...]:
        """Host or bucket, and each name of the path below it."""
        return tuple(part for part in self._plain().partition("://")[2].split("/") if part)

    @property
    def name(self) -> str:
        """The last part, as a file's name."""
        return unquote(self.parts[-1]) if self.protocol in _WEB and self.parts else "".join(self.parts[-1:])

    @property
    def is_web(self) -> bool:
        """Whether a web server answers, which lists nothing and takes nothing."""
        return self.protocol in _WEB

    @property
    def parent(self) -> Url | None:
        """The folder around it; ``None`` around a bucket or host, and where a signature is good for one file alone."""
        if len(self.parts) < 2 or "?" in self.address:
            return None
        return Url(self.address.rstrip("/").rpartition("/")[0])

    def __truediv__(self, name: str) -> Url:
        return Url(f"{self.address.rstrip('/')}/{name}")

    def __repr__(self) -> str:
        return f"Url({str(self)!r})"

    def __str__(self) -> str:
        return f"{self.protocol}://{'/'.join(self.parts)}"

    def _plain(self) -> str:
        address = re.split(r"[?#]", self.address)[0] if self.protocol in _WEB else self.address
        scheme, _, rest = address.partition("://")
        host, slash, path = rest.partition("/")
        return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def parse_place(text: str) -> Path | Url:
    """A path or an address, as a person gives it; ``file://`` is a path."""
    scheme = _SCHEME.match(text)
    if scheme is None:
        return Path(text)
    if scheme[1].lower() in _HERE:
        return Path(text[scheme.end() :])
    return Url(text)
