"""Frames: the 12-byte header, splitting segments to max-frame-size, and parsing (0-10 section 4.4: framing).

Payloads are not interpreted here. A frame has its channel and track, the type of its segment, and flags: whether it is
the first or last frame of its segment, and whether that segment is the first or last of its assembly.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from amqp_core.conditions import CoreCondition
from amqp_core.errors import DecodeError, EncodeError, LimitExceeded, UsageError

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
MOST_FRAMES = 1 << 18
"""Most frames of one received assembly. At the smallest max-frame-size they hold 1 GiB, so no sender needs more; each
one costs time and memory to decode, even an empty one."""
COMMAND_FRAME_BYTES = 1 << 10
"""So many first bytes contain the command frame of a message.transfer, whose only long part is the name of its
destination, unless the sender splits the command into several frames."""

_FRAME = struct.Struct(
    ">"
    "B"  # flags: segment and frame positions
    "B"  # segment type
    "H"  # size of the whole frame
    "B"  # reserved
    "B"  # track, in the low four bits
    "H"  # channel
    "I"  # reserved
)


class Frame(NamedTuple):
    """One frame: flags, segment type, track, channel, payload bytes."""

    flags: int
    type: int
    track: int
    channel: int
    payload: bytes


def parse_frame(data: bytes, pos: int, max_frame_size: int) -> tuple[Frame, int] | None:
    """Parse the frame at ``pos``; ``None`` if it is not complete yet.

    Returns:
        The frame, and the position after it.

    Raises:
        DecodeError: a size below that of the header, or a segment type or track not in the specification.
        LimitExceeded: a frame larger than ``max_frame_size``.
    """
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

    Raises:
        UsageError: ``max_frame_size`` leaves no room for a payload.
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
    """Return the single frame of a control. All known brokers require that a control fits one frame.

    Raises:
        EncodeError: the payload does not fit one frame.
    """
    room = max_frame_size - HEADER_SIZE
    if len(payload) > room:
        raise EncodeError(f"{name} of {len(payload)} bytes does not fit a frame, which holds {room}")
    return _FRAME.pack(WHOLE, CONTROL, len(payload) + HEADER_SIZE, 0, TRACK_CONTROL, channel, 0) + payload
