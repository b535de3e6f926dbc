"""What a rank hands back arrives as it was."""

from __future__ import annotations

from zerotrace.capture.handoff import EngineFacts, RankReport, parse_report, to_json
from zerotrace.model import (
    BucketRecord,
    LabelsRecord,
    RankRecord,
    ShardGroupRecord,
    WindowKind,
    WindowRecord,
)


def test_a_report_arrives_as_it_was_written() -> None:
    windows = (
        WindowRecord(kind=WindowKind.UNLABELLED, first_step=7, step_ns=(5, 6), stride=2),
        WindowRecord(kind=WindowKind.LABELLED, first_step=8, step_ns=(7,), stride=2),
    )
    group = ShardGroupRecord(
        module="h.0", elements=10, padded_elements=12, dtype="bfloat16", reduce_dtype="float32", num_ranks=4,
        reshard_after_forward=True, params=("h.0.weight",),
    )  # fmt: skip
    report = RankReport(
        record=RankRecord(rank=1, host=0, device="cpu", windows=windows, peak_bytes=9, trace_file="rank_1.json"),
        num_params=10,
        losses=(4.25, None),
        versions={"torch": "2.13.0"},
        engine=EngineFacts(name="fsdp2", settings={"reshard_after_forward": True, "param_dtype": None}),
        buckets=(BucketRecord(elements=10, bytes=20, dtype="bfloat16", params=("a", "b")),),
        shard_groups=(group,),
        labels=LabelsRecord(version=1, hooks=("phase",), missing={"gather": "why"}),
        notes=("one",),
        no_tables="there was no time left",
    )
    assert parse_report(to_json(report)) == report
    bare = RankReport(record=report.record, num_params=10, losses=())
    assert parse_report(to_json(bare)) == bare
