"""The flat parameters of torch's first FullyShardedDataParallel, read in torch 2.4 to 2.13."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from msgspec import Struct

#: What FSDP1, checkpointing and torch.compile put into the names of the modules that they wrap.
_WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")


class FlatParam(Struct, frozen=True, kw_only=True):
    """The parameters that one FSDP1 module gathers and reduces together."""

    handle: Any
    """torch's ``FlatParamHandle``."""
    module: str
    """Qualified name of the module that is wrapped, as the program has it."""
    params: tuple[str, ...]
    """Qualified names, in their order in the flat parameter."""

    @property
    def elements(self) -> int:
        """Of the whole parameters, without the padding at the end."""
        return int(self.handle.flat_param._unpadded_unsharded_size.numel())


def clean_name(name: str) -> str:
    """A module's or a parameter's name without what wrappers have put into it."""
    cleaned = f"{name}."
    for wrapper in _WRAPPERS:
        cleaned = cleaned.replace(wrapper, "")
    return cleaned.removesuffix(".")


def find_flat_params(model: torch.nn.Module) -> Iterator[FlatParam]:
    """The flat parameters of a model.

    Args:
        model: any module; names are as it has them.
    """
    for name, module in model.named_modules():
        handle: Any = getattr(module, "_handle", None)
        if not hasattr(handle, "flat_param"):
            continue
        own = clean_name(name)
        prefix = f"{own}." if own else ""
        params = tuple(f"{prefix}{clean_name(param)}" for param in handle.flat_param._fqns)
        yield FlatParam(handle=handle, module=own, params=params)
