"""Frames, and segments and assemblies made of them (0-10 section 4.4: framing). No I/O.

A frame has its channel and track, the type of its segment, and flags: whether it is the first or last frame of its
segment, and whether that segment is the first or last of its assembly. An assembly is a control (one control segment),
or a command with an optional header and body segment. Assemblies of different channels and tracks may interleave; those
of one channel and track may not. Payloads are not interpreted here.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from amqp_core.error_conditions import CoreCondition
from amqp_core.errors import DecodeError, EncodeError, LimitExceeded, UsageError
from amqp_core.scanning import MOST_FRAMES

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADER_SIZE = 12
MIN_MAX_FRAME_SIZE = 4096
PROTOCOL_HEADER = b"AMQP\x01\x01\x00\x0a"

FIRST_SEGMENT, LAST_SEGMENT, FIRST_FRAME, LAST_FRAME = 0x08, 0x04, 0x02, 0x01
WHOLE = FIRST_SEGMENT | LAST_SEGMENT | FIRST_FRAME | LAST_FRAME
CONTROL, COMMAND, HEADER, BODY = 0, 1, 2, 3
TRACK_CONTROL, TRACK_COMMAND = 0, 1
MAX_FRAME_SIZE = 65535

# flags, segment type, size of the whole frame, reserved, track in the low four bits, channel, reserved
_FRAME = struct.Struct(">BBHBBHI")


class Frame(NamedTuple):
    """One frame: flags, segment type, track, channel, payload bytes."""

    flags: int
    type: int
    track: int
    channel: int
    payload: bytes


def parse_frame(data: bytes, pos: int, max_frame_size: int) -> tuple[Frame, int] | None:
    """Parse the frame at ``pos``; return it and the position after it, ``None`` if it is not complete yet."""
    if len(data) - pos < HEADER_SIZE:
        return None
    flags, kind, size, _, track, channel, _ = _FRAME.unpack_from(data, pos)
    if size < HEADER_SIZE:
        raise DecodeError(f"a frame of {size} bytes is smaller than its header of {HEADER_SIZE}", pos)
    if size > max_frame_size:
        raise LimitExceeded(f"a frame of {size} bytes arrived where {max_frame_size} are the most (at byte {pos})")
    if kind > BODY:
        raise DecodeError(f"segment type {kind} is not control, command, header or body", pos + 1)
    if track & 0x0F > TRACK_COMMAND:
        raise DecodeError(f"track {track & 0x0F} is neither control nor command", pos + 5)
    if len(data) - pos < size:
        return None
    return Frame(flags, kind, track & 0x0F, channel, data[pos + HEADER_SIZE : pos + size]), pos + size


def encode_assembly(
    channel: int, track: int, segments: Sequence[tuple[int, bytes]], max_frame_size: int
) -> list[bytes]:
    """Split the segments (type, payload) of one assembly into frames of at most ``max_frame_size`` bytes.

    Returns:
        The pieces to be written in order: headers and payload slices, not yet joined.
    """
    room = max_frame_size - HEADER_SIZE
    if room <= 0:
        name = f"max_frame_size={max_frame_size}"
        raise UsageError(CoreCondition.ARGUMENT_INVALID(name=name, reason="it leaves no room for a payload"))
    pieces: list[bytes] = []
    last = len(segments) - 1
    for index, (kind, payload) in enumerate(segments):
        position = (FIRST_SEGMENT if index == 0 else 0) | (LAST_SEGMENT if index == last else 0)
        length = len(payload)
        if length <= room:
            pieces.append(
                _FRAME.pack(position | FIRST_FRAME | LAST_FRAME, kind, length + HEADER_SIZE, 0, track, channel, 0)
            )
            pieces.append(payload)
            continue
        for start in range(0, length, room):
            part = payload[start : start + room]
            flags = position | (FIRST_FRAME if start == 0 else 0) | (LAST_FRAME if start + room >= length else 0)
            pieces.append(_FRAME.pack(flags, kind, len(part) + HEADER_SIZE, 0, track, channel, 0))
            pieces.append(part)
    return pieces


def encode_control_frame(
    channel: int, payload: bytes, max_frame_size: int = MAX_FRAME_SIZE, name: str = "a control"
) -> bytes:
    """Return the single frame of a control. All known brokers require that a control fits one frame."""
    room = max_frame_size - HEADER_SIZE
    if len(payload) > room:
        raise EncodeError(f"{name} of {len(payload)} bytes does not fit a frame, which holds {room}")
    return _FRAME.pack(WHOLE, CONTROL, len(payload) + HEADER_SIZE, 0, TRACK_CONTROL, channel, 0) + payload


# Most bytes of a control: more than the largest possible sequence-set. Brokers send each control in one frame.
CONTROL_LIMIT = 1 << 17


# What a piece of a segment takes besides its bytes.
_PIECE_BYTES = 48


class Assembly(NamedTuple):
    """A complete assembly; ``header`` and ``body`` are ``None`` if it has no such segment."""

    channel: int
    track: int
    operation: bytes
    header: bytes | None
    body: bytes | None


class _Partial:
    __slots__ = ("closed", "frames", "segments", "size")

    def __init__(self) -> None:
        self.segments: list[tuple[int, list[bytes]]] = []
        self.closed = True  # whether the latest segment has had its last frame
        self.frames = 0
        self.size = 0


class Assembler:
    """Joins frames into assemblies, one at a time per (channel, track). Not thread-safe.

    A command with its content has at most ``limit`` bytes, all frames counted; ``option`` raises that limit.
    """

    def __init__(self, limit: int = 1 << 32, option: str = "") -> None:
        self._limit = limit
        self._option = option
        self._partial: dict[tuple[int, int], _Partial] = {}

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of the assemblies that have not arrived whole."""
        return sum(partial.size + _PIECE_BYTES * partial.frames for partial in self._partial.values())

    def receive(self, frame: Frame) -> Assembly | None:
        """Process the next frame; return the assembly that it completes, if any."""
        key = (frame.channel, frame.track)
        partial = self._partial.get(key)
        if frame.flags & FIRST_SEGMENT and frame.flags & FIRST_FRAME:
            if partial is not None:
                raise DecodeError(f"a new assembly began on channel {frame.channel} before the last one ended")
            partial = self._partial[key] = _Partial()
        elif partial is None:
            raise DecodeError(f"a frame on channel {frame.channel} continues an assembly that never began")
        if frame.flags & FIRST_FRAME:
            _check_order(partial, frame)
            partial.segments.append((frame.type, [frame.payload]))
        else:
            if partial.closed or partial.segments[-1][0] != frame.type:
                raise DecodeError(f"a frame of type {frame.type} continues a segment that never began")
            partial.segments[-1][1].append(frame.payload)
        partial.closed = bool(frame.flags & LAST_FRAME)
        partial.frames += 1
        partial.size += HEADER_SIZE + len(frame.payload)
        self._check_size(partial, frame)
        if not (partial.closed and frame.flags & LAST_SEGMENT):
            return None
        del self._partial[key]
        operation = b"".join(partial.segments[0][1])
        header = body = None
        for kind, parts in partial.segments[1:]:
            if kind == HEADER:
                header = b"".join(parts)
            else:
                body = b"".join(parts)
        return Assembly(frame.channel, frame.track, operation, header, body)

    def _check_size(self, partial: _Partial, frame: Frame) -> None:
        """Check an assembly against the limits; an empty frame counts with its header, since it takes memory, too."""
        limit, what, option = self._limit, "command", self._option
        if frame.track == TRACK_CONTROL and limit > CONTROL_LIMIT:
            limit, what, option = CONTROL_LIMIT, "control", ""
        if partial.size > limit:
            hint = f" (raise {option} if it is wanted)" if option else ""
            raise LimitExceeded(f"a {what} of more than {limit} bytes arrived on channel {frame.channel}{hint}")
        if partial.frames > MOST_FRAMES:
            raise LimitExceeded(f"a {what} in more than {MOST_FRAMES} frames arrived on channel {frame.channel}")


def _check_order(partial: _Partial, frame: Frame) -> None:
    """Check the order: first a control or command; a header may follow a command; a body may follow either."""
    if not partial.closed:
        raise DecodeError(f"a segment of type {frame.type} began before the last one ended")
    if not partial.segments:
        if frame.type not in (CONTROL, COMMAND) or frame.type != frame.track:
            raise DecodeError(f"an assembly on track {frame.track} began with a segment of type {frame.type}")
        return
    previous = partial.segments[-1][0]
    allowed = {COMMAND: (HEADER, BODY), HEADER: (BODY,)}.get(previous, ())
    if frame.type not in allowed:
        raise DecodeError(f"a segment of type {frame.type} follows one of type {previous}")
