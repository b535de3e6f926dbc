"""How runs were made, and in what they differ."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from zerotrace.model import RunManifest, Setting

RUN, CONFIGURATION, VERSIONS, ENVIRONMENT = "run", "DeepSpeed configuration", "versions", "environment"
SETTINGS = "engine settings"

#: What makes no other run of it: a label of the container image.
_NO_CHOICE = frozenset({"NCCL_VERSION"})


def differing_settings(manifests: Sequence[RunManifest]) -> tuple[Setting, ...]:
    """Every setting in which the runs differ, by section.

    A key of the configuration that one run sets and another does not, differs; a run without DeepSpeed differs in its
    engine, and not in every key besides. The same holds of versions of what a run does not use, and of settings that
    its engine does not have.

    Args:
        manifests: of the runs, in their order.
    """
    return tuple(
        Setting(section=section, key=key, values=tuple(_text(one.get(key, _ABSENT)) for one in found))
        for section, found in _sections(manifests)
        for key in dict.fromkeys(key for one in found for key in one)
        if _differ([one for one in found if one or section == ENVIRONMENT], key, section)
    )


def is_same_setup(first: RunManifest, second: RunManifest) -> bool:
    """Whether one run repeats the other: nothing but the seed, and when they were made, is another."""
    return all(
        {key: value for key, value in ours.items() if key != "seed"}
        == {key: value for key, value in theirs.items() if key != "seed"}
        for _, (ours, theirs) in _sections((first, second))
    )


_ABSENT = object()


def _sections(manifests: Sequence[RunManifest]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    yield RUN, [_run(manifest) for manifest in manifests]
    yield CONFIGURATION, [dict(_flat(manifest.ds_config or {})) for manifest in manifests]
    yield SETTINGS, [dict(_flat(manifest.engine_settings or {})) for manifest in manifests]
    yield VERSIONS, [{**manifest.versions, "zerotrace": manifest.zerotrace_version} for manifest in manifests]
    yield (
        ENVIRONMENT,
        [
            {key: value for key, value in manifest.environment.items() if key not in _NO_CHOICE}
            for manifest in manifests
        ],
    )


def _run(manifest: RunManifest) -> dict[str, Any]:
    devices = Counter(rank.device for rank in manifest.ranks)
    told = {
        "engine": manifest.engine,
        "stage": manifest.stage,
        "ranks": manifest.world_size,
        "hosts": len({rank.host for rank in manifest.ranks}),
        "devices": ", ".join(f"{count} × {name}" for name, count in sorted(devices.items())),
        "backend": manifest.backend,
        "model": manifest.model.name,
        "parameters": manifest.model.num_params,
        "micro-batch": manifest.micro_batch,
        "tokens a sequence": manifest.sequence,
        "seed": manifest.seed,
    }
    return {key: value for key, value in told.items() if value is not None}


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The configuration with one key a value: ``zero_optimization.stage``."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _differ(found: Sequence[Mapping[str, Any]], key: str, section: str) -> bool:
    values = [_text(one.get(key, _ABSENT)) for one in found]
    if section in (VERSIONS, SETTINGS):
        values = [value for value in values if value is not None]
    return len(set(values)) > 1


def _text(value: Any) -> str | None:
    """The value as JSON; ``None`` for what is absent."""
    return None if value is _ABSENT else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
