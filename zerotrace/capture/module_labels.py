"""Labels of the forward and the backward of modules, by hooks that leave outputs and gradients alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from zerotrace.capture.hooks import Hooks
from zerotrace.capture.marks import Marker, in_backward
from zerotrace.capture.torch_engines import own_modules
from zerotrace.labels import Label, LabelEvent, format_label


class ModuleLabels:
    """The hooks of all modules of a model.

    The forward hooks are placed inside of DeepSpeed's own, so that a label holds the module's work and not the fetch
    before it. The backward is marked by hooks on tensors: torch's full backward hooks would put a function of their own
    around each module, and forbid the model to change an output in place.
    """

    def __init__(self, marker: Marker) -> None:
        self._marker = marker
        self._backward = _BackwardMarks(marker)

    def install(self, model: torch.nn.Module, hooks: Hooks) -> None:
        """Place the hooks."""
        if reason := _compiled(model):
            hooks.lack("modules", reason)
            return
        handles: list[Any] = []
        for name, module in own_modules(model):
            marks = _ModuleMarks(name, module, self._marker, self._backward)
            handles.append(module.register_forward_pre_hook(marks.before_forward, with_kwargs=True))
            handles.append(module.register_forward_hook(marks.after_forward, prepend=True))

        def undo() -> None:
            for handle in handles:
                handle.remove()

        hooks.add("modules", undo)

    def end_backward(self) -> None:
        """The backward pass is over: no label may outlive it."""
        self._backward.close()


class _BackwardMarks:
    """The one backward label that is open, of the whole model."""

    def __init__(self, marker: Marker) -> None:
        self._marker = marker
        self._module: str | None = None
        self._token = -1

    def open(self, module: str, label: str) -> None:
        if self._module is not None and _is_inside(self._module, module):
            # One gradient is that of a module and of the container it ends: the module comes first, and stays.
            return
        self.close()
        self._module, self._token = module, self._marker.begin(label)

    def close(self, module: str | None = None) -> None:
        """Close the label, if it is that module's."""
        if self._module is not None and module in (None, self._module):
            self._marker.end(self._token)
            self._module = None


class _ModuleMarks:
    """The hooks of one module."""

    def __init__(self, name: str, module: torch.nn.Module, marker: Marker, backward: _BackwardMarks) -> None:
        self._name = name
        self._marker = marker
        self._backward = backward
        self._label = format_label(Label(event=LabelEvent.FORWARD, module=name))
        self._recompute_label = format_label(Label(event=LabelEvent.FORWARD, module=name, recompute=True))
        self._backward_label = format_label(Label(event=LabelEvent.BACKWARD, module=name))
        self._marks_backward = not any(True for _ in module.children()) or any(
            True for _ in module.parameters(recurse=False)
        )
        # A module may call itself, or be called again before its first call is over.
        self._open: list[tuple[int, bool]] = []

    def before_forward(self, _module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if not self._marker.recording:
            return
        token = self._marker.begin(self._recompute_label if in_backward() else self._label)
        inputs = self._in_graph((args, kwargs))
        for tensor in inputs:
            tensor.register_hook(self._after_backward)
        self._open.append((token, bool(inputs)))

    def after_forward(self, _module: Any, _args: Any, output: Any) -> None:
        if not self._open:
            return
        token, has_end = self._open.pop()
        self._marker.end(token)
        for tensor in self._in_graph(output):
            tensor.register_hook(self._before_backward)
            if not has_end:
                # No gradient leaves the module (an embedding of tokens): its last operation has to do. A label must
                # end on the thread on which it began, so that it cannot wait for the end of the pass.
                tensor.grad_fn.register_hook(self._after_backward)

    def _in_graph(self, value: Any) -> list[torch.Tensor]:
        """The tensors that autograd will come by. A hook on a leaf would stay for good; these go with the graph."""
        if not (self._marks_backward and torch.is_grad_enabled()):
            return []
        return [tensor for tensor in _tensors(value) if tensor.requires_grad and tensor.grad_fn is not None]

    def _before_backward(self, _grad: Any) -> None:
        if self._marker.recording:
            self._backward.open(self._name, self._backward_label)

    def _after_backward(self, *_grads: Any) -> None:
        self._backward.close(self._name)


def _is_inside(module: str, container: str) -> bool:
    return container == "" or module.startswith(f"{container}.")


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested tuples, lists and mappings."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)


def _compiled(model: torch.nn.Module) -> str | None:
    """Why the modules must not be hooked: hooks make torch.compile trace the model anew, and break its graphs."""
    for module in model.modules():
        if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
            return "the model is compiled"
    return None
