"""The groups of parameters that torch's FSDP2 gathers and reduces together, whatever the version calls their parts.

Read in torch 2.6 to 2.13, where they are private: ``torch/distributed/fsdp/_fully_shard``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import torch
from msgspec import Struct

from zerotrace.model import ShardGroupRecord

#: Where the groups are: since 2.6, and before.
MODULES = (
    "torch.distributed.fsdp._fully_shard._fsdp_param_group",
    "torch.distributed._composable.fsdp._fsdp_param_group",
)


class ShardGroup(Struct, frozen=True, kw_only=True):
    """One group, with our names."""

    group: Any
    """torch's ``FSDPParamGroup``."""
    module: str
    """Qualified name of the module that ``fully_shard`` was called on; of the first, if it was several."""
    params: tuple[tuple[str, Any], ...]
    """Qualified name and torch's ``FSDPParam``, in the order in which they are gathered."""
    state: Any
    """torch's ``FSDPState`` of that module."""

    @property
    def is_root(self) -> bool:
        """Whether it is the module that runs first; not known before its first forward."""
        return bool(self.state._is_root)

    @property
    def elements(self) -> int:
        """Of the whole parameters, without padding."""
        return sum(elements_of(param) for _, param in self.params)

    @property
    def num_bytes(self) -> int:
        """Of the whole parameters, as they are gathered."""
        return sum(elements_of(param) * gathered_dtype(param).itemsize for _, param in self.params)

    @property
    def reshards(self) -> bool:
        """Whether the parameters are given back after the forward."""
        return self.group.post_forward_mesh_info is not None


def groups_module() -> ModuleType | None:
    """The module of torch with the groups; ``None`` where no program has loaded it."""
    return next((sys.modules[name] for name in MODULES if name in sys.modules), None)


def is_fsdp2(module: Any) -> bool:
    """Whether ``fully_shard`` was called on a module."""
    return _state_of(module) is not None


def has_fsdp2(model: torch.nn.Module | None) -> bool:
    """Whether ``fully_shard`` was called on a model, or on any part of it."""
    return model is not None and any(is_fsdp2(module) for module in model.modules())


def find_groups(model: torch.nn.Module) -> tuple[ShardGroup, ...]:
    """All groups of a model, in the order of its modules.

    Args:
        model: any module; names are as it has them.
    """
    names = {id(module): name for name, module in model.named_modules()}
    found: dict[int, ShardGroup] = {}
    for module in model.modules():
        state = _state_of(module)
        for group in _groups_of(state):
            found.setdefault(
                id(group),
                ShardGroup(
                    group=group,
                    module=names[id(module)],
                    params=tuple((_name_of(param, names), param) for param in group.fsdp_params),
                    state=state,
                ),
            )
    return tuple(found.values())


def describe_groups(model: torch.nn.Module) -> tuple[ShardGroupRecord, ...]:
    """The groups for the manifest.

    Args:
        model: any module.
    """
    return tuple(
        ShardGroupRecord(
            module=group.module,
            elements=group.elements,
            padded_elements=sum(_padded_elements(param) for _, param in group.params),
            dtype=_dtypes(gathered_dtype(param) for _, param in group.params),
            reduce_dtype=_dtypes(_reduced_dtype(param) for _, param in group.params),
            num_ranks=group.group._all_gather_process_group.size(),
            reshard_after_forward=group.reshards,
            params=tuple(name for name, _ in group.params),
        )
        for group in find_groups(model)
    )


def elements_of(param: Any) -> int:
    """Elements of a whole parameter."""
    return int(param._orig_size.numel())


def gathered_dtype(param: Any) -> torch.dtype:
    """The type in which a parameter is gathered."""
    dtype: torch.dtype = getattr(param, "param_dtype", None) or param.orig_dtype
    return dtype


def is_master(param: Any) -> bool:
    """Whether the shard is what the optimizer updates and a copy in another type is what the model computes with."""
    return bool(gathered_dtype(param) != param.sharded_param.dtype)


def _reduced_dtype(param: Any) -> torch.dtype:
    dtype: torch.dtype = getattr(param, "reduce_dtype", None) or gathered_dtype(param)
    return dtype


def _padded_elements(param: Any) -> int:
    size = getattr(param, "padded_sharded_param_size", None)
    if size is None:
        return elements_of(param)
    return int(size.numel()) * int(param.mesh_info.shard_mesh_size)


def _dtypes(dtypes: Iterable[torch.dtype]) -> str:
    return ", ".join(sorted({str(dtype).removeprefix("torch.") for dtype in dtypes}))


def _state_of(module: Any) -> Any:
    get = getattr(module, "_get_fsdp_state", None)
    # FSDP1 has a function of that name on no module; FSDP2 mixes it into the class.
    return get() if callable(get) else None


def _groups_of(state: Any) -> list[Any]:
    """One group a module, several since 2.12 where parameters lie on different meshes."""
    if state is None:
        return []
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [state._fsdp_param_group]
    return [group for group in groups if group is not None]


def _name_of(param: Any, names: dict[int, str]) -> str:
    info = param._module_info
    prefix = names.get(id(info.module), "")
    return f"{prefix}.{info.param_name}" if prefix else str(info.param_name)
