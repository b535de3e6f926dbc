"""``zerotrace capture --ablate``: two captures, one with a part of the engine and one without."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from msgspec.structs import replace

from zerotrace.capture.ablations import ABLATIONS, AblationKind
from zerotrace.cli.ablation import ablation_lines
from zerotrace.cli.launching import run_plan
from zerotrace.cli.outcome import describe, summarise, talk
from zerotrace.cli.request import Request, make_plan
from zerotrace.cli.terminal import print_data, shell_path

if TYPE_CHECKING:
    from zerotrace.capture.complete import CaptureResult
    from zerotrace.capture.plan import Nodes
    from zerotrace.model import Ablation


def check_ablation(request: Request, part: str, *, alone: bool) -> None:
    """Refuse options that do not go with an ablation.

    Args:
        request: the options.
        part: what is to be switched off.
        alone: whether this machine runs all ranks, outside of any job.

    Raises:
        click.UsageError: the stage has no such part, or several machines take part.
    """
    kind = ABLATIONS[part]
    if request.stage not in kind.stages:
        stages = " or ".join(map(str, kind.stages))
        raise click.UsageError(f"--ablate {part} needs --stage {stages}: no other stage has {part}.")
    if not alone or request.num_nodes > 1:
        raise click.UsageError(f"--ablate {part} runs on one machine, outside of any job: capture each run by itself.")


def capture_both(request: Request, part: str, nodes: Nodes, out: Path | None, *, as_json: bool) -> None:
    """Capture with the part, then without it, and say what it is worth.

    Both plans are checked, and both folders reserved, before the first run starts.

    Raises:
        CaptureError: one of the runs cannot start, or failed.
    """
    from zerotrace.capture.folder import check_out, reserve_folder
    from zerotrace.capture.hosts import hold_to_stdin

    kind = ABLATIONS[part]
    other = replace(request, settings=(*request.settings, *kind.settings))
    if out is not None:
        check_out(out)
        check_out(_beside(out, kind))
    plans = make_plan(request, nodes), make_plan(other, nodes)
    kind.check(plans[0].ds_config)
    first = reserve_folder(out, plans[0].default_name)
    with ExitStack() as unless_run:
        unless_run.callback(first.discard)
        second = reserve_folder(_beside(first.path, kind), plans[1].default_name)
        unless_run.callback(second.discard)
        hold_to_stdin()
        results = [run_plan(plans[0], first, request.windows)]
        with _naming(first.path):
            results.append(run_plan(plans[1], second, request.windows))
    _print(results, as_json=as_json)


@contextmanager
def _naming(complete: Path) -> Iterator[None]:
    """Where the second run fails, the first is there all the same."""
    try:
        yield
    except BaseException:
        talk(f"The first capture is complete: {complete}")
        raise


def _beside(folder: Path, kind: AblationKind) -> Path:
    return folder.with_name(folder.name + kind.suffix)


def _print(results: list[CaptureResult], *, as_json: bool) -> None:
    from zerotrace.analysis.ablation import ablate
    from zerotrace.analysis.captured import CapturedRun
    from zerotrace.ingest.files import name_run

    complete = [(r.folder, r.manifest) for r in results if r.folder is not None and r.manifest is not None]
    runs = [CapturedRun(name=name_run(folder), manifest=manifest) for folder, manifest in complete]
    ablation: Ablation = ablate(runs[0], runs[1])
    if as_json:
        summaries = [summarise(folder, manifest) for folder, manifest in complete]
        whole = {"with": summaries[0], "without": summaries[1], "ablation": msgspec.to_builtins(ablation)}
        print_data(json.dumps(whole, indent=1) + "\n")
    else:
        for folder, manifest in complete:
            for record in manifest.ranks:
                talk(describe(record))
            click.echo(str(folder))
    for line in ablation_lines(ablation):
        talk(line)
    names = [shell_path(folder) for folder, _ in complete]
    talk("Next:")
    for name in names:
        talk(f"zerotrace analyze {name}")
    talk(f"zerotrace compare {' '.join(names)}")
