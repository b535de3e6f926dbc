"""Runs zerotrace's GPT-2 and counts, by other means than labels, the all-gathers of each optimizer step.

    counting.py COUNTS RUNNER RUNNER-ARGS

writes the counts of each rank to COUNTS.RANK as a JSON list, one number a step.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import torch.distributed

count = 0


def counted(original: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        global count
        count += 1
        return original(*args, **kwargs)

    return call


# DeepSpeed takes these functions when it is imported.
for name in ("all_gather_into_tensor", "all_gather"):
    setattr(torch.distributed, name, counted(getattr(torch.distributed, name)))

from zerotrace.capture.loop import Session  # noqa: E402 - it may import DeepSpeed

steps: list[int] = []
original_step = Session.step


def step(self: Session, loss: Any = None) -> None:
    global count
    steps.append(count)
    original_step(self, loss)
    # What the session itself gathers is not the step's.
    count = 0


Session.step = step  # type: ignore[method-assign]

target, runner, *sys.argv[1:] = sys.argv[1:]
sys.path.insert(0, str(Path(runner).parent))
runpy.run_path(runner, run_name="__main__")
Path(f"{target}.{os.environ['RANK']}").write_text(json.dumps(steps))
