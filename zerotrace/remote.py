"""Object stores and web servers through fsspec: addresses, listings, whole files, and errors in our words.

Nothing that a store says is shown as it stands: its messages hold signed addresses.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from msgspec import Struct

from zerotrace.address import Url
from zerotrace.errors import StoreError, ZerotraceError

#: Is told of bytes as they arrive.
OnBytes = Callable[[int], None]

_S3 = ("s3", "s3a")

# How stores say it: by the name of the error's class, or by the code in S3's answer. No store's package is imported.
_REFUSED = re.compile(r"Credential|Forbidden|Unauthori[sz]ed|AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch")
_UNREACHABLE = re.compile(r"Connect|Timeout|Endpoint|DNS|Gaierror", re.IGNORECASE)
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_REFUSALS, _ABSENT = frozenset({401, 403, 407}), frozenset({404, 410})


class RemoteFile(Struct, frozen=True, kw_only=True):
    """A file in a store, as a listing has it."""

    url: Url
    num_bytes: int | None
    """``None`` where the server does not say."""
    mark: str | None
    """What changes when the file does: the store's ETag with the size, or time of change and size."""


def is_folder(url: Url) -> bool:
    """Whether a folder lies there, or else a file.

    Raises:
        StoreError: neither does, or the store does not answer.
    """
    with _in_words(url):
        fs, path = _open(url)
        return bool(fs.info(path)["type"] == "directory")


def look_up(url: Url) -> RemoteFile | None:
    """A single file; ``None`` if there is none.

    Raises:
        StoreError: the store does not answer.
    """
    with _in_words(url):
        fs, path = _open(url)
        try:
            info = fs.info(path)
        except FileNotFoundError as error:
            # fsspec says so of whatever a web server answers, and of one that is not there
            hidden = error.__cause__ if url.is_web else None
            if isinstance(hidden, Exception) and getattr(hidden, "status", None) not in _ABSENT:
                raise hidden from None
            return None
        return _described(url, info) if info["type"] == "file" else None


def list_files(url: Url) -> dict[str, RemoteFile]:
    """The files of a folder by name, without those of folders inside of it.

    Raises:
        StoreError: there is no such folder, or the store does not answer.
    """
    with _in_words(url):
        fs, path = _open(url)
        entries = fs.ls(path, detail=True)
    below = [(str(entry["name"]).rstrip("/").rpartition("/")[2], entry) for entry in entries if entry["type"] == "file"]
    return {name: _described(url / name, entry) for name, entry in below if name and "/" not in name}


def list_tree(url: Url) -> dict[str, int]:
    """Every file below a folder, by its path from there, with its size; empty if there is no folder.

    Raises:
        StoreError: the store does not answer.
    """
    with _in_words(url):
        fs, path = _open(url)
        found = fs.find(path, detail=True)
    root = path.rstrip("/") + "/"
    return {
        str(name).removeprefix(root): int(entry.get("size") or 0)
        for name, entry in found.items()
        if str(name).startswith(root)
    }


def read_heads(files: Sequence[RemoteFile], num_bytes: int) -> list[bytes]:
    """The first bytes of each file of one store.

    Raises:
        StoreError: one of them cannot be read.
    """
    if not files:
        return []
    with _in_words(files[0].url):
        fs = _open(files[0].url)[0]
        # an empty file has no first byte, which some servers take for an error
        wanted = [file for file in files if file.num_bytes != 0]
        paths = [_open(file.url)[1] for file in wanted]
        ends = [num_bytes if file.num_bytes is None else min(num_bytes, file.num_bytes) for file in wanted]
        got = dict(zip((file.url for file in wanted), fs.cat_ranges(paths, [0] * len(paths), ends, on_error="raise")))
    return [bytes(got.get(file.url, b""))[:num_bytes] for file in files]


def fetch(file: RemoteFile, target: Path, told: OnBytes | None = None) -> None:
    """Copies a file to this machine.

    Args:
        file: as it was listed.
        target: where to; its folder exists.
        told: is told of the bytes of each piece.

    Raises:
        StoreError: ``not_found``, ``store_changed`` if its size is another than was listed, ``no_room``, or the store
            does not answer.
    """
    with _in_words(file.url):
        fs, path = _open(file.url)
        fs.get_file(path, str(target), callback=_callback(told))
    found = target.stat().st_size
    if file.num_bytes is not None and found != file.num_bytes:
        raise StoreError(
            f"{file.url}: {found:,} bytes arrived, {file.num_bytes:,} were listed: it changed meanwhile",
            code="store_changed",
            hint="wait until nobody writes it any more, and analyze again",
        )


def send(path: Path, url: Url) -> None:
    """Copies a file of this machine into a store.

    Raises:
        StoreError: ``not_writable`` for a web server, or the store does not take it.
    """
    if url.is_web:
        refuse_web(url)
    with _in_words(url):
        fs, place = _open(url)
        if not _is_object_store(url):
            fs.makedirs(fs._parent(place), exist_ok=True)
        fs.put_file(str(path), place)


def send_text(text: bytes, url: Url) -> None:
    """Writes a small file into a store.

    Raises:
        StoreError: the store does not take it.
    """
    with _in_words(url):
        fs, place = _open(url)
        if not _is_object_store(url):
            fs.makedirs(fs._parent(place), exist_ok=True)
        fs.pipe_file(place, text)


def read_text(url: Url) -> bytes | None:
    """A small file; ``None`` if there is none.

    Raises:
        StoreError: the store does not answer.
    """
    with _in_words(url):
        fs, place = _open(url)
        try:
            return bytes(fs.cat_file(place))
        except FileNotFoundError:
            return None


def remove(urls: Sequence[Url]) -> None:
    """Removes files, where they are there.

    Raises:
        StoreError: the store does not let us.
    """
    for url in urls:
        with _in_words(url):
            fs, place = _open(url)
            try:
                fs.rm_file(place)
            except FileNotFoundError:
                continue


def refuse_web(url: Url) -> NoReturn:
    """Says that nothing is written to a web server.

    Raises:
        StoreError: always.
    """
    raise StoreError(
        f"{url}: a web server takes no files", code="not_writable", hint="give --out for a folder, here or in a store"
    )


def _open(url: Url) -> tuple[Any, str]:
    # Only here, and so only for addresses: fsspec and a store's package take half a second.
    from fsspec.core import url_to_fs

    fs, path = url_to_fs(url.address if url.is_web else url.address.rstrip("/"))
    fs.invalidate_cache()  # others write there, too
    return fs, str(path)


def _is_object_store(url: Url) -> bool:
    # A bucket's folders are parts of names; asking for one there could ask for a bucket.
    return url.protocol in (*_S3, "gs", "gcs", "az", "abfs", "oss", "oci")


def _described(url: Url, info: Mapping[str, Any]) -> RemoteFile:
    size = info.get("size")
    etag = next((info[key] for key in ("ETag", "etag", "md5Hash", "generation") if info.get(key)), None)
    changed = next((info[key] for key in ("LastModified", "mtime", "updated", "last_modified") if info.get(key)), None)
    told = f"etag {etag}" if etag else f"changed {changed}" if changed else None
    mark = f"{told}, {size} bytes".replace('"', "") if told and size is not None else None
    return RemoteFile(url=url, num_bytes=None if size is None else int(size), mark=mark)


def _callback(told: OnBytes | None) -> Any:
    from fsspec.callbacks import Callback

    class Told(Callback):  # type: ignore[misc]
        def relative_update(self, inc: int = 1) -> None:
            if told is not None:
                told(int(inc))

    return Told()


@contextmanager
def _in_words(url: Url) -> Iterator[None]:
    """Makes errors of ours of what fsspec and the packages of stores raise, each of which has classes of its own.

    Raises:
        StoreError: instead, and without them as its cause: their messages hold addresses with signatures.
    """
    try:
        yield
    except ZerotraceError:
        raise
    except Exception as error:  # noqa: BLE001 - and no common base
        raise _translated(url, error) from None


def _translated(url: Url, error: Exception) -> StoreError:
    s3 = url.protocol in _S3
    said, status = _said(error)
    if isinstance(error, ImportError):
        needs = "s3fs" if s3 else "a package"
        return StoreError(
            f"{url}: to reach it, fsspec needs {needs} that is not installed",
            code="store_missing",
            hint="pip install 'zerotrace[s3]'" if s3 else f"install fsspec's package for {url.protocol}://",
        )
    if isinstance(error, ValueError) and "rotocol not known" in str(error):
        return StoreError(
            f"{url}: fsspec knows no {url.protocol}://; expected a path, or an address such as s3://bucket/run",
            code="store_unknown",
            hint="check how it is written",
        )
    if isinstance(error, PermissionError) or status in _REFUSALS or _REFUSED.search(said):
        return StoreError(
            f"{url}: the store refuses access ({said}); expected credentials that may do this",
            code="store_refused",
            hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE" if s3 else _CREDENTIALS,
        )
    if isinstance(error, FileNotFoundError) or status in _ABSENT:
        what = "bucket, folder or file" if not url.is_web else "file"
        return StoreError(f"{url}: there is no such {what}", code="not_found", hint="check the name" + _WHERE[s3])
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return StoreError(
            f"{url}: no room for it in the folder for temporary files ({said})",
            code="no_room",
            hint="make room, name a larger folder in TMPDIR, or read fewer at once: --jobs 1",
        )
    if isinstance(error, (ConnectionError, TimeoutError)) or _UNREACHABLE.search(said):
        return StoreError(
            f"{url}: the store cannot be reached ({said})",
            code="store_unreachable",
            hint="check the network" + _WHERE[s3],
        )
    return StoreError(
        f"{url}: the store failed ({said})", code="store_failed", hint="try again; check the store" + _WHERE[s3]
    )


_WHERE = {True: ", and the endpoint in AWS_ENDPOINT_URL, if it is not Amazon's", False: ""}
_CREDENTIALS = "give credentials as fsspec's package for this store takes them"


def _said(error: Exception) -> tuple[str, int | None]:
    """The kind of an error without its message, and the status of a web server's answer."""
    cause = error.__cause__ if getattr(error.__cause__, "response", None) is not None else error
    answer = getattr(cause, "response", None)
    code = answer.get("Error", {}).get("Code") if isinstance(answer, dict) else None
    status = getattr(error, "status", None)
    kind = type(cause).__name__
    if isinstance(code, str) and re.fullmatch(r"[A-Za-z0-9.]{1,60}", code):
        return (kind if kind == code else f"{kind} {code}"), status
    return (f"{kind} {status}" if isinstance(status, int) else kind), status
