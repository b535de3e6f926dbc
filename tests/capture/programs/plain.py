"""A DeepSpeed program as DeepSpeed's own examples have it: nothing here knows of zerotrace."""

from __future__ import annotations

import argparse

import deepspeed
import torch
from deepspeed import initialize

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--local_rank", type=int, default=-1)
parser.add_argument("--width", type=int, default=128)
parser.add_argument("--zero-init", action="store_true")
parser = deepspeed.add_config_arguments(parser)
args = parser.parse_args()

deepspeed.init_distributed()
with deepspeed.zero.Init(config_dict_or_path=args.deepspeed_config, enabled=args.zero_init):
    model = torch.nn.Sequential(*[torch.nn.Linear(args.width, args.width) for _ in range(3)])
engine, *_ = initialize(args=args, model=model, optimizer=torch.optim.AdamW(model.parameters()))
for _ in range(args.steps):
    inputs = torch.randn(2, args.width, dtype=torch.bfloat16, device=engine.device)
    loss = engine(inputs).float().pow(2).mean()
    engine.backward(loss)
    engine.step()
assert args.local_rank >= 0
