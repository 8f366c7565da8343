"""Columns of messages of 0-10: a function per column that makes its Arrow array."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from amqp_spark.arrow.columns import arrays
from amqp_spark.arrow.columns import batch as batches
from amqp_spark.arrow.columns.batch import body_builder, bytes_of, general, headers_builder, property_builder, require
from amqp_spark.arrow.columns.wire import is_nowhere
from amqp_spark.arrow.v0_10.decode.properties import reply_to, structs
from amqp_spark.arrow.v0_10.properties import MESSAGE, PROPERTIES, REPLY_TO
from amqp_spark.arrow.without_pandas import from_numpy

if TYPE_CHECKING:
    from pyspark.sql import types as t

    from amqp_spark.arrow.columns.arrays import Array, Column
    from amqp_spark.arrow.columns.batch import Build
    from amqp_spark.arrow.columns.fields import PackedFields
    from amqp_spark.arrow.columns.located import Located
    from amqp_spark.arrow.layout import Property

_PROPERTIES: Final = {each.name: each for each in PROPERTIES}


class Batch(batches.Batch):
    """Some rows of a block; positions of their fields are computed when a column needs them."""

    def __init__(self, located: Located, rows: range, queue: str, position: int) -> None:
        super().__init__(located, rows, queue, position)
        self._structs: tuple[PackedFields, PackedFields] | None = None

    def fields_of(self, wanted: Property) -> PackedFields:
        """Positions of the struct that has this field."""
        if self._structs is None:
            self._structs = structs(self.wire, self.head_begin, self.head_end, self.broken)
        return self._structs[wanted in MESSAGE.fields]

    def encoded_headers(self) -> Array:
        """Headers as BINARY: encoded maps, untouched."""
        return batches.encoded_headers(self, _PROPERTIES["application_headers"])


def builder(field: t.StructField, arrow: pa.DataType, unit: str) -> Build:
    """The function that makes the column of a field; the schema check has accepted the type."""
    name, kind = field.name.lower(), field.dataType
    build = general(name)
    if build is not None:
        return build
    if name == "body":
        return body_builder(kind, arrow, unit, _PROPERTIES["content_type"])
    wanted = _PROPERTIES.get(name)
    if wanted is None:  # 0-9-1 has it, 0-10 does not
        return lambda batch: arrays.nulls(batch.rows, arrow)
    if wanted.wire == "reply-to":
        return partial(_reply_to, wanted=wanted, arrow=cast("pa.StructType", arrow))
    if wanted.wire == "map":
        return headers_builder(wanted, kind, arrow, unit)
    return property_builder(wanted, kind, arrow, unit)


def _reply_to(batch: batches.Batch, wanted: Property, arrow: pa.StructType) -> Column:
    spans = batch.sized(wanted)
    if is_nowhere(spans.absent):
        return arrays.nulls(batch.rows, arrow)
    packed = reply_to(batch.wire, spans, batch.broken)
    parts = {part.name: part for part in REPLY_TO.fields}
    columns: list[Array] = []
    errors: dict[int, str] = {}
    for field in arrow:
        column, wrong = arrays.text(bytes_of(batch.wire, packed.sized(part := parts[field.name.lower()]), part))
        columns.append(column)
        errors.update({row: f"{field.name}: {why}" for row, why in wrong.items()})
        require(field, column, spans.absent, errors)
    mask: Any = None if spans.absent is None else from_numpy(spans.absent)
    return pa.StructArray.from_arrays(columns, fields=list(arrow), mask=mask), errors
