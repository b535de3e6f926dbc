"""Trains a GPT-2 decoder on random tokens with DeepSpeed.

`zerotrace capture` runs this program; so does torchrun alone:

    torchrun --standalone --nproc-per-node 2 runners/gpt2.py --stage 3 --model gpt2
    DS_ACCELERATOR=cpu torchrun --standalone --nproc-per-node 2 runners/gpt2.py --stage 3 --model nano --sequence 64

Only the two lines with `session` and `capture.step` have to do with zerotrace: copy them into your own loop.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import deepspeed
import torch
from torch import Tensor, nn
from torch.nn import functional

from zerotrace.capture import init_process_group, session
from zerotrace.capture.ds_config import default_ds_config
from zerotrace.capture.models import MODELS, DecoderConfig


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


def parse_args() -> argparse.Namespace:
    """The command line. ``zerotrace capture`` passes all of it but ``--stage``, which is in the configuration."""
    parser = argparse.ArgumentParser(description="Train a GPT-2 decoder on random tokens with DeepSpeed.")
    parser.add_argument("--model", choices=MODELS, default="gpt2-large")
    parser.add_argument("--stage", type=int, choices=range(4), default=3, help="ZeRO stage; ignored with --ds-config")
    parser.add_argument("--ds-config", help="DeepSpeed configuration: a JSON file, or the JSON itself")
    parser.add_argument("--micro-batch", type=int, default=4, help="sequences a rank; ignored with --ds-config")
    parser.add_argument("--sequence", type=int, default=1024, help="tokens a sequence")
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps")
    parser.add_argument("--seed", type=int, default=1337)
    return parser.parse_args()


def main() -> None:
    """Train for ``--steps`` optimizer steps."""
    args = parse_args()
    config = MODELS[args.model]
    ds_config = default_ds_config(args.stage, args.micro_batch)
    if args.ds_config:
        ds_config = json.loads(args.ds_config if args.ds_config.startswith("{") else Path(args.ds_config).read_text())

    device = init_process_group()
    rank = torch.distributed.get_rank()

    # The same weights on every rank and at every stage; DeepSpeed casts and partitions them.
    torch.manual_seed(args.seed)
    with torch.device(device):
        model = GPT2(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=ds_config)

    # Other tokens on every rank.
    random = torch.Generator(device).manual_seed(args.seed + rank)
    shape = (engine.train_micro_batch_size_per_gpu(), args.sequence + 1)
    with session(engine) as capture:
        for _ in range(args.steps):
            for _ in range(engine.gradient_accumulation_steps()):
                batch = torch.randint(config.vocab_size, shape, device=device, generator=random)
                loss = engine(batch[:, :-1], batch[:, 1:])
                engine.backward(loss)
                engine.step()
            capture.step(loss)
    if rank == 0:
        print(f"{args.steps} steps, last loss {loss.item():.4f}")  # noqa: T201
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
