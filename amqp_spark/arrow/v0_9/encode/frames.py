"""Frames of 0-9-1 of many messages at once (section 2.3.5: frame details)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp_core.v0_9.framing import BODY, FRAME_END
from amqp_spark.arrow.rows.bodies import cut
from amqp_spark.arrow.rows.row_bytes import RowBytes, data_and_ends, join, number

if TYPE_CHECKING:
    import pyarrow as pa

    from amqp_spark.arrow.rows.row_bytes import Array, Cell, Numbers, Size

END: Final = bytes([FRAME_END])
"""The octet behind the payload of every frame."""


def frame(kind: int, channel: int, size: Size) -> tuple[Cell, Cell]:
    """Cells of what precedes a payload of ``size`` bytes: type, channel and size."""
    return bytes([kind]) + channel.to_bytes(2), number(">u4", size)


def assemble(head: RowBytes, raw: Array, long: Numbers, channel: int, room: int) -> tuple[pa.Buffer, Numbers]:
    """Whole messages of all rows, with at most ``room`` bytes of body per frame, and the end of each.

    The bodies are BINARY, none null, and ``long`` their sizes; an empty one has no frame. Every body is copied once.
    """
    largest = int(long.max())
    if largest <= room:
        smallest = int(long.min())
        there = None if smallest else long > 0
        if largest:
            head.cells(*frame(BODY, channel, largest if smallest == largest else long), there=there)
        head.column(raw, long)
        if largest:
            head.cells(END, there=there)
        return data_and_ends(join(*head.pieces()))
    chunks = cut(raw, long, room)
    there = None if long.all() else chunks.sizes > 0
    before, after = RowBytes(len(chunks.sizes)), RowBytes(len(chunks.sizes))
    before.cells(*frame(BODY, channel, chunks.sizes), there=there)
    after.cells(END, there=there)
    heads = chunks.of_first(join(*head.pieces()))
    joined, ends = data_and_ends(join(heads, *before.pieces(), chunks.data, *after.pieces()))
    return joined, ends[chunks.last]
