"""A program of torch's own engines as torch's examples have it: nothing here knows of zerotrace."""

from __future__ import annotations

import argparse
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("kind", choices=["ddp", "zero1", "fsdp1", "fsdp2", "none"])
parser.add_argument("--steps", type=int, default=1000)
args = parser.parse_args()

torch.distributed.init_process_group("gloo")
torch.manual_seed(1)
model: nn.Module = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(3)), nn.Linear(64, 8))
if args.kind in ("ddp", "zero1"):
    model = DistributedDataParallel(model, bucket_cap_mb=0.02)
elif args.kind == "fsdp1":
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    model = FullyShardedDataParallel(
        model, auto_wrap_policy=ModuleWrapPolicy({nn.Sequential}), mixed_precision=half, device_id=torch.device("cpu")
    )
elif args.kind == "fsdp2":
    from torch.distributed.fsdp import fully_shard

    mesh = torch.distributed.init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
optimizer: torch.optim.Optimizer
if args.kind == "zero1":
    from torch.distributed.optim import ZeroRedundancyOptimizer

    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
# Schedulers wrap the optimizer's step.
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)

for _ in range(args.steps):
    for micro_step in range(2):
        accumulating = micro_step == 0 and isinstance(model, DistributedDataParallel)
        with model.no_sync() if accumulating else nullcontext():
            loss = model(torch.ones(4, 64)).float().pow(2).mean()
            loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
