"""Whose block it is, from the Python stack that allocated it: one ordered table of rules.

Function names were read in the sources of DeepSpeed 0.16.0 to 0.19.8 (``runtime/zero/stage3.py``,
``stage_1_and_2.py``, ``partition_parameters.py``, ``runtime/fp16/*_optimizer.py``, ``runtime/bf16_optimizer.py``,
``runtime/engine.py``) and of torch 2.4 to 2.13 (``torch/optim``, ``torch/distributed/fsdp/_fully_shard``). Lines are
used in one way only: which of two allocations in one function comes first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from zerotrace.ingest.snapshot import Frame
from zerotrace.model import Owner


class StackRule(Struct, frozen=True, kw_only=True):
    """What an allocation by such a function is."""

    owners: tuple[tuple[Owner, str], ...]
    """Owner and what it is in words. Several where the function allocates several things: in the order of lines."""
    file: str
    """Part of the source file's name."""
    functions: str = ""
    """Regular expression that the whole function name matches; any function by default."""
    inside: str = ""
    """One that some function further out matches."""


def _rule(owner: Owner, part: str, file: str, functions: str = "", inside: str = "") -> StackRule:
    return StackRule(owners=((owner, part),), file=file, functions=functions, inside=inside)


_STAGE12, _STAGE3 = "runtime/zero/stage_1_and_2.py", "runtime/zero/stage3.py"
_PARTITION = "runtime/zero/partition_parameters.py"
_UNFUSED, _FUSED = "runtime/fp16/unfused_optimizer.py", "runtime/fp16/fused_optimizer.py"
_BF16 = "runtime/bf16_optimizer.py"
_FSDP_PARAM, _FSDP_TRAFFIC = "_fully_shard/_fsdp_param.py", "_fully_shard/_fsdp_collectives.py"
_ADAM_STATE = ((Owner.EXP_AVG, "first moment"), (Owner.EXP_AVG_SQ, "second moment"))
_NORMS = "norms of gradients"
_GRADIENTS = "gradients for the optimizer"
_FLAT_COPY = "flat copies for a reduction"

#: Of each stack, from the innermost frame outwards, the first rule that fits decides.
RULES: tuple[StackRule, ...] = (
    StackRule(owners=_ADAM_STATE, file="torch/optim/adam.py", functions="_init_group"),
    StackRule(owners=_ADAM_STATE, file="torch/optim/adamw.py", functions="_init_group"),
    StackRule(owners=_ADAM_STATE, file="ops/adam/fused_adam.py", functions="step"),
    _rule(Owner.OTHER, "states of another optimizer", ".py", "_init_group"),
    _rule(Owner.WORKSPACE, "temporaries of the optimizer", "torch/optim/adam.py"),
    _rule(Owner.WORKSPACE, "temporaries of the optimizer", "torch/optim/adamw.py"),
    _rule(Owner.WORKSPACE, _NORMS, ".py", ".*(grad_norm|weight_norm|norm_groups|inf_or_nan|has_overflow).*"),
    _rule(Owner.WORKSPACE, _NORMS, "torch/functional.py", "norm"),
    # stage 3
    _rule(Owner.MASTER, "flat partition", _STAGE3, "_create_fp32_partitions"),
    StackRule(
        owners=((Owner.REDUCE_BUCKET, "reduce bucket"), (Owner.GRAD_PARTITION, "flat gradient shard")),
        file=_STAGE3,
        functions="_setup_for_real_optimizer",
    ),
    _rule(Owner.PARAMS, "flat partition", "runtime/zero/utils.py", "defragment"),
    _rule(Owner.PARAMS, "flat partition", _STAGE3, "_create_fp16_partitions.*|_move_to_flat_buffer"),
    _rule(Owner.GATHERED_PARAMS, "gathered parameters", _PARTITION, ".*all_?gather.*|wait"),
    _rule(Owner.PARAMS, "partitions", _PARTITION),
    _rule(Owner.REDUCE_BUCKET, _FLAT_COPY, "runtime/comm/coalesced_collectives.py"),
    _rule(Owner.REDUCE_BUCKET, _FLAT_COPY, _STAGE3, ".*avg_scatter.*|.*allreduce.*"),
    _rule(Owner.GRADS, _GRADIENTS, _STAGE3, ".*(grad|reduce|prepare|sub_group).*|.*step|initialize_optimizer_states"),
    # stages 1 and 2
    _rule(Owner.REDUCE_BUCKET, "reduce bucket", _STAGE12, "setup_buckets"),
    _rule(Owner.PARAMS, "flat parameters", _STAGE12, "flatten_dense_tensors_aligned", inside="__init__"),
    _rule(Owner.GRAD_PARTITION, "gradient shard", _STAGE12,
          "copy_grads_in_partition|get_flat_partition|_build_compact_grad_partition_buffer"),
    _rule(Owner.REDUCE_BUCKET, _FLAT_COPY, _STAGE12, ".*allreduce.*|average_tensor|gradient_reduction.*"),
    _rule(Owner.MASTER, "flat partition", _STAGE12, "__init__"),
    _rule(Owner.GRADS, _GRADIENTS, _STAGE12, ".*(grad|reduce).*|step|initialize_optimizer_states"),
    # stage 0: DeepSpeed's wrappers of a half-precision optimizer, and bf16 with fp32 accumulation (stage 1 too)
    _rule(Owner.PARAMS, "flat parameters", "torch/_utils.py", "_flatten_dense_tensors", inside="__init__"),
    _rule(Owner.MASTER, "fp32 copies", _UNFUSED, "__init__"),
    _rule(Owner.MASTER, "flat fp32 copy", _FUSED, "__init__"),
    _rule(Owner.PARAMS, "flat parameters", _BF16, "_flatten_dense_tensors_aligned"),
    StackRule(
        owners=((Owner.MASTER, "flat partition"), (Owner.GRADS, "flat accumulated gradients")),
        file=_BF16,
        functions="_setup_for_real_optimizer",
    ),
    *(_rule(Owner.GRADS, _GRADIENTS, file) for file in (_UNFUSED, _FUSED, _BF16)),
    _rule(Owner.REDUCE_BUCKET, _FLAT_COPY, "runtime/engine.py", ".*allreduce.*|.*reduce_gradients.*"),
    _rule(Owner.PARAMS, "the model's parameters", "runtime/engine.py", "_configure_distributed_model"),
    # torch's own engines, and the optimizer of the runners
    _rule(Owner.GATHERED_PARAMS, "gathered parameters", _FSDP_PARAM,
          "alloc_storage|alloc_all_gather_outputs|init_all_gather_outputs|init_unsharded_param"),
    _rule(Owner.MASTER, "shards of parameters", _FSDP_PARAM, "_init_sharded_param"),
    _rule(Owner.GATHERED_PARAMS, "shards in the type that is gathered", _FSDP_TRAFFIC, "_get_param_all_gather_inputs"),
    _rule(Owner.GATHERED_PARAMS, "buffers of all-gathers", _FSDP_TRAFFIC, "foreach_all_gather.*"),
    _rule(Owner.REDUCE_BUCKET, "buffers of reduce-scatters", _FSDP_TRAFFIC, "foreach_reduce_scatter_copy_in"),
    StackRule(
        owners=((Owner.REDUCE_BUCKET, "buffers of reduce-scatters"), (Owner.GRAD_PARTITION, "shards of gradients")),
        file=_FSDP_TRAFFIC,
        functions="foreach_reduce",
    ),
    _rule(Owner.REDUCE_BUCKET, "buckets of DDP", "torch/nn/parallel/distributed.py", "_ddp_init_helper"),
    _rule(Owner.MASTER, "fp32 copies", "runners/master_adamw.py", "__init__"),
    _rule(Owner.GRADS, _GRADIENTS, "runners/master_adamw.py", "step"),
    _rule(Owner.PARAMS, "the model's parameters", "torch/nn/modules/", "__init__|reset_parameters"),
    _rule(Owner.WORKSPACE, "temporaries of the optimizer", "torch/optim/"),
)  # fmt: skip

#: What frees gradients of parameters: they are copied into a bucket, reduced, or dropped after the step.
_FREES_GRADIENTS = re.compile(r".*(grad|reduce|bucket).*|step|free_grad.*")
_OPTIMIZERS = (_STAGE12, _STAGE3, _UNFUSED, _FUSED, _BF16, "runtime/engine.py", "torch/optim/optimizer.py",
               "runtime/base_optimizer.py")  # fmt: skip
_FREES_GATHERED = re.compile(r"free_param|_partition_param.*|partition|release.*")

_FORWARD = (Owner.ACTIVATIONS, "forward")
_BACKWARD = (Owner.ACTIVATIONS, "backward")
_PARAM_GRADS = (Owner.GRADS, "gradients of parameters")
_UNKNOWN = (Owner.OTHER, "no rule knows its stack")
_BEFORE = (Owner.OTHER, "from before the history")

#: Where libraries of matrix products take their workspaces from the allocator.
_PRODUCTS = ("torch/nn/modules/linear.py", "torch/nn/functional.py", "runtime/zero/linear.py", "torch/_tensor.py")


class StackOwner(Struct, frozen=True):
    """What the rules say of one stack."""

    owner: Owner
    part: str
    certain: bool
    """Whether a rule named it, rather than that it ran in forward or backward."""
    rule: int = -1
    line: int = 0
    """Of the frame that decided."""


def name_stack(stack: Sequence[Frame]) -> StackOwner:
    """The owner of what a stack allocates; of a rule with several owners the first.

    Args:
        stack: innermost frame first; empty for what runs in C++ alone, as autograd does.
    """
    for place, (file, function, line) in enumerate(stack):
        for number, rule in enumerate(RULES):
            if _fits(rule, file, function, stack[place + 1 :]):
                return StackOwner(*rule.owners[0], certain=True, rule=number, line=line)
    functions = {function for _, function, _ in stack}
    if "forward" in functions:
        return StackOwner(*_FORWARD, certain=False)
    if not stack or "backward" in functions:
        return StackOwner(*_BACKWARD, certain=False)
    return StackOwner(*_UNKNOWN, certain=False)


def name_by_free(stack: Sequence[Frame], *, from_before: bool) -> tuple[Owner, str] | None:
    """What a block was, from the stack that freed it; ``None`` where that tells nothing.

    Args:
        stack: innermost frame first.
        from_before: whether it was allocated before the history began, so that this is all there is.
    """
    if not stack:
        return _BEFORE if from_before else None
    file, function, _ = stack[0]
    if file.endswith(_OPTIMIZERS) and _FREES_GRADIENTS.fullmatch(function):
        return _PARAM_GRADS
    if from_before and file.endswith(_PARTITION) and _FREES_GATHERED.fullmatch(function):
        return Owner.GATHERED_PARAMS, "gathered parameters"
    return _BEFORE if from_before else None


def owners_by_line(rule: int, lines: Iterable[int]) -> dict[int, tuple[Owner, str]]:
    """For a rule with several owners, whose the allocations of each line are: in the order of lines."""
    owners = RULES[rule].owners
    return {line: owners[min(place, len(owners) - 1)] for place, line in enumerate(sorted(set(lines)))}


def may_be_workspace(stack: Sequence[Frame]) -> bool:
    """Whether a library could have allocated its workspace here: in a matrix product, or in C++ alone."""
    return not stack or stack[0][0].endswith(_PRODUCTS)


def _fits(rule: StackRule, file: str, function: str, outer: Sequence[Frame]) -> bool:
    if rule.file not in file:
        return False
    if rule.functions and not re.fullmatch(rule.functions, function):
        return False
    return not rule.inside or any(re.fullmatch(rule.inside, name) for _, name, _ in outer)
