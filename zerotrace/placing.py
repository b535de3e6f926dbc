"""Folders and files that appear whole or not at all, and are written by one process at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from zerotrace.errors import StoreError

_MAKE_ROOM = "make room or allow writing there, or give --out for another folder"

# What a file system answers that has no locks: some network ones, mounted without them.
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF})


@contextmanager
def new_folder(
    target: Path,
    *,
    replace: bool,
    is_ours: str,
    reason: str | None = None,
    without_locks: Callable[[], None] | None = None,
) -> Iterator[Path]:
    """A folder to fill, which takes its final name only when the block ends well.

    A killed run leaves the old folder whole and hidden ones beside it, never half a result; the next run removes
    those. While one process fills the folder, another that would gets an error at once. The lock is the system's, of an
    open file: it ends with the process, however that ends. Where the file system has none, both go on, in hidden
    folders of their own: the last to end stays, whole, and what killed runs left is not removed.

    Args:
        target: final path; its parent is created.
        replace: whether a folder of that name may be replaced.
        is_ours: a file that shows that an old folder was written by zerotrace; no other folder is ever replaced.
        reason: why an old folder does not do, for the message.
        without_locks: called where the file system has no locks.

    Raises:
        StoreError: ``exists`` if it may not be replaced, ``busy`` while another process fills it, ``not_writable`` if
            the system refuses.
    """
    if target.name in ("", ".."):
        target = target.resolve()  # "." has no name of its own
    _refuse_existing(target, replace=replace, is_ours=is_ours, reason=reason)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _no_place(target.parent, error) from error
    with _sole_writer(target) as is_sole:
        try:
            if is_sole:
                _sweep_folders(target, is_ours)
            elif without_locks is not None:
                without_locks()
            staging = Path(tempfile.mkdtemp(prefix=_staging_prefix(target), dir=target.parent))
        except OSError as error:
            raise _no_place(target.parent, error) from error
        try:
            # once more: another process may have ended meanwhile
            _refuse_existing(target, replace=replace, is_ours=is_ours, reason=reason)
            staging.chmod(0o777 & ~_umask())
            yield staging
            _put_in_place(staging, target)
        except OSError as error:
            raise StoreError(f"{target}: cannot be written: {error}", code="not_writable", hint=_MAKE_ROOM) from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)


#: What runs and results are made of: no page and no export takes their place.
_INPUTS = (".json", ".gz", ".parquet", ".pickle")


@contextmanager
def new_file(target: Path, *, replace: bool) -> Iterator[IO[bytes]]:
    """A file to fill, which takes its final name only when the block ends well.

    Args:
        target: final path, in a folder that exists.
        replace: whether a file of that name may be replaced.

    Raises:
        StoreError: ``exists`` if it may not be replaced, ``not_writable`` if the system refuses.
    """
    if target.is_file() and target.name.endswith(_INPUTS):
        raise StoreError(
            f"{target} is by its name a trace, a manifest or a table: it is not replaced",
            code="exists",
            hint="give another name",
        )
    if target.exists() and not (replace and target.is_file()):
        raise StoreError(
            f"{target} exists already" if target.is_file() else f"{target} exists already, and is no file",
            code="exists",
            hint="give --force to replace it, or another name" if target.is_file() else "give another name",
        )
    try:
        _sweep_files(target)
        handle, name = tempfile.mkstemp(prefix=_staging_prefix(target), dir=target.parent)
    except OSError as error:
        raise StoreError(
            f"{target}: cannot be written: {error.strerror}", code="not_writable", hint="give another place"
        ) from error
    staging = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            _lock(stream.fileno())
            yield stream
        staging.chmod(0o666 & ~_umask())
        staging.replace(target)
    except OSError as error:
        raise StoreError(f"{target}: cannot be written: {error}", code="not_writable", hint=_MAKE_ROOM) from error
    finally:
        staging.unlink(missing_ok=True)


@contextmanager
def _sole_writer(target: Path) -> Iterator[bool]:
    """Holds the lock beside ``target``, and says whether there is one: not every file system has locks.

    Raises:
        StoreError: ``busy`` if another process holds it, ``not_writable`` if the system refuses.
    """
    path = target.with_name(f".{target.name}.lock")
    handle, is_locked = _lock_file(path, target)
    try:
        if is_locked:
            with suppress(OSError):  # a full disk is met where something has to be written
                os.ftruncate(handle, 0)
                os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield is_locked
    finally:
        # While it is locked: whoever opened it meanwhile sees that it is gone, and makes another.
        with suppress(OSError):
            path.unlink()
        os.close(handle)


def _lock_file(path: Path, target: Path) -> tuple[int, bool]:
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise _no_place(target.parent, error) from error
        try:
            if not _lock(handle):
                return handle, False
            if _is_still(path, handle):
                return handle, True
        except BlockingIOError as error:
            holder = os.pread(handle, 20, 0).decode("ascii", "replace")
            os.close(handle)
            who = f"process {holder}" if holder.isdigit() else "another process"
            raise StoreError(
                f"{target}: {who} is writing it at this moment",
                code="busy",
                hint="wait until it has ended, or give --out for another folder",
            ) from error
        except OSError as error:
            os.close(handle)
            raise _no_place(target.parent, error) from error
        os.close(handle)


def _lock(handle: int) -> bool:
    """Locks an open file, until it is closed; false where the file system has no locks.

    Raises:
        BlockingIOError: another process holds it.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno == errno.EACCES:  # how some systems say it
            raise BlockingIOError(*error.args) from error
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return True


def _is_still(path: Path, handle: int) -> bool:
    """Whether a file that was opened lies there still: the process that held it before may have removed it."""
    try:
        return os.path.samestat(path.stat(follow_symlinks=False), os.fstat(handle))
    except FileNotFoundError:
        return False


def _refuse_existing(target: Path, *, replace: bool, is_ours: str, reason: str | None) -> None:
    ours = (target / is_ours).is_file()
    if not target.exists() or (replace and ours):
        return
    if ours:
        raise StoreError(
            f"{target} exists already, and {reason or 'holds another result'}",
            code="exists",
            hint="give --force to replace it, or --out for another folder",
        )
    if target.is_dir() and not any(target.iterdir()):
        return
    raise StoreError(
        f"{target} exists already, and is no result of zerotrace", code="exists", hint="give --out for another folder"
    )


def _sweep_folders(target: Path, is_ours: str) -> None:
    """Removes what killed runs have left beside ``target``, whose lock is held; an old result is put back."""
    for left in _beside(target, _old_prefix(target)):
        if not target.exists() and (left / _WAS / is_ours).is_file():
            (left / _WAS).rename(target)
        shutil.rmtree(left, ignore_errors=True)
    for left in _beside(target, _staging_prefix(target)):
        shutil.rmtree(left, ignore_errors=True)


def _sweep_files(target: Path) -> None:
    """Removes what killed runs have left beside ``target``: hidden files that nobody holds any more."""
    for left in _beside(target, _staging_prefix(target)):
        try:
            handle = os.open(left, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue  # a folder, or not ours to write
        try:
            if _lock(handle):
                left.unlink(missing_ok=True)
        except BlockingIOError:
            continue  # a run at work
        finally:
            os.close(handle)


def _beside(target: Path, prefix: str) -> list[Path]:
    return [path for path in target.parent.iterdir() if path.name.startswith(prefix)]


def _staging_prefix(target: Path) -> str:
    return f".{target.name}.partial-"


def _old_prefix(target: Path) -> str:
    return f".{target.name}.old-"


_WAS = "was"


def _put_in_place(staging: Path, target: Path) -> None:
    if not target.exists() or not any(target.iterdir()):
        staging.rename(target)  # the system replaces an empty folder
        return
    old = Path(tempfile.mkdtemp(prefix=_old_prefix(target), dir=target.parent))
    target.rename(old / _WAS)
    staging.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _no_place(folder: Path, error: OSError) -> StoreError:
    return StoreError(
        f"{folder}: cannot be written: {error.strerror}", code="not_writable", hint="give --out for another folder"
    )


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
