"""The GPT-2 decoder that all runners train."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from zerotrace.capture.models import DecoderConfig


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Attend; ``x`` is (batch, sequence, hidden)."""
        batch, sequence, hidden = x.shape
        heads = (batch, sequence, self.num_heads, hidden // self.num_heads)
        query, key, value = (part.view(heads).transpose(1, 2) for part in self.qkv(x).split(hidden, dim=2))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.proj(mixed.transpose(1, 2).reshape(batch, sequence, hidden))
        return out


class Block(nn.Module):
    """One decoder layer: attention and MLP, each behind a LayerNorm and around a residual."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.hidden_size)
        self.attention = Attention(config)
        self.ln_2 = nn.LayerNorm(config.hidden_size)
        self.fc = nn.Linear(config.hidden_size, 4 * config.hidden_size)
        self.proj = nn.Linear(4 * config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer; ``x`` is (batch, sequence, hidden)."""
        x = x + self.attention(self.ln_1(x))
        out: Tensor = x + self.proj(functional.gelu(self.fc(self.ln_2(x)), approximate="tanh"))
        return out


class GPT2(nn.Module):
    """A GPT-2 decoder with tied embeddings; its forward returns the loss."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = nn.Embedding(config.num_positions, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.ln_f = nn.LayerNorm(config.hidden_size)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.head.weight = self.tokens.weight
        for name, param in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(param)
            elif param.dim() == 2:
                # GPT-2 scales the layers that write into the residual stream by their number.
                depth = 2 * config.num_layers if name.endswith("proj.weight") else 1
                nn.init.normal_(param, std=0.02 / math.sqrt(depth))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy; both arguments are (batch, sequence) token numbers."""
        where = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(where)
        for block in self.blocks:
            x = block(x)
        # In bf16, as the study has it: logits in fp32 would raise the peak by their size, several times over.
        logits = self.head(self.ln_f(x))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
