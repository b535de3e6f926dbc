"""Parts of DeepSpeed that a capture can switch off in a second run, to measure what they are worth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from zerotrace.errors import CaptureError


class AblationKind(Struct, frozen=True, kw_only=True):
    """One part."""

    part: str
    stages: tuple[int, ...]
    """ZeRO stages that have it."""
    settings: tuple[str, ...]
    """``--set`` arguments that switch it off."""
    switch: str
    """The key of ``zero_optimization`` that is 0 where it is off already."""

    @property
    def suffix(self) -> str:
        """What the folder of the second run ends in."""
        return f"-no-{self.part}"

    def check(self, ds_config: Mapping[str, Any] | None) -> None:
        """Refuse a configuration in which the part is off anyway.

        Raises:
            CaptureError: it is.
        """
        section = (ds_config or {}).get("zero_optimization")
        if isinstance(section, dict) and section.get(self.switch) == 0:
            raise CaptureError(
                f"--ablate {self.part}: zero_optimization.{self.switch} is 0, so that there is nothing to switch off.",
                code="nothing_to_ablate",
                hint=f"Leave {self.switch} out of the configuration, or leave out --ablate.",
            )


ABLATIONS = {
    "prefetch": AblationKind(
        part="prefetch",
        stages=(3,),
        settings=(
            "zero_optimization.stage3_prefetch_bucket_size=0",
            "zero_optimization.overlap_comm=false",
        ),
        switch="stage3_prefetch_bucket_size",
    )
}
