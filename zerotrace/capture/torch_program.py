"""What trains in a program of the user's that uses torch's own engines: its model and its optimizer, found alive."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch

from zerotrace.capture.hooks import Outermost
from zerotrace.capture.torch_engines import inner_model, is_parallel


class ProgramEngine:
    """A program's model and optimizer, in the place of an engine.

    Args:
        parallel: the model as torch's data parallelism has it.
        optimizer: what updates it; ``None`` where only the model is known.
    """

    def __init__(self, parallel: torch.nn.Module, optimizer: Any = None) -> None:
        self.parallel = parallel
        self.module = inner_model(parallel)
        self.optimizer = optimizer
        #: The optimizer's step, where it is counted: label hooks go inside of it.
        self.counted_step: Outermost | None = None

    def count_steps(self, after_step: Callable[[], None]) -> None:
        """Have a function called after each step of the optimizer, when all that the step does is over.

        torch's own hooks on a step run inside of the annotation that torch puts around it, which would then reach from
        one step of a capture into the next.
        """

        def counted(step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            result = step(*args, **kwargs)
            after_step()
            return result

        own_step = self.optimizer.step
        self.counted_step = counted_step = Outermost(own_step, counted)

        # With the marks that a scheduler has left on it, else it would warn that somebody has replaced it.
        @functools.wraps(own_step)
        def step(_optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            return counted_step(*args, **kwargs)

        # A method, as torch's schedulers expect: they wrap it by its function.
        self.optimizer.step = MethodType(step, self.optimizer)


def as_engine(engine: Any) -> Any:
    """An engine that can be labelled: the one that is given, unless that is a model in torch's data parallelism."""
    if isinstance(engine, torch.nn.Module) and is_parallel(engine):
        return ProgramEngine(engine)
    return engine


def find_program(optimizer: Any) -> tuple[ProgramEngine | None, int]:
    """The model that an optimizer updates, if torch's data parallelism has it.

    Every module that is alive is looked at: how a program wraps its model, and under which name of which version, makes
    no difference then.

    Args:
        optimizer: one that has made a step.

    Returns:
        The engine, ``None`` if there is no such model; and how many models it was chosen from.
    """
    held, alive = _params_of(optimizer), _modules_alive()
    roots = _outermost([module for module in alive if is_parallel(module) and _holds(module, held)])
    if not roots:
        return None, 0
    if len(roots) == 1:
        return ProgramEngine(roots[0], optimizer), 1
    # FSDP2 on the blocks alone: the model is the smallest module that has them all.
    wanted = {id(root) for root in roots}
    around = [module for module in alive if wanted <= {id(inner) for inner in module.modules()}]
    if around:
        return ProgramEngine(min(around, key=lambda module: sum(1 for _ in module.modules())), optimizer), 1
    return ProgramEngine(max(roots, key=lambda root: sum(p.numel() for p in root.parameters())), optimizer), len(roots)


def count_models_beside(engine: ProgramEngine) -> int:
    """Models in torch's data parallelism that can be trained, and that this engine's optimizer does not update."""
    held = _params_of(engine.optimizer)
    own = {id(module) for module in engine.parallel.modules()}
    parallel = _outermost([module for module in _modules_alive() if is_parallel(module) and id(module) not in own])
    return sum(
        not _holds(module, held) and any(param.requires_grad for param in module.parameters()) for module in parallel
    )


def _modules_alive() -> list[torch.nn.Module]:
    is_frozen = gc.get_freeze_count() > 0
    if is_frozen:
        gc.unfreeze()  # what a program has frozen would not be listed
    # Types only: asking some objects what they are makes them import things.
    found = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.nn.Module)]
    if is_frozen:
        gc.freeze()
    return found


def _outermost(modules: list[torch.nn.Module]) -> list[torch.nn.Module]:
    inside = {id(inner) for module in modules for inner in module.modules() if inner is not module}
    return [module for module in modules if id(module) not in inside]


def _params_of(optimizer: Any) -> set[int]:
    return {id(param) for group in optimizer.param_groups for param in group["params"]}


def _holds(module: torch.nn.Module, params: set[int]) -> bool:
    return any(id(param) in params for param in module.parameters())
