"""Eight ranks over gloo, from the command line to the figures: nothing is bound to two of them."""

from __future__ import annotations

from collections import Counter

import pytest
from click.testing import CliRunner

from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.cli import main
from zerotrace.model import Analysis

pytestmark = [pytest.mark.capture, pytest.mark.timeout(400)]

NUM_RANKS = 8

#: As little as two cores can do for eight ranks: small buckets, so that no rank fills gigabytes, and few tokens.
REQUEST = [
    *("--stage", "3", "--gpus", str(NUM_RANKS), "--device", "cpu", "--model", "nano"),
    *("--windows", "timed,detailed,memory", "--warmup", "2", "--timed", "1", "--steps", "1"),
    *("--micro-batch", "1", "--sequence", "16", "--timeout", "360"),
    *("--set", "zero_optimization.reduce_bucket_size=1e6"),
    *("--set", "zero_optimization.stage3_prefetch_bucket_size=1e5"),
]  # fmt: skip


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    folder = tmp_path_factory.mktemp("eight")
    done = CliRunner().invoke(main, ["capture", *REQUEST, "--out", str(folder / "run")])
    assert done.exit_code == 0, done.output
    return analyze([folder / "run"], folder / "out", AnalyzeOptions(hta=False))[0]


def test_every_rank_is_there_and_its_step_closes(analysis: Analysis) -> None:
    assert [source.rank for source in analysis.sources] == list(range(NUM_RANKS))
    assert analysis.manifest is not None
    assert analysis.manifest.world_size == len(analysis.manifest.ranks) == NUM_RANKS
    assert analysis.trust.num_missing_ranks == 0
    for part in analysis.partition:
        assert part.comm_ns == part.overlapped_ns + part.exposed_ns  # type: ignore[operator]
        assert part.exposed_ns == part.exposed_transfer_ns + part.exposed_wait_ns  # type: ignore[operator]
        assert part.span_ns == part.compute_ns + part.exposed_ns + part.copy_only_ns + part.idle_ns  # type: ignore[operator]


def test_all_collectives_meet_on_all_ranks(analysis: Analysis) -> None:
    assert analysis.collectives is not None
    assert analysis.collectives.num_matched
    assert analysis.collectives.num_unmatched == 0


def test_every_rank_gathers_the_same(analysis: Analysis) -> None:
    assert analysis.gathers is not None
    submitted = Counter((step.num_prefetch, step.num_demand, step.num_refresh) for step in analysis.gathers.steps)
    assert list(submitted.values()) == [NUM_RANKS]
    assert all(count for count in next(iter(submitted)) if count != 0)


def test_what_a_rank_holds_is_an_eighth_and_known(analysis: Analysis) -> None:
    assert analysis.memory is not None
    assert len(analysis.memory.ranks) == NUM_RANKS
    assert analysis.memory.paper is not None
    assert analysis.manifest is not None
    assert analysis.memory.paper.bytes == 16 * analysis.manifest.model.num_params / NUM_RANKS
    resident = analysis.memory.resident
    assert resident is not None
    assert resident.unexplained_ratio is not None
    assert abs(resident.unexplained_ratio) < 0.01
