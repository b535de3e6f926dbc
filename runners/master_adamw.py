"""The optimizer of mixed precision that the runners with bf16 parameters share."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


class MasterAdamW(torch.optim.Optimizer):
    """torch's AdamW on fp32 copies of bf16 parameters, as DeepSpeed's BF16_Optimizer works.

    It is an optimizer of the bf16 parameters to whoever holds it: of all of them, or of the share that torch's
    ZeroRedundancyOptimizer hands to it.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter] | list[dict[str, object]],
        lr: float = 3e-4,
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.1,
    ) -> None:
        settings = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
        super().__init__(params, settings)
        self.params = [param for group in self.param_groups for param in group["params"]]
        self.master = [nn.Parameter(param.detach().float()) for param in self.params]
        self.optimizer = torch.optim.AdamW(self.master, **settings)

    def step(self, closure: None = None) -> None:  # noqa: ARG002
        """Update the copies with the gradients of the parameters, and the parameters with the copies."""
        for param, master in zip(self.params, self.master):
            assert param.grad is not None
            master.grad, param.grad = param.grad.float(), None
        self.optimizer.step()
        with torch.no_grad():
            for param, master in zip(self.params, self.master):
                param.copy_(master)
                master.grad = None
