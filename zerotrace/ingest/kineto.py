"""Kineto JSON to typed events: only the fields that an analysis needs are decoded, the rest is skipped."""

from __future__ import annotations

import json
import re
import string
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias, Union

import msgspec

from zerotrace.errors import TraceError
from zerotrace.ingest.files import name_of
from zerotrace.ingest.repair import Repair, repair_json
from zerotrace.model import Diagnostic, Level

#: What Kineto writes, and what stands here, for an id that is not known.
UNKNOWN_ID = -1

_TRACE_EVENTS_KEY = b'"traceEvents"'

# Keys that a trace has once; inside of a text their quotation marks are escaped.
_ONCE = tuple(re.compile(rb'(?<!\\)"' + key + rb'"\s*:') for key in (b"schemaVersion", b"traceEvents"))

_NOT_BLANK = re.compile(rb"\S")

_NOT_A_TRACE = (
    "expected is JSON as torch.profiler writes it, with traceEvents; give the traces by name, or move this away"
)


class Args(msgspec.Struct, gc=False, frozen=True):
    """The ``args`` of an event, as the JSON has them. Types are checked where columns are built.

    Ids that nearly every event has are :data:`UNKNOWN_ID` where they are missing, the others ``None``. Fields stand in
    the order in which Kineto writes them: the decoder looks for a key from the field after its last one on.
    """

    external_id: Any = msgspec.field(default=UNKNOWN_ID, name="External id")
    correlation: Any = UNKNOWN_ID
    device: Any = None
    stream: Any = None
    grid: Any = None
    block: Any = None
    collective: Any = msgspec.field(default=None, name="Collective name")
    in_elements: Any = msgspec.field(default=None, name="In msg nelems")
    out_elements: Any = msgspec.field(default=None, name="Out msg nelems")
    group_size: Any = msgspec.field(default=None, name="Group size")
    dtype: Any = None
    group_name: Any = msgspec.field(default=None, name="Process Group Name")
    group_ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    seq: Any = msgspec.field(default=None, name="Seq")
    transfer_bytes: Any = msgspec.field(default=None, name="bytes")
    wait_on_stream: Any = None
    wait_on_correlation: Any = msgspec.field(default=None, name="wait_on_cuda_event_record_corr_id")
    src_rank: Any = msgspec.field(default=None, name="Src Rank")
    dst_rank: Any = msgspec.field(default=None, name="Dst Rank")
    legacy_external_id: Any = msgspec.field(default=UNKNOWN_ID, name="external id")


NO_ARGS = Args()


class Event(msgspec.Struct, gc=False, frozen=True, tag_field="ph", tag="X"):
    """A complete event: the only phase that has a duration."""

    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: Args | None = None


class MarkArgs(msgspec.Struct, gc=False, frozen=True):
    """The ``args`` of a ``[memory]`` mark, as the JSON has them."""

    total_allocated: Any = msgspec.field(default=None, name="Total Allocated")
    total_reserved: Any = msgspec.field(default=None, name="Total Reserved")
    changed_bytes: Any = msgspec.field(default=None, name="Bytes")
    device_type: Any = msgspec.field(default=None, name="Device Type")
    device_id: Any = msgspec.field(default=None, name="Device Id")


class Mark(msgspec.Struct, gc=False, frozen=True, tag_field="ph", tag="i"):
    """An instant: what the allocator did, in traces with ``profile_memory=True``."""

    name: Any = None
    ts: Any = None
    args: MarkArgs | None = None


# Flows, counters and metadata are a third of a trace. Told apart by their phase while decoding, they cost next to
# nothing: no analysis reads them.
_OTHER_PHASES = tuple(
    msgspec.defstruct(f"_Phase_{phase}", [], gc=False, tag_field="ph", tag=phase)
    for phase in string.ascii_letters
    if phase not in "Xi"
)


_AnyPhase: TypeAlias = Union[(Event, Mark) + _OTHER_PHASES]  # type: ignore[valid-type]  # noqa: RUF005, UP007


class _ByCategory(msgspec.Struct, gc=False, frozen=True):
    """A complete event, told apart by its category instead of its phase."""

    ph: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: Args | None = None


# Traces with stacks hold twenty Python frames an operator. Told apart by their category, they cost a quarter. This way
# reads no event without a category and none of another one than these: any such, and a piece is read the other way.
_KEPT_CATS = (
    "cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "kernel", "gpu_memcpy", "gpu_memset", "cuda_sync",
    "gpu_user_annotation", "overhead",
)  # fmt: skip
_STACK_CAT = "python_function"
_FLOW_CATS = ("ac2g", "fwdbwd")
_KEPT = tuple(
    msgspec.defstruct(f"_Cat_{cat}", [], bases=(_ByCategory,), namespace={"cat": cat}, tag_field="cat", tag=cat)
    for cat in _KEPT_CATS
)
_STACK, *_FLOWS = (
    msgspec.defstruct(f"_Cat_{cat}", [("ph", Any, None)], gc=False, tag_field="cat", tag=cat)
    for cat in (_STACK_CAT, *_FLOW_CATS)
)
# What each category is in a trace that Kineto wrote; anything else, and the piece is read the other way.
_USUAL = frozenset(
    [*((kind, "X") for kind in (*_KEPT, _STACK)), *((kind, phase) for kind in _FLOWS for phase in "sft")]
)
_CATEGORIES = (*_KEPT, _STACK, *_FLOWS)
_AnyCategory: TypeAlias = Union[_CATEGORIES]  # type: ignore[valid-type]  # noqa: UP007
_BY_PHASE: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[_AnyPhase])
_BY_CATEGORY: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[_AnyCategory])
_STACK_BYTES = f'"{_STACK_CAT}"'.encode()
# The other way pays where there is a frame in this many bytes; so many are looked at.
_STACK_SHARE = 2000
_SAMPLE_BYTES = 1 << 16

#: Types of complete events: the only phase that has a duration.
COMPLETE = frozenset({Event, *_KEPT})


class Document(msgspec.Struct, gc=False):
    """A whole trace. Metadata may stand before or after the events."""

    traceEvents: list[_AnyPhase] | None = None  # noqa: N815 - the key of the format
    base_time_ns: Any = msgspec.field(default=None, name="baseTimeNanoseconds")
    distributed: Any = msgspec.field(default=None, name="distributedInfo")
    device_properties: Any = msgspec.field(default=None, name="deviceProperties")
    host_name: Any = None


class _LooseDocument(Document):
    """The same, for traces in which some entry of ``traceEvents`` is no event."""

    traceEvents: list[Any] | None = None  # noqa: N815


_LOOSE_KINDS: dict[str, type[Event | Mark]] = {"X": Event, "i": Mark}


class _EventTimes(msgspec.Struct, gc=False):
    ts: msgspec.Raw = msgspec.Raw(b"null")
    dur: msgspec.Raw = msgspec.Raw(b"null")


class _TimesDocument(msgspec.Struct, gc=False):
    traceEvents: list[msgspec.Raw]  # noqa: N815


def decode_events(text: bytes) -> list[Any]:
    """Decodes a list of events.

    Args:
        text: JSON, a list.

    Returns:
        One entry an event: of a type in :data:`COMPLETE` for complete ones, a :class:`Mark` for instants, and whatever
        for others.

    Raises:
        msgspec.DecodeError: it is no JSON list.
    """
    if _STACK_SHARE * text.count(_STACK_BYTES, 0, _SAMPLE_BYTES) > min(len(text), _SAMPLE_BYTES):
        try:
            events = _BY_CATEGORY.decode(text)
        except msgspec.ValidationError:
            pass
        else:
            if {(type(event), event.ph) for event in events} <= _USUAL:
                return events
    try:
        return _BY_PHASE.decode(text)
    except msgspec.ValidationError:
        return [_event_or_blank(entry) for entry in msgspec.json.decode(text, type=list[Any])]


def decode_document(data: bytes, path: Path) -> tuple[Document, bytes, list[Diagnostic]]:
    """Decodes a trace, repairing what can be repaired without touching a time.

    Args:
        data: JSON text as bytes.
        path: where it came from, for messages.

    Returns:
        The document, the text that was decoded in the end, and what was repaired.

    Raises:
        TraceError: ``not_a_trace`` for JSON of another kind (or no JSON at all), ``unsupported_legacy_trace``,
            ``trace_truncated``, ``json_invalid``.
    """
    text = data.removeprefix(b"\xef\xbb\xbf")
    notes: list[Diagnostic] = []
    try:
        document = _decode(text, path)
    except msgspec.DecodeError as error:
        _refuse_hopeless(text, path, error)
    else:
        _refuse_two_lists(text, path)
        return document, text, notes
    text, repairs = repair_json(text)
    notes += [repaired(repair, path) for repair in repairs]
    try:
        document = _decode(text, path)
    except msgspec.DecodeError as error:
        raise _invalid(text, path, error) from error
    _refuse_two_lists(text, path)
    return document, text, notes


def repaired(repair: Repair, path: Path) -> Diagnostic:
    """What to say of a repair."""
    return Diagnostic(
        code=repair.code,
        level=Level.WARNING,
        file=name_of(path),
        count=repair.count,
        offset=repair.offset,
        message=f"{name_of(path)}: {repair.count} {repair.what} replaced; times are untouched",
    )


def decode_times(text: bytes) -> list[tuple[str, str]]:
    """``(ts, dur)`` of each event as decimal text, of a whole trace or of a list of events."""
    if _first_byte(text) == b"[":
        entries = msgspec.json.decode(text, type=list[msgspec.Raw])
    else:
        entries = msgspec.json.decode(text, type=_TimesDocument).traceEvents
    return [_times_of(entry) for entry in entries]


def _times_of(entry: msgspec.Raw) -> tuple[str, str]:
    try:
        times = msgspec.json.decode(entry, type=_EventTimes)
    except msgspec.ValidationError:
        return "", ""
    return bytes(times.ts).decode().strip('"'), bytes(times.dur).decode().strip('"')


def _decode(text: bytes, path: Path) -> Document:
    if _first_byte(text) == b"[" and _is_list_of_events(text):
        raise TraceError(
            f"{name_of(path)}: a list of events without metadata: a legacy trace, not written by Kineto",
            code="unsupported_legacy_trace",
            hint="it has no streams, categories or ranks; capture with torch.profiler of torch >= 1.8.1 (Kineto)",
        )
    try:
        document = msgspec.json.decode(text, type=Document)
    except RecursionError as error:
        raise TraceError(
            f"{name_of(path)}: JSON nested too deeply to be a trace", code="json_invalid", hint=_NOT_A_TRACE
        ) from error
    except msgspec.ValidationError:
        document = _decode_loosely(text, path)
    if document.traceEvents is None:
        raise TraceError(
            f"{name_of(path)}: JSON without traceEvents, so no trace", code="not_a_trace", hint=_NOT_A_TRACE
        )
    return document


def _is_list_of_events(text: bytes) -> bool:
    """Whether this is what torch wrote before Kineto, and not just any list or a log line in brackets."""
    try:
        entries = msgspec.json.decode(text, type=list[dict[str, Any]])
    except (msgspec.DecodeError, RecursionError):
        return False
    return bool(entries) and "ph" in entries[0]


def _decode_loosely(text: bytes, path: Path) -> Document:
    """Decodes a trace some of whose entries are malformed; those become ``None``, as other phases do."""
    try:
        loose = msgspec.json.decode(text, type=_LooseDocument)
    except (msgspec.ValidationError, RecursionError) as error:
        if _TRACE_EVENTS_KEY not in text:
            raise TraceError(
                f"{name_of(path)}: JSON of another kind, no trace", code="not_a_trace", hint=_NOT_A_TRACE
            ) from error
        raise TraceError(
            f"{name_of(path)}: traceEvents is not a list of events: {error}",
            code="json_invalid",
            hint="this is not the JSON that torch.profiler writes",
        ) from error
    events = [_event_or_blank(entry) for entry in loose.traceEvents or ()]
    return Document(events, loose.base_time_ns, loose.distributed, loose.device_properties, loose.host_name)


def _event_or_blank(entry: Any) -> Event | Mark | None:
    phase = entry.get("ph") if isinstance(entry, dict) else None
    kind = _LOOSE_KINDS.get(phase) if isinstance(phase, str) else None
    if kind is None:
        return None
    try:
        return msgspec.convert(entry, kind)
    except msgspec.ValidationError:
        return msgspec.convert({**entry, "args": None}, kind)


def _refuse_hopeless(text: bytes, path: Path, error: msgspec.DecodeError) -> None:
    """Raises for text that no repair can turn into a trace."""
    if not text.strip(b"\0 \r\n\t"):
        raise TraceError(f"{name_of(path)}: empty", code="not_a_trace", hint=_NOT_A_TRACE) from error
    if _first_byte(text) != b"{" or _TRACE_EVENTS_KEY not in text:
        raise TraceError(f"{name_of(path)}: no JSON trace: {error}", code="not_a_trace", hint=_NOT_A_TRACE) from error
    if "truncated" in str(error):
        raise _truncated(text, path) from error


def _first_byte(text: bytes) -> bytes:
    """The first byte that is not blank, without copying the text."""
    found = _NOT_BLANK.search(text)
    return found[0] if found else b""


def _invalid(text: bytes, path: Path, error: msgspec.DecodeError) -> TraceError:
    if "truncated" in str(error):
        return _truncated(text, path)
    place = re.search(r"\(byte (\d+)\)", str(error))
    offset = int(place[1]) if place else 0
    if _several_documents(text):
        return _several_writers(text, path, f"invalid JSON at byte offset {offset}")
    return TraceError(
        f"{name_of(path)}: invalid JSON at byte offset {offset}: {re.sub(r' .byte .*', '', str(error))}",
        code="json_invalid",
        hint="nothing of this file was used; look at the text around that offset, or capture this rank again",
    )


def _several_documents(text: bytes) -> bool:
    """Whether a key that a trace has once stands there again: two writers, or files put one behind the other."""
    return any(len(list(islice(key.finditer(text), 2))) > 1 for key in _ONCE)


def _refuse_two_lists(text: bytes, path: Path) -> None:
    """Raises where a sound document has two lists of events, of which a decoder takes the last without a word."""
    if not _several_documents(text):
        return

    def count_lists(pairs: list[tuple[str, Any]]) -> int:
        return sum(key == "traceEvents" for key, _ in pairs)

    # Slow, and all but never: a list inside of something else, as in the description of a merged trace, is no other.
    if json.loads(text.decode("utf-8", "replace"), object_pairs_hook=count_lists) > 1:
        raise _several_writers(text, path, "two lists of traceEvents")


def _several_writers(text: bytes, path: Path, what: str) -> TraceError:
    second = sorted(match.start() for key in _ONCE for match in islice(key.finditer(text), 1, 2))[0]
    return TraceError(
        f"{name_of(path)}: {what}: more than one trace was written into this file; another one begins before byte "
        f"{second}",
        code="json_invalid",
        hint="nothing of this file was used; give each rank a file of its own, with its rank in the name",
    )


def _truncated(text: bytes, path: Path) -> TraceError:
    if _several_documents(text):
        return _several_writers(text, path, f"truncated: the JSON ends at byte {len(text)} inside a value")
    return TraceError(
        f"{name_of(path)}: truncated: the JSON ends at byte {len(text)} inside a value",
        code="trace_truncated",
        hint="the writer was stopped before it finished; capture this rank again",
    )
