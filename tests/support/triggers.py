"""Triggers: offsets in a stream of bytes at which a fault strikes.

A trigger is a function from all bytes passed so far, in one direction of one connection, to the offset at which to
strike, or None for not yet. Frames are found here without any of the code under test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

Trigger = Callable[[bytes], int | None]

_PROTOCOL_HEADER_SIZE = 8
_FRAME_HEADER_SIZE = 12
_FIRST_SEGMENT_AND_FRAME = 0x08 | 0x02
_CONTROL, _COMMAND = 0, 1


class Frame(NamedTuple):
    """One frame of an AMQP 0-10 stream; ``start`` and ``end`` are offsets in it."""

    start: int
    end: int
    flags: int
    kind: int
    payload: bytes

    @property
    def code(self) -> int | None:
        """Code of the control or command that begins in this frame, as ``class << 8 | code``; else None."""
        if self.kind in (_CONTROL, _COMMAND) and self.flags & _FIRST_SEGMENT_AND_FRAME == _FIRST_SEGMENT_AND_FRAME:
            return int.from_bytes(self.payload[:2])
        return None


def frames(stream: bytes) -> Iterator[Frame]:
    """Yield the complete frames of one direction of a connection, which begins with the protocol header."""
    start = _PROTOCOL_HEADER_SIZE
    while start + _FRAME_HEADER_SIZE <= len(stream):
        end = start + int.from_bytes(stream[start + 2 : start + 4])
        if end > len(stream) or end < start + _FRAME_HEADER_SIZE:
            return
        yield Frame(start, end, stream[start], stream[start + 1], stream[start + _FRAME_HEADER_SIZE : end])
        start = end


def after(count: int) -> Trigger:
    """Strike when ``count`` bytes have passed."""
    return lambda stream: count if len(stream) >= count else None


def pattern(wanted: bytes, *, nth: int = 1, past: bool = False) -> Trigger:
    """Strike before (or ``past``) the ``nth`` occurrence of ``wanted``."""

    def find(stream: bytes) -> int | None:
        position = -1
        for _ in range(nth):
            position = stream.find(wanted, position + 1)
            if position < 0:
                return None
        return position + len(wanted) if past else position

    return find


def frame(wanted: Callable[[Frame], bool], *, nth: int = 1, past: bool = False, inside: int = 0) -> Trigger:
    """Strike before (or ``past``) the ``nth`` frame that ``wanted`` accepts, or ``inside`` bytes after its start."""

    def find(stream: bytes) -> int | None:
        left = nth
        for found in frames(stream):
            if wanted(found):
                left -= 1
                if left == 0:
                    return found.end if past else found.start + inside
        return None

    return find


def operation(code: int, *, nth: int = 1, past: bool = False, inside: int = 0) -> Trigger:
    """Strike at the control or command with this ``CODE`` (``class << 8 | code``, as in the generated classes)."""
    return frame(lambda found: found.code == code, nth=nth, past=past, inside=inside)
