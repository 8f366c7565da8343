"""The source reads back every value that the sink encodes: every type, any values, nested."""

from __future__ import annotations

import math
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from amqp_core.v0_10.type_codes import MAX_DEPTH
from amqp_spark.arrow.columns.conversion import unsupported_parts
from amqp_spark.arrow.decode import ColumnPlan
from amqp_spark.arrow.rows import values as encoding
from amqp_spark.arrow.rows.dialect import AMQP_0_10
from tests.support import wire
from tests.support.choice import examples
from tests.support.encoded import encode_map
from tests.support.received import chunk_of

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

encode_list = partial(encoding.encode_list, wire=AMQP_0_10)

STRING = t.StringType()


def source(name: str, kind: t.DataType, transfers: list[bytes]) -> list[Any]:
    """The column as the source makes it of these transfers."""
    plan = ColumnPlan.build(t.StructType([t.StructField(name, kind)]), mode="FAILFAST", timestamp_unit="auto")
    out: list[Any] = []
    for batch in plan.batches([chunk_of(b"".join(transfers))], queue="q", first_position=0):
        batch.validate(full=True)
        out += batch.column(0).to_pylist()
    return out


def as_headers(encoded: list[bytes | None]) -> list[bytes]:
    return [wire.transfer(None if row is None else wire.message(application_headers=row), b"body") for row in encoded]


def as_bodies(encoded: list[bytes], content_type: bytes) -> list[bytes]:
    return [wire.transfer(wire.message(content_type=wire.str8(content_type)), row) for row in encoded]


# ---- any type, any values ------------------------------------------------------------------------------------------


def decimals() -> SearchStrategy[t.DataType]:
    return st.integers(1, 38).flatmap(
        lambda precision: st.integers(0, precision).map(lambda scale: t.DecimalType(precision, scale))
    )


SCALARS: list[t.DataType] = [
    *(t.BooleanType(), t.ByteType(), t.ShortType(), t.IntegerType(), t.LongType(), t.FloatType(), t.DoubleType()),
    *(STRING, t.BinaryType(), t.DateType(), t.TimestampType(), t.TimestampNTZType()),
]
names = st.text(max_size=12)


def containers(inner: SearchStrategy[t.DataType]) -> SearchStrategy[t.DataType]:
    return st.one_of(inner.map(t.ArrayType), inner.map(lambda kind: t.MapType(STRING, kind)), structs(inner))


def structs(inner: SearchStrategy[t.DataType]) -> SearchStrategy[t.DataType]:
    return st.lists(st.tuples(names, inner), min_size=1, max_size=4, unique_by=lambda pair: pair[0]).map(
        lambda pairs: t.StructType([t.StructField(name, kind) for name, kind in pairs])
    )


kinds = st.recursive(st.one_of(st.sampled_from(SCALARS), decimals()), containers, max_leaves=6)


def values(kind: t.DataType) -> SearchStrategy[Any]:
    """Values of a type as pyarrow takes them; None too."""
    return st.one_of(st.none(), some(kind))


def some(kind: t.DataType) -> SearchStrategy[Any]:
    match kind:
        case t.StructType():
            return st.fixed_dictionaries({field.name: values(field.dataType) for field in kind.fields})
        case t.ArrayType():
            return st.lists(values(kind.elementType), max_size=4)
        case t.MapType():
            return st.dictionaries(names, values(kind.valueType), max_size=4).map(lambda one: list(one.items()))
        case t.DecimalType():
            most = 10**kind.precision - 1
            scale = kind.scale
            return st.integers(-most, most).map(lambda number: Decimal(f"{number}E-{scale}"))
        case _:
            return PLAIN[type(kind)]


def integers(bits: int) -> SearchStrategy[int]:
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


PLAIN: dict[type[t.DataType], SearchStrategy[Any]] = {
    t.BooleanType: st.booleans(),
    t.ByteType: integers(8),
    t.ShortType: integers(16),
    t.IntegerType: integers(32),
    t.LongType: integers(64),
    t.FloatType: st.floats(width=32),
    t.DoubleType: st.floats(),
    t.StringType: st.text(max_size=30),
    t.BinaryType: st.binary(max_size=30),
    t.DateType: st.dates(),
    t.TimestampType: st.datetimes(),
    t.TimestampNTZType: st.datetimes(),
}


def comparable(value: Any) -> Any:
    """NaN is equal to itself here, and 0.0 not to -0.0."""
    match value:
        case float():
            return "nan" if math.isnan(value) else (value, math.copysign(1, value))
        case dict():
            return {key: comparable(item) for key, item in value.items()}
        case list() | tuple():
            return [comparable(item) for item in value]
        case _:
            return value


@st.composite
def columns(draw: st.DrawFn, of: SearchStrategy[t.DataType]) -> tuple[t.DataType, Any]:
    """A type and a column of it, which may be a slice."""
    kind = draw(of)
    rows = draw(st.lists(values(kind), max_size=6))
    column = pa.array(rows, to_arrow_type(kind, timezone="UTC"))
    start = draw(st.integers(0, len(rows)))
    return kind, column.slice(start)


@settings(max_examples=examples(300), deadline=None)
@given(columns(st.one_of(structs(kinds), kinds.map(lambda kind: t.MapType(STRING, kind)))))
def test_maps_come_back(case: tuple[t.DataType, Any]) -> None:
    kind, column = case
    assert isinstance(kind, t.StructType | t.MapType)
    assert unsupported_parts(kind, "application_headers", sent=True) == []
    encoded, errors = encode_map(column, kind)
    assert errors == {}
    rows, expected = encoded.to_pylist(), comparable(column.to_pylist())
    if rows:
        assert comparable(source("application_headers", kind, as_headers(rows))) == expected
    bodies = [row for row in rows if row is not None]
    if bodies:
        there = [row for row in expected if row is not None]
        assert comparable(source("body", kind, as_bodies(bodies, b"amqp/map"))) == there


@settings(max_examples=examples(150), deadline=None)
@given(columns(kinds.map(t.ArrayType)))
def test_lists_come_back(case: tuple[t.DataType, Any]) -> None:
    kind, column = case
    assert isinstance(kind, t.ArrayType)
    encoded, errors = encode_list(column, kind)
    assert errors == {}
    rows = [row for row in encoded.to_pylist() if row is not None]
    expected = [row for row in comparable(column.to_pylist()) if row is not None]
    assert len(rows) == len(expected)
    if rows:
        assert comparable(source("body", kind, as_bodies(rows, b"amqp/list"))) == expected


def test_texts_of_a_map_show_what_was_sent() -> None:
    """Who reads a STRUCT as MAP<STRING, STRING> gets the canonical texts."""
    kind = t.StructType(
        [
            t.StructField("price", t.DecimalType(38, 18)),
            t.StructField("day", t.DateType()),
            t.StructField("at", t.TimestampType()),
            t.StructField("local", t.TimestampNTZType()),
        ]
    )
    moment = datetime(2026, 11, 21, 0, 5, 30)  # noqa: DTZ001 - both kinds of TIMESTAMP take it
    row = {"price": Decimal("1E-18"), "day": date(2026, 11, 21), "at": moment, "local": moment}
    encoded, _ = encode_map(pa.array([row], to_arrow_type(kind, timezone="UTC")), kind)
    (texts,) = source("application_headers", t.MapType(STRING, STRING), as_headers(encoded.to_pylist()))
    assert dict(texts) == {
        "price": "0.000000000000000001",
        "day": "2026-11-21",
        "at": "2026-11-21T00:05:30.000000Z",
        "local": "2026-11-21T00:05:30.000000",
    }


def test_the_deepest_map_comes_back() -> None:
    kind: t.DataType = t.LongType()
    value: Any = 1
    for level in range(MAX_DEPTH - 1):
        if level % 2:
            kind, value = t.ArrayType(kind), [value]
        else:
            kind, value = t.StructType([t.StructField("x", kind)]), {"x": value}
    top = t.StructType([t.StructField("top", kind)])
    assert unsupported_parts(top, "application_headers", sent=True) == []
    encoded, errors = encode_map(pa.array([{"top": value}], to_arrow_type(top)), top)
    assert errors == {}
    assert source("application_headers", top, as_headers(encoded.to_pylist())) == [{"top": value}]
