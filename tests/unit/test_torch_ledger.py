"""What torch's own engines hold, worked out by hand: sizes in bytes, on a CPU, where nothing is rounded."""

from __future__ import annotations

from typing import Any

import pytest

from zerotrace.ledger import TorchRun, compare_ledgers, deal_out, paper_ledger, shapes_of, torch_ledger
from zerotrace.model import EngineLedger, Owner

#: Ψ = 21.
SHAPES = shapes_of([10, 5, 3, 2, 1])


def ledger(engine: str, stage: int, world: int = 2, **changes: Any) -> EngineLedger:
    run = TorchRun(engine=engine, stage=stage, **{"settings": {}, **changes})
    return torch_ledger(SHAPES, run, world, device="cpu")


def held(found: EngineLedger) -> dict[Owner, float]:
    sizes: dict[Owner, float] = {}
    for line in found.lines:
        sizes[line.owner] = sizes.get(line.owner, 0) + line.bytes
    return {owner: size for owner, size in sizes.items() if size}


def test_ddp_holds_all_states_and_its_buckets() -> None:
    found = ledger("ddp", 0, bucket_bytes=(22, 20))
    states = {Owner.PARAMS: 42, Owner.MASTER: 84, Owner.EXP_AVG: 84, Owner.EXP_AVG_SQ: 84}
    assert held(found) == {**states, Owner.REDUCE_BUCKET: 42}
    assert (found.engine, found.bytes) == ("ddp", 336)


def test_buckets_that_are_not_known_are_as_large_as_the_gradients() -> None:
    assert held(ledger("ddp", 0))[Owner.REDUCE_BUCKET] == 42


def test_one_device_has_no_buckets() -> None:
    assert Owner.REDUCE_BUCKET not in held(ledger("single", 0, world=1))


def test_zero_1_deals_out_whole_parameters_the_largest_first() -> None:
    assert deal_out([1, 2, 3, 5, 10], 2) == [[10, 1], [5, 3, 2]]
    assert deal_out([4, 4], 4) == [[4], [4], [], []]


@pytest.mark.parametrize("flat", [False, True])
def test_zero_1_holds_states_of_the_largest_share_alone(flat: bool) -> None:
    found = ledger("zero1", 1, settings={"parameters_as_bucket_view": flat})
    # 11 of 21 elements
    assert held(found) == {
        Owner.PARAMS: 42, Owner.MASTER: 44, Owner.EXP_AVG: 44, Owner.EXP_AVG_SQ: 44, Owner.REDUCE_BUCKET: 42,
    }  # fmt: skip


def test_fsdp_2_holds_fp32_shards_padded_to_equal_ones() -> None:
    # 5 + 3 + 2 + 1 + 1
    assert held(ledger("fsdp2", 3)) == {Owner.MASTER: 48, Owner.EXP_AVG: 48, Owner.EXP_AVG_SQ: 48}


def test_padding_to_whole_rows_is_read_off_the_groups() -> None:
    assert held(ledger("fsdp2", 3, group_elements=(20, 10)))[Owner.MASTER] == 60


@pytest.mark.parametrize(("kept", "gathered"), [(21, 42), (10, 20 + 22)])
def test_what_fsdp_2_keeps_is_there_when_all_activations_are(kept: int, gathered: int) -> None:
    found = ledger("fsdp2", 3, group_elements=(10, 11), kept_elements=kept)
    loss = next(peak for peak in found.peaks if peak.instant == "loss")
    assert sum(line.bytes for line in loss.lines if line.owner is Owner.GATHERED_PARAMS) == gathered


def test_words_say_where_an_engine_parts_from_the_paper() -> None:
    told = " ".join(compare_ledgers(paper_ledger(SHAPES, 0, 2), ledger("ddp", 0)))
    assert "DDP keeps its buckets between steps" in told
    assert "master weights" in " ".join(compare_ledgers(paper_ledger(SHAPES, 3, 2), ledger("fsdp2", 3)))
    dealt = " ".join(compare_ledgers(paper_ledger(SHAPES, 1, 2), ledger("zero1", 1)))
    assert "2 B more each" in dealt
