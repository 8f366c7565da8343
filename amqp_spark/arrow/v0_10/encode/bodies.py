"""The bodies of a block: bytes as given or an encoded map or list, and their frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import types as t

from amqp_core.v0_10 import type_codes as code
from amqp_spark.arrow.rows import variants
from amqp_spark.arrow.rows.row_bytes import Array, RowBytes, bounds, join, lengths, number, packed
from amqp_spark.arrow.rows.row_errors import LARGEST_BODY, blame, limited
from amqp_spark.arrow.rows.values import encode_list, encode_map
from amqp_spark.arrow.v0_10.encode.schema import LIST_TYPE, MAP_TYPE

if TYPE_CHECKING:
    from amqp_spark.arrow.rows.row_bytes import Numbers, Size
    from amqp_spark.arrow.rows.row_errors import Blamed

FRAME_HEADER: Final = 12
COMMAND, HEADER, BODY = 1, 2, 3
FIRST_SEGMENT, LAST_SEGMENT, FIRST_FRAME, LAST_FRAME = 8, 4, 2, 1
WHOLE_SEGMENT: Final = FIRST_FRAME | LAST_FRAME


class Bodies(NamedTuple):
    """The bodies of a block as bytes."""

    raw: Array
    types: Array | str | None
    """Content types of encoded maps and lists, one text if all are the same; None: the caller's bytes."""


def encode(column: Array, kind: t.DataType, blamed: Blamed) -> Bodies:
    """The bytes of every body of a column; bodies that cannot be sent go into ``blamed``."""
    if column.null_count:
        nulls = column.is_null().to_numpy(zero_copy_only=False)
        blame(blamed, nulls, "body", "is NULL; write an empty body instead")
    if isinstance(kind, t.BinaryType | t.StringType):
        return Bodies(limited(column, LARGEST_BODY, "body", blamed), None)
    if isinstance(kind, t.VariantType):
        return _variants(column, blamed)
    if isinstance(kind, t.ArrayType):
        content_type, (raw, wrong) = LIST_TYPE, encode_list(column, kind)
    else:
        assert isinstance(kind, t.StructType | t.MapType)  # the schema check accepts no other types
        content_type, (raw, wrong) = MAP_TYPE, encode_map(column, kind)
    for row, reason in wrong.items():
        blamed.setdefault(row, ("body", reason))
    return Bodies(limited(raw, LARGEST_BODY, "body", blamed), content_type)


def _variants(column: Array, blamed: Blamed) -> Bodies:
    raw, kinds, wrong = variants.bodies(column)
    for row, fault in wrong.items():
        blamed.setdefault(row, ("body", str(fault)))
    scalar = np.equal(kinds, 0)
    blame(blamed, scalar, "body", "is a VARIANT of a scalar; an object (amqp/map) or an array (amqp/list) is allowed")
    lists = np.equal(kinds, code.LIST).astype(np.int8)
    return Bodies(raw, pa.array([MAP_TYPE, LIST_TYPE]).take(cast("Any", pa.array(lists))))


def frame(kind: int, flags: Size, size: Size) -> tuple[Any, ...]:
    """Cells of the header of a frame on channel 0 whose payload has ``size`` bytes."""
    return number(">u1", flags), bytes([kind]), number(">u2", size + FRAME_HEADER), b"\0\1\0\0\0\0\0\0"


def assemble(head: RowBytes, raw: Array, room: int) -> tuple[pa.Buffer, Numbers]:
    """Whole assemblies of all rows, with at most ``room`` bytes of body per frame, and the end of each.

    The bodies are BINARY, none null. Every body is copied once.
    """
    long = lengths(raw)
    largest = int(long.max())
    if largest <= room:
        smallest = int(long.min())
        if largest:
            same = largest if smallest == largest else long
            there = None if smallest else long > 0
            head.cells(*frame(BODY, LAST_SEGMENT | WHOLE_SEGMENT, same), there=there)
        head.column(raw, long)
        return _data(join(*head.pieces()))
    return _cut(join(*head.pieces()), raw, long, room)


def _cut(head: Array, raw: Array, long: Numbers, room: int) -> tuple[pa.Buffer, Numbers]:
    """Whole assemblies with bodies of several frames: every frame is a row, the first one with the head in front."""
    rows = len(raw)
    counts = np.maximum(-(-long.astype(np.int64) // room), 1)
    last = np.cumsum(counts)
    owner = np.repeat(np.arange(rows), counts)
    index = np.arange(len(owner)) - (last - counts)[owner]
    limits = bounds(raw)
    begin = limits[owner] + index * room
    end = np.minimum(begin + room, limits[owner + 1])
    data = raw.buffers()[2]
    assert data is not None  # some body is larger than a frame
    chunks = packed(data, np.append(begin, end[-1]))
    first, final = index == 0, index == counts[owner] - 1
    flags = LAST_SEGMENT + first * FIRST_FRAME + final * LAST_FRAME
    frames = RowBytes(len(owner))
    frames.cells(*frame(BODY, flags, end - begin), there=None if long.all() else end > begin)
    heads = head.take(cast("Any", pa.array(owner, mask=~first)))
    joined, ends = _data(join(heads, *frames.pieces(), chunks))
    return joined, ends[last - 1]


def _data(joined: Array) -> tuple[pa.Buffer, Numbers]:
    ends = bounds(joined)[1:]
    data = joined.buffers()[2]
    assert data is not None  # an assembly is never empty
    return data.slice(0, int(ends[-1])), ends
