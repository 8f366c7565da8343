"""Frames of AMQP 0-9 and 0-9-1 (0-9-1 section 2.3.5: frame details). No I/O.

A frame has a type, a channel, a payload with its size, and the octet 0xCE behind it. A method is one frame. A method
with content is followed, on its channel, by the content header in one frame and the body in as many frames as it
needs: none if it is empty. Frames of different channels may interleave. Payloads are not interpreted here.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from amqp_core.blocks import Pieces
from amqp_core.error_conditions import CoreCondition
from amqp_core.errors import DecodeError, EncodeError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8
KINDS: Final = frozenset((METHOD, HEADER, BODY, HEARTBEAT))
FRAME_END: Final = 0xCE
FRAME_HEADER: Final = 7
"""Bytes of type, channel and size."""
OVERHEAD: Final = FRAME_HEADER + 1
"""Bytes of a frame besides its payload; frame-max counts them."""
MIN_MAX_FRAME_SIZE: Final = 4096
"""Each peer must take frames of this size (frame-min-size), also before frame-max is agreed."""
HEARTBEAT_FRAME: Final = bytes((HEARTBEAT, 0, 0, 0, 0, 0, 0, FRAME_END))

_HEAD = struct.Struct(">BHI")
_END = bytes((FRAME_END,))


class Frame(NamedTuple):
    """One frame: its type (``METHOD`` ...), its channel and its payload bytes."""

    type: int
    channel: int
    payload: bytes


def wrong_frame(kind: int, size: int, at: int, max_frame_size: int) -> DecodeError:
    """The error of a frame header at offset ``at`` that has an unknown type or too large a payload ``size``."""
    if kind not in KINDS:
        return DecodeError(f"frame type {kind} is not method, header, body or heartbeat", at)
    return DecodeError(f"a frame of {size + OVERHEAD} bytes is larger than {max_frame_size}, the agreed frame-max", at)


def wrong_end(octet: int, at: int) -> DecodeError:
    """The error of a frame whose last octet, at offset ``at``, is not 0xCE."""
    return DecodeError(f"a frame ends with the octet {octet:#04x} instead of {FRAME_END:#04x}", at)


def parse_frame(data: bytes, pos: int, max_frame_size: int) -> tuple[Frame, int] | None:
    """Parse the frame at ``pos``; return it and the position after it, ``None`` if it is not complete yet.

    Raises:
        DecodeError: an unknown type, more than ``max_frame_size`` bytes, or another octet than 0xCE at the end.
    """
    if len(data) - pos < FRAME_HEADER:
        return None
    kind, channel, size = _HEAD.unpack_from(data, pos)
    if kind not in KINDS or size + OVERHEAD > max_frame_size:
        raise wrong_frame(kind, size, pos, max_frame_size)
    end = pos + FRAME_HEADER + size
    if len(data) <= end:
        return None
    if data[end] != FRAME_END:
        raise wrong_end(data[end], end)
    return Frame(kind, channel, data[pos + FRAME_HEADER : end]), end + 1


def encode_frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Return one frame; the caller keeps the payload within frame-max."""
    return b"".join((_HEAD.pack(kind, channel, len(payload)), payload, _END))


def encode_method_frame(channel: int, payload: bytes, max_frame_size: int, name: str = "a method") -> bytes:
    """Return the frame of a method.

    Raises:
        EncodeError: the method, which must fit one frame, does not.
    """
    _check_room(payload, max_frame_size, name)
    return encode_frame(METHOD, channel, payload)


def encode_content(
    channel: int, method: bytes, header: bytes, body: bytes, max_frame_size: int, *, any_header: bool = False
) -> list[bytes]:
    """Cut a method with content into frames of at most ``max_frame_size`` bytes.

    A content header cannot be cut. ``any_header``: send one that does not fit all the same, as brokers do with one that
    another client published.

    Returns:
        The pieces to be written in order, not yet joined.

    Raises:
        EncodeError: the method or the content header does not fit one frame.
    """
    _check_room(method, max_frame_size, "a method")
    if not any_header:
        _check_room(header, max_frame_size, "a content header")
    head = _HEAD.pack
    pieces = [head(METHOD, channel, len(method)), method, _END, head(HEADER, channel, len(header)), header, _END]
    room = max_frame_size - OVERHEAD
    if len(body) <= room:
        if body:
            pieces += (head(BODY, channel, len(body)), body, _END)
        return pieces
    for start in range(0, len(body), room):
        part = body[start : start + room]
        pieces += (head(BODY, channel, len(part)), part, _END)
    return pieces


def _check_room(payload: bytes, max_frame_size: int, name: str) -> None:
    room = max_frame_size - OVERHEAD
    if room <= 0:
        argument = f"max_frame_size={max_frame_size}"
        raise UsageError(CoreCondition.ARGUMENT_INVALID(name=argument, reason="it leaves no room for a payload"))
    if len(payload) > room:
        raise EncodeError(f"{name} of {len(payload)} bytes does not fit a frame, which holds {room}")


class FrameReader:
    """Cuts received bytes into frames; for connections that do not consume. Not thread-safe."""

    def __init__(self) -> None:
        self._rest = Pieces()
        self._missing = 0  # bytes that the frame under way, or its header, still lacks

    def feed(self, chunk: bytes, max_frame_size: int) -> Iterator[Frame]:
        """Process the next bytes; yield every frame that is complete.

        Args:
            chunk: the bytes; all frames must be taken before the next call.
            max_frame_size: the limit of a frame in bytes, header and end included.

        Raises:
            DecodeError: during the iteration, for a malformed frame; the frames yielded before it are valid.
        """
        if len(chunk) < self._missing:
            self._missing -= len(chunk)
            self._rest.add(chunk)
            return
        data = self._rest.take(chunk) if self._rest.nbytes else chunk
        at = 0
        while (parsed := parse_frame(data, at, max_frame_size)) is not None:
            frame, at = parsed
            yield frame
        available = len(data) - at
        size = FRAME_HEADER
        if available >= FRAME_HEADER:
            size = OVERHEAD + int.from_bytes(data[at + 3 : at + FRAME_HEADER])
        self._missing = size - available
        self._rest.add(data[at:])
