"""Lines of a ledger, as they are added up."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from zerotrace.ledger.allocator import rounding_bytes
from zerotrace.model import LedgerLine, Owner


class Book(Struct):
    """Collects lines. Sizes are in elements, so that a formula shows where its bytes come from."""

    rounded: bool = True
    """Whether torch's CUDA allocator gives the memory; on a CPU there is no rounding."""
    lines: list[LedgerLine] = field(default_factory=list)

    def add(
        self,
        owner: Owner,
        what: str,
        numels: Sequence[int],
        each: int,
        source: str,
        *,
        offloaded: bool = False,
    ) -> None:
        """Adds tensors, each its own allocation.

        Args:
            owner: whose they are.
            what: in words.
            numels: elements of each.
            each: bytes an element.
            source: where DeepSpeed or torch makes them.
            offloaded: whether they are kept off the device.
        """
        elements = sum(numels)
        if not elements:
            return
        size = elements * each
        formula = f"{each} B × {elements:,}"
        if len(numels) > 1:
            formula += f" in {len(numels):,} tensors"
        rounding = rounding_bytes(numel * each for numel in numels) if self.rounded and not offloaded else 0
        if rounding:
            formula += f" + {rounding:,} B rounding"
        self.lines.append(
            LedgerLine(
                owner=owner,
                what=what,
                formula=formula,
                bytes=0 if offloaded else size + rounding,
                rounding_bytes=rounding,
                offloaded_bytes=size if offloaded else 0,
                source=source,
            )
        )

    def given(self, numels: Sequence[int], each: int) -> int:
        """Bytes that tensors take, rounding included."""
        return sum(numels) * each + (rounding_bytes(numel * each for numel in numels) if self.rounded else 0)

    def note(self, owner: Owner, what: str, source: str) -> None:
        """A line that says why something holds nothing."""
        self.lines.append(LedgerLine(owner=owner, what=what, formula="0", bytes=0, source=source))

    @property
    def bytes(self) -> int:
        """Σ bytes on the device."""
        return int(sum(line.bytes for line in self.lines))
