"""Ledgers on paper: what each rank should hold and send, from the model, the world size and the configuration.

Needs no GPU, no torch and no DeepSpeed; the standard library is enough. Sources named here are files of DeepSpeed
0.19.8, unless another version is said.
"""

from __future__ import annotations

from zerotrace.ledger.activations import Activations, decoder_activations
from zerotrace.ledger.deepspeed import deepspeed_ledger
from zerotrace.ledger.fit import FitOption, fit, wire_ratio
from zerotrace.ledger.paper import paper_ledger
from zerotrace.ledger.settings import Settings, read_settings
from zerotrace.ledger.shapes import Shapes, decoder_shapes, parse_shapes, shapes_of
from zerotrace.ledger.torch_engines import deal_out, torch_ledger
from zerotrace.ledger.torch_run import TorchRun
from zerotrace.ledger.words import compare_ledgers
from zerotrace.ledger.workspaces import is_known

__all__ = [
    "Activations",
    "FitOption",
    "Settings",
    "Shapes",
    "TorchRun",
    "compare_ledgers",
    "deal_out",
    "decoder_activations",
    "decoder_shapes",
    "deepspeed_ledger",
    "fit",
    "is_known",
    "paper_ledger",
    "parse_shapes",
    "read_settings",
    "shapes_of",
    "torch_ledger",
    "wire_ratio",
]
