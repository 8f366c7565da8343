"""The bodies of a block: octets as they are or an encoded map or list, and the frames that they go into."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import types as t

from amqp_core.v0_10 import values as code
from amqp_spark.sink.columns import LIST_TYPE, MAP_TYPE
from amqp_spark.sink.encoding import variants
from amqp_spark.sink.encoding.pieces import LARGEST, Array, bounds, join, lengths, packed, present
from amqp_spark.sink.encoding.properties import fault
from amqp_spark.sink.encoding.run import Run, number
from amqp_spark.sink.encoding.values import encode_list, encode_map

if TYPE_CHECKING:
    from amqp_spark.sink.encoding.pieces import Numbers
    from amqp_spark.sink.encoding.properties import Faults
    from amqp_spark.sink.encoding.run import Size

FRAME_HEADER: Final = 12
COMMAND, HEADER, BODY = 1, 2, 3
FIRST_SEGMENT, LAST_SEGMENT, FIRST_FRAME, LAST_FRAME = 8, 4, 2, 1
WHOLE_SEGMENT: Final = FIRST_FRAME | LAST_FRAME


class Bodies(NamedTuple):
    """The bodies of a block as octets."""

    octets: Array
    types: Array | str | None
    """Content types of encoded maps and lists, one text if all are the same; None: the octets are the caller's."""


def encode(column: Array, kind: t.DataType, faults: Faults) -> Bodies:
    """The octets of every body of a column; what cannot be sent goes into ``faults``."""
    if column.null_count:
        nulls = column.is_null().to_numpy(zero_copy_only=False)
        fault(faults, nulls, "body", "is NULL; write an empty body instead")
    if isinstance(kind, t.BinaryType | t.StringType):
        return Bodies(narrow(column, faults), None)
    if isinstance(kind, t.VariantType):
        return _variants(column, kind, faults)
    if isinstance(kind, t.ArrayType):
        content_type, (octets, wrong) = LIST_TYPE, encode_list(column, kind)
    else:
        assert isinstance(kind, t.StructType | t.MapType)  # the schema check has let no other through
        content_type, (octets, wrong) = MAP_TYPE, encode_map(column, kind)
    for row, reason in wrong.items():
        faults.setdefault(row, ("body", reason))
    return Bodies(octets, content_type)


def _variants(column: Array, kind: t.VariantType, faults: Faults) -> Bodies:
    kinds: Numbers = variants.containers(column)
    lists = np.equal(kinds, code.LIST)
    maps = np.equal(kinds, code.MAP)
    neither = ~lists & ~maps
    fault(faults, neither, "body", "is a VARIANT of a scalar; an object (amqp/map) or an array (amqp/list) is allowed")
    parts: list[Array] = []
    for chosen, encode_ in ((maps, encode_map), (lists, encode_list)):
        rows = np.flatnonzero(chosen)
        if not len(rows):
            continue
        if len(rows) == len(column):
            octets, wrong = encode_(column, kind)
        else:
            some, wrong = encode_(column.filter(cast("Any", pa.array(chosen))), kind)
            places = np.zeros(len(column), np.int64)
            places[rows] = np.arange(len(rows))
            octets = some.take(cast("Any", pa.array(places, mask=~chosen)))
        parts.append(octets)
        for index, reason in wrong.items():
            faults.setdefault(int(rows[index]), ("body", reason))
    types = pa.array([MAP_TYPE, LIST_TYPE]).take(cast("Any", pa.array(lists.astype(np.int8))))
    empty = packed(np.zeros(0, np.uint8), np.zeros(len(column) + 1, np.int32))
    return Bodies(join(*parts) if parts else empty, types)


def narrow(column: Array, faults: Faults) -> Array:
    """Texts or octets as a binary array of 32-bit offsets, not copied. Rows beyond them become empty and faults."""
    long = lengths(column)
    if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
        octets: Array = column.view(pa.binary()) if pa.types.is_string(column.type) else column
        return octets
    most = LARGEST - LARGEST // 1000  # room for the header and for the frames of 4096 bytes
    if int(long.sum()) > most:
        for row in np.flatnonzero(long > most).tolist():
            faults.setdefault(row, ("body", f"has {long[row]} bytes; at most {most} can be sent"))
        return packed(np.zeros(0, np.uint8), np.zeros(len(column) + 1, np.int32), present(column))
    ends = bounds(column)
    data = column.buffers()[2]
    inner = data.slice(int(ends[0])) if data is not None else pa.py_buffer(b"")
    return packed(inner, ends - ends[0], present(column))


def frame(kind: int, flags: Size, size: Size) -> tuple[Any, ...]:
    """The cells of the header of a frame on channel 0 whose payload has ``size`` octets."""
    return number(">u1", flags), bytes([kind]), number(">u2", size + FRAME_HEADER), b"\0\1\0\0\0\0\0\0"


def assemble(head: Run, octets: Array, room: int) -> tuple[pa.Buffer, Numbers]:
    """Whole assemblies of all rows, and where each ends.

    ``head`` is what precedes the body; ``octets`` are the bodies, none null, cut into frames of at most ``room``
    octets. Every body is copied once.
    """
    long = lengths(octets)
    largest = int(long.max())
    if largest <= room:
        smallest = int(long.min())
        if largest:
            same = largest if smallest == largest else long
            there = None if smallest else long > 0
            head.cells(*frame(BODY, LAST_SEGMENT | WHOLE_SEGMENT, same), there=there)
        head.column(octets, long)
        return _data(join(*head.pieces()))
    return _cut(join(*head.pieces()), octets, long, room)


def _cut(head: Array, octets: Array, long: Numbers, room: int) -> tuple[pa.Buffer, Numbers]:
    """The same for bodies of several frames: every frame is a row of its own, the first one with the head in front."""
    rows = len(octets)
    counts = np.maximum(-(-long.astype(np.int64) // room), 1)
    last = np.cumsum(counts)
    owner = np.repeat(np.arange(rows), counts)
    index = np.arange(len(owner)) - (last - counts)[owner]
    limits = bounds(octets)
    begin = limits[owner] + index * room
    end = np.minimum(begin + room, limits[owner + 1])
    data = octets.buffers()[2]
    assert data is not None  # some body is larger than a frame
    chunks = packed(data, np.append(begin, end[-1]))
    first, final = index == 0, index == counts[owner] - 1
    flags = LAST_SEGMENT + first * FIRST_FRAME + final * LAST_FRAME
    frames = Run(len(owner))
    frames.cells(*frame(BODY, flags, end - begin), there=None if long.all() else end > begin)
    heads = head.take(cast("Any", pa.array(owner, mask=~first)))
    octets_, ends = _data(join(heads, *frames.pieces(), chunks))
    return octets_, ends[last - 1]


def _data(joined: Array) -> tuple[pa.Buffer, Numbers]:
    ends = bounds(joined)[1:]
    data = joined.buffers()[2]
    assert data is not None  # an assembly is never empty
    return data.slice(0, int(ends[-1])), ends
