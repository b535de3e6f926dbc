"""Symbolic links in folders that came from somewhere: where they lead is the choice of whoever made the folder."""

from __future__ import annotations

import os
from pathlib import Path

#: What to do about a link that leads out of a folder.
LINK_HINT = "put the file itself into the folder in place of the link; a trace may also be given by its own path"


def is_there(path: Path) -> bool:
    """Whether a name that came from somewhere is that of a file; none is for names that no file can have."""
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises where a name is too long


def leads_out(path: Path) -> bool:
    """Whether an entry of a folder is a link to something outside of that folder."""
    if not os.path.islink(path):  # noqa: PTH114 - as above
        return False
    # unlike Path.resolve, never raises: not for a loop of links either
    target, folder = Path(os.path.realpath(path)), Path(os.path.realpath(path.parent))
    return not target.is_relative_to(folder)
