"""What becomes of a capture's folder once its ranks have ended."""

from __future__ import annotations

import contextlib
import datetime
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from zerotrace.capture import failure
from zerotrace.capture.folder import CaptureFolder, move_files
from zerotrace.capture.handoff import facts_of, read_report, report_path, write_json
from zerotrace.capture.machine import recorded_environment
from zerotrace.capture.manifest import build_manifest
from zerotrace.capture.plan import CapturePlan
from zerotrace.errors import CaptureError
from zerotrace.model import RunManifest


class CaptureResult(Struct, frozen=True, kw_only=True):
    """A complete capture, or the part of it that one machine has."""

    folder: Path | None
    """``None`` on a machine that shares the folder of node 0."""
    manifest: RunManifest | None
    """``None`` on any machine but node 0."""


class Completion:
    """Turns the folder that the ranks have filled into a result."""

    def __init__(self, plan: CapturePlan, folder: CaptureFolder, environment: Mapping[str, str]) -> None:
        self.plan = plan
        self.folder = folder
        self._environment = environment
        self.local = Path(tempfile.mkdtemp(prefix="zerotrace-")) if plan.nodes.num_nodes > 1 else None
        self._created = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")

    @property
    def may_go_on(self) -> bool:
        """Whether the program goes on after the last window."""
        return self.plan.script is not None and self.plan.script.keep_running

    @property
    def is_possible(self) -> bool:
        """Whether every rank that this machine has to hear from has handed in its report."""
        return not self._missing()

    def complete(self) -> CaptureResult:
        """Write the manifest and give the folder its name.

        Raises:
            RunError: a rank has handed in no report.
            CaptureError: the name has been taken in the meantime.
        """
        if missing := self._missing():
            raise failure.no_report(self.folder.work, self.plan, missing)
        if self.plan.nodes.node_rank > 0:
            return self._complete_part()
        manifest = self._manifest()
        write_json(self.folder.partial / "manifest.json", manifest)
        shutil.rmtree(self.folder.work)
        self.folder.publish()
        return CaptureResult(folder=self.folder.path, manifest=manifest)

    def keep(self) -> str:
        """After a failure: complete the capture if all of it is there, else give the folder a name that says so.

        Returns:
            One sentence that says where what was written is.
        """
        if self.is_possible:
            try:
                result = self.complete()
                where = result.folder or "the folder of node 0"
                return f"All windows were through before that: the capture is complete, in {where}."
            except (OSError, CaptureError, failure.RunError):
                # It stays incomplete, for example for want of space.
                if not self.folder.partial.exists():
                    raise
        if self.local is not None:
            # What ranks had finished and not yet moved; where there is no room for it, it is lost with the rest.
            with contextlib.suppress(OSError):
                for folder in sorted(self.local.iterdir()):
                    move_files(folder, self.folder.partial)
        return f"What was written is in {self.folder.keep_failed()}."

    def remove_local(self) -> None:
        """Remove the folder that the ranks of one of several machines write into first."""
        if self.local is not None:
            shutil.rmtree(self.local, ignore_errors=True)

    def _complete_part(self) -> CaptureResult:
        shutil.rmtree(self.folder.work)
        if not any(self.folder.partial.iterdir()):
            self.folder.partial.rmdir()
            return CaptureResult(folder=None, manifest=None)
        self.folder.publish()
        return CaptureResult(folder=self.folder.path, manifest=None)

    def _manifest(self) -> RunManifest:
        return build_manifest(
            [read_report(report_path(self.folder.work, rank)) for rank in range(self.plan.world_size)],
            created=self._created,
            environment=recorded_environment(self._environment),
            facts=facts_of(self.plan),
        )

    def _missing(self) -> list[int]:
        """The ranks without a report: of all ranks on node 0, which writes the manifest, else of this machine's."""
        plan = self.plan
        ranks = range(plan.world_size) if plan.nodes.node_rank == 0 else plan.local_ranks
        return [rank for rank in ranks if not report_path(self.folder.work, rank).is_file()]
