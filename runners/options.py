"""The options that the runners of torch's own engines share."""

from __future__ import annotations

import argparse

from zerotrace.capture.models import MODELS


def work_options(description: str) -> argparse.ArgumentParser:
    """A parser of what is trained, and how long; the settings of an engine come on top."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", choices=MODELS, default="gpt2-large")
    parser.add_argument("--micro-batch", type=int, default=4, help="sequences a rank and step")
    parser.add_argument("--sequence", type=int, default=1024, help="tokens a sequence")
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps")
    parser.add_argument("--seed", type=int, default=1337)
    return parser


def add_ddp_options(parser: argparse.ArgumentParser) -> None:
    """The settings of DistributedDataParallel, with its own defaults."""
    switch = argparse.BooleanOptionalAction
    parser.add_argument("--bucket-cap-mb", type=float, help="MiB of gradients reduced together  [25, the first 1]")
    parser.add_argument("--gradient-as-bucket-view", action=switch, default=False, help="gradients lie in the buckets")
    parser.add_argument("--static-graph", action=switch, default=False, help="every step uses the same parameters")
