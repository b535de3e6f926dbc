"""Bytes on the wire of torch's own engines: theory of each, its causes, and what gloo's traces leave to labels.

Ψ is 1000 and N is 4: one unit of the wire ratio is 1500 bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.builders import TraceBuilder
from tests.conftest import Analyse
from tests.page.runs import manifest
from tests.unit.test_wire import ALL_GATHER, ALL_REDUCE, PSI, REDUCE_SCATTER, Ledger, cause, causes, gather, ledger
from zerotrace.labels import GatherKind, Label, LabelEvent, Phase
from zerotrace.model import (
    BucketRecord,
    ModelShape,
    Origin,
    RunManifest,
    ShardGroupRecord,
    WireLedger,
    scheme_of,
)

__all__ = ["ledger"]  # a fixture

BROADCAST = ("broadcast", PSI // 2)
FORWARD = gather(GatherKind.PREFETCH, Phase.FORWARD, PSI)
BACKWARD = gather(GatherKind.PREFETCH, Phase.BACKWARD, PSI)
UPDATED = Label(event=LabelEvent.POST_STEP_GATHER, elements=PSI, bytes=2 * PSI)


def of_engine(engine: str, world: int = 4, **changes: Any) -> RunManifest:
    shape = ModelShape(name="toy", num_params=PSI)
    told: dict[str, Any] = {"model": shape, "stage": None, "ds_config": None, "engine_settings": {}, **changes}
    return manifest(world, engine=engine, **told)


def group(module: str, elements: int, *, reshards: bool) -> ShardGroupRecord:
    return ShardGroupRecord(
        module=module, elements=elements, padded_elements=elements, dtype="bfloat16", reduce_dtype="bfloat16",
        num_ranks=4, reshard_after_forward=reshards, params=(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "settings", "name", "stage", "ratio"),
    [
        ("ddp", {}, "DDP", 0, 2.0),
        ("zero1", {}, "ZeRO-1 (torch)", 1, 2.0),
        ("fsdp2", None, "FSDP2", 3, 3.0),
        ("fsdp2", {"reshard_after_forward": "of some groups"}, "FSDP2", 3, 3.0),
        ("fsdp2", {"reshard_after_forward": False}, "FSDP2, kept", 3, 2.0),
        ("fsdp1", {"sharding_strategy": "SHARD_GRAD_OP"}, "FSDP1, kept", 3, 2.0),
        ("single", None, "single device", 0, None),
    ],
)
def test_each_engine_is_something_in_zero_s_terms(
    engine: str, settings: Any, name: str, stage: int, ratio: float | None
) -> None:
    found = scheme_of(engine, None, settings)
    assert found is not None
    assert (found.name, found.stage, found.wire_ratio) == (name, stage, ratio)


def test_of_an_unknown_engine_nothing_is_known() -> None:
    assert scheme_of("mine", None, None) is None
    assert scheme_of("fsdp1", None, {"sharding_strategy": "HYBRID_SHARD"}) is None
    assert of_engine("mine").scheme == "mine"


def test_ddp_sends_its_gradients_twice_which_is_its_theory(ledger: Ledger) -> None:
    found = ledger(ALL_REDUCE, told=of_engine("ddp"))
    assert (found.scheme, found.stages, found.stage_origin) == ("DDP", (0,), Origin.MANIFEST)
    assert (found.ratio, found.theory_ratio, found.causes) == (2.0, 2.0, ())


def test_ddp_without_no_sync_reduces_in_every_micro_step(ledger: Ledger) -> None:
    found = ledger(ALL_REDUCE, ALL_REDUCE, told=of_engine("ddp"))
    assert causes(found) == {"accumulation": 2.0}
    assert "no_sync" in cause(found, "accumulation").claim
    assert cause(found, "accumulation").keys == ()


@pytest.mark.parametrize(
    ("hooks", "dtype", "key", "confirmed"),
    [
        ([], "float32", ("gradients in DDP's buckets", '["float32"]'), True),
        ([], "bfloat16", ("gradients in DDP's buckets", '["bfloat16"]'), None),
        (["fp16_compress_hook"], "bfloat16", ("comm_hooks", '["fp16_compress_hook"]'), True),
    ],
)
def test_gradients_that_ddp_reduces_in_fp32_name_its_buckets_or_a_hook(
    ledger: Ledger, hooks: list[str], dtype: str, key: tuple[str, str], confirmed: bool | None
) -> None:
    bucket = BucketRecord(elements=PSI, bytes=4 * PSI, dtype=dtype, params=())
    told = of_engine("ddp", engine_settings={"comm_hooks": hooks}, buckets=(bucket,))
    one = cause(ledger((*ALL_REDUCE, {"dtype": "Float"}), told=told), "element_size")
    assert ([(found.key, found.value) for found in one.keys], one.confirmed) == ([key], confirmed)


def test_torch_s_zero_1_reduces_whole_gradients_and_broadcasts_what_it_updates(ledger: Ledger) -> None:
    found = ledger(ALL_REDUCE, BROADCAST, BROADCAST, told=of_engine("zero1"))
    assert (found.scheme, found.ratio, found.theory_ratio) == ("ZeRO-1 (torch)", 3.0, 2.0)
    assert causes(found) == {"all_reduce": 1.0}
    one = cause(found, "all_reduce")
    assert (one.confirmed, one.keys) == (True, ())
    assert "share of the parameters" in one.claim


def test_fsdp_2_sends_three_times_the_parameters_or_twice(ledger: Ledger) -> None:
    gathers = ((*ALL_GATHER, {}, FORWARD), (*ALL_GATHER, {}, BACKWARD))
    told = of_engine("fsdp2", engine_settings={"reshard_after_forward": True})
    found = ledger(*gathers, REDUCE_SCATTER, told=told)
    assert (found.ratio, found.theory_ratio, found.causes) == (3.0, 3.0, ())


def test_fsdp_2_that_keeps_parameters_sends_them_twice(ledger: Ledger) -> None:
    told = of_engine("fsdp2", engine_settings={"reshard_after_forward": False})
    found = ledger((*ALL_GATHER, {}, FORWARD), REDUCE_SCATTER, told=told)
    assert (found.scheme, found.ratio, found.theory_ratio, found.causes) == ("FSDP2, kept", 2.0, 2.0, ())


@pytest.mark.parametrize(("root", "confirmed"), [(100, True), (300, False)])
def test_a_root_that_fsdp_2_keeps_is_a_cause_that_its_groups_confirm(
    ledger: Ledger, root: int, confirmed: bool
) -> None:
    groups = (group("", root, reshards=False), group("block", PSI - root, reshards=True))
    told = of_engine("fsdp2", engine_settings={"reshard_after_forward": True}, shard_groups=groups)
    again = (ALL_GATHER[0], PSI - 100, {}, gather(GatherKind.PREFETCH, Phase.BACKWARD, PSI - 100))
    found = ledger((*ALL_GATHER, {}, FORWARD), again, REDUCE_SCATTER, told=told)
    assert causes(found) == {"kept": -0.1}
    one = cause(found, "kept")
    assert one.confirmed is confirmed
    assert [(key.key, key.value) for key in one.keys] == [
        ("reshard_after_forward", "true"),
        ("reshard_after_forward of the root", "false"),
    ]


def test_gradients_that_fsdp_2_reduces_in_fp32_name_its_setting(ledger: Ledger) -> None:
    settings = {"reshard_after_forward": False, "param_dtype": "bfloat16", "reduce_dtype": "float32"}
    wide = (*REDUCE_SCATTER, {"dtype": "Float"})
    found = ledger((*ALL_GATHER, {}, FORWARD), wide, told=of_engine("fsdp2", engine_settings=settings))
    assert causes(found) == {"element_size": 1.0}
    one = cause(found, "element_size")
    assert (one.keys[0].key, one.keys[0].value, one.confirmed) == ("reduce_dtype", '"float32"', True)
    assert not any("zero_optimization" in key.key for found in found.causes for key in found.keys)


def on_gloo(analyse: Analyse, tmp_path: Path, told: RunManifest, *calls: tuple[str, Label | None]) -> WireLedger:
    """A step whose operators are called one after the other, each inside of its label."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_bytes(msgspec.json.encode(told))
    traces = []
    for rank in range(2):
        trace = TraceBuilder(rank, 2, backend="gloo").step(0, 0, 1000).host("aten::mm", 10, 20)
        for place, (operator, label) in enumerate(calls):
            at = 100 + 100 * place
            if label is not None:
                trace.label(label, at - 10, at + 30)
            trace.host(operator, at, at + 10)
            trace.host("gloo:any", at + 5, at + 50, tid=9, cat="user_annotation")
        traces.append(trace)
    found = analyse(*traces).wire
    assert found is not None
    return found


REDUCED = Label(event=LabelEvent.REDUCE, elements=PSI, bytes=2 * PSI, num_params=1)


def test_labels_tell_what_gloo_sends(analyse: Analyse, tmp_path: Path) -> None:
    calls = (("c10d::allreduce_", REDUCED), ("c10d::broadcast_", UPDATED))
    found = on_gloo(analyse, tmp_path, of_engine("zero1", 2, device="cpu"), *calls)
    assert (found.ratio, found.sizes_by_label, found.unexplained_bytes) == (3.0, True, 0.0)
    assert [(t.kind.value, t.role.value, t.num_calls) for t in found.traffic] == [
        ("all_reduce", "gradients", 1.0), ("broadcast", "updated", 1.0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "calls",
    [
        (("c10d::allreduce_", REDUCED), ("c10d::allreduce_", None)),
        (("c10d::allreduce_", Label(event=LabelEvent.REDUCE, elements=PSI, num_params=1)),),
    ],
)
def test_a_collective_whose_size_no_label_tells_leaves_the_ratio_unknown(
    analyse: Analyse, tmp_path: Path, calls: Any
) -> None:
    found = on_gloo(analyse, tmp_path, of_engine("ddp", 2, device="cpu"), *calls)
    assert (found.ratio, found.sizes_by_label) == (None, False)
    assert "gloo" in (found.reason or "")
