"""The decoders that the runners build, by name. Needs no torch, so that names can be checked up front."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from zerotrace.errors import CaptureError

if TYPE_CHECKING:
    from zerotrace.model import ModelShape


class DecoderConfig(Struct, frozen=True, kw_only=True):
    """Shape of a GPT-2 decoder with tied embeddings and no dropout."""

    name: str
    num_layers: int
    num_heads: int
    hidden_size: int
    vocab_size: int
    num_positions: int
    """Rows of the position embedding: the longest sequence that the model takes."""

    @property
    def num_params(self) -> int:
        """Ψ: embeddings (tied, once), ``12·h² + 13·h`` a layer, the last LayerNorm."""
        hidden = self.hidden_size
        per_layer = 12 * hidden**2 + 13 * hidden
        return (self.vocab_size + self.num_positions) * hidden + self.num_layers * per_layer + 2 * hidden

    def shape(self, num_params: int) -> ModelShape:
        """The shape as the manifest records it, with Ψ as counted on the built model."""
        from zerotrace.model import ModelShape  # whoever only asks for --help does not wait for it

        return ModelShape(
            name=self.name,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            hidden_size=self.hidden_size,
            vocab_size=self.vocab_size,
            num_params=num_params,
        )


def _decoder(name: str, layers: int, heads: int, hidden: int, vocab: int, positions: int) -> DecoderConfig:
    return DecoderConfig(
        name=name,
        num_layers=layers,
        num_heads=heads,
        hidden_size=hidden,
        vocab_size=vocab,
        num_positions=positions,
    )


#: The vocabulary of GPT-2 is rounded up to a multiple of 64, as is usual (and as the study has it). ``nano`` is as
#: small as it can be with weights above DeepSpeed's default ``stage3_param_persistence_threshold`` of 100,000 elements:
#: below that, stage 3 would keep every parameter whole and gather nothing.
MODELS = {
    model.name: model
    for model in (
        _decoder("nano", 4, 6, 192, 1024, 256),
        _decoder("micro", 6, 8, 512, 4096, 1024),
        _decoder("gpt2", 12, 12, 768, 50304, 1024),
        _decoder("gpt2-medium", 24, 16, 1024, 50304, 1024),
        _decoder("gpt2-large", 36, 20, 1280, 50304, 1024),
        _decoder("gpt2-xl", 48, 25, 1600, 50304, 1024),
    )
}


def find_model(name: str) -> DecoderConfig:
    """The model of that name.

    Raises:
        CaptureError: no model has that name.
    """
    try:
        return MODELS[name]
    except KeyError:
        raise CaptureError(
            f"There is no model named {name!r}.",
            code="model_unknown",
            hint=f"Pass one of: {', '.join(MODELS)}.",
        ) from None
