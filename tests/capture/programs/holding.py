"""Trains one small model under several configurations, and writes who holds what after a step of each.

torchrun ... holding.py CONFIGS.json OUT_FOLDER
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path

import deepspeed
import torch
from torch import nn

from zerotrace.capture import init_process_group
from zerotrace.capture.owners import find_owners

# Sizes that no number of ranks divides, and one tensor above the persistence threshold of some configurations.
WIDTHS = (31, 17, 7)


def build() -> nn.Module:
    layers: list[nn.Module] = []
    for width, after in pairwise(WIDTHS):
        layers += [nn.Linear(width, after), nn.LayerNorm(after)]
    return nn.Sequential(*layers)


def main() -> None:
    configs, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    device = init_process_group()
    for name, config in configs.items():
        torch.manual_seed(1)
        model = build()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
        dtype = next(model.parameters()).dtype
        for _ in range(2):
            loss = engine(torch.ones(4, WIDTHS[0], device=device, dtype=dtype)).float().sum()
            engine.backward(loss)
            engine.step()
        held = [{"owner": s.owner.value, "bytes": s.bytes, "holder": s.holder} for s in find_owners(engine)]
        (out / f"{name}.{torch.distributed.get_rank()}.json").write_text(json.dumps(held))
        engine.destroy()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
