"""Python's search for cycles of garbage, held off where hundreds of thousands of objects are made and no cycle."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Holds the search off in the block: there, it would only walk what is alive, time and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
