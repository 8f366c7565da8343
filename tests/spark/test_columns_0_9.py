"""Columns of messages of 0-9-1: every property, every type letter, every shape of frames."""

from __future__ import annotations

import base64
import itertools
import json
import struct
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

from amqp_core.errors import DecodeError
from amqp_core.v0_9._scan import parts, scan
from amqp_spark.arrow.decode import DEFAULT_SCHEMA, Chunk, ColumnPlan, decode_maps, joined
from amqp_spark.arrow.v0_9.decode.located import locate
from amqp_spark.errors import MessageFormatError
from tests.support import damaged_streams_0_9, wire
from tests.support import wire_0_9 as wire9
from tests.support.choice import examples
from tests.support.received import batches_of_random_chunk
from tests.support.received import chunk_of as chunk_of_0_10

if TYPE_CHECKING:
    from amqp_spark.arrow.columns.located import Located

LONG, STRING, BINARY, TIME, DOUBLE = t.LongType(), t.StringType(), t.BinaryType(), t.TimestampType(), t.DoubleType()
MAP, VARIANT = t.MapType(STRING, STRING), t.VariantType()
WHEN = 1_700_000_000
U64, I64, I32, F64, F32 = (struct.Struct(f">{c}").pack for c in "Qqidf")

ALL = {
    "content_type": wire9.short(b"text/plain"),
    "content_encoding": wire9.short(b"gzip"),
    "headers": wire9.table((b"symbol", b"S" + wire9.long(b"EURUSD")), (b"x-delivery-count", b"l" + I64(3))),
    "delivery_mode": b"\x02",
    "priority": b"\x07",
    "correlation_id": wire9.short(b"correlated"),
    "reply_to": wire9.short(b"answers"),
    "expiration": wire9.short(b"60000"),
    "message_id": wire9.short(b"any text"),
    "timestamp": U64(WHEN),
    "type": wire9.short(b"tick"),
    "user_id": wire9.short(b"guest"),
    "app_id": wire9.short(b"app"),
    "cluster_id": wire9.short(b"c"),
}
EXPECTED = {
    "content_type": "text/plain",
    "content_encoding": "gzip",
    "application_headers": [("symbol", "EURUSD"), ("x-delivery-count", "3")],
    "delivery_mode": 2,
    "priority": 7,
    "correlation_id": b"correlated",
    "reply_to": {"exchange": None, "routing_key": "answers"},
    "ttl": 60_000,
    "message_id": "any text",
    "timestamp": datetime.fromtimestamp(WHEN, UTC),
    "type": "tick",
    "user_id": b"guest",
    "app_id": b"app",
    "cluster_id": "c",
    "delivery_count": 3,
}
# The names on the wire of the columns that have others.
COLUMN_OF = {"headers": "application_headers", "expiration": "ttl"}


def schema(*fields: tuple[str, t.DataType]) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in fields])


def chunk_of(frames: bytes) -> Chunk:
    """A chunk of whole deliveries on channel 1."""
    found, _ = scan(frames, 0, 1, 1 << 32)
    assert found.error is None
    return Chunk.of(frames, found.ends, protocol="0-9-1")


def rows_of(
    wanted: t.StructType, *messages: bytes, chunk: Chunk | None = None, mode: str = "FAILFAST", **options: Any
) -> list[dict[str, Any]]:
    unit = options.pop("unit", "auto")
    plan = ColumnPlan.build(wanted, mode=mode, timestamp_unit=unit, **options)
    out: list[dict[str, Any]] = []
    for batch in batches_of_random_chunk(plan, chunk or chunk_of(b"".join(messages)), first_position=5):
        assert batch.schema.equals(plan.arrow_schema, check_metadata=True)
        batch.validate(full=True)
        out += batch.to_pylist()
    return out


def message(tag: int = 1, body: bytes = b"body", **encoded: bytes) -> bytes:
    return wire9.delivery(tag, body, properties=wire9.properties(**encoded))


# ---- properties ----------------------------------------------------------------------------------------------------


def test_every_property_of_a_message_that_has_all_of_them() -> None:
    whole = wire9.delivery(
        1, b"body", exchange=b"amq.topic", key=b"ticks.EUR", redelivered=True, properties=wire9.properties(**ALL)
    )
    (row,) = rows_of(DEFAULT_SCHEMA, whole)
    given = {name: value for name, value in row.items() if value is not None}
    assert given == EXPECTED | {
        "queue": "q",
        "position": 5,
        "redelivered": True,
        "exchange": "amq.topic",
        "routing_key": "ticks.EUR",
        "content_length": 4,
        "body": b"body",
    }


def test_every_property_of_a_message_that_has_none() -> None:
    (row,) = rows_of(DEFAULT_SCHEMA, wire9.delivery(1, key=b""))
    given = {name: value for name, value in row.items() if value is not None}
    assert given == {
        "queue": "q",
        "position": 5,
        "redelivered": False,
        "exchange": "",
        "routing_key": "",
        "content_length": 0,
        "body": b"",
    }


@settings(max_examples=examples(200))
@given(st.lists(st.sets(st.sampled_from(sorted(ALL))), min_size=1, max_size=6))
def test_any_properties_in_any_messages(chosen: list[set[str]]) -> None:
    messages = [message(index, **{name: ALL[name] for name in names}) for index, names in enumerate(chosen)]
    rows = rows_of(DEFAULT_SCHEMA, *messages)
    for names, row in zip(chosen, rows, strict=True):
        columns = {COLUMN_OF.get(name, name) for name in names} | ({"delivery_count"} if "headers" in names else set())
        assert {name: row[name] for name in EXPECTED if row[name] is not None} == {
            name: EXPECTED[name] for name in columns
        }


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_column_alone_is_the_same(name: str) -> None:
    (row,) = rows_of(schema((name, DEFAULT_SCHEMA[name].dataType)), message(1, **ALL))
    assert row[name] == EXPECTED[name]


def test_other_types_of_the_schema() -> None:
    wanted = schema(
        *((name, BINARY) for name in ("exchange", "routing_key", "message_id", "type", "application_headers")),
        *((name, STRING) for name in ("correlation_id", "user_id", "app_id", "body")),
        *(("timestamp", LONG), ("ttl", t.IntegerType()), ("reply_to", schema(("routing_key", STRING)))),
    )
    (row,) = rows_of(wanted, message(1, **ALL))
    assert row == {
        "exchange": b"",
        "routing_key": b"k",
        "message_id": b"any text",
        "type": b"tick",
        "application_headers": ALL["headers"],
        "correlation_id": "correlated",
        "user_id": "guest",
        "app_id": "app",
        "body": "body",
        "timestamp": WHEN,
        "ttl": 60_000,
        "reply_to": {"routing_key": "answers"},
    }


def test_the_exchange_of_reply_to_that_is_never_there_is_an_error_if_it_is_not_null() -> None:
    exchange = t.StructType([t.StructField("exchange", STRING, nullable=False)])
    with pytest.raises(MessageFormatError, match="exchange: absent, and NOT NULL was asked for"):
        rows_of(schema(("reply_to", exchange)), message(1), message(2, **ALL))
    routing_key = t.StructType([t.StructField("routing_key", STRING, nullable=False)])
    rows = rows_of(schema(("reply_to", routing_key)), message(1), message(2, **ALL))
    assert rows == [{"reply_to": None}, {"reply_to": {"routing_key": "answers"}}]


@pytest.mark.parametrize(
    ("text", "ttl", "expiration"),
    [
        (b"0", 0, None),
        (b"600000", 600_000, None),
        (b"1700000000000", None, datetime.fromtimestamp(WHEN, UTC)),  # Broker-J: when it expires
        *((text, None, None) for text in (b"", b"soon", b"-1", b"1.5", b" 1", b"9" * 30, b"\xff", b"\xd9\xa1")),
    ],
)
def test_the_text_of_expiration(text: bytes, ttl: int | None, expiration: datetime | None) -> None:
    messages = message(1, expiration=wire9.short(text)), message(2), message(3, expiration=wire9.short(b"1"))
    rows = rows_of(schema(("ttl", LONG), ("expiration", TIME)), *messages)
    assert [tuple(row.values()) for row in rows] == [(ttl, expiration), (None, None), (1, None)]


@pytest.mark.parametrize(
    ("text", "expiration"),
    [
        (b"9" * 18, 10**18 - 1),
        (b"1" + b"0" * 18, 10**18),
        (b"%d" % (2**63 - 1), 2**63 - 1),
        (b"%d" % 2**63, None),
        (b"9" * 255, None),
        (b"0" * 40 + b"%d" % (WHEN * 1000), WHEN * 1000),
    ],
)
def test_the_number_of_expiration_is_given_if_the_column_holds_it(text: bytes, expiration: int | None) -> None:
    (row,) = rows_of(schema(("ttl", LONG), ("expiration", LONG)), message(1, expiration=wire9.short(text)))
    assert tuple(row.values()) == (None, expiration)


@pytest.mark.parametrize(
    ("value", "count"),
    [(b"l" + I64(7), 7), (b"I" + I32(7), 7), (b"S" + wire9.long(b"7"), None), (b"V", None), (b"d" + F64(7.5), None)],
)
def test_a_delivery_count_that_is_no_integer_is_unknown(value: bytes, count: int | None) -> None:
    some = message(1, headers=wire9.table((b"a", b"V"), (b"x-delivery-count", value)))
    rows = rows_of(schema(("delivery_count", LONG)), some, message(2), message(3, **ALL))
    assert [row["delivery_count"] for row in rows] == [count, None, 3]


def test_the_columns_of_0_9_1_are_null_with_0_10() -> None:
    chunk = chunk_of_0_10(wire.transfer(wire.delivery(routing_key=wire.str8(b"k")), b"b"))
    wanted = schema(("type", STRING), ("cluster_id", BINARY), ("delivery_count", LONG), ("routing_key", STRING))
    assert rows_of(wanted, chunk=chunk) == [
        {"type": None, "cluster_id": None, "delivery_count": None, "routing_key": "k"}
    ]


def test_chunks_of_both_protocols_in_one_query() -> None:
    """As a consumer may hold them whose broker was replaced."""
    plan = ColumnPlan.build(schema(("body", STRING), ("position", LONG)), mode="FAILFAST", timestamp_unit="auto")
    chunks = [
        chunk_of_0_10(wire.transfer(None, b"one")),
        chunk_of(message(1, b"two") + message(2, b"three")),
        chunk_of(message(3, b"four")),
        chunk_of_0_10(wire.transfer(None, b"five")),
    ]
    rows = [
        tuple(row.values()) for batch in plan.batches(chunks, queue="q", first_position=0) for row in batch.to_pylist()
    ]
    assert rows == [("one", 0), ("two", 1), ("three", 2), ("four", 3), ("five", 4)]


# ---- tables --------------------------------------------------------------------------------------------------------

LETTERS = [
    pytest.param(b"t\x01", "true", True, id="t"),
    pytest.param(b"b\xff", "-1", -1, id="b"),
    pytest.param(b"B\xff", "255", 255, id="B"),
    pytest.param(b"s\xff\xff", "-1", -1, id="s"),
    pytest.param(b"U\xff\xff", "-1", -1, id="U"),
    pytest.param(b"u\xff\xff", "65535", 65535, id="u"),
    pytest.param(b"I" + I32(-5), "-5", -5, id="I"),
    pytest.param(b"i\xff\xff\xff\xff", "4294967295", 4294967295, id="i"),
    pytest.param(b"l" + I64(-(1 << 60)), str(-(1 << 60)), -(1 << 60), id="l"),
    pytest.param(b"L" + I64(-7), "-7", -7, id="L"),
    pytest.param(b"f" + F32(1.5), "1.5", 1.5, id="f"),
    pytest.param(b"d" + F64(0.1), "0.1", 0.1, id="d"),
    pytest.param(b"D\x02" + I32(12345), "123.45", None, id="D"),
    pytest.param(b"S" + wire9.long("größe".encode()), "größe", "größe", id="S"),
    pytest.param(b"S" + wire9.long(b"\xff"), '{"base64":"/w=="}', None, id="S not UTF-8"),
    pytest.param(b"x" + wire9.long(b"raw"), "raw", b"raw", id="x"),
    pytest.param(b"c" + wire9.long(b"old"), "old", "old", id="c"),
    pytest.param(b"T" + U64(WHEN), "2023-11-14T22:13:20Z", None, id="T"),
    pytest.param(b"V", None, None, id="V"),
    pytest.param(b"A" + wire9.long(b"I" + I32(1) + b"S" + wire9.long(b"x")), '[1,"x"]', None, id="A"),
    pytest.param(b"A" + wire9.long(b""), "[]", None, id="empty A"),
    pytest.param(b"F" + wire9.table((b"k", b"V"), (b"n", b"F" + wire9.table())), '{"k":null,"n":{}}', None, id="F"),
]


@pytest.mark.parametrize(("value", "text", "natural"), LETTERS)
def test_every_letter_as_text_and_as_its_own_type(value: bytes, text: str | None, natural: Any) -> None:
    some = message(1, headers=wire9.table((b"before", b"I" + I32(1)), (b"h", value), (b"after", b"t\0")))
    (row,) = rows_of(schema(("application_headers", MAP)), some)
    assert row["application_headers"] == [("before", "1"), ("h", text), ("after", "false")]
    kinds: dict[type, t.DataType] = {bool: t.BooleanType(), int: LONG, float: DOUBLE, str: STRING, bytes: BINARY}
    if type(natural) in kinds:
        wanted = schema(("application_headers", schema(("h", kinds[type(natural)]))))
        other = message(2, headers=wire9.table((b"h", b"V")))
        assert [row["application_headers"]["h"] for row in rows_of(wanted, some, other, some)] == [
            natural,
            None,
            natural,
        ]
        assert [row["application_headers"]["h"] for row in rows_of(wanted, some, some)] == [natural, natural]


def test_typed_headers_nested() -> None:
    inner = b"F" + wire9.table((b"n", b"I" + I32(7)), (b"names", b"A" + wire9.long(b"S" + wire9.long(b"x"))))
    kind = schema(
        ("f", schema(("n", LONG), ("names", t.ArrayType(STRING)))), ("when", TIME), ("price", t.DecimalType(9, 2))
    )
    some = wire9.table((b"f", inner), (b"when", b"T" + U64(WHEN)), (b"price", b"D\x02" + I32(150)))
    (row,) = rows_of(schema(("application_headers", kind)), message(1, headers=some))
    found = row["application_headers"]
    assert found["f"] == {"n": 7, "names": ["x"]}
    assert found["when"] == datetime.fromtimestamp(WHEN, UTC)
    assert str(found["price"]) == "1.50"


def test_headers_as_variant() -> None:
    some = wire9.table((b"i", b"I" + I32(7)), (b"s", b"S" + wire9.long(b"x")), (b"a", b"A" + wire9.long(b"t\x01V")))
    (row,) = rows_of(schema(("application_headers", VARIANT)), message(1, headers=some))
    assert json.loads(t.VariantVal(**row["application_headers"]).toJson()) == {"a": [True, None], "i": 7, "s": "x"}


def test_a_value_that_does_not_fit_names_its_type() -> None:
    kind = schema(("h", t.ShortType()))
    many = message(1, headers=wire9.table((b"h", b"I" + I32(70_000))))
    with pytest.raises(MessageFormatError, match="h: int32 70000 does not fit SMALLINT"):
        rows_of(schema(("application_headers", kind)), many)
    text = message(1, headers=wire9.table((b"h", b"S" + wire9.long(b"x"))))
    with pytest.raises(MessageFormatError, match="h: str16 is not an integer, SMALLINT was asked for"):
        rows_of(schema(("application_headers", kind)), text)


def test_tables_with_very_many_entries_and_with_a_key_twice() -> None:
    many = [(b"%d" % n, b"I" + I32(n)) for n in range(300)]
    tables = [wire9.table(*many), wire9.table(), wire9.table((b"k", b"I" + I32(1)), (b"k", b"I" + I32(2)))]
    messages = [message(index, headers=each) for index, each in enumerate(tables)]
    rows = rows_of(schema(("application_headers", MAP)), *messages)
    found = [row["application_headers"] for row in rows]
    assert found == [[(key.decode(), str(n)) for n, (key, _) in enumerate(many)], [], [("k", "2")]]
    wanted = schema(("application_headers", schema(("299", LONG), ("k", LONG), ("none", LONG))))
    found = [row["application_headers"] for row in rows_of(wanted, *messages)]
    assert [tuple(each.values()) for each in found] == [(299, None, None), (None, None, None), (None, 1, None)]


@pytest.mark.parametrize(
    "encoded",
    [
        pytest.param(wire9.long(b"\x01kI\0\0\0"), id="value beyond the end"),
        pytest.param(wire9.long(b"\x01k"), id="no value"),
        pytest.param(wire9.long(b"\x09k"), id="key beyond the end"),
        pytest.param(wire9.long(b"\x01kZ"), id="unknown letter"),
        pytest.param(wire9.long(b"\x01kS\xff\xff\xff\xff"), id="huge text"),
        pytest.param(wire9.long(b"\x01kV" * 200 + b"\x01kZ"), id="after many entries"),
    ],
)
@pytest.mark.parametrize("kind", [MAP, schema(("other", LONG)), VARIANT], ids=["map", "struct", "variant"])
def test_a_malformed_table_fails_its_message_only(encoded: bytes, kind: t.DataType) -> None:
    good = message(1, headers=wire9.table((b"other", b"I" + I32(1))))
    bad = message(2, headers=encoded)
    wanted = schema(("application_headers", kind), ("_corrupt_record", STRING))
    rows = rows_of(wanted, good, bad, good, mode="PERMISSIVE")
    assert [row["_corrupt_record"] is None for row in rows] == [True, False, True]
    assert [row["application_headers"] is None for row in rows] == [False, True, False]


def test_tables_kept_as_bytes_are_decoded_later() -> None:
    """Beside maps of 0-10, which they may be mixed with."""
    table, bad = wire9.table((b"n", b"I" + I32(7))), wire9.table((b"n", b"Z"))
    column = pa.array([table, None, wire9.table(), wire.map_([(b"n", 0x21, I32(8))]), bad, b"no"], pa.binary())
    for kind, values in (
        (schema(("n", LONG)), [{"n": 7}, None, {"n": None}, {"n": 8}]),
        (MAP, [[("n", "7")], None, [], [("n", "8")]]),
    ):
        found, errors = decode_maps(column, kind)
        assert found.to_pylist()[:4] == values
        assert errors == {
            4: "application-headers: an entry reaches beyond its end",
            5: "2 bytes that do not begin with their number less 4",
        }


# ---- frames --------------------------------------------------------------------------------------------------------

SHAPES = [
    message(1, b"another body", **ALL),
    message(1, b""),
    wire9.delivery(1, bytes(range(256)), limit=40),
    wire9.delivery(1, b"x" * 65, limit=40, consumer=b"c" * 255, key=b"k" * 255, exchange=b"e" * 255),
    wire9.content(wire9.deliver_method(1), wire9.content_header(3), [b"", b"abc"]),
    wire9.content(wire9.deliver_method(1), wire9.content_header(3), [b"abc", b""])[:-8],
    wire9.content(wire9.deliver_method(1), wire9.content_header(0), []),
    b"".join(
        itertools.chain.from_iterable(zip(wire9.frames_of(message(1, b"b")), [wire9.heartbeat()] * 2, strict=False))
    )
    + wire9.frames_of(message(1, b"b"))[2],
]


def found(located: Located) -> list[tuple[bytes, bytes] | str]:
    """Content header and body of every delivery, or why there are none."""
    out: list[tuple[bytes, bytes] | str] = []
    bodies = located.bodies(range(len(located.places.end))).to_pylist()
    for row, (begin, end) in enumerate(zip(located.places.head_begin, located.places.head_end, strict=True)):
        header, body = located.wire.data[begin:end], bodies[row]
        assert body is not None
        out.append(located.broken.get(row) or (header, body))
    return out


def plain(data: bytes, ends: list[int]) -> list[tuple[bytes, bytes] | str]:
    out: list[tuple[bytes, bytes] | str] = []
    for begin, end in itertools.pairwise([0, *ends]):
        try:
            _, header, body = parts(data, begin, end)
        except DecodeError as error:
            out.append(error.reason)
            continue
        pieces = [data[first:last] for first, last in zip(body[::2], body[1::2], strict=True)]
        out.append((data[header[0] : header[1]], b"".join(pieces)))
    return out


@settings(max_examples=examples(200))
@given(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=12))
def test_what_is_located_at_once_is_what_a_plain_walk_finds(shapes: list[bytes]) -> None:
    data = b"".join(shapes)
    ends = list(itertools.accumulate(map(len, shapes)))
    located = locate(Chunk.of(data, ends, protocol="0-9-1"))
    assert found(located) == plain(data, ends)
    assert not located.broken
    rows = rows_of(schema(("body", BINARY), ("routing_key", STRING)), chunk=Chunk.of(data, ends, protocol="0-9-1"))
    assert [row["body"] for row in rows] == [each[1] for each in plain(data, ends)]
    assert {row["routing_key"] for row in rows} <= {"k", "k" * 255}


@settings(max_examples=examples(300))
@given(
    st.lists(st.sampled_from(SHAPES), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_changed_octets_spoil_no_other_message(shapes: list[bytes], changes: list[tuple[int, int]]) -> None:
    data = bytearray(b"".join(shapes))
    ends = list(itertools.accumulate(map(len, shapes)))
    touched = set()
    for place, value in changes:
        at = place % len(data)
        data[at] = value
        touched.add(next(row for row, end in enumerate(ends) if at < end))
    chunk = Chunk.of(bytes(data), ends, protocol="0-9-1")
    located = locate(chunk)
    assert [each if isinstance(each, tuple) else "" for each in found(located)] == [
        each if isinstance(each, tuple) else "" for each in plain(bytes(data), ends)
    ]
    wanted = t.StructType([*DEFAULT_SCHEMA.fields, t.StructField("_corrupt_record", STRING)])
    rows = rows_of(wanted, chunk=chunk, mode="PERMISSIVE", unit="s")
    sound = rows_of(wanted, chunk=Chunk.of(b"".join(shapes), ends, protocol="0-9-1"), mode="PERMISSIVE", unit="s")
    for index, (row, expected) in enumerate(zip(rows, sound, strict=True)):
        assert index in touched or row == expected


def test_a_message_that_cannot_be_decoded_is_kept_as_its_frames() -> None:
    good = message(1, b"good")
    bad = wire9.content(wire9.deliver_method(2)[:-1] + b"", wire9.content_header(1), [b"x"])
    odd = wire9.delivery(3, b"x", properties=b"\0\x01")
    wanted = schema(("body", STRING), ("routing_key", STRING), ("type", STRING), ("_corrupt_record", STRING))
    rows = rows_of(wanted, good, bad, odd, mode="PERMISSIVE")
    assert [row["body"] for row in rows] == ["good", None, None]
    records = [json.loads(row["_corrupt_record"] or "{}") for row in rows]
    assert records[1]["reasons"] == {"*": "basic.deliver: it does not end with its last field"}
    assert records[2]["reasons"] == {"*": "content header: it has presence flags that are not defined"}
    assert base64.b64decode(records[1]["transfer"]) == bad
    wrong = rows_of(
        schema(("body", STRING), ("_corrupt_record", STRING)), message(1, b"\xff", **ALL), mode="PERMISSIVE"
    )
    record = json.loads(wrong[0]["_corrupt_record"])
    assert base64.b64decode(record["application_headers"]) == ALL["headers"]


def test_ends_that_do_not_fit_the_frames_are_an_error() -> None:
    with pytest.raises(DecodeError, match="do not fit the frames"):
        locate(Chunk.of(message(), [5, 5]))
    chunk = joined([chunk_of(message(1)), chunk_of(message(2, b"x"))])
    assert [row["body"] for row in rows_of(schema(("body", BINARY)), chunk=chunk)] == [b"body", b"x"]


def test_encoded_map_bodies_are_those_of_0_10() -> None:
    body = wire.map_([(b"n", 0x21, I32(7))])
    some = message(1, body, content_type=wire9.short(b"amqp/map"))
    assert rows_of(schema(("body", schema(("n", LONG)))), some) == [{"body": {"n": 7}}]


def test_damaged_streams_give_rows_or_documented_errors() -> None:
    """From the bytes of the socket to the columns."""
    outcome = damaged_streams_0_9.run(examples(1500), seed=4)
    assert outcome.read > 100
    assert outcome.refused > 100
    assert outcome.rows > 1000
