"""What a manifest says twice, held against itself: a figure from a record that contradicts itself means nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from zerotrace.model.manifest import RankRecord, RunManifest

_MAX_NAMED = 8


def contradictions(manifest: RunManifest) -> Iterator[str]:
    """What cannot be, one sentence each: what was found, and what was expected."""
    yield from _of_sizes(manifest)
    yield from _of_stage(manifest)
    yield from _of_parts(manifest)
    yield from _of_ranks(manifest)
    for record in manifest.ranks:
        yield from _of_windows(record)
        yield from _of_gauges(record)


def _of_sizes(manifest: RunManifest) -> Iterator[str]:
    sizes = {
        "world_size": manifest.world_size,
        "model.num_params": manifest.model.num_params,
        "micro_batch": manifest.micro_batch,
        "sequence": manifest.sequence,
    }
    for name, value in sizes.items():
        if value is not None and value < 1:
            yield f"{name} is {value}; expected a whole number above 0"


def _of_stage(manifest: RunManifest) -> Iterator[str]:
    stage = manifest.stage
    if stage is None:
        return
    if stage not in range(4):
        yield f"stage is {stage}; expected 0, 1, 2 or 3"
    zero = (manifest.ds_config or {}).get("zero_optimization")
    configured = zero.get("stage") if isinstance(zero, Mapping) else None
    if isinstance(configured, int) and configured != stage:
        yield f"stage is {stage}, and zero_optimization.stage of its ds_config {configured}; expected the same"


def _of_parts(manifest: RunManifest) -> Iterator[str]:
    """DDP's buckets and FSDP2's groups: parts of the parameters, none of them in two."""
    buckets = [("bytes", bucket.elements, bucket.bytes) for bucket in manifest.buckets]
    groups = [("padded_elements", group.elements, group.padded_elements) for group in manifest.shard_groups]
    for name, parts in (("buckets", buckets), ("shard_groups", groups)):
        for place, (more, elements, at_least) in enumerate(parts):
            if elements < 0:
                yield f"elements of {name}[{place}] is {elements}; expected no negative number"
            elif at_least < elements:
                yield f"{more} of {name}[{place}] is {at_least}, its elements {elements}; expected no less"
        total = sum(elements for _, elements, _ in parts)
        if total > manifest.model.num_params:
            yield (
                f"{name} hold {total} elements, and model.num_params is {manifest.model.num_params}; expected no more "
                "than there are parameters"
            )


def _of_ranks(manifest: RunManifest) -> Iterator[str]:
    found = Counter(record.rank for record in manifest.ranks)
    twice = sorted(rank for rank, count in found.items() if count > 1)
    beyond = sorted(rank for rank in found if not 0 <= rank < manifest.world_size)
    # A world size may be any number: it is counted, not walked.
    num_missing = manifest.world_size - len(found) + len(beyond)
    if twice:
        yield f"{_named('rank', twice)} {_has(twice)} more than one record; expected one each"
    if beyond:
        named = _named("rank", beyond)
        yield f"{named} {_has(beyond)} a record; expected ranks below the world_size {manifest.world_size}"
    if num_missing > 0:
        lack = "has" if num_missing == 1 else "have"
        there = _named("rank", sorted(found)) if found else "none"
        yield (
            f"world_size is {manifest.world_size}, and {num_missing} of its ranks {lack} no record (found: {there}); "
            "expected one each"
        )


def _of_windows(record: RankRecord) -> Iterator[str]:
    for window in record.windows:
        wrong = [step for step in window.step_ns if step <= 0]
        if wrong:
            yield (
                f"rank {record.rank} has a step of {wrong[0]} ns in its {window.kind.value} window; "
                "expected durations above 0"
            )


def _of_gauges(record: RankRecord) -> Iterator[str]:
    gauges = {
        "resident_bytes": record.resident_bytes,
        "peak_bytes": record.peak_bytes,
        "reserved_bytes": record.reserved_bytes,
        "device_used_bytes": record.device_used_bytes,
    }
    for name, value in gauges.items():
        if value is not None and value < 0:
            yield f"{name} of rank {record.rank} is {value}; expected no negative size"
    resident, peak = record.resident_bytes, record.peak_bytes
    if resident is not None and peak is not None and peak < resident:
        yield f"peak_bytes of rank {record.rank} is {peak}, its resident_bytes {resident}; expected no lower peak"


def _named(noun: str, numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:_MAX_NAMED])) + (" ..." if len(numbers) > _MAX_NAMED else "")
    return f"{noun}{'' if len(numbers) == 1 else 's'} {shown}"


def _has(numbers: list[int]) -> str:
    return "has" if len(numbers) == 1 else "have"
