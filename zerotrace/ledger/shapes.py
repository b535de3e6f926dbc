"""The parameters of a model, as far as their sizes matter to a ledger."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from zerotrace.errors import LedgerError
from zerotrace.model import ModelShape


class Shapes(Struct, frozen=True, kw_only=True):
    """Sizes of a model's parameters, tied ones once."""

    num_params: int
    """Ψ, in elements."""
    numels: tuple[int, ...] | None = None
    """Elements of each parameter, in the model's order; ``None`` where only Ψ is known."""
    largest_layer: int | None = None
    """Elements of the module with the most parameters of its own."""

    @property
    def largest_tensor(self) -> int | None:
        """Elements of the largest parameter."""
        return max(self.numels) if self.numels else None

    def partition_numel(self, world_size: int) -> int:
        """Elements of one rank's partition at stage 3: each parameter is padded to the world size on its own.

        Source: ``runtime/zero/partition_parameters.py``, ``_aligned_size``.
        """
        if self.numels is None:
            return math.ceil(self.num_params / world_size)
        return sum(math.ceil(numel / world_size) for numel in self.numels)

    def flat_partition_numel(self, world_size: int) -> int:
        """Elements of one rank's partition at stages 1 and 2: one flat buffer, padded to twice the world size.

        Source: ``runtime/zero/stage_1_and_2.py``, ``nccl_start_alignment_factor``; one parameter group.
        """
        return math.ceil(self.num_params / (2 * world_size)) * 2


def shapes_of(numels: Sequence[int], largest_layer: int | None = None) -> Shapes:
    """Shapes of a model whose parameters have these numbers of elements."""
    return Shapes(
        num_params=sum(numels), numels=tuple(numels), largest_layer=largest_layer or max(numels, default=None)
    )


def decoder_shapes(model: ModelShape) -> Shapes:
    """Shapes of one of zerotrace's own decoders (``runners/gpt2.py``); of any other model its Ψ alone.

    A layer has two LayerNorms (weight, bias: h), attention in and out (3h² + 3h, h² + h), MLP in and out (4h² + 4h,
    4h² + h); around them lie token and position embeddings (the head is tied to the first) and a last LayerNorm.
    """
    layers, hidden, vocab = model.num_layers, model.hidden_size, model.vocab_size
    if layers is None or hidden is None or vocab is None:
        return Shapes(num_params=model.num_params)
    h, h2 = hidden, hidden * hidden
    layer = (h, h, 3 * h2, 3 * h, h2, h, h, h, 4 * h2, 4 * h, 4 * h2, h)
    positions = model.num_params - vocab * h - layers * sum(layer) - 2 * h
    if positions <= 0 or positions % h:
        return Shapes(num_params=model.num_params)
    return shapes_of((vocab * h, positions, *(layer * layers), h, h), largest_layer=max(vocab * h, 4 * h2 + 4 * h))


def parse_shapes(content: Any, file: str) -> Shapes:
    """Shapes from a file's JSON.

    Args:
        content: ``{"name": [shape], ...}``, ``{"name": numel, ...}``, or a list of shapes or numbers of elements.
        file: its name, for messages.

    Raises:
        LedgerError: it is none of these.
    """
    entries = list(content.values()) if isinstance(content, dict) else content
    if not isinstance(entries, list) or not entries:
        raise _no_shapes(file)
    return shapes_of([_numel(entry, file) for entry in entries])


def _numel(entry: Any, file: str) -> int:
    sizes = entry if isinstance(entry, list) else [entry]
    if not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes):
        raise _no_shapes(file)
    return math.prod(sizes)


def _no_shapes(file: str) -> LedgerError:
    return LedgerError(
        f'{file}: no shapes: expected is JSON like {{"layer.weight": [1280, 5120], ...}} or [6553600, ...]',
        code="shapes_invalid",
        hint="in Python: json.dump({n: list(p.shape) for n, p in model.named_parameters()}, file)",
    )
