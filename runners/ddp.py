"""Trains the GPT-2 decoder of gpt2.py with torch's DistributedDataParallel: the twin of DeepSpeed's stage 0.

`zerotrace capture --engine ddp` runs this program; so does torchrun alone:

    torchrun --standalone --nproc-per-node 2 runners/ddp.py --model gpt2
    DS_ACCELERATOR=cpu torchrun --standalone --nproc-per-node 2 runners/ddp.py --model nano --sequence 64

The work of a step is that of a rank under DeepSpeed with `bf16` at stage 0: the same weights, tokens and loss, a bf16
forward and backward, and AdamW on fp32 master weights. The parameters that DDP holds are bf16, so that its buckets are,
and gradients are all-reduced in bf16, as DeepSpeed does.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from decoder import GPT2
from master_adamw import MasterAdamW
from options import add_ddp_options, work_options
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from zerotrace.capture import init_process_group, session
from zerotrace.capture.models import MODELS


class DataParallel:
    """What DeepSpeed's engine is to gpt2.py, with torch's DDP between these lines and the model."""

    def __init__(self, model: nn.Module, **settings: Any) -> None:
        self.module = model.bfloat16()
        self.parallel = DistributedDataParallel(self.module, **settings)
        self.optimizer = MasterAdamW(self.module.parameters())

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch."""
        loss: Tensor = self.parallel(tokens, targets)
        return loss

    def backward(self, loss: Tensor) -> None:
        """The gradients of a loss; DDP averages them over the ranks, bucket by bucket, while they come."""
        loss.backward()

    def step(self) -> None:
        """One optimizer step, the same on every rank."""
        self.optimizer.step()


def parse_args() -> argparse.Namespace:
    """The command line; defaults are DDP's own."""
    parser = work_options("Train a GPT-2 decoder on random tokens with torch's DistributedDataParallel.")
    add_ddp_options(parser)
    return parser.parse_args()


def main() -> None:
    """Train for ``--steps`` optimizer steps."""
    args = parse_args()
    config = MODELS[args.model]
    device = init_process_group()
    rank = torch.distributed.get_rank()

    # The same weights on every rank.
    torch.manual_seed(args.seed)
    with torch.device(device):
        model = GPT2(config)
    engine = DataParallel(
        model,
        bucket_cap_mb=args.bucket_cap_mb,
        gradient_as_bucket_view=args.gradient_as_bucket_view,
        static_graph=args.static_graph,
    )

    # Other tokens on every rank.
    random = torch.Generator(device).manual_seed(args.seed + rank)
    shape = (args.micro_batch, args.sequence + 1)
    with session(engine) as capture:
        for _ in range(args.steps):
            batch = torch.randint(config.vocab_size, shape, device=device, generator=random)
            loss = engine.forward(batch[:, :-1], batch[:, 1:])
            engine.backward(loss)
            engine.step()
            capture.step(loss)
    if rank == 0:
        print(f"{args.steps} steps, last loss {loss.item():.4f}")  # noqa: T201
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
