"""What a decoder of ``runners/gpt2.py`` keeps for its backward pass; of other models this is not known here."""

from __future__ import annotations

from msgspec import Struct

from zerotrace.model import ModelShape


class Activations(Struct, frozen=True, kw_only=True):
    """Bytes that the forward pass leaves alive."""

    forward_bytes: int
    """At the end of the forward pass, the probabilities of the loss included."""
    logits_bytes: int
    """One tensor of the size of the logits: the loss holds one for backward, and its backward makes two more."""
    first_gradients_bytes: int
    """When the first gradients are reduced, half a layer into backward: what backward has made, less what it has
    freed, without the logits."""
    first_gradient_elements: int
    """Elements of the largest gradient of that half layer."""
    formula: str


def decoder_activations(
    model: ModelShape, micro_batch: int | None, sequence: int | None, element_bytes: int
) -> Activations | None:
    """Activations of one of zerotrace's own decoders; ``None`` for any other.

    With ``u = B·S·h·e`` a layer keeps 16 u (LayerNorm 1, attention in 3, out 1, residual 1, LayerNorm 1, MLP in 4,
    GELU 4, residual 1), the statistics of its LayerNorms (16 B a token) and of attention (4 B a head and token, and
    two counters); the whole keeps 2 u more, and the probabilities ``B·S·V·e``.

    Args:
        model: from the manifest, or one of the models by name.
        micro_batch: B; ``None`` where it is not known.
        sequence: S; likewise.
        element_bytes: e, of the forward pass.
    """
    layers, heads, hidden, vocab = model.num_layers, model.num_heads, model.hidden_size, model.vocab_size
    if micro_batch is None or sequence is None:
        return None
    if layers is None or heads is None or hidden is None or vocab is None:
        return None
    tokens = micro_batch * sequence
    unit = tokens * hidden * element_bytes
    layer = 16 * unit + 16 * tokens + 4 * heads * tokens + 1024
    logits = tokens * vocab * element_bytes
    return Activations(
        forward_bytes=layers * layer + 2 * unit + 8 * tokens + logits,
        logits_bytes=logits,
        # freed: 4 + 4 + 2 u; made: 4 + 2 u, and the gradient of the tied head, which waits for the embedding's
        first_gradients_bytes=-4 * unit + vocab * hidden * element_bytes,
        first_gradient_elements=4 * hidden * hidden,
        formula=f"{layers} layers × (16 u + {layer - 16 * unit:,} B) + 2 u + logits, u = {unit:,} B",
    )
