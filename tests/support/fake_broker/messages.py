"""Messages of the fake broker: in a queue, as frames, and as a client gets them."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class FakeMessage:
    """A message in a queue."""

    body: bytes
    serial: int
    redelivered: bool = False


class Received(NamedTuple):
    """See :class:`amqp_core.api.Message`."""

    body: bytes
    transfer_id: int


class FakeInfo(NamedTuple):
    """See :class:`amqp_core.api.QueueInfo`."""

    message_count: int | None
    subscriber_count: int | None


@dataclass
class FakeBlock:
    """See :class:`amqp_core.api.Block`."""

    frames: bytes
    ends: list[int]
    first_id: int
    largest: int


def transfer_frames(body: bytes, *, redelivered: bool = False) -> bytes:
    """One message.transfer as three frames (two for an empty body), channel 0."""
    segments = [(1, b"\x04\x01\x01\x00\x01\x00\x02s0"), (2, struct.pack(">IBBBB", 4, 4, 1, 4 if redelivered else 0, 0))]
    segments += [(3, body)] if body else []
    frames = b""
    for index, (kind, payload) in enumerate(segments):
        first, last = 8 if index == 0 else 0, 4 if index == len(segments) - 1 else 0
        pieces = [payload[at : at + 65523] for at in range(0, len(payload), 65523)]
        for number, piece in enumerate(pieces):
            flags = first | last | (2 if number == 0 else 0) | (1 if number == len(pieces) - 1 else 0)
            frames += struct.pack(">BBHBBHI", flags, kind, 12 + len(piece), 0, 1, 0, 0) + piece
    return frames


def bodies_of(frames: bytes) -> Iterator[bytes]:
    """The bodies of the transfers in raw frames, in order."""
    at, body = 0, b""
    while at < len(frames):
        flags, kind, size, _, track = struct.unpack_from(">BBHBB", frames, at)
        if track & 15 == 1:
            if kind == 3:
                body += frames[at + 12 : at + size]
            if flags & 4 and flags & 1:
                yield body
                body = b""
        at += size
