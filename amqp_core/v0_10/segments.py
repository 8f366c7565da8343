"""Segments and assemblies: frames of one channel and track joined into controls and commands (0-10 section 4.4.2).

An assembly is a control (one control segment), or a command with an optional header and body segment. Assemblies of
different channels and tracks may interleave; those of one channel and track may not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from amqp_core.errors import DecodeError, LimitExceeded
from amqp_core.v0_10.frames import (
    BODY,
    COMMAND,
    CONTROL,
    FIRST_FRAME,
    FIRST_SEGMENT,
    HEADER,
    HEADER_SIZE,
    LAST_FRAME,
    LAST_SEGMENT,
    MOST_FRAMES,
    TRACK_CONTROL,
)

if TYPE_CHECKING:
    from amqp_core.v0_10.frames import Frame

# For assemblies of data that was received within a limit already.
DEFAULT_ASSEMBLY_LIMIT = 1 << 32
# Most bytes of a control: more than the largest possible sequence-set. Brokers send each control in one frame.
CONTROL_LIMIT = 1 << 17


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
    """Joins frames into assemblies, one at a time per (channel, track).

    Args:
        limit: most bytes of one command with its content, all frames counted.
        option: name of the option that raises the limit, for the error.
    """

    def __init__(self, limit: int = DEFAULT_ASSEMBLY_LIMIT, option: str = "") -> None:
        self._limit = limit
        self._option = option
        self._partial: dict[tuple[int, int], _Partial] = {}

    def receive(self, frame: Frame) -> Assembly | None:
        """Process the next frame; return the assembly that it completes, if any.

        Raises:
            DecodeError: first/last flags or segment types in an order that the specification does not allow.
            LimitExceeded: an assembly larger than the limit, or of more frames than any sender needs.
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

    def drop_channel(self, channel: int) -> None:
        """Drop incomplete assemblies of ``channel``: its session is gone."""
        for key in [key for key in self._partial if key[0] == channel]:
            del self._partial[key]


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
