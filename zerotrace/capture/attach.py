"""Attaches a session to a training program that knows nothing of it.

``deepspeed.initialize`` is replaced as soon as the program imports DeepSpeed, so that ``from deepspeed import
initialize`` gets the replacement too. The engine's ``step`` is then counted, and the session goes through its windows.
With ``--engine auto`` torch's own engines are looked for too (:mod:`zerotrace.capture.attach_torch`); what comes first
is what is measured.
"""

from __future__ import annotations

import copy
import inspect
import os
import threading
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from zerotrace.capture.after_import import after_import
from zerotrace.capture.attach_torch import TorchWatch
from zerotrace.capture.ds_config import read_program_config, refuse_comms_logger
from zerotrace.capture.ds_settings import set_key
from zerotrace.capture.handoff import AttachOrders, SessionPlan
from zerotrace.capture.hooks import Function, Outermost
from zerotrace.capture.limit import current_limit
from zerotrace.errors import CaptureError

if TYPE_CHECKING:
    from zerotrace.capture.loop import Session

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
        self._torch = TorchWatch(self._take_torch) if orders.any_engine else None

    def install(self) -> None:
        """Have what trains found when the program imports it."""
        after_import("deepspeed", self._patch)
        if self._torch is not None:
            after_import("torch.optim.optimizer", self._torch.install)

    def check_ended(self, program: str) -> None:
        """The program has ended by itself: refuse that if it has not been through all windows.

        Raises:
            CaptureError: it has not, nothing was found that trains, or it has caught what the capture failed of.
        """
        if self._error is not None:
            raise self._error
        if self._session is not None and self._session.error is not None:
            raise self._session.error
        if self._session is None:
            raise _no_engine(program, self._torch)
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
        if self._orders.stage is not None and own_stage != self._orders.stage:
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
        if self._orders.stage is not None:
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
        if self._torch is not None:
            self._torch.remove()
        session = self._new_session(engine)
        self._count_steps(engine)
        session.__enter__()

    def _take_torch(self, engine: Any, num_models: int) -> None:
        """Count the optimizer steps of a model in torch's data parallelism, from the end of its first one on."""
        if self._session is not None:
            return
        if num_models > 1:
            self._notes.append(
                f"The optimizer updates {num_models} models, each in torch's data parallelism; modules, gathers and "
                "reductions are those of the largest."
            )
        # With torch, which the program has imported by now.
        from zerotrace.capture.torch_program import count_models_beside

        if others := count_models_beside(engine):
            models = "1 more model" if others == 1 else f"{others} more models"
            self._notes.append(
                f"The program has {models} in torch's data parallelism, which the first optimizer to step does not "
                "update: only the steps of that optimizer are counted, and modules, parameters, theory and labels are "
                "of its model, while time and bytes of the trace are of all."
            )
        session, watch = self._new_session(engine), self._torch
        assert watch is not None

        def after_step() -> None:
            self._loss = watch.loss
            self._after_step()

        engine.count_steps(after_step)
        session.__enter__()

    def _new_session(self, engine: Any) -> Session:
        # It imports torch, which the program has done by now.
        from zerotrace.capture.loop import Session

        self._session = session = Session(engine, self._plan)
        session.notes = self._notes
        return session

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


def _no_engine(program: str, torch_watch: TorchWatch | None) -> CaptureError:
    """A program in which nothing was found that could be measured."""
    if torch_watch is None:
        return CaptureError(
            f"{program} ended without a call of deepspeed.initialize that returned an engine with an optimizer, "
            "so that there was nothing to measure.",
            code="no_engine",
            hint="Check the arguments after `--`: does the program train with DeepSpeed? With --engine auto, "
            "programs of torch's DDP, FSDP and ZeroRedundancyOptimizer are captured too.",
        )
    steps = torch_watch.num_steps
    return CaptureError(
        f"{program} ended with nothing to measure: no call of deepspeed.initialize that returned an engine with an "
        f"optimizer, and {steps or 'no'} optimizer step{'' if steps == 1 else 's'}"
        + (", none of an optimizer that holds parameters of a model in DDP or FSDP." if steps else "."),
        code="no_engine",
        hint="The program has to wrap its model in DistributedDataParallel, FullyShardedDataParallel or fully_shard, "
        "and step a torch.optim.Optimizer of its parameters; check the arguments after `--`.",
    )


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
