"""Every type of Spark as header and body, every property and option: written by the sink and read back.

The source reads what it asks for by type; this project's client shows what is on the wire. Headers pass through
Broker-J, which writes every one of them again from Java objects (specs/amqp_0_10/errata.toml). Of the types that the
sink writes none changes by that; bodies it does not touch.
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.v0_10 import type_codes as code
from amqp_core.v0_10._read import read_list_typed, read_map_typed
from tests.broker.sink_support import browse, login, write
from tests.support.frames import assert_rows
from tests.support.taking import take

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from amqp_core.v0_10.type_codes import Typed
    from tests.support.fixtures import Broker, Connect

pytestmark = [pytest.mark.spark, pytest.mark.broker]

_LEAST, _MOST = datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)  # noqa: DTZ001 - for both kinds
_MOMENT = datetime(2026, 11, 21, 0, 5, 30, 123_456)  # noqa: DTZ001

TYPES: dict[str, tuple[int, list[Any]]] = {
    "BOOLEAN": (code.BOOLEAN, [True, False]),
    "TINYINT": (code.INT8, [-128, 127, 0]),
    "SMALLINT": (code.INT16, [-(2**15), 2**15 - 1, 1]),
    "INT": (code.INT32, [-(2**31), 2**31 - 1, -1]),
    "BIGINT": (code.INT64, [-(2**63), 2**63 - 1, 5]),
    "FLOAT": (code.FLOAT, [-0.0, math.nan, math.inf, 1.401298464324817e-45, 3.4028234663852886e38]),
    "DOUBLE": (code.DOUBLE, [-0.0, math.nan, -math.inf, 5e-324, 1.7976931348623157e308]),
    "STRING": (code.STR16, ["", "Grüße, 世界 🚀", "\0 and \x7f", "x" * 300]),
    "BINARY": (code.VBIN32, [b"", b"\x00\xff\xfe", b"text", bytes(range(256))]),
    "DECIMAL(10,2)": (code.STR16, [Decimal("-1.50"), Decimal("99999999.99"), Decimal("0.00")]),
    "DECIMAL(38,0)": (code.STR16, [Decimal(10**38 - 1), Decimal(-(10**38) + 1), Decimal(0)]),
    "DECIMAL(38,38)": (code.STR16, [Decimal("1e-38"), Decimal("-0.5"), Decimal(0)]),
    "DATE": (code.STR16, [date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)]),
    "TIMESTAMP": (code.STR16, [m.replace(tzinfo=UTC) for m in (_LEAST, _MOMENT, _MOST)]),
    "TIMESTAMP_NTZ": (code.STR16, [_LEAST, _MOMENT, _MOST]),
}
"""Spark's type, the type on the wire, and values."""

TEXTS = {
    "DECIMAL(10,2)": ["-1.50", "99999999.99", "0.00"],
    "DECIMAL(38,0)": ["9" * 38, "-" + "9" * 38, "0"],
    "DECIMAL(38,38)": ["0." + "0" * 37 + "1", "-0.5" + "0" * 37, "0." + "0" * 38],
    "DATE": ["0001-01-01", "1969-12-31", "9999-12-31"],
    "TIMESTAMP": ["0001-01-01T00:00:00.000000Z", "2026-11-21T00:05:30.123456Z", "9999-12-31T23:59:59.999999Z"],
    "TIMESTAMP_NTZ": ["0001-01-01T00:00:00.000000", "2026-11-21T00:05:30.123456", "9999-12-31T23:59:59.999999"],
}
"""Wire values of the types that are sent as text."""


def spelled(frame: DataFrame) -> list[str]:
    """Rows as texts, which differ for 1, 1.0 and True and for 0.0 and -0.0, and are equal for NaN; in order."""
    return sorted(map(repr, frame.toArrow().to_pylist()))


def sql(kind: str) -> str:
    """A STRUCT of a type as it is, and inside of lists, maps and structs."""
    return f"v: {kind}, l: ARRAY<{kind}>, m: MAP<STRING, {kind}>, s: STRUCT<v: {kind}, d: ARRAY<STRUCT<v: {kind}>>>"


def nested(value: Any) -> dict[str, Any]:
    """A value for each field of :func:`sql`."""
    return {
        "v": value,
        "l": [value, None, value],
        "m": {"": value, "ü" * 127: None, "k": value},
        "s": None if value is None else {"v": value, "d": [{"v": None}, None, {"v": value}]},
    }


def wire_values(kind: str) -> list[object]:
    """The wire values of the values of a type."""
    return list(TEXTS.get(kind) or TYPES[kind][1])


def same_values(found: list[object], wanted: list[object]) -> bool:
    return list(map(repr, found)) == list(map(repr, wanted))


def test_headers_and_body_of_every_type_nested_in_every_way(spark: SparkSession, broker: Broker, queue: str) -> None:
    fields = ", ".join(f"f{n}: STRUCT<{sql(kind)}>" for n, kind in enumerate(TYPES))
    schema = f"application_headers STRUCT<{fields}>, body STRUCT<{fields}>"
    values = list(zip_longest(*(values for _, values in TYPES.values())))
    rows = [({f"f{n}": nested(v) for n, v in enumerate(row)},) * 2 for row in values]
    nothing: dict[str, None] = dict.fromkeys(f"f{n}" for n in range(len(TYPES)))
    # A NULL field of a STRUCT is not there, so that a STRUCT of them is an empty map; NULL instead of it is no map.
    frame = spark.createDataFrame([*rows, (nothing, nothing), (None, nothing)], schema)
    write(frame, login(broker, routingKey=queue))
    assert spelled(browse(spark, broker, queue, schema)) == spelled(frame)


@pytest.mark.parametrize("kind", TYPES)
def test_maps_and_lists_of_one_type_have_its_wire_type(
    kind: str, spark: SparkSession, broker: Broker, connect: Connect, queue: str
) -> None:
    wire, values = TYPES[kind]
    row = ({str(n): value for n, value in enumerate(values)} | {"null": None}, [*values, None])
    schema = f"application_headers MAP<STRING, {kind}>, body ARRAY<{kind}>"
    frame = spark.createDataFrame([row, (None, [None]), ({}, [])], schema).coalesce(1)
    write(frame, login(broker, routingKey=queue))
    assert spelled(browse(spark, broker, queue, schema)) == spelled(frame)
    subscription = connect().subscribe(queue)
    subscription.grant(3)
    full, void, empty = take(subscription, 3)
    assert {m.properties.content_type for m in (full, void, empty)} == {"amqp/list"}
    items = list_of(full.body)
    assert [item.code for item in items] == [wire] * len(values) + [code.VOID]
    assert same_values([item.value for item in items], [*wire_values(kind), None])
    assert list_of(void.body) == [(code.VOID, None)]
    assert list_of(empty.body) == []
    headers = full.properties.application_headers
    assert headers is not None
    assert sorted(headers) == sorted(row[0])  # the order of a map is Spark's
    named = {**{str(n): value for n, value in enumerate(wire_values(kind))}, "null": None}
    assert same_values([headers[key] for key in named], list(named.values()))
    assert void.properties.application_headers is None
    assert empty.properties.application_headers == {}


def list_of(body: bytes) -> list[Typed]:
    items, end = read_list_typed(body, 0)
    assert end == len(body)
    return items


def map_of(body: bytes) -> dict[str, Typed]:
    entries, end = read_map_typed(body, 0)
    assert end == len(body)
    return entries


def test_a_struct_has_the_wire_type_of_each_field(
    spark: SparkSession, broker: Broker, connect: Connect, queue: str
) -> None:
    kinds = [*TYPES, "ARRAY<INT>", "MAP<STRING, INT>", "STRUCT<a: INT>"]
    wires = [*(wire for wire, _ in TYPES.values()), code.LIST, code.MAP, code.MAP]
    values = [*(values[0] for _, values in TYPES.values()), [1], {"a": 1}, {"a": 1}]
    fields = ", ".join(f"`field {n} ü`: {kind}" for n, kind in enumerate(kinds))
    names = [f"field {n} ü" for n in range(len(kinds))]
    row = dict(zip(names, values, strict=True))
    frame = spark.createDataFrame([(row, row)], f"application_headers STRUCT<{fields}>, body STRUCT<{fields}>")
    write(frame, login(broker, routingKey=queue))
    subscription = connect().subscribe(queue)
    subscription.grant(1)
    (message,) = take(subscription, 1)
    assert message.properties.content_type == "amqp/map"
    assert message.properties.content_length == len(message.body)
    entries = map_of(message.body)
    assert [(name, entry.code) for name, entry in entries.items()] == list(zip(names, wires, strict=True))
    assert list(message.headers) == names


def test_texts_and_octets_as_long_as_they_may_be(spark: SparkSession, broker: Broker, queue: str) -> None:
    schema = "body STRUCT<text: STRING, octets: BINARY, many: ARRAY<INT>>"
    frame = spark.createDataFrame([(("ü" * 32_767 + "x", b"\xff" * 200_000, list(range(20_000))),)], schema)
    write(frame, login(broker, routingKey=queue))
    assert spelled(browse(spark, broker, queue, schema)) == spelled(frame)


VARIANT_TYPES = {
    "boolean": ("true", "true", "BOOLEAN"),
    "int": ("-7", "-7", "BIGINT"),
    "long": ("9223372036854775807L", "9223372036854775807", "BIGINT"),
    "float": ("CAST(0.25 AS FLOAT)", "0.25", "FLOAT"),
    "double": ("1e300D", "1.0E300", "DOUBLE"),
    "text": ("'Grüße 🚀'", '"Grüße 🚀"', "STRING"),
    "octets": ("X'00ff'", '"AP8="', "BINARY"),
    # No wire type keeps all of these: they travel as text, and are text in a VARIANT that asks for no type.
    "decimal": ("-1.50BD", '"-1.50"', "STRING"),
    "day": ("DATE'2026-11-21'", '"2026-11-21"', "STRING"),
    "at": ("TIMESTAMP'2026-11-21 00:05:30.123456Z'", '"2026-11-21T00:05:30.123456Z"', "STRING"),
    "local": ("TIMESTAMP_NTZ'2026-11-21 00:05:30.123456'", '"2026-11-21T00:05:30.123456"', "STRING"),
    "list": ("array(1, NULL, 3)", "[1,null,3]", "ARRAY<BIGINT>"),
    "struct": (
        "named_struct('a', 1, 'b', array(named_struct('c', 'x')))",
        '{"a":1,"b":[{"c":"x"}]}',
        "OBJECT<a: BIGINT, b: ARRAY<OBJECT<c: STRING>>>",
    ),
    "map": ("map('k', 1.5D)", '{"k":1.5}', "OBJECT<k: DOUBLE>"),
    "null": ("CAST(NULL AS INT)", "null", "VOID"),
}
"""Name, SQL of a value, its JSON and its type when it comes back in a VARIANT."""

TYPED = """`boolean`: BOOLEAN, `int`: INT, `long`: BIGINT, `float`: FLOAT, `double`: DOUBLE, `text`: STRING,
    `octets`: BINARY, `decimal`: DECIMAL(4,2), `day`: DATE, `at`: TIMESTAMP, `local`: TIMESTAMP_NTZ, `list`: ARRAY<INT>,
    `struct`: STRUCT<a: INT, b: ARRAY<STRUCT<c: STRING>>>, `map`: MAP<STRING, DOUBLE>, `null`: INT"""


def test_variants_keep_the_types_that_the_wire_has(spark: SparkSession, broker: Broker, queue: str) -> None:
    fields = ", ".join(f"'{name}', {value[0]}" for name, value in VARIANT_TYPES.items())
    struct = spark.range(1).selectExpr(f"named_struct({fields}) AS s")
    frame = struct.selectExpr("to_variant_object(s) AS application_headers", "to_variant_object(s) AS body")
    write(frame, login(broker, routingKey=queue))

    for column in ("application_headers", "body"):
        found = browse(spark, broker, queue, f"{column} VARIANT, content_type STRING")
        parts = [(name, f"variant_get({column}, '$.{name}')") for name in VARIANT_TYPES]
        described = [
            f"('{name}' AS name, to_json({part}) AS json, schema_of_variant({part}) AS kind)" for name, part in parts
        ]
        rows = found.selectExpr("content_type", f"inline(array(struct{', struct'.join(described)}))")
        wanted = [("amqp/map", name, json, kind) for name, (_, json, kind) in VARIANT_TYPES.items()]
        assert_rows(rows, wanted, "content_type STRING, name STRING, json STRING, kind STRING")
        typed = browse(spark, broker, queue, f"{column} STRUCT<{TYPED}>").withColumnRenamed(column, "s")
        assert spelled(typed) == spelled(struct)


def test_variants_of_arrays_are_lists(spark: SparkSession, broker: Broker, queue: str) -> None:
    documents = ['[1, "x", null, {"a": [true]}]', '{"a": []}', "[]", "{}"]
    frame = spark.createDataFrame([(d,) for d in documents], "d STRING").coalesce(1).selectExpr("parse_json(d) AS body")
    write(frame, login(broker, routingKey=queue))
    found = browse(spark, broker, queue, "position BIGINT, body VARIANT, content_type STRING").orderBy("position")
    texts = ['[1,"x",null,{"a":[true]}]', '{"a":[]}', "[]", "{}"]
    wanted = list(zip(texts, ["amqp/list", "amqp/map"] * 2, strict=True))
    assert_rows(found.selectExpr("to_json(body) AS json", "content_type"), wanted, "json STRING, content_type STRING")
