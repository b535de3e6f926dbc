"""zerotrace: where a ZeRO training step's time really goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zerotrace.version import VERSION

__version__ = VERSION

if TYPE_CHECKING:
    from zerotrace.hta import to_hta as to_hta

__all__ = ["__version__", "to_hta"]


def __getattr__(name: str) -> Any:
    # pandas and HTA take a second to import, which only those who ask for them should wait for
    if name == "to_hta":
        from zerotrace.hta import to_hta

        return to_hta
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
