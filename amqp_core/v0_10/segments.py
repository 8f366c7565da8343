"""Segments and assemblies: frames of one channel and track joined into controls and commands (0-10 section 4.4.2).

An assembly is a control (one control segment), or a command with an optional header and body segment. Assemblies of
different channels and tracks may interleave; those of one channel and track may not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from amqp_core.errors import DecodeError, LimitExceeded
from amqp_core.v0_10.frames import BODY, COMMAND, CONTROL, FIRST_FRAME, FIRST_SEGMENT, HEADER, LAST_FRAME, LAST_SEGMENT

if TYPE_CHECKING:
    from amqp_core.v0_10.frames import Frame

# What one assembly may hold before the peer is taken for broken. Broker-J takes at most 100 MiB per message,
# qpidd what fits its queue; both are far below.
DEFAULT_ASSEMBLY_LIMIT = 1 << 31


class Assembly(NamedTuple):
    """A complete assembly; ``header`` and ``body`` are ``None`` when it has no such segment."""

    channel: int
    track: int
    operation: bytes
    header: bytes | None
    body: bytes | None


class _Partial:
    __slots__ = ("closed", "segments", "size")

    def __init__(self) -> None:
        self.segments: list[tuple[int, list[bytes]]] = []
        self.closed = True  # whether the latest segment has had its last frame
        self.size = 0


class Assembler:
    """Joins frames into assemblies, one at a time per (channel, track)."""

    def __init__(self, limit: int = DEFAULT_ASSEMBLY_LIMIT) -> None:
        self._limit = limit
        self._partial: dict[tuple[int, int], _Partial] = {}

    def receive(self, frame: Frame) -> Assembly | None:
        """Take the next frame; return the assembly that it completes, if any.

        Raises:
            DecodeError: first/last flags or segment types in an order that the specification does not allow.
            LimitExceeded: an assembly larger than the limit.
        """
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
        partial.size += len(frame.payload)
        if partial.size > self._limit:
            raise LimitExceeded(f"an assembly of more than {self._limit} bytes on channel {frame.channel}")
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

    def drop_channel(self, channel: int) -> None:
        """Forget what is half received on ``channel``: its session is gone."""
        for key in [key for key in self._partial if key[0] == channel]:
            del self._partial[key]


def _check_order(partial: _Partial, frame: Frame) -> None:
    """A control or command comes first, a header may follow a command, a body may follow either of them."""
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
