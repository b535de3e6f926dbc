"""The hooks that mark ZeRO's own meaning in a trace, put in place and taken away again as a whole.

The names they write are those of :mod:`zerotrace.labels`.
"""

from __future__ import annotations

from typing import Any

from zerotrace.capture.ddp_labels import DdpLabels
from zerotrace.capture.fsdp1 import clean_name
from zerotrace.capture.fsdp1_labels import Fsdp1Labels
from zerotrace.capture.fsdp_groups import has_fsdp2
from zerotrace.capture.fsdp_labels import FsdpLabels
from zerotrace.capture.hooks import Hooks
from zerotrace.capture.marks import Marker
from zerotrace.capture.module_labels import ModuleLabels
from zerotrace.capture.param_labels import ParamLabels
from zerotrace.capture.program_labels import ProgramLabels
from zerotrace.capture.step_labels import StepLabels
from zerotrace.capture.torch_engines import find_parallel, is_ddp, is_fsdp1, is_zero
from zerotrace.capture.torch_program import ProgramEngine
from zerotrace.capture.zero1_labels import label_broadcasts
from zerotrace.labels import LABEL_VERSION
from zerotrace.model import LabelsRecord


class LabelHooks:
    """All label hooks of one engine.

    Between :meth:`install` and :meth:`remove` they are there, but write nothing unless :meth:`record` has switched them
    on.

    Args:
        engine: what trains.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._marker = Marker()
        self._modules = ModuleLabels(self._marker)
        self._steps = StepLabels(self._marker, self._modules.end_backward)
        self._program = ProgramLabels(self._marker, self._modules.end_backward)
        model = engine.module
        param_names = {id(param): clean_name(name) for name, param in model.named_parameters()}
        self._params = ParamLabels(
            self._marker, {id(module): name for name, module in model.named_modules()}, param_names
        )
        parallel = find_parallel(engine)
        self._ddp = DdpLabels(self._marker, parallel, param_names) if is_ddp(parallel) else None
        self._fsdp = _fsdp_labels(self._marker, model, parallel)
        self._param_names = param_names
        self._hooks: Hooks | None = None
        self._record: LabelsRecord | None = None

    @property
    def summary(self) -> LabelsRecord | None:
        """Which hooks were in place and which were not; ``None`` if they never were."""
        return self._record

    def install(self) -> None:
        """Put the hooks in place, if they are not."""
        if self._hooks is not None:
            return
        self._hooks = hooks = Hooks()
        self._modules.install(self._engine.module, hooks)
        if isinstance(self._engine, ProgramEngine):
            self._program.install(self._engine, hooks)
        else:
            self._steps.install(self._engine, hooks)
        optimizer = getattr(self._engine, "optimizer", None)
        if hasattr(getattr(optimizer, "parameter_offload", optimizer), "get_param_coordinator"):
            self._params.install(optimizer, hooks)
        if self._ddp is not None:
            self._ddp.install(hooks)
        if self._fsdp is not None:
            self._fsdp.install(hooks)
        if is_zero(optimizer):
            label_broadcasts(self._marker, optimizer, self._param_names, hooks)
        self._record = LabelsRecord(version=LABEL_VERSION, hooks=tuple(hooks.installed), missing=hooks.missing)

    def record(self, on: bool) -> None:
        """Write labels from now on, or no longer."""
        self._marker.recording = on

    def end_step(self) -> None:
        """Close what a step has left open."""
        self._modules.end_backward()
        if self._ddp is not None:
            self._ddp.end_step()
        self._program.end_step()
        self._marker.end_all()

    def remove(self) -> None:
        """Put everything back as it was."""
        self.record(False)
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks = None


def _fsdp_labels(marker: Marker, model: Any, parallel: Any) -> FsdpLabels | Fsdp1Labels | None:
    if is_fsdp1(parallel):
        return Fsdp1Labels(marker, model)
    return FsdpLabels(marker, model) if has_fsdp2(parallel) else None
