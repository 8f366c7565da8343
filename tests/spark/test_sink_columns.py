"""Which schemas the sink takes, and what it says about the others: every problem at once, by column."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import types as t

from amqp_core.v0_10 import type_codes as code
from amqp_core.v0_10._read import read_map_typed
from amqp_spark.arrow.columns.values import name_of
from amqp_spark.arrow.decode import COLUMNS as READABLE
from amqp_spark.arrow.decode import DEFAULT_SCHEMA
from amqp_spark.arrow.decode.schema import DEFAULT_CORRUPT_COLUMN
from amqp_spark.arrow.encode import MessagePlan
from amqp_spark.arrow.encode.schema import COLUMNS, IGNORED, WIRE_TYPES, schema_problems
from amqp_spark.errors import OptionError, SchemaError
from amqp_spark.validation import check_sink
from tests.spark.message_support import OBJECT, blocks_of, received, sink_options, to_batch

BODY = t.StructField("body", t.BinaryType())
NESTED: dict[type[t.DataType], t.DataType] = {
    t.StructType: t.StructType([t.StructField("symbol", t.StringType())]),
    t.MapType: t.MapType(t.StringType(), t.LongType()),
    t.ArrayType: t.ArrayType(t.LongType()),
}


TEXT, OCTETS, INT, DOUBLE = t.StringType(), t.BinaryType(), t.IntegerType(), t.DoubleType()


def fields(*columns: tuple[str, t.DataType]) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in columns])


MOMENT = datetime(2026, 11, 21, 0, 5, 30, 123_456, tzinfo=UTC)
SAMPLES: dict[str, tuple[t.DataType, Any]] = {
    "BOOLEAN": (t.BooleanType(), True),
    "TINYINT": (t.ByteType(), 1),
    "SMALLINT": (t.ShortType(), 1),
    "INT": (INT, 1),
    "BIGINT": (t.LongType(), 1),
    "FLOAT": (t.FloatType(), 1.5),
    "DOUBLE": (DOUBLE, 1.5),
    "STRING": (TEXT, "x"),
    "BINARY": (OCTETS, b"x"),
    "DECIMAL(p,s)": (t.DecimalType(9, 2), Decimal("-1.5")),
    "DATE": (t.DateType(), MOMENT.date()),
    "TIMESTAMP": (t.TimestampType(), MOMENT),
    "TIMESTAMP_NTZ": (t.TimestampNTZType(), MOMENT.replace(tzinfo=None)),
    "ARRAY<...>": (t.ArrayType(INT), [1]),
    "STRUCT<...>": (fields(("a", INT)), {"a": 1}),
    "MAP<STRING, ...>": (t.MapType(TEXT, INT), [("a", 1)]),
    "VARIANT": (t.VariantType(), OBJECT),
}


def problems(schema: t.StructType, **options: object) -> tuple[str, ...]:
    with pytest.raises(SchemaError) as caught:
        MessagePlan.build(schema, sink_options(**options))
    return caught.value.problems


def test_what_the_source_reads_without_a_schema_can_be_written() -> None:
    assert schema_problems(DEFAULT_SCHEMA, sink_options()) == []


def test_every_column_of_the_source_is_sent_or_ignored() -> None:
    assert set(COLUMNS) | set(IGNORED) == set(READABLE)
    assert not set(COLUMNS) & set(IGNORED)


@pytest.mark.parametrize("name", [name for name in COLUMNS if name != "reply_to"])
def test_every_type_that_the_source_reads_a_column_as_can_be_written(name: str) -> None:
    options = sink_options(exchangeFromColumn="true" if name == "exchange" else "false")
    for kind in READABLE[name].scalars + READABLE[name].nested:
        field = t.StructField(name, NESTED[kind] if kind in NESTED else kind())
        schema = t.StructType([field] if name == "body" else [BODY, field])
        assert schema_problems(schema, options) == []


@pytest.mark.parametrize("name", IGNORED)
def test_what_a_publisher_cannot_set_is_ignored_whatever_its_type(name: str) -> None:
    schema = t.StructType([BODY, t.StructField(name, t.ArrayType(t.DoubleType()))])
    plan = MessagePlan.build(schema, sink_options())
    assert set(plan.columns) == {"body"}


def test_rows_with_a_column_of_what_did_not_fit_are_not_sent_unnoticed() -> None:
    (problem,) = problems(fields(("body", TEXT), (DEFAULT_CORRUPT_COLUMN, TEXT)))
    assert problem.startswith(f"[AMQP_COLUMN_UNKNOWN] There is no column '{DEFAULT_CORRUPT_COLUMN}'.")


def test_names_are_compared_without_case() -> None:
    plan = MessagePlan.build(fields(("BODY", TEXT), ("Routing_Key", TEXT)), sink_options())
    assert set(plan.columns) == {"body", "routing_key"}


def test_a_column_twice_is_named() -> None:
    (problem,) = problems(fields(("body", TEXT), ("BODY", TEXT)))
    assert problem.startswith("[AMQP_COLUMN_DUPLICATE] Column 'BODY' occurs twice.")


def test_an_unknown_column_is_named_with_near_names_and_all_columns() -> None:
    (problem,) = problems(fields(("body", TEXT), ("routingkey", TEXT)))
    assert problem.startswith("[AMQP_COLUMN_UNKNOWN] There is no column 'routingkey', which is similar to routing_key.")
    for name in (*COLUMNS, *IGNORED):
        assert name in problem


def test_a_name_like_no_other_gets_no_hint() -> None:
    (problem,) = problems(fields(("body", TEXT), ("zzz", TEXT)))
    assert "similar" not in problem


def test_a_missing_body_is_named() -> None:
    (problem,) = problems(fields(("routing_key", TEXT)))
    assert problem.startswith("[AMQP_COLUMN_MISSING] Column 'body' is missing. Add it as ")
    assert "BINARY" in problem


def test_all_problems_come_at_once() -> None:
    found = problems(fields(("price", DOUBLE), ("priority", TEXT), ("timestamp", t.DateType()), ("body", DOUBLE)))
    assert [text.split("'")[1] for text in found] == ["price", "priority", "timestamp", "body"]
    assert found[1].endswith("'priority' cannot have the type STRING. Use TINYINT, SMALLINT, INT, BIGINT.")
    assert "Use TIMESTAMP" in found[2]
    assert "Use BINARY, STRING" in found[3]


@pytest.mark.parametrize(
    "kind",
    [
        TEXT,
        fields(("exchange", OCTETS)),
        fields(("queue", TEXT)),
        fields(("exchange", TEXT), ("EXCHANGE", TEXT)),
        t.StructType([]),
    ],
    ids=str,
)
def test_reply_to_takes_exchange_and_routing_key_only(kind: t.DataType) -> None:
    (problem,) = problems(fields(("body", TEXT), ("reply_to", kind)))
    assert f"'reply_to' cannot have the type {'STRUCT' if isinstance(kind, t.StructType) else 'STRING'}" in problem
    assert problem.endswith("Use STRUCT of any of exchange STRING, routing_key STRING.")


def test_reply_to_of_one_part_is_fine() -> None:
    assert schema_problems(fields(("body", TEXT), ("reply_to", fields(("Routing_Key", TEXT)))), sink_options()) == []


def test_headers_and_bodies_that_have_no_wire_type_are_named_with_their_path() -> None:
    nested = fields(("a", fields(("b", t.DayTimeIntervalType()))))
    found = problems(fields(("body", nested), ("application_headers", t.MapType(INT, TEXT))))
    assert "'body.a.b' is not supported" in found[0]
    assert "'application_headers' is not supported: the keys of a map are STRING" in found[1]


def test_the_column_exchange_counts_only_when_it_is_asked_for() -> None:
    schema = fields(("body", TEXT), ("exchange", DOUBLE))
    assert "exchange" not in MessagePlan.build(schema, sink_options()).columns
    (problem,) = problems(schema, exchangeFromColumn="true")
    assert "'exchange' cannot have the type DOUBLE." in problem


def test_exchange_from_column_needs_the_column() -> None:
    (problem,) = problems(fields(("body", TEXT)), exchangeFromColumn="true")
    assert "exchangeFromColumn" in problem


def test_messages_need_a_destination() -> None:
    body, key = ("body", TEXT), ("Routing_Key", TEXT)
    for options in ({}, {"routingKey": ""}):
        (problem,) = problems(fields(body), exchange="", **options)
        assert problem.startswith("[AMQP_DESTINATION_MISSING] ")
    for columns, given in (
        ([body, key], {}),
        ([body], {"routingKey": "q"}),
        ([body], {"exchange": "amq.fanout"}),
        ([body, ("exchange", TEXT)], {"exchangeFromColumn": "true"}),
    ):
        assert schema_problems(fields(*columns), sink_options(**{"exchange": ""} | given)) == []


@pytest.mark.parametrize("destination", [{"exchange": "x" * 256}, {"routingKey": "x" * 256}, {}])
def test_a_destination_that_is_wrong_is_not_missing(destination: dict[str, str]) -> None:
    with pytest.raises(OptionError) as caught:
        check_sink({"url": "amqp://h", "priority": "256"} | destination, fields(("body", TEXT)))
    missing = [problem for problem in caught.value.problems if "AMQP_DESTINATION_MISSING" in problem]
    assert len(missing) == (not destination)
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (fields(("a", INT)), ["amqp/map"], ["amqp/list", "application/json"]),
        (t.MapType(TEXT, INT), ["amqp/map"], ["text/plain"]),
        (t.ArrayType(INT), ["amqp/list"], ["amqp/map"]),
        (t.VariantType(), ["amqp/map", "amqp/list"], ["application/json"]),
        (TEXT, ["amqp/map", "application/json"], []),
    ],
)
def test_a_content_type_that_contradicts_the_body_is_refused(kind: t.DataType, good: list[str], bad: list[str]) -> None:
    schema = fields(("body", kind))
    for name in good:
        assert schema_problems(schema, sink_options(contentType=name)) == []
    for name in bad:
        (problem,) = problems(schema, contentType=name)
        assert problem.startswith("[AMQP_BODY_TYPE_CONFLICT] A body of type ")
        assert repr(name) in problem


@pytest.mark.parametrize(
    ("name", "wire", "how"), [(name, wire, how) for name, wire, _, how in WIRE_TYPES], ids=lambda item: str(item)[:14]
)
def test_the_documented_wire_types_are_those_that_are_sent(name: str, wire: str, how: str) -> None:
    kind, value = SAMPLES[name]
    schema = fields(("body", TEXT), ("application_headers", fields(("h", kind))))
    (block,) = blocks_of(schema, to_batch(schema, [{"body": "", "application_headers": {"h": value}}]))
    (message,) = received([block])
    headers, _ = read_map_typed(message.header, message.header.index(b"\x01h") - 8)
    if name == "VARIANT":
        assert headers["h"].code == code.MAP
    else:
        assert name_of(headers["h"].code) == wire
    example = re.search("`(.*)`", how)
    if example and wire == "str16":
        assert headers["h"].value == example[1]
