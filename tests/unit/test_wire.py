"""Bytes on the wire, worked out by hand on small steps: price, theory, and the gap by cause.

Ψ is 1000 and N is 4 where nothing else is said, so that one unit of the wire ratio is 2 · 1000 · 3/4 = 1500 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from tests.builders import TraceBuilder
from tests.conftest import Analyse
from tests.page.runs import manifest
from zerotrace.analysis.kinds import kind_of, sent_share
from zerotrace.analysis.wire.settings import DEFAULTS, micro_steps, setting
from zerotrace.errors import TraceError
from zerotrace.labels import GatherKind, Label, LabelEvent, Phase
from zerotrace.model import CollectiveKind, ModelShape, Origin, RunManifest, WireCause, WireLedger

PSI = 1000

ALL_REDUCE = ("allreduce", PSI)
REDUCE = ("reduce", PSI)
REDUCE_SCATTER = ("_reduce_scatter_base", PSI)
ALL_GATHER = ("_allgather_base", PSI)

Ledger = Callable[..., WireLedger]
Collective = tuple[Any, ...]


def run_manifest(stage: int, world: int = 4, **config: Any) -> RunManifest:
    zero = {"stage": stage, **config.pop("zero", {})}
    shape = ModelShape(name="toy", num_params=PSI)
    return manifest(world, stage=stage, model=shape, ds_config={"zero_optimization": zero, **config})


@pytest.fixture
def ledger(analyse: Analyse, tmp_path: Path) -> Ledger:
    """Analyses one step of the same collectives on every rank, one after the other, with labels around them.

    A collective is its name, the elements of S, what else its metadata says, and the label in which it is launched.
    """

    def run(*collectives: Collective, world: int = 4, told: RunManifest | None = None, **options: Any) -> WireLedger:
        ranks = tuple(range(world))
        traces = []
        for rank in ranks:
            trace = TraceBuilder(rank, world).step(2, 0, 5000).compute(10, 20)
            for place, (name, elements, *rest) in enumerate(collectives):
                put_on(trace, 100 + 20 * place, name, elements, ranks, *rest)
            traces.append(trace)
        if told is not None:
            (tmp_path / "run").mkdir(exist_ok=True)
            (tmp_path / "run" / "manifest.json").write_bytes(msgspec.json.encode(told))
        found = analyse(*traces, **options).wire
        assert found is not None
        return found

    return run


def put_on(
    trace: TraceBuilder,
    start: float,
    name: str,
    elements: int | None,
    ranks: Sequence[int],
    more: dict[str, Any] | None = None,
    label: Label | None = None,
) -> None:
    where: dict[str, Any] = {"ranks": tuple(ranks), **(more or {})}
    trace.collective(name, start, start + 15, elements=elements, **where)
    if label is not None:
        trace.label(label, start - 8, start - 1)


def gather(kind: GatherKind, phase: Phase, elements: int) -> Label:
    return Label(event=LabelEvent.GATHER, kind=kind, phase=phase, elements=elements, num_params=1)


def reduce(elements: int) -> Label:
    return Label(event=LabelEvent.REDUCE, elements=elements, num_params=1)


def causes(found: WireLedger) -> dict[str, float]:
    """Ratio of each cause; theory, causes and the unexplained add up to the ratio."""
    assert found.ratio is not None
    assert found.theory_ratio is not None
    assert found.unexplained_ratio is not None
    parts = {cause.code: cause.ratio for cause in found.causes}
    assert found.theory_ratio + sum(parts.values()) + found.unexplained_ratio == pytest.approx(found.ratio, abs=1e-9)
    return {code: pytest.approx(ratio) for code, ratio in parts.items()}


def cause(found: WireLedger, code: str) -> WireCause:
    (one,) = [cause for cause in found.causes if cause.code == code]
    return one


@pytest.mark.parametrize(
    ("name", "kind", "share"),
    [
        ("allreduce", CollectiveKind.ALL_REDUCE, 1.5),
        ("_allgather_base", CollectiveKind.ALL_GATHER, 0.75),
        ("allgather_into_tensor_coalesced", CollectiveKind.ALL_GATHER, 0.75),
        ("_reduce_scatter_base", CollectiveKind.REDUCE_SCATTER, 0.75),
        ("all_to_allv", CollectiveKind.ALL_TO_ALL, 0.75),
        ("broadcast", CollectiveKind.BROADCAST, 0.75),
        ("reduce", CollectiveKind.REDUCE, 0.75),
        ("send", CollectiveKind.SEND, 1.0),
        ("recv", CollectiveKind.RECV, 0.0),
        ("sendrecv", CollectiveKind.OTHER, None),
        ("gather", CollectiveKind.OTHER, None),
    ],
)
def test_a_rank_of_four_sends_its_share_of_s(name: str, kind: CollectiveKind, share: float | None) -> None:
    assert kind_of(name) is kind
    assert sent_share(kind, 4) == share


def test_shards_that_nobody_gathers_are_of_no_stage(ledger: Ledger) -> None:
    found = ledger(REDUCE_SCATTER)
    assert (found.stages, found.sent_bytes, found.ratio) == ((), 1500, None)
    assert "stage and Ψ are unknown" in (found.reason or "")


def test_an_all_reduce_of_the_gradients_is_two(ledger: Ledger) -> None:
    found = ledger(ALL_REDUCE)
    assert (found.stages, found.stage_origin, found.num_params) == ((0,), Origin.INFERRED, PSI)
    assert (found.sent_bytes, found.ratio, found.theory_ratio, found.causes) == (3000, 2.0, 2.0, ())


def test_all_reduce_in_place_of_reduce_scatter_costs_one_more(ledger: Ledger) -> None:
    found = ledger(ALL_REDUCE, ALL_GATHER)
    assert (found.stages, found.sent_bytes, found.ratio, found.theory_ratio) == ((1, 2), 4500, 3.0, 2.0)
    assert causes(found) == {"all_reduce": 1.0}
    assert cause(found, "all_reduce").sent_bytes == 1500
    (key,) = cause(found, "all_reduce").keys
    assert (key.key, key.value) == ("zero_optimization.use_multi_rank_bucket_allreduce", None)
    assert cause(found, "all_reduce").confirmed is None, "no configuration to compare with"


@pytest.mark.parametrize(
    ("stage", "config", "key", "value", "is_default"),
    [
        (1, {}, "zero_optimization.use_multi_rank_bucket_allreduce", "true", True),
        (2, {"zero": {"use_multi_rank_bucket_allreduce": True}}, "zero_optimization.use_multi_rank_bucket_allreduce",
         "true", False),
        (2, {"zero": {"reduce_scatter": False}}, "zero_optimization.reduce_scatter", "false", False),
        (1, {"data_types": {"grad_accum_dtype": "fp32"}}, "data_types.grad_accum_dtype", '"fp32"', False),
    ],
)  # fmt: skip
def test_the_key_behind_the_all_reduce_is_named(
    ledger: Ledger, stage: int, config: dict[str, Any], key: str, value: str, is_default: bool
) -> None:
    found = cause(ledger(ALL_REDUCE, ALL_GATHER, told=run_manifest(stage, **config)), "all_reduce")
    assert [(k.key, k.value, k.is_default) for k in found.keys] == [(key, value, is_default)]
    assert found.confirmed is True


def test_a_configuration_that_the_trace_contradicts_confirms_nothing(ledger: Ledger) -> None:
    told = run_manifest(2, zero={"use_multi_rank_bucket_allreduce": False})
    assert cause(ledger(ALL_REDUCE, ALL_GATHER, told=told), "all_reduce").confirmed is False


def test_a_reduce_to_each_owner_costs_what_theory_says(ledger: Ledger) -> None:
    found = ledger(REDUCE, ALL_GATHER, told=run_manifest(2, zero={"use_multi_rank_bucket_allreduce": False}))
    assert (found.ratio, found.theory_ratio, found.causes, found.unexplained_bytes) == (2.0, 2.0, (), 0.0)


def test_stage_3_with_two_gathers_is_three(ledger: Ledger) -> None:
    found = ledger(ALL_GATHER, ALL_GATHER, REDUCE_SCATTER)
    assert (found.stages, found.ratio, found.theory_ratio) == ((3,), 3.0, 3.0)
    assert causes(found) == {}


def test_parameters_kept_for_backward_are_not_sent_twice(ledger: Ledger) -> None:
    found = ledger(ALL_GATHER, REDUCE_SCATTER, told=run_manifest(3))
    assert causes(found) == {"kept": -1.0}
    assert [(key.key.split(".")[1], key.value) for key in cause(found, "kept").keys] == [
        ("stage3_max_live_parameters", "1000000000"),
        ("stage3_max_reuse_distance", "1000000000"),
    ]
    assert cause(found, "kept").confirmed is True


def test_more_kept_than_the_keys_allow_is_not_confirmed(ledger: Ledger) -> None:
    limits = {"stage3_max_live_parameters": 100, "max_reuse_distance": 1e2}
    found = cause(ledger(ALL_GATHER, REDUCE_SCATTER, told=run_manifest(3, zero=limits)), "kept")
    assert [key.value for key in found.keys] == ["100", "100"]
    assert found.confirmed is False


def test_labels_tell_kept_gathered_again_persisted_and_padding_apart(ledger: Ledger) -> None:
    # 900 partitioned, 100 persisted. Forward gathers 960 of them (60 twice), backward 300; 8 elements are padding.
    found = ledger(
        ("_allgather_base", 968, {}, gather(GatherKind.PREFETCH, Phase.FORWARD, 960)),
        ("_allgather_base", 300, {}, gather(GatherKind.DEMAND, Phase.BACKWARD, 300)),
        ("_reduce_scatter_base", 1004, {}, reduce(1000)),
        ("_allgather_base", 100, {}, gather(GatherKind.REFRESH, Phase.STEP, 100)),
        told=run_manifest(3),
    )
    assert causes(found) == {"kept": -0.6, "gathered_again": 0.06, "persisted": -0.1, "padding": 0.012}
    assert (found.ratio, found.unexplained_bytes) == (pytest.approx(3 - 0.6 + 0.06 - 0.1 + 0.012), 0.0)
    assert cause(found, "persisted").keys[0].value == "100000"
    assert "No parameter" not in cause(found, "kept").evidence


def test_gathers_after_the_last_gradients_are_a_refresh_without_labels_too(ledger: Ledger) -> None:
    found = ledger(("_allgather_base", 900), ("_allgather_base", 900), REDUCE_SCATTER, ("_allgather_base", 100))
    assert found.stages == (3,)
    assert causes(found) == {"persisted": -0.1}


def test_micro_steps_reduce_gradients_again_from_stage_2_on(ledger: Ledger) -> None:
    told = run_manifest(2, train_batch_size=64, train_micro_batch_size_per_gpu=4)
    found = ledger(*[ALL_REDUCE] * 4, ALL_GATHER, told=told)
    assert found.ratio == 9.0
    assert causes(found) == {"all_reduce": 4.0, "accumulation": 3.0}
    accumulation = cause(found, "accumulation")
    assert [(key.key, key.value) for key in accumulation.keys] == [("gradient_accumulation_steps", "4")]
    assert accumulation.confirmed is True


def test_stage_1_reduces_once_however_many_micro_steps(ledger: Ledger) -> None:
    found = ledger(ALL_REDUCE, ALL_GATHER, told=run_manifest(1, gradient_accumulation_steps=4))
    assert causes(found) == {"all_reduce": 1.0}


def test_stage_3_sends_three_more_for_each_further_micro_step(ledger: Ledger) -> None:
    step = (ALL_GATHER, ALL_GATHER, REDUCE_SCATTER)
    found = ledger(*step, *step, told=run_manifest(3, gradient_accumulation_steps=2))
    assert found.ratio == 6.0
    assert causes(found) == {"accumulation": 3.0}


def test_micro_steps_that_the_trace_does_not_show_are_not_confirmed(ledger: Ledger) -> None:
    found = ledger(REDUCE, ALL_GATHER, told=run_manifest(2, gradient_accumulation_steps=4))
    assert cause(found, "accumulation").confirmed is False
    assert cause(found, "accumulation").sent_bytes == 0


def test_several_reductions_tell_stage_2_from_stage_1_and_micro_steps(ledger: Ledger) -> None:
    found = ledger(REDUCE, REDUCE, ALL_GATHER)
    assert (found.stages, found.num_params, found.ratio) == ((2,), PSI, 3.0)
    assert causes(found) == {"accumulation": 1.0}


def test_flat_buffers_are_padded(ledger: Ledger) -> None:
    found = ledger(REDUCE, ("_allgather_base", 1008), told=run_manifest(2))
    assert causes(found) == {"padding": 0.008}
    assert cause(found, "padding").sent_bytes == 12


def test_elements_of_four_bytes_cost_twice(ledger: Ledger) -> None:
    told = run_manifest(2, communication_data_type="fp32")
    found = ledger(("reduce", PSI, {"dtype": "Float"}), ALL_GATHER, told=told)
    assert causes(found) == {"element_size": 1.0}
    assert [(key.key, key.value) for key in cause(found, "element_size").keys] == [
        ("communication_data_type", '"fp32"')
    ]


def test_quantised_gathers_cost_less(ledger: Ledger) -> None:
    told = run_manifest(3, zero={"zero_quantized_weights": True})
    small = {"dtype": "Char"}
    label = (gather(GatherKind.DEMAND, Phase.FORWARD, PSI), gather(GatherKind.DEMAND, Phase.BACKWARD, PSI))
    gathers = [("_allgather_base", PSI, small, one) for one in label]
    found = ledger(*gathers, REDUCE_SCATTER, told=told)
    assert causes(found) == {"element_size": -1.0}
    assert [key.key for key in cause(found, "element_size").keys] == ["zero_optimization.zero_quantized_weights"]


def test_parameters_fetched_by_all_reduce_cost_twice(ledger: Ledger) -> None:
    told = run_manifest(3, zero={"stage3_use_all_reduce_for_fetch_params": True})
    label = (gather(GatherKind.DEMAND, Phase.FORWARD, PSI), gather(GatherKind.DEMAND, Phase.BACKWARD, PSI))
    found = ledger(*[("allreduce", PSI, {}, one) for one in label], REDUCE_SCATTER, told=told)
    assert causes(found) == {"fetch_by_all_reduce": 2.0}
    assert cause(found, "fetch_by_all_reduce").confirmed is True


def test_norm_and_overflow_are_control(ledger: Ledger) -> None:
    found = ledger(REDUCE, ("allreduce", 1, {"dtype": "Float"}), ("allreduce", 1, {"dtype": "Byte"}), ALL_GATHER)
    assert causes(found) == {"control": 7.5 / 1500}
    assert cause(found, "control").sent_bytes == 7.5


def test_other_groups_are_not_zeros_traffic(ledger: Ledger) -> None:
    tensor = {"ranks": (0, 1), "Process Group Name": "tp"}
    found = ledger(("allreduce", 500, tensor), ALL_REDUCE)
    assert (found.stages, found.num_params, found.group_size) == ((0,), PSI, 4)
    assert causes(found) == {"other_traffic": 1000 / 1500}


def test_what_no_cause_knows_is_a_number(ledger: Ledger) -> None:
    found = ledger(ALL_REDUCE, ("_allgather_base", 400), told=run_manifest(0))
    assert (found.ratio, found.unexplained_bytes, found.unexplained_ratio) == (2.4, 600.0, 0.4)


def test_no_more_parameters_are_persisted_than_there_are(ledger: Ledger) -> None:
    found = ledger(REDUCE_SCATTER, ("_allgather_base", 3 * PSI), told=run_manifest(3))
    assert "persisted" not in causes(found)


def test_a_rank_outside_of_the_group_counts_in_the_mean(analyse: Analyse) -> None:
    traces = [TraceBuilder(rank, 3).step(2, 0, 1000).compute(10, 20) for rank in range(3)]
    for trace in traces[:2]:
        trace.collective("allreduce", 100, 200, elements=PSI, ranks=(0, 1))
    found = analyse(*traces).wire
    assert found is not None
    # 2 · 2000 / 2 on each of two ranks, nothing on the third
    assert found.sent_bytes == pytest.approx(4000 / 3)
    assert found.traffic[0].num_calls == pytest.approx(2 / 3)


def test_steps_are_averaged_and_what_lies_outside_of_them_is_left_out(analyse: Analyse) -> None:
    traces = [TraceBuilder(rank, 2).step(2, 0, 1000).step(3, 1000, 2000) for rank in range(2)]
    for trace in traces:
        trace.compute(10, 20).compute(1010, 1020)
        trace.collective("allreduce", 100, 200, elements=PSI).collective("allreduce", 1100, 1200, elements=3 * PSI)
        trace.collective("allreduce", 2100, 2200, elements=PSI)
    found = analyse(*traces).wire
    assert found is not None
    assert (found.num_steps, found.sent_bytes) == (2, 4000.0)


def test_the_table_has_a_row_a_rank_step_and_kind(ledger: Ledger, tmp_path: Path) -> None:
    ledger(("allreduce", 500), ("allreduce", 500), ("_allgather_base", PSI, {"dtype": "UInt4"}))
    rows = pq.read_table(tmp_path / "run" / "analysis" / "wire.parquet").to_pylist()
    assert [row["rank"] for row in rows] == [0, 0, 1, 1, 2, 2, 3, 3]
    reduced, gathered = rows[:2]
    assert (reduced["kind"], reduced["role"], reduced["num_calls"]) == ("all_reduce", "gradients", 2)
    assert (reduced["elements"], reduced["size_bytes"], reduced["sent_bytes"]) == (1000, 2000, 3000.0)
    assert (gathered["role"], gathered["elements"]) == ("updated", 1000)
    assert (gathered["dtype"], gathered["size_bytes"], gathered["sent_bytes"]) == ("UInt4", None, None)


def test_an_unknown_element_type_leaves_the_sum_unknown(ledger: Ledger) -> None:
    found = ledger(ALL_REDUCE, ("_allgather_base", PSI, {"dtype": "UInt4"}))
    assert (found.sent_bytes, found.ratio, found.causes, found.unexplained_bytes) == (None, None, (), None)
    assert "UInt4" in (found.reason or "")
    assert found.traffic[0].sent_bytes == 3000.0, "what is known is still there"


def test_without_metadata_nothing_is_known(analyse: Analyse) -> None:
    trace = TraceBuilder().step(2, 0, 1000).compute(10, 20)
    found = analyse(trace.device("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 100, 200)).wire
    assert found is not None
    assert (found.stages, found.sent_bytes) == ((), None)
    assert "how many elements" in (found.reason or "")


def test_one_rank_sends_nothing(ledger: Ledger, analyse: Analyse) -> None:
    found = ledger(ALL_REDUCE, world=1, told=run_manifest(0, world=1))
    assert (found.sent_bytes, found.ratio) == (0.0, None)
    assert "one rank" in (found.reason or "")


def test_no_communication_is_no_gap(analyse: Analyse) -> None:
    found = analyse(TraceBuilder().step(2, 0, 1000).compute(10, 20)).wire
    assert found is not None
    assert (found.sent_bytes, found.ratio, found.reason) == (0.0, None, "there is no communication")


def test_a_trace_without_steps_has_bytes_and_no_ratio(analyse: Analyse) -> None:
    found = analyse(TraceBuilder().compute(10, 20).collective("allreduce", 100, 200, elements=PSI)).wire
    assert found is not None
    assert (found.sent_bytes, found.ratio) == (2000.0, None)
    assert "no step windows" in (found.reason or "")


def test_gloo_does_not_say_what_it_sends(analyse: Analyse) -> None:
    traces = [TraceBuilder(rank, 2, backend="gloo").step(0, 0, 1000).host("aten::mm", 10, 20) for rank in range(2)]
    for trace in traces:
        trace.host("gloo:all_reduce", 100, 200, tid=9, cat="user_annotation")
    found = analyse(*traces).wire
    assert found is not None
    assert (found.sent_bytes, [t.num_calls for t in found.traffic]) == (None, [1.0])
    assert "gloo" in (found.reason or "")


def test_send_and_receive_count_where_they_are_sent(analyse: Analyse) -> None:
    traces = [TraceBuilder(rank, 2).step(2, 0, 1000).compute(10, 20) for rank in range(2)]
    for trace, name in zip(traces, ("send", "recv")):
        trace.collective(name, 100, 200, elements=100, **{"Src Rank": 0, "Dst Rank": 1})
    found = analyse(*traces).wire
    assert found is not None
    assert found.sent_bytes == 100.0, "200 bytes by one of two ranks"


def test_options_stand_in_for_a_manifest(ledger: Ledger) -> None:
    found = ledger(ALL_REDUCE, ALL_GATHER, stage=2, num_params=2000)
    assert (found.stages, found.stage_origin) == ((2,), Origin.OPTION)
    assert (found.num_params, found.params_origin, found.ratio) == (2000, Origin.OPTION, 1.5)


def test_options_that_contradict_the_manifest_are_refused(ledger: Ledger) -> None:
    with pytest.raises(TraceError, match="--stage is 3, but the manifest of the run says 2"):
        ledger(ALL_REDUCE, told=run_manifest(2), stage=3)


def test_settings_know_default_alias_and_auto() -> None:
    key = "zero_optimization.stage3_max_live_parameters"
    for config, want in (
        ({}, (10**9, True)),
        ({"stage3_max_live_parameters": 1e8}, (10**8, False)),
        ({"max_live_parameters": 5}, (5, False)),
    ):
        found = setting({"zero_optimization": config}, key)
        assert found is not None
        assert (found.value, found.is_default) == want
    assert setting({"zero_optimization": {"stage3_max_live_parameters": "auto"}}, key) is None
    assert setting(None, key) is None
    assert micro_steps(None, 4) is None


def test_defaults_are_those_of_the_installed_deepspeed() -> None:
    config = pytest.importorskip("deepspeed.runtime.zero.config")
    fields = config.DeepSpeedZeroConfig.model_fields
    by_name = {(field.alias or name): field.default for name, field in fields.items()}
    ours = {key.partition(".")[2]: value for key, value in DEFAULTS.items() if key.startswith("zero_optimization.")}
    assert {name: by_name[name] for name in ours} == ours
