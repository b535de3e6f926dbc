"""Trains the GPT-2 decoder of gpt2.py on one device, without an engine: the compute baseline.

`zerotrace capture --engine single` runs this program; so does torchrun alone:

    torchrun --standalone --nproc-per-node 1 runners/single.py --model gpt2
    DS_ACCELERATOR=cpu torchrun --standalone --nproc-per-node 1 runners/single.py --model nano --sequence 64

The work of a step is that of a rank under DeepSpeed with `bf16` at stage 0: the same weights, tokens and loss, a bf16
forward and backward, gradients cast to fp32, torch's AdamW on fp32 master weights, and these copied back to bf16. What
DeepSpeed adds is left out: no communication, no search for overflow, no gradient norm, no hooks.
"""

from __future__ import annotations

import torch
from decoder import GPT2
from master_adamw import MasterAdamW
from options import work_options
from torch import Tensor, nn

from zerotrace.capture import init_process_group, session
from zerotrace.capture.models import MODELS


class SingleDevice:
    """What DeepSpeed's engine is to gpt2.py, without anything between these lines and torch."""

    def __init__(self, model: nn.Module) -> None:
        self.module = model.bfloat16()
        self.optimizer = MasterAdamW(self.module.parameters())

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch."""
        loss: Tensor = self.module(tokens, targets)
        return loss

    def backward(self, loss: Tensor) -> None:
        """The gradients of a loss."""
        loss.backward()

    def step(self) -> None:
        """One optimizer step."""
        self.optimizer.step()


def main() -> None:
    """Train for ``--steps`` optimizer steps."""
    args = work_options("Train a GPT-2 decoder on random tokens on one device.").parse_args()
    config = MODELS[args.model]
    device = init_process_group()

    # The weights and the tokens of rank 0 in gpt2.py.
    torch.manual_seed(args.seed)
    with torch.device(device):
        model = GPT2(config)
    engine = SingleDevice(model)
    random = torch.Generator(device).manual_seed(args.seed)
    shape = (args.micro_batch, args.sequence + 1)
    with session(engine) as capture:
        for _ in range(args.steps):
            batch = torch.randint(config.vocab_size, shape, device=device, generator=random)
            loss = engine.forward(batch[:, :-1], batch[:, 1:])
            engine.backward(loss)
            engine.step()
            capture.step(loss)
    print(f"{args.steps} steps, last loss {loss.item():.4f}")  # noqa: T201
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
