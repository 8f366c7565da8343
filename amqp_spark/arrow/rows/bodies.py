"""The bodies of a block: bytes as given, or a map or list in the encoding of 0-10, which its content type names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import types as t

from amqp_spark.arrow.rows import variants
from amqp_spark.arrow.rows.dialect import AMQP_0_10
from amqp_spark.arrow.rows.row_bytes import bounds, lengths, packed
from amqp_spark.arrow.rows.row_errors import LARGEST_BODY, blame, limited
from amqp_spark.arrow.rows.values import encode_list, encode_map
from amqp_spark.arrow.without_pandas import from_numpy, to_numpy

if TYPE_CHECKING:
    from amqp_spark.arrow.rows.row_bytes import Array, Mask, Numbers
    from amqp_spark.arrow.rows.row_errors import Blamed

MAP_TYPE: Final = "amqp/map"
LIST_TYPE: Final = "amqp/list"
"""Content types of bodies that are one encoded map, or one encoded list: that of 0-10 (section 3.3.1), whatever the
protocol that carries them."""


@dataclass(frozen=True)
class Bodies:
    """The bodies of a block as bytes."""

    raw: Array
    types: Array | str | None
    """Content types of encoded maps and lists, one text if all are the same; None: the caller's bytes."""

    @cached_property
    def sizes(self) -> Numbers:
        """Bytes of every body."""
        return lengths(self.raw)


def encode(column: Array, kind: t.DataType, blamed: Blamed) -> Bodies:
    """The bytes of every body of a column; bodies that cannot be sent go into ``blamed``."""
    if column.null_count:
        nulls = to_numpy(column.is_null())
        blame(blamed, nulls, "body", "is NULL; write an empty body instead")
    if isinstance(kind, t.BinaryType | t.StringType):
        return Bodies(limited(column, LARGEST_BODY, "body", blamed), None)
    if isinstance(kind, t.VariantType):
        return _variants(column, blamed)
    if isinstance(kind, t.ArrayType):
        content_type, (raw, wrong) = LIST_TYPE, encode_list(column, kind, AMQP_0_10)
    else:
        assert isinstance(kind, t.StructType | t.MapType)  # the schema check accepts no other types
        content_type, (raw, wrong) = MAP_TYPE, encode_map(column, kind, AMQP_0_10)
    for row, reason in wrong.items():
        blamed.setdefault(row, ("body", reason))
    return Bodies(limited(raw, LARGEST_BODY, "body", blamed), content_type)


def _variants(column: Array, blamed: Blamed) -> Bodies:
    raw, kinds, wrong = variants.bodies(column, AMQP_0_10)
    for row, fault in wrong.items():
        blamed.setdefault(row, ("body", str(fault)))
    scalar = np.equal(kinds, 0)
    blame(blamed, scalar, "body", "is a VARIANT of a scalar; an object (amqp/map) or an array (amqp/list) is allowed")
    lists = np.equal(kinds, AMQP_0_10.list).astype(np.int8)
    return Bodies(raw, pa.array([MAP_TYPE, LIST_TYPE]).take(cast("Any", pa.array(lists))))


class Chunks(NamedTuple):
    """Bodies cut into parts, each for a frame of its own. Every row has at least one, which may be empty."""

    data: Array
    """The parts, not copied."""
    sizes: Numbers
    is_first: Mask
    is_final: Mask
    """Whether it is the first, or the last, of its row."""
    last: Numbers
    """The index of the last part of every row."""

    def of_first(self, heads: Array) -> Array:
        """An array of rows as one of parts, null in all parts but the first of a row."""
        owner = np.cumsum(self.is_first) - 1
        return heads.take(cast("Any", from_numpy(owner, ~self.is_first)))


def cut(raw: Array, long: Numbers, room: int) -> Chunks:
    """Cut bodies (BINARY, none null, not all empty) of the lengths ``long`` into parts of at most ``room`` bytes."""
    rows = len(raw)
    counts = np.maximum(-(-long.astype(np.int64) // room), 1)
    last = np.cumsum(counts)
    owner = np.repeat(np.arange(rows), counts)
    index = np.arange(len(owner)) - (last - counts)[owner]
    limits = bounds(raw)
    begin = limits[owner] + index * room
    end = np.minimum(begin + room, limits[owner + 1])
    data = raw.buffers()[2]
    assert data is not None  # some body has bytes
    return Chunks(
        packed(data, np.append(begin, end[-1])), end - begin, index == 0, index == counts[owner] - 1, last - 1
    )
