"""Small chunks of transfers are decoded together: a step per column costs as much for one row as for 500.

They are copied to memory that is used again and again, since on many machines the first use of a page costs more than
to decode the messages in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp_spark.arrow.columns.located import joined
from amqp_spark.arrow.columns.wire import PADDING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from amqp_spark.arrow.columns.located import Chunk

_TOGETHER: Final = 4 << 20
"""Maximum bytes of frames that are joined."""
_spare: Final[list[bytearray]] = []  # the memory of this process for them, unless it is in use


def gathered(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Join small chunks of the same protocol.

    The next step of the iterator overwrites the bytes of the chunk before: copy what you keep.
    """
    room = _room()
    try:
        group: list[Chunk] = []
        size = 0
        for chunk in chunks:
            if group and (size + len(chunk.frames) > _TOGETHER or chunk.protocol != group[0].protocol):
                yield _joined(group, room)
                group, size = [], 0
            group.append(chunk)
            size += len(chunk.frames)
        if group:
            yield _joined(group, room)
    finally:
        if not _spare:
            _spare.append(room)


def _joined(group: list[Chunk], room: bytearray) -> Chunk:
    return joined(group, room) if len(group) > 1 else group[0]


def _room() -> bytearray:
    try:
        return _spare.pop()
    except IndexError:
        # glibc returns memory to the system by the size of the largest block freed so far. Without this block, which is
        # not used, it would return the arrays of every batch, and every batch would begin with new pages.
        bytearray(2 * _TOGETHER)
        return bytearray(_TOGETHER + PADDING)
