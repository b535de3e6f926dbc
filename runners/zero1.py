"""Trains the GPT-2 decoder of gpt2.py with DDP and torch's ZeroRedundancyOptimizer: the twin of DeepSpeed's stage 1.

`zerotrace capture --engine zero1` runs this program; so does torchrun alone:

    torchrun --standalone --nproc-per-node 2 runners/zero1.py --model gpt2
    DS_ACCELERATOR=cpu torchrun --standalone --nproc-per-node 2 runners/zero1.py --model nano --sequence 64

The work of a step is that of ddp.py, but each rank updates its share alone. ZeroRedundancyOptimizer deals out whole
parameters, the largest first, each to the rank that has least so far; the rank it falls to broadcasts it after the
update. What is dealt out here are the bf16 parameters: the optimizer of a rank keeps fp32 master weights of its share,
so that the broadcast carries bf16, as DeepSpeed's all-gather does. Given the master weights instead, it would broadcast
fp32, twice the bytes.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from decoder import GPT2
from master_adamw import MasterAdamW
from options import add_ddp_options, work_options
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from zerotrace.capture import init_process_group, session
from zerotrace.capture.models import MODELS


class ShardedOptimizer:
    """What DeepSpeed's engine is to gpt2.py, with DDP and ZeroRedundancyOptimizer in its place."""

    def __init__(self, model: nn.Module, parameters_as_bucket_view: bool, **ddp_settings: Any) -> None:
        self.module = model.bfloat16()
        self.parallel = DistributedDataParallel(self.module, **ddp_settings)
        self.optimizer = ZeroRedundancyOptimizer(
            self.module.parameters(), MasterAdamW, parameters_as_bucket_view=parameters_as_bucket_view
        )

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch."""
        loss: Tensor = self.parallel(tokens, targets)
        return loss

    def backward(self, loss: Tensor) -> None:
        """The gradients of a loss; DDP averages all of them on every rank, bucket by bucket, while they come."""
        loss.backward()

    def step(self) -> None:
        """One optimizer step: this rank's share is updated, then every share is broadcast by its rank."""
        self.optimizer.step()
        # Those of the other ranks' shares, which nothing here has used.
        self.optimizer.zero_grad()


def parse_args() -> argparse.Namespace:
    """The command line; defaults are those of DDP and ZeroRedundancyOptimizer."""
    parser = work_options("Train a GPT-2 decoder on random tokens with torch's ZeroRedundancyOptimizer.")
    add_ddp_options(parser)
    parser.add_argument(
        "--parameters-as-bucket-view",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="parameters lie in one bucket a rank, which is broadcast as a whole",
    )
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
    engine = ShardedOptimizer(
        model,
        parameters_as_bucket_view=args.parameters_as_bucket_view,
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
