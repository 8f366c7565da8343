"""Frames of 0-10 of many messages at once (section 2.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from amqp_spark.arrow.rows.bodies import cut
from amqp_spark.arrow.rows.row_bytes import RowBytes, data_and_ends, join, number

if TYPE_CHECKING:
    import pyarrow as pa

    from amqp_spark.arrow.rows.row_bytes import Array, Numbers, Size

FRAME_HEADER: Final = 12
COMMAND, HEADER, BODY = 1, 2, 3
FIRST_SEGMENT, LAST_SEGMENT, FIRST_FRAME, LAST_FRAME = 8, 4, 2, 1
WHOLE_SEGMENT: Final = FIRST_FRAME | LAST_FRAME


def frame(kind: int, flags: Size, size: Size) -> tuple[Any, ...]:
    """Cells of the header of a frame on channel 0 whose payload has ``size`` bytes."""
    return number(">u1", flags), bytes([kind]), number(">u2", size + FRAME_HEADER), b"\0\1\0\0\0\0\0\0"


def assemble(head: RowBytes, raw: Array, long: Numbers, room: int) -> tuple[pa.Buffer, Numbers]:
    """Whole assemblies of all rows, with at most ``room`` bytes of body per frame, and the end of each.

    The bodies are BINARY, none null, and ``long`` their sizes. Every body is copied once.
    """
    largest = int(long.max())
    if largest <= room:
        smallest = int(long.min())
        if largest:
            same = largest if smallest == largest else long
            there = None if smallest else long > 0
            head.cells(*frame(BODY, LAST_SEGMENT | WHOLE_SEGMENT, same), there=there)
        head.column(raw, long)
        return data_and_ends(join(*head.pieces()))
    chunks = cut(raw, long, room)
    flags = LAST_SEGMENT + chunks.is_first * FIRST_FRAME + chunks.is_final * LAST_FRAME
    frames = RowBytes(len(chunks.sizes))
    frames.cells(*frame(BODY, flags, chunks.sizes), there=None if long.all() else chunks.sizes > 0)
    heads = chunks.of_first(join(*head.pieces()))
    joined, ends = data_and_ends(join(heads, *frames.pieces(), chunks.data))
    return joined, ends[chunks.last]
