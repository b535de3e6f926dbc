"""``zerotrace ledger``: what each rank should hold and send, on paper; and what a snapshot says it held."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from zerotrace.cli.ledger_config import LedgerConfig, as_usage_error, read_config
from zerotrace.cli.quantity import Quantity
from zerotrace.cli.terminal import print_data, printable
from zerotrace.errors import CaptureError, LedgerError

if TYPE_CHECKING:
    from zerotrace.ledger import Activations, Shapes
    from zerotrace.model import EngineLedger, ModelShape, PaperLedger

_EPILOG = """\b
Examples:
  zerotrace ledger --params 774M --world 8
  zerotrace ledger --model gpt2-large --world 8 --stage 3 --set zero_optimization.reduce_bucket_size=5e7
  zerotrace ledger --model gpt2-xl --world 8 --micro-batch 4 --fit 24GiB
  zerotrace ledger --snapshot traces/stage3/rank_0.snapshot.pickle.gz --json

A snapshot is read without running anything of it. Sizes of other models: --shapes with JSON like
{"layer.weight": [1280, 5120], ...}.
"""


def _known_gpu(_ctx: click.Context, _param: click.Parameter, name: str | None) -> str | None:
    """A GPU whose workspaces are known; any other would be taken for one from before Hopper.

    Raises:
        click.BadParameter: it is none.
    """
    from zerotrace.ledger import is_known

    if name is not None and name != "cpu" and not is_known(name):
        raise click.BadParameter(f"{name!r} is no GPU that is known here; write H100, A100, RTX 4090, MI300X or cpu.")
    return name


_COUNT, _SIZE = Quantity("count"), Quantity("size")


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--params", type=_COUNT, metavar="COUNT", help="Ψ, such as 774M or 1.3B.")
@click.option("--model", metavar="NAME", help="One of the models of `zerotrace capture`, in place of --params.")
@click.option("--shapes", type=click.Path(path_type=Path), metavar="FILE", help="Shapes of all parameters, JSON.")
@click.option("--world", type=click.IntRange(min=1), metavar="N", help="Ranks that share the model states.")
@click.option("--stage", type=click.IntRange(0, 3), help="One ZeRO stage; that of --ds-config, or all.")
@click.option("--ds-config", type=click.Path(path_type=Path), metavar="FILE", help="DeepSpeed configuration, JSON.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="One key of the DeepSpeed configuration, dotted; the value is JSON. May be repeated.",
)
@click.option(
    "--gpu", callback=_known_gpu, metavar="NAME", help="GPU, such as A100: decides the size of workspaces.  [Hopper]"
)
@click.option("--micro-batch", type=click.IntRange(min=1), metavar="N", help="With --model: sequences a rank.  [4]")
@click.option("--sequence", type=click.IntRange(min=1), metavar="N", help="With --model: tokens a sequence.  [1024]")
@click.option("--activations", type=_SIZE, metavar="SIZE", help="What forward keeps, for other models.")
@click.option("--fit", "capacity", type=_SIZE, metavar="SIZE", help="Which stages and knobs fit a device of this size.")
@click.option("--snapshot", type=click.Path(path_type=Path), metavar="FILE", help="Measure an allocator snapshot.")
@click.option(
    "--owners", type=click.Path(path_type=Path), metavar="FILE", help="Its owners file.  [the one beside it, if any]"
)
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON on stdout.")
def ledger(
    params: int | None,
    model: str | None,
    shapes: Path | None,
    world: int | None,
    stage: int | None,
    ds_config: Path | None,
    settings: tuple[str, ...],
    gpu: str | None,
    micro_batch: int | None,
    sequence: int | None,
    activations: int | None,
    capacity: int | None,
    snapshot: Path | None,
    owners: Path | None,
    as_json: bool,
) -> None:
    """Draw up the memory ledger: on paper, or of a snapshot.

    On paper: the model states in theory, what DeepSpeed holds for a configuration, line by line with its source, and
    the peak of a step. No GPU, no torch and no DeepSpeed is needed.
    """
    if snapshot is not None:
        paper = (params, model, shapes, world, stage, ds_config, gpu, micro_batch, sequence, activations, capacity)
        if settings or any(option is not None for option in paper):
            raise click.UsageError("--snapshot is measured by itself; leave the options of the ledger on paper out.")
        _measure(snapshot, owners, as_json)
        return
    if owners is not None:
        raise click.UsageError("--owners names the blocks of a --snapshot; give one, or leave it out.")
    if world is None:
        raise click.UsageError("Missing option '--world'.")
    named = _named_model(model, params)
    known = _shapes(params, named, shapes)
    config = read_config(ds_config, settings, stage, micro_batch, world)
    held: Activations | int | None = activations
    if held is None:
        held = _activations(named, micro_batch, sequence, config)
    elif micro_batch is not None or sequence is not None:
        raise click.UsageError("--activations says what --micro-batch and --sequence would estimate; leave one out.")
    for warning in config.warnings:
        click.echo(printable(f"warning: {warning}"), err=True)
    if capacity is not None:
        _fit(known, config, world, stage, capacity, gpu, held, as_json)
        return
    _on_paper(known, config, world, gpu, held, as_json)


def _measure(path: Path, owners: Path | None, as_json: bool) -> None:
    from zerotrace.analysis.memory.belonging import find_conflict
    from zerotrace.analysis.memory.measure import by_owner, measure
    from zerotrace.ingest.owners import read_owners
    from zerotrace.ingest.snapshot import read_snapshot

    snapshots, _ = read_snapshot(path)
    beside = path.with_name(path.name.replace(".snapshot.pickle.gz", ".owners.json"))
    if owners is None and beside != path and beside.is_file():
        owners = beside
    held = read_owners(owners)[0] if owners is not None else None
    conflict = find_conflict(held, snapshots[0]) if held is not None else None
    if owners is not None and conflict is not None:
        warning = f"warning: {owners.name} and {path.name} are not of one moment of one rank: {conflict}."
        click.echo(printable(warning), err=True)
        click.echo(
            "  Blocks are named by the stacks that allocated them; give --owners the file of this snapshot.", err=True
        )
        held = None
    storages = held.storages if held is not None else ()
    measured = [measure(snapshot, storages).memory for snapshot in snapshots]
    if as_json:
        first = measured[0]
        content = {
            "snapshot": path.name,
            "owners_file": owners.name if owners is not None and held is not None else None,
            "resident_bytes": first.resident_bytes,
            "peak_bytes": first.peak_bytes,
            "owners": by_owner(first.resident),
            "peak_owners": by_owner(first.peak),
            "devices": measured,
        }
        print_data(json.dumps(msgspec.to_builtins(content), indent=1) + "\n")
        return
    from zerotrace.cli.ledger_tables import print_memory

    for memory in measured:
        print_memory(memory)
    if owners is None:
        click.echo("No owners file: blocks are named by the stacks that allocated them.", err=True)


def _on_paper(
    shapes: Shapes,
    config: LedgerConfig,
    world: int,
    gpu: str | None,
    activations: Activations | int | None,
    as_json: bool,
) -> None:
    from zerotrace.ledger import compare_ledgers, deepspeed_ledger, paper_ledger, read_settings

    entries: list[tuple[PaperLedger, EngineLedger, tuple[str, ...]]] = []
    for number in range(4) if config.stage is None else (config.stage,):
        settings = read_settings(config.content, number)
        found = deepspeed_ledger(shapes, settings, world, device=gpu, activations=activations)
        theory = paper_ledger(shapes, number, world)
        entries.append((theory, found, compare_ledgers(theory, found)))
    if as_json:
        stages = [dict(zip(("paper", "deepspeed", "words"), entry)) for entry in entries]
        content = {
            "num_params": shapes.num_params,
            "world_size": world,
            "warnings": config.warnings,
            "stages": stages,
        }
        print_data(json.dumps(msgspec.to_builtins(content), indent=1) + "\n")
        return
    from zerotrace.cli.ledger_tables import print_ledgers

    print_ledgers(entries)


def _fit(
    shapes: Shapes,
    config: LedgerConfig,
    world: int,
    stage: int | None,
    capacity: int,
    gpu: str | None,
    activations: Activations | int | None,
    as_json: bool,
) -> None:
    from zerotrace.ledger import fit

    options = fit(shapes, config.content, world, capacity, device=gpu, activations=activations)
    if stage is not None:
        options = tuple(option for option in options if option.stage == stage)
    if as_json:
        content = {
            "num_params": shapes.num_params,
            "world_size": world,
            "capacity_bytes": capacity,
            "warnings": config.warnings,
            "activations_known": activations is not None,
            "options": options,
        }
        print_data(json.dumps(msgspec.to_builtins(content), indent=1) + "\n")
        return
    from zerotrace.cli.ledger_tables import print_fit

    print_fit(options, capacity, activations_known=activations is not None)


def _named_model(name: str | None, params: int | None) -> ModelShape | None:
    if name is None:
        return None
    from zerotrace.capture.models import find_model

    if params is not None:
        raise click.UsageError("--params and --model say the same thing; leave one out.")
    try:
        found = find_model(name)
    except CaptureError as error:
        raise as_usage_error(error) from error
    return found.shape(found.num_params)


def _shapes(params: int | None, model: ModelShape | None, file: Path | None) -> Shapes:
    from zerotrace.ledger import Shapes, decoder_shapes, parse_shapes

    if file is not None:
        if params is not None or model is not None:
            raise click.UsageError("--shapes says what --params and --model say; leave them out.")
        return parse_shapes(_read_json(file), file.name)
    if model is not None:
        return decoder_shapes(model)
    if params is None:
        raise click.UsageError("Give --params, --model or --shapes; or --snapshot.")
    return Shapes(num_params=params)


def _activations(
    model: ModelShape | None, micro_batch: int | None, sequence: int | None, config: LedgerConfig
) -> Activations | None:
    from zerotrace.ledger import decoder_activations, read_settings

    if model is None:
        if micro_batch is not None or sequence is not None:
            raise click.UsageError("--micro-batch and --sequence need --model; give --activations for other models.")
        return None
    settings = read_settings(config.content, 0)
    return decoder_activations(model, config.micro_batch, sequence or 1024, settings.param_bytes)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LedgerError(
            f"{path.name}: cannot be read: {error.strerror}",
            code="unreadable",
            hint="check the path given with --shapes",
        ) from error
    except (ValueError, RecursionError) as error:
        raise LedgerError(
            printable(f"{path.name}: no JSON: {error}"),
            code="shapes_invalid",
            hint='expected is JSON like {"layer.weight": [1280, 5120], ...}',
        ) from error
