"""Runs and results in a store, as folders of this machine: what is small lies there, the rest comes when it is read.

A mirror is a private folder for temporary files. A run that lies elsewhere has a folder there with a file for each of
its files, of which most hold the beginning alone, enough to tell what they are. Whoever reads one whole, in whatever
process, copies it for as long as that takes: the disk never holds more of a run than is being read.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from zerotrace import remote
from zerotrace.address import Url
from zerotrace.errors import StoreError, TraceError
from zerotrace.remote import RemoteFile
from zerotrace.site import Site, SiteFile
from zerotrace.store import ANALYSIS_FILE, ANALYSIS_FOLDER, MANIFEST_FILE, REPORT_FILE, read_analysis

#: Of each file of a run so much is brought at once; a smaller one thus lies there whole.
HEAD_BYTES = 1 << 14

#: Lies in a remote result while it is written, and names who does.
UPLOAD_FILE = ".zerotrace-upload"

# Files that are sent or brought at once, and the longest name that file systems take.
_AT_ONCE = 8
_LONGEST = 255


@dataclass(eq=False)
class Mirror(Site):
    """Folders here for runs and results elsewhere."""

    root: Path
    """Private, and removed by whoever made it."""
    notes: list[str] = field(default_factory=list)
    """What could not be brought, one sentence each."""
    _sources: dict[Path, RemoteFile] = field(default_factory=dict)
    _marks: dict[Path, str] = field(default_factory=dict)
    _places: dict[Path, Url] = field(default_factory=dict)
    _result: Url | None = None
    _token: bytes = b""

    @property
    def has_result(self) -> bool:
        """Whether a result goes elsewhere."""
        return self._result is not None

    def file(self, path: Path) -> SiteFile:
        """One of the files of a run that was brought."""
        return SiteFile(path=path, source=self._sources.get(path))

    def mark(self, path: Path) -> str | None:
        """What the store said of a file when it was listed."""
        return self._marks.get(path)

    def shown(self, text: str) -> str:
        """A text with addresses in place of the folders that stand for them."""
        for protocol in {url.protocol for url in self._places.values()}:
            text = text.replace(f"{self.root / protocol}/", f"{protocol}://")
        return text

    def bring_run(self, inputs: Sequence[Url]) -> list[Path]:
        """A folder of traces, or some traces of one.

        Returns:
            What stands for each input. Of the manifest there is all, of other files the beginning.

        Raises:
            StoreError: something is not there or not to be had.
            TraceError: ``not_one_run`` for files out of several folders.
        """
        if len(inputs) == 1 and not inputs[0].is_web and remote.is_folder(inputs[0]):
            return [self._bring_folder(inputs[0], with_heads=True)]
        if len({(url.protocol, url.parts[:-1]) for url in inputs}) > 1:
            raise TraceError(
                f"{inputs[0]} and {len(inputs) - 1} more: traces out of several folders; expected one run",
                code="not_one_run",
                hint="give one folder, or files of one folder",
            )
        parent = inputs[0].parent
        if parent is not None and not parent.is_web:
            self._bring_folder(parent, with_heads=False)
        elif parent is not None:
            self._bring_guessed(parent / MANIFEST_FILE)
        return [self._bring_file(url) for url in inputs]

    def bring_result(self, url: Url) -> Path:
        """The place of a result, with ``analysis.json`` and the names of all else that lies there, if something does.

        Raises:
            StoreError: the store does not answer, or is none that files can be written to.
        """
        if url.is_web:
            remote.refuse_web(url)
        place = self._place(url)
        self._result = url
        tree = remote.list_tree(url)
        if ANALYSIS_FILE not in tree and UPLOAD_FILE in tree:
            return place  # what a run left that was ended while it wrote: it holds no result
        for name in tree:
            if name not in (UPLOAD_FILE, ANALYSIS_FILE) and _is_inside(name):
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (place / name).touch()
        if ANALYSIS_FILE in tree:
            self._bring_small(url / ANALYSIS_FILE)
        return place

    def bring_analysis(self, url: Url, *, tables: bool) -> Path:
        """A run, or its analysis folder, as far as it was analysed.

        Args:
            url: either of them.
            tables: whether all files of the analysis are brought, but for the page, or the figures and the manifest
                alone.

        Raises:
            StoreError: nothing is there, or the store does not answer.
        """
        place = self._place(url)
        for folder in (url, url / ANALYSIS_FOLDER):
            if self._bring_small(folder / ANALYSIS_FILE):
                if tables:
                    self._bring_outputs(folder)
                break
        has_manifest = self._bring_small(url / MANIFEST_FILE)
        if not has_manifest and (place / ANALYSIS_FILE).is_file() and url.parent is not None:
            self._bring_small(url.parent / MANIFEST_FILE)
        if not place.is_dir() and not url.is_web:
            if not remote.is_folder(url):
                raise StoreError(
                    f"{url}: a file; expected the folder of a run", code="no_analysis", hint="give its folder"
                )
            place.mkdir(parents=True)
        return place

    def claim(self) -> None:
        """Leaves a mark where the result goes: better to hear now that nothing can be written there."""
        if self._result is not None and not self._token:
            token = secrets.token_hex(16).encode()
            remote.send_text(token, self._result / UPLOAD_FILE)
            self._token = token

    def send_result(self, folder: Path) -> None:
        """Writes a result to its place in the store, ``analysis.json`` last, and removes what was there.

        Killed at any moment it leaves the old result, or files without an ``analysis.json``, which are none.

        Args:
            folder: the result, whole.

        Raises:
            StoreError: ``busy`` if another process has begun to write there since, ``store_changed`` if what lies there
                is not what was written, or the store does not take it.
        """
        assert self._result is not None
        self.claim()
        url = self._result
        files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
        before = remote.list_tree(url)
        self._check_token()
        remote.remove([url / ANALYSIS_FILE] if ANALYSIS_FILE in before else [])
        tables = [name for name in files if name != ANALYSIS_FILE]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for begin in range(0, len(tables), _AT_ONCE):
                self._check_token()
                list(pool.map(lambda name: remote.send(files[name], url / name), tables[begin : begin + _AT_ONCE]))
        remote.remove([url / name for name in before if name not in files and name != UPLOAD_FILE])
        self._check_token()
        found = remote.list_tree(url)
        wrong = [name for name in tables if found.get(name) != files[name].stat().st_size]
        if wrong:
            raise StoreError(
                f"{url}: {', '.join(wrong[:4])} is not there as it was written",
                code="store_changed",
                hint="somebody else writes there: analyze again, or give --out for another folder",
            )
        remote.send(files[ANALYSIS_FILE], url / ANALYSIS_FILE)
        self.release()

    def send_beside(self, path: Path) -> None:
        """Writes one file to where it belongs among those that were brought.

        Raises:
            StoreError: the store does not take it.
        """
        place = next(parent for parent in path.parents if parent in self._places)
        remote.send(path, _below(self._places[place], path.relative_to(place).as_posix()))

    def release(self) -> None:
        """Takes the mark of :meth:`claim` away, if it is still ours.

        Raises:
            StoreError: the store does not answer.
        """
        if self._result is not None and self._token:
            mark = self._result / UPLOAD_FILE
            if remote.read_text(mark) == self._token:
                remote.remove([mark])
            self._token = b""

    def _check_token(self) -> None:
        assert self._result is not None
        if remote.read_text(self._result / UPLOAD_FILE) != self._token:
            self._token = b""
            raise StoreError(
                f"{self._result}: another run has begun to write it",
                code="busy",
                hint="wait until it has ended, or give --out for another folder",
            )

    def _bring_folder(self, url: Url, *, with_heads: bool) -> Path:
        place = self._place(url)
        files = {name: file for name, file in remote.list_files(url).items() if self._has_name(name, url)}
        listed = list(files.values())
        heads = remote.read_heads(listed, HEAD_BYTES) if with_heads else [b""] * len(listed)
        place.mkdir(parents=True, exist_ok=True)
        for (name, file), head in zip(files.items(), heads):
            path = place / name
            if file.mark is not None:
                self._marks[path] = file.mark
            if name == MANIFEST_FILE:
                remote.fetch(file, path)
            else:
                path.write_bytes(head)
                if file.num_bytes != len(head):
                    self._sources[path] = file
        return place

    def _bring_file(self, url: Url) -> Path:
        path = self._place(url)
        if not path.is_file():
            file = remote.look_up(url)
            if file is None:
                raise StoreError(f"{url}: there is no such file", code="not_found", hint="check the name")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            self._sources[path] = file
            if file.mark is not None:
                self._marks[path] = file.mark
        return path

    def _bring_guessed(self, url: Url) -> None:
        """Brings a file that nobody has spoken of: a server that gives the traces alone may refuse it."""
        try:
            self._bring_small(url)
        except StoreError as error:
            if error.code != "store_refused":
                raise
            self.notes.append(f"{url} was refused: the traces are taken to have no manifest.")

    def _bring_small(self, url: Url) -> bool:
        """Brings a file of ours, if it is there."""
        path = self._place(url)
        text = remote.read_text(url)
        if text is None:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
        return True

    def _bring_outputs(self, folder: Url) -> None:
        """Brings the tables that an analysis names; one that is not there is missed by whoever reads it."""
        place = self._place(folder)
        try:
            names = read_analysis(place).outputs
        except StoreError:
            return  # whoever asked for it reads it, too, and says so

        def bring(name: str) -> None:
            target = place / name
            target.parent.mkdir(parents=True, exist_ok=True)
            file = RemoteFile(url=_below(folder, name), num_bytes=None, mark=None)
            try:
                remote.fetch(file, target)
            except StoreError as error:
                if error.code != "not_found":
                    raise

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(bring, [name for name in names if name != REPORT_FILE and _is_inside(name)]))

    def _place(self, url: Url) -> Path:
        parts = (*url.parts[:-1], url.name) if url.parts else ()
        if not parts or not all(_is_name(part) for part in parts):
            raise StoreError(
                f"{url}: no folder or file can be called that", code="address_refused", hint="check how it is written"
            )
        place = self.root.joinpath(url.protocol, *parts)
        self._places[place] = url
        return place

    def _has_name(self, name: str, url: Url) -> bool:
        if _is_name(name):
            return True
        self.notes.append(f"{url} holds {name!r}, which no file here can be called: it was left out.")
        return False


def _is_name(name: str) -> bool:
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name and len(os.fsencode(name)) <= _LONGEST


def _is_inside(name: str) -> bool:
    """Whether a path out of a listing or a result stays inside of its folder."""
    return all(map(_is_name, name.split("/")))


def _below(folder: Url, name: str) -> Url:
    for part in PurePosixPath(name).parts:
        folder = folder / part
    return folder
