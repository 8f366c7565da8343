"""Rows as basic.publish of 0-9-1: every property, header and frame, decoded by pika and by hand."""

from __future__ import annotations

import math
import struct
import time
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t
from pyspark.sql.types import VariantVal

from amqp_core.v0_9.driver import PUBLISHING
from amqp_spark.arrow.encode import COLUMNS, WIRE_TYPES, TaskId
from amqp_spark.arrow.rows.messages import KEPT_FREE, MOST_ROWS
from amqp_spark.arrow.rows.stamps import STAMPS
from amqp_spark.arrow.v0_9.encode.messages import CHANNEL
from amqp_spark.arrow.v0_9.encode.tables import _plain, _problem, checked
from tests.spark.message_support import INT, LONG, OCTETS, TEXT, fields, sink_options, to_batch
from tests.spark.publish_support import decoded, encoded, one, published, refusal

BODY = {"body": b"x"}
REPLY_TO = fields(exchange=TEXT, routing_key=TEXT)
EVERYTHING = fields(
    body=OCTETS,
    routing_key=TEXT,
    content_type=TEXT,
    content_encoding=TEXT,
    application_headers=fields(symbol=TEXT, qty=INT),
    delivery_mode=t.ByteType(),
    priority=t.ShortType(),
    correlation_id=OCTETS,
    reply_to=REPLY_TO,
    ttl=LONG,
    message_id=TEXT,
    timestamp=t.TimestampType(),
    type=TEXT,
    user_id=TEXT,
    app_id=OCTETS,
    cluster_id=TEXT,
    discard_unroutable=t.BooleanType(),
    content_length=LONG,
)
ROW: dict[str, Any] = {
    "body": b"body \xce\x01",
    "routing_key": "ticks.é",
    "content_type": "text/plain",
    "content_encoding": "gzip",
    "application_headers": {"symbol": "EURUSD", "qty": -7},
    "delivery_mode": 1,
    "priority": 255,
    "correlation_id": b"c-1",
    "reply_to": {"exchange": None, "routing_key": "answers"},
    "ttl": 60_000,
    "message_id": "any text: é",
    "timestamp": datetime(2026, 11, 21, 10, 0, 0, 999_999, tzinfo=UTC),
    "type": "tick",
    "user_id": "guest",
    "app_id": b"app",
    "cluster_id": "c",
    "discard_unroutable": True,
    "content_length": 999,
}


def test_every_property_is_sent() -> None:
    message = one(EVERYTHING, ROW)
    method, found = message.method, message.properties
    assert (method.ticket, method.exchange, method.routing_key) == (0, "amq.topic", "ticks.é")
    assert (method.mandatory, method.immediate) == (False, False)
    assert message.body == b"body \xce\x01"
    assert message.headers == {"symbol": ("S", "EURUSD"), "qty": ("I", -7)}
    assert vars(found) == {
        "content_type": "text/plain",
        "content_encoding": "gzip",
        "headers": {"symbol": "EURUSD", "qty": -7},
        "delivery_mode": 1,
        "priority": 255,
        "correlation_id": "c-1",
        "reply_to": "answers",
        "expiration": "60000",
        "message_id": "any text: é",
        "timestamp": int(datetime(2026, 11, 21, 10, tzinfo=UTC).timestamp()),
        "type": "tick",
        "user_id": "guest",
        "app_id": "app",
        "cluster_id": "c",
    }


def test_null_leaves_a_property_out_and_an_empty_text_does_not() -> None:
    texts = {field.name: "" for field in EVERYTHING if field.dataType == TEXT}
    rows = [dict.fromkeys(ROW) | BODY, ROW, {**dict.fromkeys(ROW), **BODY, **texts}]
    bare, full, empty = published(EVERYTHING, rows)
    assert set(vars(bare.properties).values()) == {None}
    assert bare.frames == (26, 22, 9)
    assert bare.method.mandatory
    assert bare.method.routing_key == ""
    assert full.properties.type == "tick"
    assert {name for name, value in vars(empty.properties).items() if value == ""} == texts.keys() - {"routing_key"}


def test_a_body_and_a_queue_are_a_persistent_and_mandatory_message_to_the_default_exchange() -> None:
    message = one(fields(body=OCTETS), BODY, sink_options(exchange="", routingKey="q"))
    assert (message.method.exchange, message.method.routing_key, message.method.mandatory) == ("", "q", True)
    assert {name: value for name, value in vars(message.properties).items() if value is not None} == {
        "delivery_mode": 2
    }


def test_options_replace_columns() -> None:
    options = sink_options(
        exchange="e", routingKey="k", deliveryMode="non-persistent", ttl=5, priority=9, contentType="a/b"
    )
    message = one(EVERYTHING, ROW, options)
    assert (message.method.exchange, message.method.routing_key) == ("e", "k")
    found = message.properties
    assert (found.delivery_mode, found.expiration, found.priority, found.content_type) == (1, "5", 9, "a/b")


def test_each_row_may_have_its_own_exchange() -> None:
    schema = fields(body=OCTETS, exchange=TEXT)
    rows = [{**BODY, "exchange": name} for name in ("one", None, "three")]
    (block,) = encoded(schema, rows, sink_options(exchange="two", exchangeFromColumn="true"))
    assert [message.method.exchange for message in decoded([block])] == ["one", "two", "three"]
    assert block.exchanges is not None
    assert block.exchanges.to_pylist() == ["one", "two", "three"]


def test_the_channel_is_the_one_that_clients_publish_on() -> None:
    assert CHANNEL == PUBLISHING


@pytest.mark.parametrize("kind", [TEXT, OCTETS])
@pytest.mark.parametrize(
    "name",
    ["content_type", "content_encoding", "correlation_id", "message_id", "type", "user_id", "app_id", "cluster_id"],
)
def test_a_short_text_has_at_most_255_bytes(name: str, kind: t.DataType) -> None:
    schema = fields(body=OCTETS, **{name: kind})
    text = "é" * 127 + "x"
    value: Any = text if kind == TEXT else text.encode()
    assert getattr(one(schema, {**BODY, name: value}).properties, name) == text
    problem = refusal(schema, {**BODY, name: None}, {**BODY, name: value + value[-1:]}, first_row=6)
    assert problem.startswith("[AMQP_ROW_INVALID] Row 7 of partition 3 in batch 12 cannot be sent: ")
    assert f"column '{name}' has 256 bytes; at most 255 are allowed." in problem


@pytest.mark.parametrize("name", ["routing_key", "reply_to"])
def test_keys_have_at_most_255_bytes_too(name: str) -> None:
    schema = fields(body=OCTETS, **{name: TEXT if name == "routing_key" else REPLY_TO})

    def row(text: str) -> dict[str, Any]:
        return {**BODY, name: text if name == "routing_key" else {"routing_key": text}}

    assert one(schema, row("k" * 255)).frames
    assert "has 256 bytes; at most 255 are allowed" in refusal(schema, row("k" * 256))


def test_a_text_of_spark_that_is_no_utf_8_is_refused() -> None:
    schema = fields(body=OCTETS, type=TEXT)
    texts = pa.array([b"a", b"\xff"], pa.binary()).view(pa.string())
    batch = pa.RecordBatch.from_arrays([pa.array([b""] * 2, pa.binary()), texts], names=["body", "type"])
    with pytest.raises(Exception, match=r"Row 1 .* column 'type' has 1 bytes that are not UTF-8"):
        encoded(schema, batch)


# ---- what differs from 0-10


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("resume_id", TEXT, "r"),
        ("resume_ttl", LONG, 0),
        ("expiration", LONG, 1),
        ("immediate", t.BooleanType(), True),
    ],
)
def test_what_0_9_1_has_no_property_for_is_refused_unless_it_is_null_or_may_be_dropped(
    name: str, kind: t.DataType, value: object
) -> None:
    schema = fields(body=OCTETS, **{name: kind})
    rows: list[dict[str, Any]] = [{**BODY, name: None}, {**BODY, name: value}]
    assert (
        f"Row 1 of partition 3 in batch 12 cannot be sent: column '{name}' has a value, and AMQP 0-9-1 has no such "
        "property: leave the column out, or set onUnsupported=drop."
    ) in refusal(schema, *rows)
    assert one(schema, rows[0]).body == b"x"
    dropped = encoded(schema, rows, sink_options(onUnsupported="drop"))
    without = encoded(fields(body=OCTETS), [BODY, BODY], sink_options())
    assert bytes(memoryview(dropped[0].frames)) == bytes(memoryview(without[0].frames))


def test_immediate_may_be_false() -> None:
    assert not one(fields(body=OCTETS, immediate=t.BooleanType()), {**BODY, "immediate": False}).method.immediate


def test_every_column_is_sent_refused_or_elsewhere() -> None:
    """``docs/columns.md`` has a word for every column."""
    assert all(column.elsewhere for name, column in COLUMNS.items() if name not in ("body", "exchange"))


def test_an_exchange_of_reply_to_is_refused_unless_it_may_be_dropped() -> None:
    schema = fields(body=OCTETS, reply_to=REPLY_TO)
    rows = [{**BODY, "reply_to": each} for each in (None, {"exchange": "", "routing_key": "q"}, {"exchange": "e"})]
    assert [message.properties.reply_to for message in published(schema, rows[:2])] == [None, "q"]
    assert "Row 2 of partition 3 in batch 12 cannot be sent: column 'reply_to.exchange' has a value" in refusal(
        schema, *rows
    )
    found = published(schema, rows, sink_options(onUnsupported="drop"))
    assert [message.properties.reply_to for message in found] == [None, "q", None]


def test_a_time_to_live_is_text_or_where_brokers_take_it_so_a_time() -> None:
    schema = fields(body=OCTETS, ttl=LONG)
    most = 2**63 - 1
    rows = [{**BODY, "ttl": each} for each in (0, None, 60_000, most)]
    assert [each.properties.expiration for each in published(schema, rows)] == ["0", None, "60000", str(most)]
    before = time.time_ns() // 1_000_000
    found = [each.properties.expiration for each in published(schema, rows, absolute=True)]
    after = time.time_ns() // 1_000_000
    assert before <= int(found[0]) <= after
    assert int(found[2]) - int(found[0]) == 60_000
    assert found[1::2] == [None, str(most)]
    fixed = one(fields(body=OCTETS), BODY, sink_options(ttl=60_000), absolute=True).properties.expiration
    assert after + 60_000 <= int(fixed) <= time.time_ns() // 1_000_000 + 60_000
    assert "column 'ttl' is -1; 0 and above are allowed" in refusal(schema, {**BODY, "ttl": -1})


def test_where_it_is_a_time_the_column_of_times_counts_before_the_time_to_live() -> None:
    row: dict[str, Any] = {**BODY, "ttl": None, "expiration": datetime(2026, 11, 21, 0, 0, 0, 123_999, UTC)}
    at = str(int(datetime(2026, 11, 21, tzinfo=UTC).timestamp()) * 1000 + 123)
    schema = fields(body=OCTETS, ttl=LONG, expiration=t.TimestampType())
    rows = [row, {**row, "ttl": 5}, {**row, "ttl": 60_000, "expiration": None}, {**row, "expiration": None}]
    before = time.time_ns() // 1_000_000
    found = [each.properties.expiration for each in published(schema, rows, absolute=True)]
    assert found[:2] == [at, at]
    assert before + 60_000 <= int(found[2]) <= time.time_ns() // 1_000_000 + 60_000
    assert found[3] is None
    fixed = [each.properties.expiration for each in published(schema, rows, sink_options(ttl=7), absolute=True)]
    assert fixed[:2] == [at, at]
    assert before + 7 <= int(fixed[3]) <= time.time_ns() // 1_000_000 + 7
    number = fields(body=OCTETS, expiration=LONG)
    assert one(number, {**BODY, "expiration": 17}, absolute=True).properties.expiration == "17"
    assert "column 'expiration' is -1; 0 and above are allowed" in refusal(
        number, {**BODY, "expiration": -1}, absolute=True
    )


@pytest.mark.parametrize(("unit", "factor"), [("auto", 1), ("s", 1), ("ms", 1000)])
def test_a_timestamp_is_in_whole_seconds_unless_milliseconds_are_wanted(unit: str, factor: int) -> None:
    schema = fields(body=OCTETS, timestamp=t.TimestampType())
    row = {**BODY, "timestamp": datetime(2026, 11, 21, tzinfo=UTC)}
    seconds = int(row["timestamp"].timestamp())  # type: ignore[attr-defined]
    assert one(schema, row, sink_options(timestampUnit=unit)).properties.timestamp == seconds * factor
    early = {**BODY, "timestamp": datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)}
    assert "column 'timestamp' is before 1970; times from then on are allowed" in refusal(schema, early)


@pytest.mark.parametrize(("name", "least", "most"), [("priority", 0, 255), ("delivery_mode", 1, 2)])
def test_an_octet_has_its_range(name: str, least: int, most: int) -> None:
    """Brokers take every other delivery_mode as not persistent: the message would be gone after a restart."""
    schema = fields(body=OCTETS, **{name: INT})
    for allowed in (least, most):
        assert getattr(one(schema, {**BODY, name: allowed}).properties, name) == allowed
    for wrong in (-1, least - 1, most + 1):
        assert f"column '{name}' is {wrong}; {least} to {most} are allowed" in refusal(schema, {**BODY, name: wrong})


# ---- headers

SAMPLES: dict[str, tuple[t.DataType, Any, Any]] = {
    "BOOLEAN": (t.BooleanType(), True, True),
    "TINYINT": (t.ByteType(), -128, -128),
    "SMALLINT": (t.ShortType(), -32_768, -32_768),
    "INT": (INT, -(2**31), -(2**31)),
    "BIGINT": (LONG, -(2**63), -(2**63)),
    "FLOAT": (t.FloatType(), 1.5, 1.5),
    "DOUBLE": (t.DoubleType(), 0.1, 0.1),
    "STRING": (TEXT, "é" * 40_000, "é" * 40_000),
    "BINARY": (OCTETS, b"\xff\x00", b"\xff\x00"),
    "DECIMAL(p,s)": (t.DecimalType(38, 2), Decimal("-1.50"), "-1.50"),
    "DATE": (t.DateType(), date(2026, 11, 21), "2026-11-21"),
    "TIMESTAMP": (
        t.TimestampType(),
        datetime(2026, 11, 21, 0, 5, 30, 123_456, UTC),
        "2026-11-21T00:05:30.123456Z",
    ),
    "TIMESTAMP_NTZ": (
        t.TimestampNTZType(),
        datetime(2026, 11, 21, 0, 5, 30, 123_456),  # noqa: DTZ001 - without a zone, as the type is
        "2026-11-21T00:05:30.123456",
    ),
    "ARRAY<...>": (t.ArrayType(INT), [1, None], [("I", 1), ("V", None)]),
    "STRUCT<...>": (fields(a=INT, b=INT), {"a": 1, "b": None}, {"a": ("I", 1)}),
    "MAP<STRING, ...>": (t.MapType(TEXT, LONG), [("k", 1), ("n", None)], {"k": ("l", 1), "n": ("V", None)}),
}


@pytest.mark.parametrize("name", [name for name, *_ in WIRE_TYPES if name != "VARIANT"])
def test_the_documented_letters_are_those_that_are_sent(name: str) -> None:
    kind, value, expected = SAMPLES[name]
    letter = next(letter for each, _, letter, _ in WIRE_TYPES if each == name)
    schema = fields(body=OCTETS, application_headers=fields(h=kind))
    rows = [{**BODY, "application_headers": {"h": each}} for each in (value, None, value)]
    found = published(schema, rows)
    assert [each.headers for each in found] == [{"h": (letter, expected)}, {}, {"h": (letter, expected)}]


def test_a_variant_is_sent_by_its_value() -> None:
    schema = fields(body=OCTETS, application_headers=t.VariantType())
    text = '{"a": [1, 300, 70000, 5000000000, 1.5, null, true, "é"], "o": {"k": "v"}}'
    items = [
        ("b", 1),
        ("s", 300),
        ("I", 70_000),
        ("l", 5_000_000_000),
        ("S", "1.5"),
        ("V", None),
        ("t", True),
        ("S", "é"),
    ]
    value = VariantVal.parseJson(text)
    batch = to_batch(schema, [{**BODY, "application_headers": {"value": value.value, "metadata": value.metadata}}])
    (message,) = decoded(encoded(schema, batch))
    assert message.headers == {"a": ("A", items), "o": ("F", {"k": ("S", "v")})}


def test_a_uuid_in_a_variant_is_text() -> None:
    raw = uuid.UUID("f81d4fae-7dec-11d0-a765-00a0c91e6bf6")
    value = {"value": bytes([2, 1, 0, 0, 17]) + bytes([20 << 2]) + raw.bytes, "metadata": b"\x01\x01\x00\x01u"}
    schema = fields(body=OCTETS, application_headers=t.VariantType())
    (message,) = decoded(encoded(schema, to_batch(schema, [{**BODY, "application_headers": value}])))
    assert message.headers == {"u": ("S", str(raw))}


def test_a_scalar_variant_is_no_table() -> None:
    schema = fields(body=OCTETS, application_headers=t.VariantType())
    value = {"value": b"\x0c\x01", "metadata": b"\x01\x00\x00"}
    assert "application_headers' has a VARIANT that is neither object nor array" in refusal(
        schema, {**BODY, "application_headers": value}
    )


LETTERS: dict[t.DataType, str] = {t.FloatType(): "f", t.DoubleType(): "d"}
RAW = fields(body=OCTETS, application_headers=OCTETS)
KEPT = (
    b"\x01at\x01\x01bb\xff\x01BB\xff\x01ss\xff\xff\x01uu\xff\xff\x01II\0\0\0\1\x01ii\xff\xff\xff\xff\x01ll" + bytes(8)
) + (
    b"\x01ff"
    + bytes(4)
    + b"\x01dd"
    + bytes(8)
    + b"\x01DD\x02\0\0\0\x07\x01SS\0\0\0\1\xff\x01xx\0\0\0\0\x01TT"
    + bytes(8)
)
KEPT += b"\x01AA\0\0\0\x06VF\0\0\0\0\x01VV"


def sized(raw: bytes) -> bytes:
    return len(raw).to_bytes(4) + raw


def test_an_encoded_table_is_sent_as_it_is() -> None:
    tables = [sized(KEPT), None, sized(b"")]
    (block,) = encoded(RAW, [{**BODY, "application_headers": each} for each in tables])
    data = bytes(memoryview(block.frames))
    assert data.count(tables[0] or b"") == 1
    assert checked(pa.array(tables, pa.binary())) == {}


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\0\0\0", "has 3 bytes; an encoded table begins with its size in 4 bytes"),
        (sized(b"\x01a") + b"x", "the size in its first 4 bytes is not the number of bytes behind them"),
        (sized(b"\x01a"), "has no value or one with an unknown type letter at byte 6"),
        (sized(b"\x05at\x01"), "has no value or one with an unknown type letter"),
        (sized(b"\x01\xfft\x01"), "has no value or one with an unknown type letter"),
        (sized(b"\x01aU\0\1"), "has no value or one with an unknown type letter at byte 6; A B D F I"),
        (sized(b"\x01aL" + bytes(8)), "has no value or one with an unknown type letter"),
        (sized(b"\x01ad" + struct.pack(">d", float("nan"))), "has a number that is not finite at byte 6"),
        (sized(b"\x01af" + struct.pack(">f", float("-inf"))), "has a number that is not finite at byte 6"),
        (sized(b"\x01aI\0\0\0"), "the value at byte 6 is longer than the table"),
        (sized(b"\x01aS\0\0"), "the value at byte 6 is longer than the table"),
        (sized(b"\x01aA\0\0\0\x02I\0"), "the value at byte 11 is longer than the table"),
        (sized(b"\x01aF\0\0\0\x02\x01b"), "has no value or one with an unknown type letter at byte 13"),
    ],
)
def test_a_malformed_table_is_refused(raw: bytes, reason: str) -> None:
    problem = refusal(RAW, {**BODY, "application_headers": sized(b"")}, {**BODY, "application_headers": raw})
    assert "Row 1 of partition 3 in batch 12 cannot be sent: column 'application_headers' " in problem
    assert reason in problem


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", [t.FloatType(), t.DoubleType()])
def test_numbers_that_are_not_finite_are_refused_where_rabbitmq_would_close_the_connection(
    kind: t.DataType, number: float
) -> None:
    schema = fields(body=OCTETS, application_headers=fields(h=t.ArrayType(kind)))
    rows = [{**BODY, "application_headers": {"h": each}} for each in ([1.5, None], None, [1.5, number])]
    text = (
        "column 'application_headers' has a number that is not finite at h[1]; NaN and infinities are allowed in texts"
    )
    assert text in refusal(schema, *rows)
    assert [each.headers for each in published(schema, rows[:2])] == [
        {"h": ("A", [(LETTERS[kind], 1.5), ("V", None)])},
        {},
    ]
    raw = sized(b"\x01h" + LETTERS[kind].encode() + struct.pack(">f" if LETTERS[kind] == "f" else ">d", number))
    assert "has a number that is not finite at byte 6" in refusal(RAW, {**BODY, "application_headers": raw})


def test_numbers_of_a_variant_are_finite_too() -> None:
    schema = fields(body=OCTETS, application_headers=t.VariantType())
    for head, form in ((7 << 2, "<d"), (14 << 2, "<f")):
        raw = bytes([head]) + struct.pack(form, math.nan)
        value = {"value": bytes([2, 1, 0, 0, len(raw)]) + raw, "metadata": b"\x01\x01\x00\x01n"}
        assert "a number that is not finite at n; " in refusal(schema, {**BODY, "application_headers": value})


def test_a_table_nested_too_deep_is_refused() -> None:
    raw = sized(b"")
    for _ in range(15):
        raw = sized(b"\x01aF" + raw)
    assert checked(pa.array([raw], pa.binary())) == {}
    raw = sized(b"\x01aF" + raw)
    assert checked(pa.array([raw], pa.binary())) == {0: "is a table nested too deep; at most 16 levels are allowed"}


ENTRIES = st.lists(
    st.tuples(
        st.sampled_from([b"\x01a", b"\0", b"\x02\xc3\xa9", b"\x01\xff", b"\x05a"]),
        st.sampled_from(
            [b"V", b"t\1", b"I\0\0\0\1", b"S\0\0\0\2ab", b"S\0\0\0\xff", b"F\0\0\0\0", b"A\0\0\0\1V", b"U\0\0"]
        )
        | st.floats(width=64).map(lambda number: b"d" + struct.pack(">d", number))
        | st.floats(width=32).map(lambda number: b"f" + struct.pack(">f", number)),
    ).map(b"".join),
    max_size=4,
).map(b"".join)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.none() | st.binary(max_size=30) | (st.binary(max_size=30) | ENTRIES).map(sized), max_size=5))
def test_rows_checked_at_once_and_one_by_one_agree(tables: list[bytes | None]) -> None:
    column = pa.array([b"x", *tables], pa.binary()).slice(1)
    alone = {row: reason for row, raw in enumerate(tables) if raw is not None and (reason := _problem(raw))}
    assert checked(column) == alone
    assert not any(
        plain and (raw is None or row in alone)
        for row, (plain, raw) in enumerate(zip(_plain(column), tables, strict=True))
    )


def test_tables_of_many_entries_are_checked_too() -> None:
    good = sized(b"\x01aV" * 100)
    bad = sized(b"\x01aV" * 100 + b"\x01aU\0\0")
    assert list(checked(pa.array([good, bad], pa.binary()))) == [1]


def test_stamps_are_added_and_replaced() -> None:
    place = TaskId(query_id="q", batch_id=7, partition=1)
    options = sink_options(stampHeaders="true")
    stamps = {STAMPS[0]: ("S", "q"), STAMPS[1]: ("l", 7), STAMPS[2]: ("I", 1)}
    old = sized(b"\x01aI\0\0\0\1" + b"\x0eamqp-spark.rowV" + b"\x01bV")
    tables = [None, sized(b""), old]
    found = decoded(
        encoded(RAW, [{**BODY, "application_headers": each} for each in tables], options, place=place, first_row=5)
    )
    own: list[dict[str, Any]] = [{}, {}, {"a": ("I", 1), "b": ("V", None)}]
    assert [each.headers for each in found] == [
        {**headers, **stamps, STAMPS[3]: ("l", 5 + row)} for row, headers in enumerate(own)
    ]
    (alone,) = decoded(encoded(fields(body=OCTETS), [BODY], options))
    assert alone.headers == {STAMPS[1]: ("l", 12), STAMPS[2]: ("I", 3), STAMPS[3]: ("l", 0)}


# ---- bodies and frames


@pytest.mark.parametrize("size", [0, 1, 4087, 4088, 4089, 8176, 8177, 12_264])
def test_bodies_are_cut_at_the_frame_size(size: int) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(range(size % 256))
    message = one(fields(body=OCTETS), {"body": body}, max_frame_size=4096)
    assert message.body == body
    full, rest = divmod(size, 4088)
    assert message.frames[2:] == (4096,) * full + ((rest + 8,) if rest else ())


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([0, 1, 200, 4088, 4089, 9000]), min_size=1, max_size=8))
def test_bodies_of_any_sizes_stand_side_by_side(sizes: list[int]) -> None:
    rows = [{"body": bytes([65 + row]) * size, "routing_key": str(row)} for row, size in enumerate(sizes)]
    found = published(fields(body=OCTETS, routing_key=TEXT), rows, max_frame_size=4096)
    assert [each.body for each in found] == [row["body"] for row in rows]
    assert [each.method.routing_key for each in found] == [row["routing_key"] for row in rows]


def test_a_body_of_64_mib_is_one_message() -> None:
    body = b"0123456789abcdef" * (1 << 22)
    (small, block) = encoded(fields(body=OCTETS), [BODY, {"body": body}])
    assert len(small) == len(block) == 1
    data = memoryview(block.frames).cast("B")
    at, pieces = 0, []
    while at < len(data):
        size = int.from_bytes(data[at + 3 : at + 7])
        assert size + 8 <= 131_072
        assert data[at + 7 + size] == 0xCE
        pieces.append((data[at], data[at + 7 : at + 7 + size]))
        at += size + 8
    assert [kind for kind, _ in pieces[:3]] == [1, 2, 3]
    assert int.from_bytes(pieces[1][1][4:12]) == len(body)
    assert b"".join(bytes(piece) for kind, piece in pieces if kind == 3) == body


def test_a_map_as_body_is_that_of_0_10_with_its_content_type() -> None:
    schema = fields(body=fields(a=INT), content_type=TEXT)
    found = published(schema, [{"body": {"a": 7}, "content_type": None}, {"body": {"a": 7}, "content_type": "own"}])
    assert [each.properties.content_type for each in found] == ["amqp/map", "own"]
    assert found[0].body == bytes.fromhex("0000000b 00000001 01 61 21 00000007")


def test_a_header_that_exceeds_a_frame_names_row_columns_and_remedy() -> None:
    schema = fields(body=OCTETS, application_headers=t.MapType(TEXT, TEXT))
    room = 4096 - 8 - KEPT_FREE

    def row(size: int) -> dict[str, Any]:
        return {"body": b"", "application_headers": [("k", "v" * size)]}

    fits = room - 14 - 1 - 4 - 7  # class, weight, size, flags; delivery mode; size of the table; key, letter, size
    assert one(schema, row(fits), max_frame_size=4096).frames[1] == 4096 - KEPT_FREE
    problem = refusal(schema, row(0), row(fits + 1), max_frame_size=4096)
    assert (
        "Row 1 of partition 3 in batch 12 cannot be sent: its properties and headers (columns application_" in problem
    )
    assert f"take {room + 1:,} bytes; at most {room:,} are allowed" in problem
    assert "send less in them, or more in the body" in problem


def test_blocks_are_those_of_0_10() -> None:
    blocks = encoded(fields(body=OCTETS), [{"body": b""}] * (MOST_ROWS + 1))
    assert [(len(block), block.first_row) for block in blocks] == [(MOST_ROWS, 0), (1, MOST_ROWS)]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "body": st.binary(max_size=40),
                "routing_key": st.none() | st.text(max_size=20),
                "content_type": st.none() | st.text(max_size=20),
                "correlation_id": st.none() | st.text(max_size=20).map(str.encode),
                "priority": st.none() | st.integers(0, 255),
                "ttl": st.none() | st.integers(0, 2**63 - 1),
                "message_id": st.none() | st.text(max_size=20),
                "type": st.none() | st.text(max_size=20),
                "timestamp": st.none() | st.integers(0, 2**62),
                "application_headers": st.none()
                | st.dictionaries(st.text(max_size=5), st.none() | st.integers(-(2**63), 2**63 - 1), max_size=4).map(
                    lambda entries: list(entries.items())
                ),
            }
        ),
        min_size=1,
        max_size=12,
    )
)
def test_any_rows_come_back(rows: list[dict[str, Any]]) -> None:
    schema = fields(
        body=OCTETS,
        routing_key=TEXT,
        content_type=TEXT,
        correlation_id=OCTETS,
        priority=t.ShortType(),
        ttl=LONG,
        message_id=TEXT,
        type=TEXT,
        timestamp=LONG,
        application_headers=t.MapType(TEXT, LONG),
    )
    for row, message in zip(rows, published(schema, rows), strict=True):
        found = message.properties
        assert message.body == row["body"]
        assert message.method.routing_key == (row["routing_key"] or "")
        assert (found.content_type, found.message_id, found.type) == (
            row["content_type"],
            row["message_id"],
            row["type"],
        )
        assert (found.priority, found.timestamp) == (row["priority"], row["timestamp"])
        assert found.correlation_id == (None if row["correlation_id"] is None else row["correlation_id"].decode())
        assert found.expiration == (None if row["ttl"] is None else str(row["ttl"]))
        entries = row["application_headers"]
        expected = (
            None if entries is None else {key: ("V", None) if value is None else ("l", value) for key, value in entries}
        )
        assert message.headers == expected
