"""The colours of the page, once: as CSS variables for the page and as JSON for the figures.

Marks keep 3:1 and text 4.5:1 against their background; the five roles stay apart under the three
colour-vision deficiencies, and exposed communication is hatched too, so that no figure rests on hue alone.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import asdict


class Theme(Struct, frozen=True, kw_only=True):
    """One set of colours, as CSS hexadecimal colours."""

    background: str
    surface: str
    """Tiles, the banner, table heads."""
    lane: str
    """Track of an empty lane in the timeline."""
    border: str
    text: str
    muted: str
    """Secondary text: still 4.5:1 on background and surface."""
    link: str
    focus: str
    compute: str
    overlapped: str
    exposed: str
    waiting: str
    """Waiting for a rank is exposed, too: a paler fill inside an outline in ``exposed``."""
    copy: str
    idle: str
    idle_fill: str
    """Idle time is drawn as an outline in ``idle`` around this paler fill: it is the absence of work."""
    idle_other: str
    """The same for idle time that is not the host's doing: still paler."""
    on_compute: str
    """Text on a bar of compute; likewise below."""
    on_exposed: str
    on_waiting: str
    on_copy: str
    on_idle: str
    hatch: str
    warning: str
    error: str

    def css_variables(self) -> str:
        """The colours as declarations of CSS custom properties: ``--on-compute: #fff; …``."""
        return " ".join(f"--{name.replace('_', '-')}: {color};" for name, color in asdict(self).items())


LIGHT = Theme(
    background="#ffffff",
    surface="#f6f7f9",
    lane="#f0f1f5",
    border="#dfe2e7",
    text="#14161a",
    muted="#565c66",
    link="#2143ad",
    focus="#2143ad",
    compute="#2143ad",
    overlapped="#519f5d",
    exposed="#c58219",
    waiting="#ecc98f",
    copy="#6f3a73",
    idle="#8e9196",
    idle_fill="#d7dae1",
    idle_other="#f3f4f7",
    on_compute="#ffffff",
    on_exposed="#1c1204",
    on_waiting="#1c1204",
    on_copy="#ffffff",
    on_idle="#2c3038",
    hatch="#f3dcb4",
    warning="#8a5300",
    error="#b3261e",
)

DARK = Theme(
    background="#101317",
    surface="#181b21",
    lane="#1a1d24",
    border="#2a2f37",
    text="#eceef2",
    muted="#a2a8b3",
    link="#8ea9ff",
    focus="#8ea9ff",
    compute="#688fff",
    overlapped="#4affa3",
    exposed="#eb6f29",
    waiting="#7a4325",
    copy="#e1daf7",
    idle="#646a72",
    idle_fill="#353b45",
    idle_other="#1e222a",
    on_compute="#0a0c10",
    on_exposed="#0a0c10",
    on_waiting="#ffffff",
    on_copy="#0a0c10",
    on_idle="#d5d9e0",
    hatch="#8a3a0d",
    warning="#ffb95c",
    error="#ff8f85",
)
