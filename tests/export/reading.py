"""Reads a Perfetto trace back through its protobufs, with nothing of what wrote it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos


@dataclass(frozen=True)
class Slice:
    start: int
    end: int
    name: str
    category: str
    depth: int
    args: dict[str, Any]
    flows: tuple[int, ...]


@dataclass
class Track:
    uuid: int
    name: str
    pid: int | None
    """Of the process above it."""
    tid: int | None
    order: int
    unit: int | None
    slices: list[Slice] = field(default_factory=list)
    values: list[tuple[int, float]] = field(default_factory=list)


class Readback:
    """All tracks of a file. Raises AssertionError where packets contradict the format."""

    def __init__(self, path: Path) -> None:
        trace = protos.Trace()
        trace.ParseFromString(path.read_bytes())
        self.num_packets = len(trace.packet)
        self.processes: dict[int, Any] = {}
        self.tracks: dict[int, Track] = {}
        self._parents: dict[int, int] = {}
        self._interned: dict[tuple[int, str], dict[int, str]] = defaultdict(dict)
        open_: dict[int, list[tuple[int, Any, int]]] = defaultdict(list)
        cleared: set[int] = set()
        last: dict[int, int] = {}
        for packet in trace.packet:
            sequence = packet.trusted_packet_sequence_id
            assert sequence
            if packet.sequence_flags & protos.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
                assert sequence not in cleared
                cleared.add(sequence)
            if packet.HasField("interned_data"):
                self._intern(sequence, packet.interned_data)
            if packet.HasField("track_descriptor"):
                self._describe(packet.track_descriptor)
            if not packet.HasField("track_event"):
                continue
            assert sequence in cleared
            assert packet.sequence_flags & protos.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
            event, uuid = packet.track_event, packet.track_event.track_uuid
            track = self.tracks[uuid]
            # Perfetto sorts by time, and keeps the order of the file where times are equal.
            assert last.get(uuid, 0) <= packet.timestamp
            last[uuid] = packet.timestamp
            if event.type == protos.TrackEvent.TYPE_SLICE_BEGIN:
                open_[uuid].append((packet.timestamp, event, sequence))
            elif event.type == protos.TrackEvent.TYPE_SLICE_END:
                start, begun, number = open_[uuid].pop()
                track.slices.append(self._slice(start, packet.timestamp, begun, number, len(open_[uuid])))
            else:
                assert event.type == protos.TrackEvent.TYPE_COUNTER
                assert track.unit is not None
                track.values.append((packet.timestamp, event.counter_value))
        assert not any(open_.values())

    def named(self, pid: int, name: str) -> list[Track]:
        """The tracks of a process with that name."""
        return [track for track in self.tracks.values() if track.pid == pid and track.name == name]

    def slices(self, pid: int, name: str) -> list[Slice]:
        """The slices of all tracks with that name, by start."""
        found = [entry for track in self.named(pid, name) for entry in track.slices]
        return sorted(found, key=lambda entry: (entry.start, -entry.end))

    def names(self, pid: int) -> list[str]:
        """The names of a process's tracks, from the top down, each once."""
        mine = sorted((track for track in self.tracks.values() if track.pid == pid), key=lambda track: track.order)
        return [*dict.fromkeys(track.name for track in mine)]

    def _describe(self, track: Any) -> None:
        assert track.uuid not in self.tracks
        assert track.uuid not in self.processes
        if track.HasField("process"):
            self.processes[track.uuid] = track.process
            return
        assert track.parent_uuid in self.processes or track.parent_uuid in self.tracks
        parent = self.processes.get(track.parent_uuid)
        pid = parent.pid if parent is not None else self.tracks[track.parent_uuid].pid
        thread = track.thread if track.HasField("thread") else None
        assert thread is None or thread.pid == pid
        self.tracks[track.uuid] = Track(
            track.uuid, thread.thread_name if thread else track.name, pid, thread.tid if thread else None,
            track.sibling_order_rank, track.counter.unit if track.HasField("counter") else None,
        )  # fmt: skip

    def _intern(self, sequence: int, data: Any) -> None:
        for kind in ("event_names", "event_categories", "debug_annotation_names"):
            self._interned[sequence, kind].update({entry.iid: entry.name for entry in getattr(data, kind)})
        self._interned[sequence, "texts"].update(
            {entry.iid: entry.str.decode() for entry in data.debug_annotation_string_values}
        )

    def _slice(self, start: int, end: int, event: Any, sequence: int, depth: int) -> Slice:
        (category,) = event.category_iids
        args = {}
        for note in event.debug_annotations:
            value = getattr(note, note.WhichOneof("value"))
            if note.WhichOneof("value") == "string_value_iid":
                value = self._interned[sequence, "texts"][value]
            args[self._interned[sequence, "debug_annotation_names"][note.name_iid]] = value
        return Slice(
            start, end, self._interned[sequence, "event_names"][event.name_iid],
            self._interned[sequence, "event_categories"][category], depth, args, tuple(event.flow_ids),
        )  # fmt: skip
