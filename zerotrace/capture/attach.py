"""Attaches a session to a training program that knows nothing of it.

``deepspeed.initialize`` is replaced as soon as the program imports DeepSpeed (not earlier: a program may first set
variables that torch reads on import), so that ``from deepspeed import initialize`` gets the replacement too. The
engine's ``step`` is then counted, and the session goes through its windows.
"""

from __future__ import annotations

import copy
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from zerotrace.capture.ds_config import read_program_config, refuse_comms_logger
from zerotrace.capture.ds_settings import set_key
from zerotrace.capture.handoff import AttachOrders, SessionPlan
from zerotrace.capture.hooks import Function, Outermost
from zerotrace.capture.limit import current_limit
from zerotrace.errors import CaptureError

_LEAVE_S = 10.0


class Attachment:
    """The hold that a capture has on a training program.

    Args:
        plan: the windows and folders of this rank.
        orders: what to change in the program's configuration.
        leave: ends the process in good order; called after the last window.
    """

    def __init__(self, plan: SessionPlan, orders: AttachOrders, leave: Callable[[], None]) -> None:
        self._plan = plan
        self._orders = orders
        self._leave = leave
        self._notes: list[str] = []
        self._session: Any = None
        self._loss: Any = None
        self._finished = False
        self._error: CaptureError | None = None

    def install(self) -> None:
        """Have ``deepspeed.initialize`` replaced when DeepSpeed is imported."""
        if module := sys.modules.get("deepspeed"):
            self._patch(module)
        else:
            sys.meta_path.insert(0, _AfterImport("deepspeed", self._patch))

    def check_ended(self, program: str) -> None:
        """The program has ended by itself: refuse that if it has not been through all windows.

        Raises:
            CaptureError: it has not, it never called ``deepspeed.initialize``, or it has caught what the capture
                failed of.
        """
        if self._error is not None:
            raise self._error
        if self._session is not None and self._session.error is not None:
            raise self._session.error
        if self._session is None:
            raise CaptureError(
                f"{program} ended without a call of deepspeed.initialize that returned an engine with an optimizer, "
                "so that there was nothing to measure.",
                code="no_engine",
                hint="Check the arguments after `--`: does the program train with DeepSpeed?",
            )
        if not self._finished:
            raise CaptureError(
                f"{program} ended after {self._session.num_steps} optimizer steps; the windows of this capture need "
                f"{self._session.num_steps + self._session.num_missing}.",
                code="too_few_steps",
                hint="Let the program run longer, or ask for less with --warmup, --timed and --steps.",
            )

    def let_go(self) -> None:
        """The program has ended, or failed: keep what there is of a capture that is not complete."""
        if self._session is not None:
            self._session.close()

    def _patch(self, module: ModuleType) -> None:
        if os.environ.get("DS_ACCELERATOR") == "cpu":
            from zerotrace.capture.device import forbid_op_builds

            forbid_op_builds()
        original = module.initialize
        signature = inspect.signature(original)

        def initialize(*args: Any, **kwargs: Any) -> Any:
            call = signature.bind(*args, **kwargs)
            try:
                self._prepare(call.arguments)
                returned = original(*call.args, **call.kwargs)
                self._take(returned[0])
            except CaptureError as error:
                self._error = error
                raise
            return returned

        initialize.__doc__ = original.__doc__
        module.initialize = initialize  # type: ignore[attr-defined]

    def _prepare(self, arguments: dict[str, Any]) -> None:
        """Put the asked-for stage and keys into the configuration, wherever the program passes it."""
        if self._session is not None:
            return
        holder: Any = arguments.get("args")
        name = next((key for key in ("config", "config_params") if arguments.get(key) is not None), None)
        given = arguments[name] if name else getattr(holder, "deepspeed_config", None)
        if not isinstance(given, (Mapping, str, os.PathLike)):
            # DeepSpeed refuses the call itself.
            return
        config = copy.deepcopy(read_program_config(given))
        model = arguments.get("model")
        own_stage = config.get("zero_optimization", {}).get("stage", 0)
        if own_stage != self._orders.stage:
            if model is not None and any(hasattr(param, "ds_id") for param in model.parameters()):
                raise CaptureError(
                    f"--stage is {self._orders.stage}, but the program has built its model under deepspeed.zero.Init, "
                    "which only stage 3 can train.",
                    code="stage_conflict",
                    hint="Pass --stage 3, or change the stage in the program's own configuration.",
                )
            self._notes.append(
                f"The program's own configuration has stage {own_stage}; --stage {self._orders.stage} replaced it."
            )
        set_key(config, "zero_optimization.stage", self._orders.stage)
        for key, value in self._orders.settings:
            _refuse_ignored(key, arguments)
            set_key(config, key, value)
        refuse_comms_logger(config)
        if name is None:
            # DeepSpeed refuses a configuration in two places.
            holder.deepspeed_config = None
        elif name == "config_params":
            del arguments[name]
        arguments["config"] = config

    def _take(self, engine: Any) -> None:
        """Count the optimizer steps of an engine, from its first one on."""
        if getattr(engine, "optimizer", None) is None:
            return
        if self._session is not None:
            self._note_more_engines()
            return
        if hasattr(engine, "train_batch"):
            raise CaptureError(
                "deepspeed.initialize has returned a pipeline engine, which zerotrace does not capture.",
                code="pipeline_engine",
                hint="Capture a program that trains without pipeline parallelism.",
            )
        from zerotrace.capture.loop import Session

        self._session = Session(engine, self._plan)
        self._session.notes = self._notes
        self._count_steps(engine)
        self._session.__enter__()

    def _count_steps(self, engine: Any) -> None:
        def counted_step(step: Function, *args: Any, **kwargs: Any) -> Any:
            before = engine.global_steps
            result = step(*args, **kwargs)
            # Only a step at the border of gradient accumulation is an optimizer step.
            if engine.global_steps > before:
                self._after_step()
            return result

        def heard_backward(backward: Function, *args: Any, **kwargs: Any) -> Any:
            loss = args[0] if args else kwargs.get("loss")
            if getattr(loss, "numel", lambda: 0)() == 1:
                self._loss = loss.detach()  # type: ignore[union-attr]
            return backward(*args, **kwargs)

        # A step ends here, windows and all: no label of it may still be open.
        engine.step = Outermost(engine.step, counted_step)
        engine.backward = Outermost(engine.backward, heard_backward)

    def _after_step(self) -> None:
        if self._finished:
            return
        self._session.step(self._loss)
        if self._session.num_missing == 0:
            self._session.__exit__(None, None, None)
            self._finished = True
            if self._orders.keep_running:
                if limit := current_limit():
                    limit.lift()
            else:
                _leave_process_group()
                self._leave()

    def _note_more_engines(self) -> None:
        note = "The program has more than one engine with an optimizer; only the steps of the first are counted."
        if note not in self._notes:
            self._notes.append(note)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function on a module right after its first import."""

    def __init__(self, name: str, patch: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._patch = patch
        self._looking = False

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        # Programs also look for a module without importing it, so that this must go on working.
        if name != self._name or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking = False
        if spec is None or spec.loader is None:
            return None
        spec.loader = _PatchingLoader(spec.loader, self._patch)
        return spec


class _PatchingLoader(importlib.abc.Loader):
    """Another loader, and a function that is called on what it has loaded."""

    def __init__(self, loader: Any, patch: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._patch = patch

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        # importlib.resources and pkgutil ask a module for its loader.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._patch(module)


def _refuse_ignored(key: str, arguments: Mapping[str, Any]) -> None:
    """Refuse a key of a section that DeepSpeed ignores, because the program passes what it describes."""
    section = key.partition(".")[0]
    argument = {"optimizer": "optimizer", "scheduler": "lr_scheduler"}.get(section)
    if argument is not None and arguments.get(argument) is not None:
        raise CaptureError(
            f"--set {key}: the program passes {argument}=... to deepspeed.initialize, so that DeepSpeed would ignore "
            f"the section {section}.",
            code="setting_ignored",
            hint="Leave it out, or change the program.",
        )


def _leave_process_group() -> None:
    """Leave the process group in good order, but not at any price: a process that ends at once can cut off its peers.

    The last barrier has brought the ranks together; what it sent may still be on its way.
    """
    import torch

    leaving = threading.Thread(target=torch.distributed.destroy_process_group, daemon=True)
    leaving.start()
    leaving.join(_LEAVE_S)
