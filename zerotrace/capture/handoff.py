"""What passes between the process that launches a capture and its ranks, as JSON files."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import asdict

from zerotrace.capture.plan import CapturePlan
from zerotrace.errors import CaptureError, ZerotraceError
from zerotrace.model import BucketRecord, LabelsRecord, RankRecord, ShardGroupRecord

#: Names the file that holds a rank's :class:`SessionPlan`, unique to the capture; set only inside of one. Where there
#: is no launcher to write the file, it holds the plan itself, as JSON.
SESSION_VARIABLE = "ZEROTRACE_SESSION"


#: Part of the time limit after which no rank reads its trace any more: the capture itself has to be completed in time.
INGEST_SHARE = 0.8


class AttachOrders(Struct, frozen=True, kw_only=True):
    """What to do to a program that knows nothing of the capture."""

    stage: int | None = None
    """ZeRO stage, over what the program's own configuration says; ``None`` leaves that as it is."""
    any_engine: bool = False
    """Whether torch's own engines are looked for too, beside DeepSpeed."""
    settings: tuple[tuple[str, Any], ...] = ()
    """Keys of the DeepSpeed configuration to set, dotted."""
    keep_running: bool = False
    """Whether the program goes on after the last window."""


class EngineFacts(Struct, frozen=True, kw_only=True):
    """What trains, and how it is configured."""

    name: str
    """A name in :data:`zerotrace.capture.engines.ENGINES`."""
    stage: int | None = None
    """ZeRO stage; ``None`` for an engine that has none, like the DeepSpeed configuration."""
    micro_batch: int | None = None
    """``None`` where only the program itself knows it."""
    ds_config: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] | None = None
    """Those of one of torch's engines, as they are in effect."""


class RunFacts(Struct, frozen=True, kw_only=True):
    """What is known of a run before its first step, for the manifest."""

    command: tuple[str, ...]
    program: str
    """Name of one of zerotrace's own models, else of the training program."""
    sequence: int | None = None
    seed: int | None = None
    engine: EngineFacts | None = None
    """``None`` where the program brings its own: the ranks then report it."""


class Deadline(Struct, frozen=True, kw_only=True):
    """The end of a time limit."""

    limit_s: float
    """The limit as it was given."""
    at_s: float
    """When it is over, by this machine's :func:`time.monotonic`."""


class OwnOrders(Struct, frozen=True, kw_only=True):
    """What the ranks need to complete a capture among themselves, where no launcher does it for them."""

    facts: RunFacts
    out: str | None = None
    """Folder of the capture; ``None`` for the default name."""
    default_name: str = ""
    deadline: Deadline | None = None
    """When a rank has to end itself; ``None`` for a program that captures itself."""


class SessionPlan(Struct, frozen=True, kw_only=True):
    """What every rank of a capture has to do."""

    trace_folder: str = ""
    """Where traces go; the launcher renames this folder once the whole capture is there."""
    work_folder: str = ""
    """Where progress, logs and rank records go."""
    num_warmup: int
    num_timed: int
    num_profiled: int
    num_labelled: int = 0
    num_light: int = 0
    num_memory: int = 0
    attach: AttachOrders | None = None
    """Set where the training program is a user's own, which runs unchanged."""
    own: OwnOrders | None = None
    """Set where no launcher completes the capture."""
    num_nodes: int = 1
    """Machines of the run, each with a launcher."""
    local_folder: str = ""
    """Where ranks write first if the trace folder may be on a network; the launcher removes it."""
    host: int = 0
    """Number of this machine among those of the run; stands for its name."""
    ingest: bool = False
    """Whether each rank reads its own trace at the end, and leaves its tables beside it."""
    ingest_until_s: float | None = None
    """When that has to be over, by this machine's :func:`time.monotonic`."""
    name_mark: str = ""
    """Stands behind the rank in file names, where folders of several machines may come to lie in one place."""

    @classmethod
    def from_environment(cls) -> SessionPlan | None:
        """The plan of the capture that this process is a rank of; ``None`` outside of a capture."""
        value = os.environ.get(SESSION_VARIABLE)
        if not value:
            return None
        text = value if value.startswith("{") else Path(value).read_text(encoding="utf-8")
        return msgspec.json.decode(text, type=cls)

    def to_json(self) -> str:
        """The plan as :meth:`from_environment` takes it from the variable itself."""
        return to_json(self)

    def file_name(self, rank: int, ending: str) -> str:
        """Name of one of a rank's files: ``rank_3.pt.trace.json.gz``."""
        return f"rank_{rank}{self.name_mark}.{ending}"


def facts_of(plan: CapturePlan) -> RunFacts:
    """What a plan says for the manifest."""
    if plan.script is not None:
        return RunFacts(command=plan.command, program=plan.program)
    return RunFacts(
        command=plan.command,
        program=plan.program,
        sequence=plan.sequence,
        seed=plan.seed,
        engine=EngineFacts(name=plan.engine, stage=plan.stage, micro_batch=plan.micro_batch, ds_config=plan.ds_config),
    )


def session_plan(plan: CapturePlan) -> SessionPlan:
    """What a plan has every rank do; where files go is not in it yet."""
    script = plan.script
    attach = None
    if script is not None:
        attach = AttachOrders(
            stage=plan.stage,
            any_engine=not plan.engine_kind.has_stages,
            settings=script.settings,
            keep_running=script.keep_running,
        )
    return SessionPlan(
        num_warmup=plan.num_warmup,
        num_timed=plan.num_timed,
        num_profiled=plan.num_profiled,
        num_labelled=plan.num_labelled,
        num_light=plan.num_light,
        num_memory=plan.num_memory,
        ingest=plan.ingest,
        ingest_until_s=time.monotonic() + INGEST_SHARE * plan.timeout_s if plan.ingest else None,
        attach=attach,
    )


class RankReport(Struct, frozen=True, kw_only=True):
    """All that one rank hands back."""

    record: RankRecord
    num_params: int
    """Ψ as counted on the engine's model, over all ranks."""
    losses: tuple[float | None, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    engine: EngineFacts | None = None
    """``None`` where the engine is none that can be asked."""
    buckets: tuple[BucketRecord, ...] = ()
    shard_groups: tuple[ShardGroupRecord, ...] = ()
    labels: LabelsRecord | None = None
    """How the detailed window was labelled, without the overhead, which takes all ranks."""
    notes: tuple[str, ...] = ()
    """What a reader of the figures should know, one sentence each."""
    no_tables: str | None = None
    """Why the rank has left no tables of its own though it should have; ``None`` if there is nothing to say."""


def to_json(value: Any) -> str:
    """A record or a plain value as JSON."""
    return json.dumps(_plain(value), indent=1, allow_nan=False)


def write_json(path: Path, value: Any) -> None:
    """Write a record or a plain value; the file appears whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(to_json(value) + "\n", encoding="utf-8")
    partial.rename(path)


def report_path(work_folder: Path, rank: int) -> Path:
    """Where a rank leaves its report."""
    return work_folder / f"rank_{rank}.json"


def read_report(path: Path) -> RankReport:
    """The report that a rank has left."""
    return parse_report(path.read_text(encoding="utf-8"))


def parse_report(text: str) -> RankReport:
    """A report from JSON."""
    return msgspec.json.decode(text, type=RankReport)


def problem_path(work_folder: Path, rank: int) -> Path:
    """Where a rank says why it cannot go on, if it knows."""
    return work_folder / f"rank_{rank}.problem.json"


def write_problem(path: Path, error: ZerotraceError) -> None:
    """Hand an expected failure to the process that watches the ranks."""
    write_json(path, {"message": str(error), "code": error.code, "hint": error.hint})


def read_problem(path: Path) -> CaptureError | None:
    """The expected failure that a rank has handed over, if there is one."""
    if not path.is_file():
        return None
    content = json.loads(path.read_text(encoding="utf-8"))
    return CaptureError(content["message"], code=content["code"], hint=content["hint"])


def _plain(value: Any) -> Any:
    if isinstance(value, Struct):
        return {name: _plain(item) for name, item in asdict(value).items()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
