"""Trains a GPT-2 decoder on random tokens with DeepSpeed.

`zerotrace capture` runs this program; so does torchrun alone:

    torchrun --standalone --nproc-per-node 2 runners/gpt2.py --stage 3 --model gpt2
    DS_ACCELERATOR=cpu torchrun --standalone --nproc-per-node 2 runners/gpt2.py --stage 3 --model nano --sequence 64

Only the two lines with `session` and `capture.step` have to do with zerotrace: copy them into your own loop.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import deepspeed
import torch
from decoder import GPT2

from zerotrace.capture import init_process_group, session
from zerotrace.capture.ds_config import default_ds_config
from zerotrace.capture.models import MODELS


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
