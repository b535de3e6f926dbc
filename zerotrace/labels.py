"""Labels: how a capture writes ZeRO's own meaning into a Kineto trace, and the one parser that reads it back.

A label is the name of a user annotation (``torch.profiler.record_function``)::

    zt1:gather kind=prefetch phase=forward module=blocks.3.fc params=blocks.4.fc.weight,blocks.4.fc.bias n=6 \
elements=590592 bytes=1181184 submission=17

that is ``zt``, the version of the format, a colon, the event, and fields ``key=value`` with one space between them. A
field that is unknown or does not apply is left out; readers ignore fields that they do not know. Values are
percent-encoded like a URL wherever they hold anything but letters, digits and ``. _ - ~ [ ] ( ) : / +``, so that any
module name survives. The events and fields are those of :class:`LabelEvent` and :class:`Label`.

Version 0 is what early captures carry (``zt:gather kind=demand fwd for=h.3.fc n=2 numel=100 first=h.3.fc.weight`` and
``zt:fetch module=h.3.fc bwd``); it is read, but not written. Standard library alone: this runs inside every rank.
"""

from __future__ import annotations

import re
from enum import Enum
from urllib.parse import quote, unquote

from msgspec import Struct

LABEL_VERSION = 1

#: A gather names its first parameters: at most so many, and none beyond so many characters (but the first one).
MAX_PARAMS = 4
MAX_PARAM_CHARS = 160

#: No model has as many elements, and no gather as many bytes: numbers in labels are smaller.
MAX_NUMBER = 1 << 50


class LabelEvent(str, Enum):
    """What a label marks."""

    MICRO_STEP = "micro_step"
    """One micro-step, from ``engine.forward`` to the end of ``engine.step``; ``number`` counts within the step."""
    PHASE = "phase"
    """A call of ``engine.forward``, ``engine.backward`` or ``engine.step``: ``phase``."""
    FORWARD = "forward"
    """The forward of ``module``, without what DeepSpeed does right before and after it. Modules nest."""
    BACKWARD = "backward"
    """The backward of ``module``, from the gradient of its output to that of its input. Flat, not nested: it ends where
    the next one begins, at the latest. Only modules that have parameters of their own or no children have one."""
    FETCH = "fetch"
    """Stage 3's coordinator on behalf of ``module``: gathers, waits and prefetches. Host time of the coordinator."""
    RELEASE = "release"
    """Stage 3's coordinator gives the parameters of ``module`` back."""
    GATHER = "gather"
    """One submission of parameters at stage 3, with all collectives that it launches."""
    REDUCE = "reduce"
    """Reduction of one bucket of gradients: ``n`` of them, ``elements``."""
    OPTIMIZER_STEP = "optimizer_step"
    """DeepSpeed's optimizer, all that ``engine.optimizer.step`` does."""
    POST_STEP_GATHER = "post_step_gather"
    """All-gather of the updated parameters inside the optimizer step: of all of them at stages 1 and 2 (and with
    BF16_Optimizer); at stage 3 of the persisted ones, around their :attr:`GATHER` labels."""


class GatherKind(str, Enum):
    """Why parameters are gathered."""

    DEMAND = "demand"
    """For the module that is about to run."""
    PREFETCH = "prefetch"
    """For later modules."""
    REFRESH = "refresh"
    """Persisted parameters, after the optimizer step."""


class Phase(str, Enum):
    """The part of a micro-step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    STEP = "step"


class Label(Struct, frozen=True, kw_only=True):
    """One label, read or to be written."""

    event: LabelEvent
    version: int = LABEL_VERSION
    kind: GatherKind | None = None
    phase: Phase | None = None
    recompute: bool = False
    """A forward inside of the backward pass (activation checkpointing)."""
    module: str | None = None
    """Qualified name of the module as in ``named_modules``; ``""`` is the root. For a gather: the module whose turn
    it is when the parameters are submitted."""
    params: tuple[str, ...] = ()
    """The first parameters in DeepSpeed's order; ``num_params`` says how many there are."""
    num_params: int | None = None
    elements: int | None = None
    """Elements of the whole parameters, or of the reduced gradients, over all ranks and without padding."""
    bytes: int | None = None
    """The same in bytes."""
    submission: int | None = None
    """Running number of the gather; the same on all ranks."""
    number: int | None = None
    """Micro-step within the optimizer step, from 0."""


# Fields in the order in which they are written: key, attribute.
_FIELDS = (
    ("kind", "kind"),
    ("phase", "phase"),
    ("recompute", "recompute"),
    ("module", "module"),
    ("params", "params"),
    ("n", "num_params"),
    ("elements", "elements"),
    ("bytes", "bytes"),
    ("submission", "submission"),
    ("number", "number"),
)
_NUMBERS = {"n": "num_params", "elements": "elements", "bytes": "bytes", "submission": "submission", "number": "number"}
_SAFE = "._-~[]():/+"

_EVENTS = {event.value: event for event in LabelEvent}
# As many digits as a number has that is believed: of thousands, Python makes no number.
_HEAD = re.compile(r"zt([0-9]{0,9}):(\S+)(?: |$)")
_OLD_GATHER = re.compile(
    r"zt:gather kind=(\w+) (fwd|bwd) for=(.*) n=([0-9]{1,20}) numel=([0-9]{1,20}) first=(.*)", re.DOTALL
)
_OLD_FETCH = re.compile(r"zt:fetch module=(.*) (fwd|bwd)", re.DOTALL)
_OLD_PHASES = {"fwd": Phase.FORWARD, "bwd": Phase.BACKWARD}


def format_label(label: Label) -> str:
    """The name of an annotation, in the current version of the format."""
    parts = [f"zt{LABEL_VERSION}:{label.event.value}"]
    for key, attribute in _FIELDS:
        value = getattr(label, attribute)
        if value is None or value is False or value == ():
            continue
        parts.append(f"{key}={_encode(value)}")
    return " ".join(parts)


def first_params(names: list[str]) -> tuple[str, ...]:
    """As many of the names as a label may carry."""
    chosen: list[str] = []
    room = MAX_PARAM_CHARS
    for name in names[:MAX_PARAMS]:
        room -= len(name) + 1
        if chosen and room < 0:
            break
        chosen.append(name)
    return tuple(chosen)


def is_label(name: str) -> bool:
    """Whether the name of an event claims to be a label, of whatever version."""
    return _HEAD.match(name) is not None


def label_event(name: str) -> LabelEvent | None:
    """What a label of a version that is read marks, without reading the rest of it; ``None`` for all other names."""
    head = _HEAD.match(name) if name.startswith("zt") else None
    if head is None or head[1] not in ("", str(LABEL_VERSION)):
        return None
    return _EVENTS.get(head[2])


def parse_label(name: str) -> Label | None:
    """Read the name of an annotation.

    Returns:
        The label; ``None`` if the name is none, or one of a later version or damaged (:func:`is_label` tells these
        from the names of others).
    """
    head = _HEAD.match(name)
    if head is None:
        return None
    if head[1] and int(head[1]) != LABEL_VERSION:
        return None
    fields = dict(part.partition("=")[::2] for part in name[head.end() :].split(" ") if part)
    try:
        if not head[1]:
            return _parse_old(name)
        return Label(
            event=LabelEvent(head[2]),
            kind=GatherKind(fields["kind"]) if "kind" in fields else None,
            phase=Phase(fields["phase"]) if "phase" in fields else None,
            recompute=fields.get("recompute") == "1",
            module=_decode(fields["module"]) if "module" in fields else None,
            params=tuple(_decode(param) for param in fields.get("params", "").split(",") if param),
            **{attribute: _number(fields[key]) for key, attribute in _NUMBERS.items() if key in fields},
        )
    except ValueError:
        return None


def _number(text: str) -> int:
    """A count or a size.

    Raises:
        ValueError: it is none, negative, or larger than any memory: what a damaged label says is not believed.
    """
    value = int(text)  # itself a ValueError for thousands of digits
    if not 0 <= value < MAX_NUMBER:
        raise ValueError(f"{value} is neither a count nor a size")
    return value


def _encode(value: object) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if value is True:
        return "1"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, tuple):
        return ",".join(_encode(item) for item in value)
    # A Python string may hold lone surrogates, which strict UTF-8 has no bytes for.
    return quote(str(value), safe=_SAFE, errors="surrogatepass")


def _decode(text: str) -> str:
    return unquote(text, errors="surrogatepass")


def _parse_old(name: str) -> Label | None:
    """A label of version 0. Its names are not encoded; that of the last field reaches to the end.

    Raises:
        ValueError: a number in it is not believed.
    """
    if fetch := _OLD_FETCH.fullmatch(name):
        return Label(event=LabelEvent.FETCH, version=0, module=fetch[1], phase=_OLD_PHASES[fetch[2]])
    gather = _OLD_GATHER.fullmatch(name)
    if gather is None or gather[1] not in [kind.value for kind in GatherKind]:
        return None
    return Label(
        event=LabelEvent.GATHER,
        version=0,
        kind=GatherKind(gather[1]),
        phase=_OLD_PHASES[gather[2]],
        module=gather[3],
        params=(gather[6],) if gather[6] else (),
        num_params=_number(gather[4]),
        elements=_number(gather[5]),
    )
