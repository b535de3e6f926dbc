"""What is said of links in a run's folder that lead out of it, and are not followed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zerotrace.ingest.files import OWN_ENDINGS, OWN_FILES, is_named_as_rank, name_of
from zerotrace.ingest.logs import LOG_ENDINGS
from zerotrace.links import LINK_HINT, leads_out
from zerotrace.model import Diagnostic, Level


def link_notes(inputs: Sequence[Path]) -> list[Diagnostic]:
    """A warning for each link in the folders among ``inputs`` that leads out, and whose file would have been read."""
    return [
        Diagnostic(
            code="link_refused",
            level=Level.WARNING,
            file=name_of(path),
            message=f"{name_of(path)}: a link that leads out of the folder; it was not followed",
            hint=LINK_HINT,
        )
        for folder in inputs
        if folder.is_dir()
        for path in sorted(folder.iterdir())
        if _is_called_like_an_input(path) and leads_out(path)
    ]


def _is_called_like_an_input(path: Path) -> bool:
    name = path.name
    if name.startswith(".") or name in OWN_FILES or name.endswith(OWN_ENDINGS):
        return False  # files that only a manifest leads to are said where it is read
    return ".json" in name or is_named_as_rank(path) or path.suffix in LOG_ENDINGS
