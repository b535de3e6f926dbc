"""The options that the runners without DeepSpeed share."""

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
