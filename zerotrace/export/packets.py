"""Perfetto's packets, written one after the other: tracks, slices, flows and counters, with texts written once.

The format is ``protos/perfetto/trace/trace_packet.proto`` of google/perfetto. Each rank is a *sequence* of packets with
incremental state of its own: texts are numbered when they are first met, and only the numbers follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import IO, Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

#: Tag of ``Trace.packet``, field 1, of which a file is a row.
_PACKET_TAG = b"\x0a"
#: Texts in one packet: many enough to be quick, few enough to stay small.
_TEXTS_A_PACKET = 500

_CLEARED = protos.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
_NEEDS_STATE = protos.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
_BEGIN, _END, _COUNTER = (
    protos.TrackEvent.TYPE_SLICE_BEGIN, protos.TrackEvent.TYPE_SLICE_END, protos.TrackEvent.TYPE_COUNTER
)  # fmt: skip

Argument = str | int | float | bool


class CounterUnit(IntEnum):
    """What a counter counts, as Perfetto names it."""

    NS = protos.CounterDescriptor.UNIT_TIME_NS
    BYTES = protos.CounterDescriptor.UNIT_SIZE_BYTES


class PacketFile:
    """A stream of packets, and what is common to all ranks in it: the numbers of tracks."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._last_track = 0
        self.num_packets = 0
        self.num_slices = 0

    def write(self, packet: bytes) -> None:
        """Appends one encoded packet."""
        size = len(packet)
        head = bytearray(_PACKET_TAG)
        while size > 0x7F:
            head.append(size & 0x7F | 0x80)
            size >>= 7
        head.append(size)
        self._stream.write(head + packet)
        self.num_packets += 1

    def next_track(self) -> int:
        """A number for a new track, from 1 on."""
        self._last_track += 1
        return self._last_track


class PacketSequence:
    """The packets of one rank."""

    def __init__(self, file: PacketFile, number: int) -> None:
        """Begins a sequence.

        Args:
            file: where the packets go.
            number: above zero, and another one for each sequence of the file.
        """
        self._file = file
        self._number = number
        self._texts: dict[str, dict[str, int]] = {}
        first = protos.TracePacket(trusted_packet_sequence_id=number, sequence_flags=_CLEARED)
        first.first_packet_on_sequence = 1
        first.previous_packet_dropped = 1
        file.write(first.SerializeToString())

    def process(self, pid: int, name: str, labels: Iterable[str], rank: int) -> int:
        """The track of a process, under which its other tracks lie in the order of their ranks.

        Returns:
            The number of the track.
        """
        track = protos.TrackDescriptor(uuid=self._file.next_track())
        track.process.pid = pid
        track.process.process_name = name
        track.process.process_labels.extend(labels)
        track.process.legacy_sort_index = rank
        track.child_ordering = protos.TrackDescriptor.EXPLICIT
        track.sibling_order_rank = rank
        return self._describe(track)

    def thread(self, process: int, pid: int, tid: int, name: str, rank: int) -> int:
        """The track of a thread of the host."""
        track = protos.TrackDescriptor(uuid=self._file.next_track(), parent_uuid=process, sibling_order_rank=rank)
        track.thread.pid = pid
        track.thread.tid = tid
        track.thread.thread_name = name
        return self._describe(track)

    def track(self, parent: int, name: str, rank: int, description: str | None = None) -> int:
        """A track of slices. Tracks of one name under one parent are shown as one."""
        track = protos.TrackDescriptor(
            uuid=self._file.next_track(), parent_uuid=parent, name=name, sibling_order_rank=rank
        )
        if description is not None:
            track.description = description
        return self._describe(track)

    def counter_track(self, parent: int, name: str, rank: int, unit: CounterUnit, description: str) -> int:
        """A track of values over time."""
        track = protos.TrackDescriptor(
            uuid=self._file.next_track(), parent_uuid=parent, name=name, sibling_order_rank=rank
        )
        track.description = description
        track.counter.unit = int(unit)
        return self._describe(track)

    def names(self, texts: Sequence[str]) -> list[int]:
        """The numbers of names of slices."""
        return self._intern("event_names", texts)

    def slices(
        self,
        track: int,
        categories: Sequence[str],
        rows: Iterable[tuple[int, int, int, Mapping[str, Argument], Sequence[int]]],
    ) -> None:
        """Writes slices that nest or follow each other on a track.

        Args:
            track: its number.
            categories: of each.
            rows: start and end in nanoseconds, number of the name, arguments, and the numbers of flows that pass
                through it; by start, longest first.
        """
        kinds = self._intern("event_categories", categories)
        begin, end = self._template(_BEGIN, track), self._template(_END, track)
        event = begin.track_event
        event.category_iids.append(0)
        write, num_slices = self._file.write, 0
        open_ends: list[int] = []
        for kind, (start_ns, end_ns, name, arguments, flows) in zip(kinds, rows):
            while open_ends and open_ends[-1] <= start_ns:
                end.timestamp = open_ends.pop()
                write(end.SerializeToString())
            begin.timestamp = start_ns
            event.category_iids[0] = kind
            event.name_iid = name
            if arguments:
                self._add_arguments(event, arguments)
            if flows:
                event.flow_ids.extend(flows)
            write(begin.SerializeToString())
            if arguments:
                event.ClearField("debug_annotations")
            if flows:
                event.ClearField("flow_ids")
            open_ends.append(end_ns)
            num_slices += 1
        while open_ends:
            end.timestamp = open_ends.pop()
            write(end.SerializeToString())
        self._file.num_slices += num_slices

    def counter(self, track: int, values: Iterable[tuple[int, int]]) -> None:
        """Writes values of a counter: time in nanoseconds, and value."""
        packet = self._template(_COUNTER, track)
        for time_ns, value in values:
            packet.timestamp = time_ns
            packet.track_event.counter_value = value
            self._file.write(packet.SerializeToString())

    def _add_arguments(self, event: Any, arguments: Mapping[str, Argument]) -> None:
        keys = self._intern("debug_annotation_names", [*arguments])
        for key, value in zip(keys, arguments.values()):
            note = event.debug_annotations.add(name_iid=key)
            if isinstance(value, bool):
                note.bool_value = value
            elif isinstance(value, int):
                note.int_value = value
            elif isinstance(value, float):
                note.double_value = value
            else:
                (note.string_value_iid,) = self._intern("debug_annotation_string_values", [value])

    def _intern(self, field: str, texts: Sequence[str]) -> list[int]:
        known = self._texts.setdefault(field, {})
        fresh = [text for text in dict.fromkeys(texts) if text not in known]
        for first in range(0, len(fresh), _TEXTS_A_PACKET):
            packet = protos.TracePacket(trusted_packet_sequence_id=self._number, sequence_flags=_NEEDS_STATE)
            entries = getattr(packet.interned_data, field)
            for text in fresh[first : first + _TEXTS_A_PACKET]:
                known[text] = len(known) + 1
                if field == "debug_annotation_string_values":
                    entries.add(iid=known[text], str=text.encode())
                else:
                    entries.add(iid=known[text], name=text)
            self._file.write(packet.SerializeToString())
        return [known[text] for text in texts]

    def _template(self, kind: int, track: int) -> Any:
        """A packet of an event, to be filled in again and again."""
        packet = protos.TracePacket(trusted_packet_sequence_id=self._number, sequence_flags=_NEEDS_STATE)
        packet.track_event.type = kind
        packet.track_event.track_uuid = track
        return packet

    def _describe(self, track: Any) -> int:
        packet = protos.TracePacket(trusted_packet_sequence_id=self._number)
        packet.track_descriptor.CopyFrom(track)
        self._file.write(packet.SerializeToString())
        return int(track.uuid)
