"""Trains the GPT-2 decoder of gpt2.py with torch's FSDP2: the twin of DeepSpeed's stage 3.

`zerotrace capture --engine fsdp2` runs this program; so does torchrun alone:

    torchrun --standalone --nproc-per-node 2 runners/fsdp2.py --model gpt2
    DS_ACCELERATOR=cpu torchrun --standalone --nproc-per-node 2 runners/fsdp2.py --model nano --sequence 64

The work of a step is that of a rank under DeepSpeed with `bf16` at stage 3. The parameters are fp32 and sharded: they
are the master weights, on which AdamW works. What is gathered is their bf16 copy, and gradients are reduced in bf16,
as DeepSpeed does by default; FSDP2 by itself would reduce in the type of the gradients, which is bf16 too.
"""

from __future__ import annotations

import argparse

import torch
from decoder import GPT2
from options import work_options
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from zerotrace.capture import init_process_group, session
from zerotrace.capture.models import MODELS


class FullyShard:
    """What DeepSpeed's engine is to gpt2.py, with torch's FSDP2 in its place.

    Args:
        model: in fp32.
        device: ``cuda`` or ``cpu``.
        reshard_after_forward: whether a block gives its parameters back after its forward, and gathers them again for
            its backward.
        forward_prefetch: blocks that are gathered ahead explicitly in the forward; 0 leaves that to the host, which
            comes to a block before the device does.
        backward_prefetch: likewise in the backward; 0 leaves it to FSDP2, which gathers the one that comes next.
    """

    def __init__(
        self, model: GPT2, device: str, reshard_after_forward: bool, forward_prefetch: int, backward_prefetch: int
    ) -> None:
        mesh = init_device_mesh(device, (torch.distributed.get_world_size(),))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard_after_forward)
        # The root has what is in no block: embeddings, the tied head, the last LayerNorm. FSDP2 keeps it gathered from
        # the forward to the backward, which begins with it.
        fully_shard(model, mesh=mesh, mp_policy=policy)
        # In the forward the root comes first, then the blocks; in the backward the root too, then the last block.
        ahead, behind = [model, *model.blocks], [model, *reversed(model.blocks)]
        for place in range(1, len(ahead)):
            if forward_prefetch:
                ahead[place - 1].set_modules_to_forward_prefetch(ahead[place : place + forward_prefetch])
            if backward_prefetch:
                behind[place - 1].set_modules_to_backward_prefetch(behind[place : place + backward_prefetch])
        self.module: nn.Module = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch."""
        loss: Tensor = self.module(tokens, targets)
        return loss

    def backward(self, loss: Tensor) -> None:
        """The gradients of a loss: each block's are reduced when they are there, and a rank keeps its shard."""
        loss.backward()

    def step(self) -> None:
        """One optimizer step, on this rank's shard."""
        self.optimizer.step()
        self.optimizer.zero_grad()


def parse_args() -> argparse.Namespace:
    """The command line; defaults are FSDP2's own."""
    parser = work_options("Train a GPT-2 decoder on random tokens with torch's FSDP2.")
    switch = argparse.BooleanOptionalAction
    parser.add_argument("--reshard-after-forward", action=switch, default=True, help="blocks are gathered twice a step")
    parser.add_argument("--forward-prefetch", type=int, default=0, help="blocks gathered ahead explicitly")
    parser.add_argument("--backward-prefetch", type=int, default=0, help="the same in the backward")
    return parser.parse_args()


def main() -> None:
    """Train for ``--steps`` optimizer steps."""
    args = parse_args()
    config = MODELS[args.model]
    device = init_process_group()
    rank = torch.distributed.get_rank()

    # The same weights on every rank, which keeps its shard of them.
    torch.manual_seed(args.seed)
    with torch.device(device):
        model = GPT2(config)
    engine = FullyShard(model, device.type, args.reshard_after_forward, args.forward_prefetch, args.backward_prefetch)

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
