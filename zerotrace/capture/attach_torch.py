"""Attaches a session to a program that trains with torch's DDP, FSDP or ZeroRedundancyOptimizer.

Such a program has no engine that it could be told by, but it has an optimizer. torch calls a hook at the end of the
step of every optimizer; when the outermost one of a step holds parameters of a model in torch's data parallelism, that
is what trains. The session begins at the end of that step, and counts the next one as its first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from zerotrace.capture.hooks import Outermost


class TorchWatch:
    """Looks for what trains, and counts its steps from then on.

    Args:
        take: told what trains once it is found, and from how many models it was chosen.
    """

    def __init__(self, take: Callable[[Any, int], None]) -> None:
        self._take = take
        #: Those that have none of the parameters that are looked for. Kept, so that no other gets their place.
        self._others: list[Any] = []
        self._handle: Any = None
        #: Optimizer steps that were seen.
        self.num_steps = 0
        #: The loss of the last backward, if it was one number.
        self.loss: Any = None

    def install(self, module: ModuleType) -> None:
        """Place torch's hook.

        Args:
            module: ``torch.optim.optimizer``.
        """
        self._handle = module.register_optimizer_step_post_hook(self._after)

    def remove(self) -> None:
        """Take it away."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _after(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        # The hook is called by torch's wrapper of a step, which is the same for all optimizers: one further out is the
        # step of an optimizer that holds this one.
        wrapper = sys._getframe(1)
        outer = wrapper.f_back
        while outer is not None:
            if outer.f_code is wrapper.f_code:
                return
            outer = outer.f_back
        self.num_steps += 1
        if any(other is optimizer for other in self._others):
            return
        from zerotrace.capture.torch_program import find_program

        engine, num_models = find_program(optimizer)
        if engine is None:
            self._others.append(optimizer)
            return
        self.remove()
        self._hear_losses()
        self._take(engine, num_models)

    def _hear_losses(self) -> None:
        import torch

        def heard(backward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            loss: Any = args[0] if args else kwargs.get("tensors")
            if getattr(loss, "numel", lambda: 0)() == 1:
                self.loss = loss.detach()
            return backward(*args, **kwargs)

        torch.autograd.backward = Outermost(torch.autograd.backward, heard)
