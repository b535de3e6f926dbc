"""Where the files of a rank go, and how they come together once all ranks are done.

Three cases. One machine with a launcher: everything goes into the folder that the launcher has made. Several machines,
each with a launcher: into the folder of node 0 where a machine sees that too (a shared file system), else into the
folder of its own launcher; either way the reports are gathered for node 0, which writes the manifest. No launcher (an
existing torchrun or Slurm job, or a program's own ``session(engine, out=...)``): the same, and rank 0 makes the folder
and gives it its name at the end.
"""

from __future__ import annotations

import datetime
import os
import shutil
import socket
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from zerotrace.capture.folder import CaptureFolder, move_files, reserve_folder
from zerotrace.capture.handoff import (
    OwnOrders,
    RankReport,
    SessionPlan,
    parse_report,
    report_path,
    to_json,
    write_json,
)
from zerotrace.capture.limit import current_limit
from zerotrace.capture.machine import recorded_environment
from zerotrace.capture.manifest import build_manifest
from zerotrace.errors import ZerotraceError


class Place:
    """One machine, with a launcher that has made the folder and completes the capture."""

    def __init__(self, plan: SessionPlan) -> None:
        self._plan = plan
        self._rank = torch.distributed.get_rank()

    def open(self) -> SessionPlan:
        """Make ready, together with all other ranks.

        Returns:
            The plan with the folders in which this rank has to write.
        """
        return self._plan

    def deliver(self, report: RankReport) -> None:
        """Hand over what this rank has written, together with all other ranks."""
        write_json(report_path(Path(self._plan.work_folder), self._rank), report)
        # No rank may leave while another still writes: the first exit can end the process group of all.
        torch.distributed.barrier()

    def abandon(self) -> None:
        """The training program has failed: the launcher keeps what is there."""


class NodesPlace(Place):
    """Several machines, each with a launcher."""

    def __init__(self, plan: SessionPlan) -> None:
        super().__init__(plan)
        self._local: Path | None = None
        self._target = Path(plan.trace_folder)

    def open(self) -> SessionPlan:
        """Find out whether this machine shares the folder of node 0."""
        own = Path(self._plan.trace_folder)
        shared = _find_shared(_broadcast(str(own) if self._rank == 0 else None))
        self._target = shared or own
        # A trace is written in many small pieces, and once more to compress it: not over a network.
        self._local = Path(self._plan.local_folder) / f"rank_{self._rank}"
        self._local.mkdir()
        self._plan = replace(
            self._plan,
            trace_folder=str(self._local),
            host=_number_of_host(),
            name_mark="" if shared else _machine_mark(),
        )
        return self._plan

    def deliver(self, report: RankReport) -> None:
        """Move this rank's files to their folder, and the reports of all ranks to node 0."""
        if self._local is not None:
            move_files(self._local, self._target)
        reports = _gather(report)
        work = Path(self._plan.work_folder)
        for received in reports if self._rank == 0 else [report]:
            write_json(report_path(work, received.record.rank), received)
        torch.distributed.barrier()


class OwnPlace(Place):
    """No launcher: rank 0 makes the folder, writes the manifest and gives the folder its name."""

    def __init__(self, plan: SessionPlan, orders: OwnOrders) -> None:
        super().__init__(plan)
        self._orders = orders
        self._created = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        self._folder: CaptureFolder | None = None

    def open(self) -> SessionPlan:
        """Agree on the folder.

        Raises:
            CaptureError: rank 0 could not reserve it; every rank raises alike.
        """
        if limit := current_limit():
            limit.before_end(self._keep)
        own: CaptureFolder | None = None
        offer: Any = None
        if self._rank == 0:
            try:
                own = reserve_folder(Path(self._orders.out) if self._orders.out else None, self._orders.default_name)
                offer = (str(own.path.absolute()), str(own.partial.absolute()))
            except ZerotraceError as error:
                offer = error
        offer = _broadcast(offer)
        if isinstance(offer, ZerotraceError):
            raise offer
        final, partial = (Path(path) for path in offer)
        shared = _find_shared(str(partial))
        if own is not None:
            self._folder = own
        elif shared is None:
            # Its first rank makes it; the name says which machine it is, in case they are collected in one place.
            final, partial = (path.with_name(path.name + _machine_mark(pid=False)) for path in (final, partial))
            partial.mkdir(parents=True, exist_ok=True)
            if _is_first_of_its_machine():
                self._folder = CaptureFolder(final, partial)
        (partial / "ranks").mkdir(exist_ok=True)
        self._plan = replace(
            self._plan,
            trace_folder=str(partial),
            work_folder=str(partial / "ranks"),
            host=_number_of_host(),
            name_mark="" if shared else _machine_mark(),
        )
        return self._plan

    def deliver(self, report: RankReport) -> None:
        """Gather the reports; rank 0 completes the capture."""
        reports = _gather(report)
        torch.distributed.barrier()
        if self._folder is None:
            torch.distributed.barrier()
            return
        if self._rank == 0:
            write_json(self._folder.partial / "manifest.json", self._manifest(reports))
        shutil.rmtree(self._folder.work)
        self._folder.publish()
        torch.distributed.barrier()
        folder, self._folder = self._folder, None
        sys.stderr.write(f"zerotrace: the capture is in {folder.path}\n")

    def abandon(self) -> None:
        """Give the incomplete folder a visible name."""
        if sentence := self._keep():
            sys.stderr.write(f"zerotrace: {sentence}\n")

    def _keep(self) -> str:
        """What has become of the folder; nothing on a rank that has none, or if that was said already."""
        folder, self._folder = self._folder, None
        if folder is None:
            return ""
        if folder.path.exists():
            return f"The capture is complete, in {folder.path}."
        return f"The capture is not complete; what was written is in {folder.keep_failed()}."

    def _manifest(self, reports: Sequence[RankReport]) -> Any:
        return build_manifest(
            reports,
            created=self._created,
            environment=recorded_environment(os.environ),
            facts=self._orders.facts,
        )


def choose_place(plan: SessionPlan) -> Place:
    """The place for a session of this plan."""
    if plan.own is not None:
        return OwnPlace(plan, plan.own)
    return NodesPlace(plan) if plan.num_nodes > 1 else Place(plan)


def _find_shared(folder_of_rank_0: str) -> Path | None:
    """The folder of rank 0 if this machine sees that very folder, found by a file that rank 0 puts there."""
    name = _broadcast(f".seen-{uuid.uuid4().hex}")
    token = Path(folder_of_rank_0) / name
    if torch.distributed.get_rank() == 0:
        token.touch()
    torch.distributed.barrier()
    seen = token.is_file()
    torch.distributed.barrier()
    if torch.distributed.get_rank() == 0:
        token.unlink()
    return token.parent if seen else None


def _broadcast(value: Any) -> Any:
    """Rank 0's value, on every rank."""
    values = [value]
    torch.distributed.broadcast_object_list(values, src=0)
    return values[0]


def _gather(report: RankReport) -> list[RankReport]:
    """The reports of all ranks, in their order."""
    texts: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(texts, to_json(report))
    return [parse_report(text) for text in texts]


def _number_of_host() -> int:
    """This machine's number among those of the run, by its lowest rank. Ranks with one clock are on one machine."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    # Containers of one machine have different names, and machines that were cloned have the same.
    own = (socket.gethostname(), boot.read_text(encoding="ascii").strip() if boot.is_file() else "")
    hosts: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(hosts, own)
    return list(dict.fromkeys(hosts)).index(own)


def _machine_mark(*, pid: bool = True) -> str:
    # torchrun numbers the nodes of a run in GROUP_RANK.
    mark = f"_host{os.environ.get('GROUP_RANK', '0')}"
    return f"{mark}_pid{os.getpid()}" if pid else mark


def _is_first_of_its_machine() -> bool:
    return os.environ.get("LOCAL_RANK", "0") == "0"
