"""Capturing: what runs inside every rank, and the launcher that starts and watches the ranks.

A training program needs two names::

    from zerotrace.capture import init_process_group, session

Nothing is imported until it is asked for: the launcher does without torch until the cheap checks have passed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerotrace.capture.device import init_process_group
    from zerotrace.capture.loop import Session, session

__all__ = ["Session", "init_process_group", "session"]


def __getattr__(name: str) -> Any:
    if name == "init_process_group":
        from zerotrace.capture import device

        return device.init_process_group
    if name in ("Session", "session"):
        from zerotrace.capture import loop

        return getattr(loop, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
