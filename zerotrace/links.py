"""Symbolic links in folders that came from somewhere: where they lead is the choice of whoever made the folder."""

from __future__ import annotations

import os
from pathlib import Path

#: What to do about a link that leads out of a folder.
LINK_HINT = "put the file itself into the folder in place of the link; a trace may also be given by its own path"


def leads_out(path: Path) -> bool:
    """Whether an entry of a folder is a link to something outside of that folder."""
    if not path.is_symlink():
        return False
    # unlike Path.resolve, never raises: not for a loop of links either
    target, folder = Path(os.path.realpath(path)), Path(os.path.realpath(path.parent))
    return not target.is_relative_to(folder)
