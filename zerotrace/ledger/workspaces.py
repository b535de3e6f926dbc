"""Workspaces of matrix products, which torch takes from the allocator and keeps.

Sizes: ``aten/src/ATen/cuda/CublasHandlePool.cpp`` of torch 2.4 to 2.13. One for each thread that multiplies: the one
that runs forward, and autograd's.
"""

from __future__ import annotations

import re

from zerotrace.ledger.lines import Book
from zerotrace.model import Owner

_MIB = 1 << 20
_SOURCE = "torch, aten/src/ATen/cuda/CublasHandlePool.cpp"

#: Device names and the workspace of each thread, in order. Blackwell gets its 32 MiB from torch 2.10 on.
_SIZES = (
    (re.compile(r"MI3\d\d", re.I), 128 * _MIB),
    (re.compile(r"\bMI\d|Instinct|Radeon", re.I), 32 * _MIB),
    (re.compile(r"\bG?H[128]00|\bH20\b|\bGH200|Hopper", re.I), 32 * _MIB),
    (re.compile(r"\bG?B[123]00|Blackwell|RTX 50\d\d", re.I), 32 * _MIB),
)
#: What came before Hopper.
_OLDER = re.compile(
    r"\b(A(2|10|10G|16|30|40|100|800|[2456]000)|V100|P(4|6|40|100)|[TL]4|L(20|40S?)|M(40|60)|K80|RTX|GTX|TITAN|Quadro"
    r"|Tesla|Ampere|Ada|Volta|Turing|Pascal)\b",
    re.I,
)
_DEFAULT = 32 * _MIB
_BEFORE_HOPPER = 8 * _MIB + 128 * 1024


def is_known(device: str) -> bool:
    """Whether a name is that of a GPU whose workspaces are known: ``H100``, ``NVIDIA A100-SXM4-80GB``."""
    return any(pattern.search(device) for pattern in (*(pattern for pattern, _ in _SIZES), _OLDER))


def workspace_bytes(device: str | None) -> int:
    """Bytes of the workspace of one thread: 32 MiB on Hopper and Blackwell, 8 MiB + 128 KiB on what came before.

    Args:
        device: marketing name; ``None`` is taken to be Hopper.
    """
    if device is None:
        return _DEFAULT
    for pattern, size in _SIZES:
        if pattern.search(device):
            return size
    return _BEFORE_HOPPER


def add_workspaces(book: Book, device: str | None, *, with_lt: bool) -> None:
    """Adds the workspaces of a training process.

    Args:
        book: gets the lines.
        device: name of the GPU; ``cpu`` for none of them.
        with_lt: whether linear layers with a bias are torch's own: they go through cuBLASLt, which has one of 1 MiB.
    """
    if device == "cpu":
        return
    book.add(Owner.WORKSPACE, "cuBLAS: forward thread and autograd thread", [workspace_bytes(device)] * 2, 1, _SOURCE)
    if with_lt:
        book.add(Owner.WORKSPACE, "cuBLASLt", [_MIB], 1, _SOURCE)
