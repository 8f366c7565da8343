"""Properties, schema, modes and batches; headers and bodies have files of their own."""

from __future__ import annotations

import pickle
import struct
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from amqp_core.errors import DecodeError
from amqp_spark.arrow.decode import DEFAULT_SCHEMA, Chunk, ColumnPlan
from amqp_spark.arrow.decode import schema as columns
from amqp_spark.errors import MessageFormatError, SchemaError
from tests.support import wire
from tests.support.received import batches_both_ways, chunk_of

U64 = struct.Struct(">Q").pack


def schema(*fields: tuple[str, t.DataType]) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in fields])


def plan(*fields: tuple[str, t.DataType], mode: str = "FAILFAST", unit: str = "auto") -> ColumnPlan:
    return ColumnPlan.build(schema(*fields), mode=mode, timestamp_unit=unit)


def rows(plan: ColumnPlan, *blocks: bytes, **options: Any) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    arguments: dict[str, Any] = {"queue": "q", "first_position": 7} | options
    for batch in batches_both_ways(plan, map(chunk_of, blocks), **arguments):
        assert batch.schema.equals(plan.arrow_schema, check_metadata=True)
        batch.validate(full=True)
        out += batch.to_pylist()
    return out


def values(name: str, kind: t.DataType, *messages: bytes, **options: Any) -> list[Any]:
    return [row[name] for row in rows(plan((name, kind), **options), b"".join(messages))]


FULL_DELIVERY = wire.delivery(
    discard_unroutable=b"",
    redelivered=b"",
    priority=b"\x04",
    delivery_mode=b"\x02",
    ttl=U64(60_000),
    timestamp=U64(1_700_000_000),
    expiration=U64(1_700_000_000_123),
    exchange=wire.str8(b"amq.topic"),
    routing_key=wire.str8("ticks.€".encode()),
    resume_id=wire.vbin16(b"resume"),
    resume_ttl=U64(5),
)
FULL_MESSAGE = wire.message(
    content_length=U64(4),
    message_id=bytes(range(16)),
    correlation_id=wire.vbin16(b"\xff\x00corr"),
    reply_to=wire.vbin16(b"\x03\x00" + wire.str8(b"") + wire.str8(b"answers")),
    content_type=wire.str8(b"text/plain"),
    content_encoding=wire.str8(b"utf-8"),
    user_id=wire.vbin16(b"guest"),
    app_id=wire.vbin16(b"app"),
    application_headers=wire.map_([(b"symbol", 0x95, wire.vbin16(b"EURUSD")), (b"qty", 0x21, b"\x00\x00\x00\x07")]),
)
FULL = wire.transfer(FULL_DELIVERY + FULL_MESSAGE, b"body")
FULL_ROW = dict.fromkeys(DEFAULT_SCHEMA.names) | {
    "queue": "q",
    "position": 7,
    "discard_unroutable": True,
    "immediate": False,
    "redelivered": True,
    "priority": 4,
    "delivery_mode": 2,
    "ttl": 60_000,
    "timestamp": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
    "expiration": datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC),
    "exchange": "amq.topic",
    "routing_key": "ticks.€",
    "resume_id": "resume",
    "resume_ttl": 5,
    "content_length": 4,
    "message_id": "00010203-0405-0607-0809-0a0b0c0d0e0f",
    "correlation_id": b"\xff\x00corr",
    "reply_to": {"exchange": "", "routing_key": "answers"},
    "content_type": "text/plain",
    "content_encoding": "utf-8",
    "user_id": b"guest",
    "app_id": b"app",
    "application_headers": [("symbol", "EURUSD"), ("qty", "7")],
    "body": b"body",
}
EMPTY_ROW = dict.fromkeys(FULL_ROW) | {"queue": "q", "body": b""}
DEFAULT = ColumnPlan.build(DEFAULT_SCHEMA, mode="FAILFAST", timestamp_unit="auto")


# ---- properties ----------------------------------------------------------------------------------------------------


def test_the_default_schema_has_every_property() -> None:
    assert rows(DEFAULT, FULL) == [FULL_ROW]


def test_a_literal_message_of_a_broker() -> None:
    """Delivery-properties before message-properties, first octet of the flags = fields 0 to 7."""
    block = bytes.fromhex(
        "0b01 001a 00 01 0000 00000000  0401 0100 0700 05 616d717031 00 00"
        "0302 0042 00 01 0000 00000000"
        "  00000012 0401 1803 04 02 00 0a 6d792d71756575652d31"  # priority, delivery-mode, exchange, routing-key
        "  0000001c 0403 0300 0000000000000002 00112233445566778899aabbccddeeff"
        "0703 000e 00 01 0000 00000000 6869"
    )
    # the sizes above are checked here, so that a wrong literal fails as such
    assert len(block) == 0x1A + 0x42 + 0x0E
    (row,) = rows(DEFAULT, block)
    assert {k: v for k, v in row.items() if v is not None} == {
        "queue": "q",
        "position": 7,
        "discard_unroutable": False,
        "immediate": False,
        "redelivered": False,
        "priority": 4,
        "delivery_mode": 2,
        "exchange": "",
        "routing_key": "my-queue-1",
        "content_length": 2,
        "message_id": "00112233-4455-6677-8899-aabbccddeeff",
        "body": b"hi",
    }


def test_what_is_absent_is_null() -> None:
    bits = dict.fromkeys(("discard_unroutable", "immediate", "redelivered"), False)
    assert rows(DEFAULT, wire.transfer()) == [EMPTY_ROW | {"position": 7}]
    assert rows(DEFAULT, wire.transfer(b"", b"")) == [EMPTY_ROW | {"position": 7}]
    assert rows(DEFAULT, wire.transfer(wire.delivery(), b"")) == [EMPTY_ROW | {"position": 7} | bits]
    assert rows(DEFAULT, wire.transfer(wire.message(), b"")) == [EMPTY_ROW | {"position": 7}]


@pytest.mark.parametrize("layout", ["delivery", "message"])
def test_each_property_alone_and_between_messages_of_other_shapes(layout: str) -> None:
    """Fields are found by what is present: one field, all but one, and all of it mixed in one batch."""
    make, names = (wire.delivery, wire.DELIVERY) if layout == "delivery" else (wire.message, wire.MESSAGE)
    encoded = {
        "priority": b"\x04", "delivery_mode": b"\x02", "ttl": U64(60_000), "timestamp": U64(1_700_000_000),
        "expiration": U64(1_700_000_000_123), "exchange": wire.str8(b"amq.topic"), "resume_ttl": U64(5),
        "routing_key": wire.str8("ticks.€".encode()), "resume_id": wire.vbin16(b"resume"), "content_length": U64(4),
        "discard_unroutable": b"", "immediate": b"", "redelivered": b"", "message_id": bytes(range(16)),
        "correlation_id": wire.vbin16(b"\xff\x00corr"), "reply_to": wire.reply_to(b"", b"answers"),
        "content_type": wire.str8(b"text/plain"), "content_encoding": wire.str8(b"utf-8"),
        "user_id": wire.vbin16(b"guest"), "app_id": wire.vbin16(b"app"),
        "application_headers": wire.map_([(b"symbol", 0x95, wire.vbin16(b"EURUSD")), (b"qty", 0x21, bytes(3) + b"\7")]),
    }  # fmt: skip
    choices = [{name} for name in names] + [set(names) - {name} for name in names] + [set(names), set()]
    block = b"".join(wire.transfer(make(**{n: encoded[n] for n in names if n in c}), b"body") for c in choices)
    for position, (row, choice) in enumerate(zip(rows(DEFAULT, FULL + block + FULL)[1:-1], choices, strict=True), 8):
        expected = EMPTY_ROW | {n: FULL_ROW[n] for n in choice} | {"position": position, "body": b"body"}
        if layout == "delivery":
            expected |= {n: n in choice for n in ("discard_unroutable", "immediate", "redelivered")}
        assert row == expected


ALTERNATIVES: list[tuple[str, t.DataType, Any]] = [
    ("priority", t.IntegerType(), 4),
    ("delivery_mode", t.ShortType(), 2),
    ("ttl", t.IntegerType(), 60_000),
    ("timestamp", t.TimestampNTZType(), datetime(2023, 11, 14, 22, 13, 20)),  # noqa: DTZ001 - that type has no zone
    ("timestamp", t.LongType(), 1_700_000_000),
    ("expiration", t.LongType(), 1_700_000_000_123),
    ("routing_key", t.BinaryType(), "ticks.€".encode()),
    ("message_id", t.BinaryType(), bytes(range(16))),
    ("user_id", t.StringType(), "guest"),
    ("content_type", t.BinaryType(), b"text/plain"),
    ("body", t.StringType(), "body"),
    ("reply_to", schema(("routing_key", t.StringType())), {"routing_key": "answers"}),
]


@pytest.mark.parametrize(("name", "kind", "expected"), ALTERNATIVES)
def test_other_types_of_properties(name: str, kind: t.DataType, expected: Any) -> None:
    assert values(name, kind, FULL, wire.transfer(), FULL) == [expected, None if name != "body" else "", expected]


def test_column_names_are_compared_without_case_and_kept_as_given() -> None:
    reply_to = columns.COLUMNS["reply_to"].default
    got = rows(plan(("Body", t.BinaryType()), ("ROUTING_KEY", t.StringType()), ("reply_TO", reply_to)), FULL)
    assert got == [{"Body": b"body", "ROUTING_KEY": "ticks.€", "reply_TO": {"exchange": "", "routing_key": "answers"}}]


def test_what_is_not_named_is_not_decoded() -> None:
    rotten = wire.transfer(wire.delivery(routing_key=wire.str8(b"\xff")) + b"\0\0\0\7junk", b"body")
    assert values("body", t.BinaryType(), rotten) == [b"body"]
    with pytest.raises(MessageFormatError):
        values("routing_key", t.StringType(), rotten)


def test_structs_unknown_to_the_specification_are_skipped() -> None:
    header = wire.struct32(0x0402, 3, b"") + FULL_DELIVERY + wire.struct32(0x7F01, 0xFFFF, b"new") + FULL_MESSAGE
    assert rows(DEFAULT, wire.transfer(header, b"body")) == [FULL_ROW]
    assert rows(DEFAULT, wire.transfer(FULL_MESSAGE + b"\0\0\0\0" + FULL_DELIVERY, b"body")) == [FULL_ROW]


def test_a_header_in_many_frames() -> None:
    long = wire.transfer(FULL_DELIVERY + FULL_MESSAGE, b"body", header_limit=30)
    got = rows(DEFAULT, FULL + long + FULL)
    assert got == [FULL_ROW | {"position": position} for position in (7, 8, 9)]


@pytest.mark.parametrize(
    ("unit", "number", "expected"),
    [
        ("auto", 1_700_000_000, 1_700_000_000_000_000),
        ("auto", 100_000_000_000, 100_000_000_000_000_000),  # 10^11 is still seconds
        ("auto", 100_000_000_001, 100_000_000_001_000),
        ("s", 100_000_000_001, 100_000_000_001_000_000),
        ("ms", 1_700_000_000, 1_700_000_000_000),
        ("auto", 0, 0),
        ("auto", 2**64 - 1, -1_000_000),  # datetime is signed
        ("auto", 2**64 - 100_000_000_001, -100_000_000_001_000),
        ("s", 2**64 - 62_135_596_800, -62_135_596_800_000_000),
    ],
)
def test_units_of_times(unit: str, number: int, expected: int) -> None:
    block = wire.transfer(wire.delivery(timestamp=U64(number)), b"")
    (batch,) = plan(("timestamp", t.TimestampType()), unit=unit).batches([chunk_of(block)], queue="q", first_position=0)
    assert batch.column(0).cast(pa.int64()).to_pylist() == [expected]


@pytest.mark.parametrize(
    ("name", "kind", "field", "reason"),
    [
        ("ttl", t.LongType(), U64(2**63), "9223372036854775808 does not fit BIGINT"),
        ("ttl", t.IntegerType(), U64(2**31), "2147483648 does not fit INT"),
        ("ttl", t.IntegerType(), U64(2**64 - 1), "18446744073709551615 does not fit BIGINT"),
        ("priority", t.ByteType(), b"\x80", "128 does not fit TINYINT"),
        ("expiration", t.TimestampType(), U64(2**63 - 1), "9223372036854775807 is no time of the years 1 to 9999"),
        ("timestamp", t.TimestampType(), U64(2**63), "-9223372036854775808 is no time of the years 1 to 9999"),
        ("exchange", t.StringType(), wire.str8(b"ab\xff"), "its 3 bytes are not UTF-8: invalid start byte at byte 2"),
    ],
)
def test_values_that_do_not_fit_are_errors_of_their_message(
    name: str, kind: t.DataType, field: bytes, reason: str
) -> None:
    bad = wire.transfer(wire.delivery(**{name: field}), b"")
    block = FULL + bad + FULL
    with pytest.raises(MessageFormatError) as raised:
        rows(plan((name, kind)), block)
    assert (raised.value.queue, raised.value.position, raised.value.column) == ("q", 8, name)
    assert raised.value.reason == reason
    got = values(name, kind, FULL, bad, FULL, mode="PERMISSIVE")
    assert got[1] is None
    assert got[0] == got[2] is not None


# ---- messages that cannot be decoded ------------------------------------------------------------------------------

BROKEN = {
    "struct beyond its segment": (b"\0\0\1\0" + FULL_DELIVERY[4:], "do not fit its segment"),
    "octets after the last struct": (FULL_DELIVERY + b"\0\0", "do not fit its segment"),
    "no room for flags": (b"\0\0\0\3\4\1\0", "do not fit its segment"),
    "undefined flag": (wire.struct32(0x0401, 1 << 12, b""), "presence flags that are not defined"),
    "too short": (wire.struct32(0x0401, 1 << 6, b"\0\0"), "delivery-properties: it is too short for its fields"),
    "field beyond the struct": (wire.struct32(0x0401, 1 << 9, b"\x05abc"), "a field reaches beyond its end"),
    "octets after the last field": (wire.struct32(0x0401, 1 << 9, b"\x01abc"), "does not end with its last field"),
    "twice": (FULL_DELIVERY * 2, "delivery-properties: it is there twice"),
    "size beyond the data": (wire.struct32(0x0403, 1 << 8, b"\xff\xff\xff\xff"), "a field reaches beyond its end"),
    "too many structs": (wire.struct32(0x7F01, 0, b"") * 65, "more than 64 structs"),
    "reply-to": (
        wire.message(reply_to=wire.vbin16(b"\x01\x00\x09abc")),
        "reply-to: a field reaches beyond its end",
    ),
    "map beyond": (wire.message(application_headers=b"\0\0\0\x09" + b"\0\0\0\1" + b"\1k\x95\0\x09"), "reaches beyond"),
    "map count": (wire.message(application_headers=b"\0\0\0\x04\0\0\0\1"), "cannot hold as many entries"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_malformed_message_is_named_and_the_others_are_decoded(name: str) -> None:
    header, reason = BROKEN[name]
    block = FULL + wire.transfer(header, b"body") + FULL
    with pytest.raises(MessageFormatError) as raised:
        rows(DEFAULT, block)
    assert raised.value.position == 8
    assert reason in raised.value.reason
    assert "position 8 of queue 'q' cannot be decoded: " in str(raised.value)
    permissive = ColumnPlan.build(DEFAULT_SCHEMA, mode="PERMISSIVE", timestamp_unit="auto")
    assert rows(permissive, block) == [
        FULL_ROW,
        dict.fromkeys(FULL_ROW) | {"queue": "q", "position": 8},
        FULL_ROW | {"position": 9},
    ]
    rejected: list[tuple[list[int], str]] = []
    rejecting = ColumnPlan.build(DEFAULT_SCHEMA, mode="REJECT", timestamp_unit="auto")
    got = rows(rejecting, block, on_reject=lambda positions, why: rejected.append((positions, why)))
    assert got == [FULL_ROW, FULL_ROW | {"position": 9}]
    assert [positions for positions, _ in rejected] == [[8]]
    assert reason in rejected[0][1]


@pytest.mark.parametrize("name", ["resume_id", "resume_ttl"])
def test_octets_after_the_last_field_are_found_by_each_column_near_it(name: str) -> None:
    kind = t.BinaryType() if name == "resume_id" else t.LongType()
    bad = wire.transfer(wire.struct32(0x0401, 1 << 10, b"\0\2abEXTRA"))
    with pytest.raises(MessageFormatError, match="does not end with its last field"):
        rows(plan((name, kind)), bad)


def test_a_message_of_which_no_row_is_left_gives_no_batch() -> None:
    rejected: list[int] = []
    bad = wire.transfer(BROKEN["twice"][0])
    rejecting = plan(("routing_key", t.StringType()), mode="REJECT")
    got = list(
        rejecting.batches([chunk_of(bad * 2)], queue="q", first_position=0, on_reject=lambda p, _: rejected.extend(p))
    )
    assert got == []
    assert rejected == [0, 1]


def test_rejected_positions_are_reported_with_the_column_and_the_reason_they_share() -> None:
    calls: list[tuple[list[int], str]] = []
    bad = wire.transfer(wire.delivery(priority=b"\xff"))
    worse = wire.transfer(wire.delivery(exchange=wire.str8(b"\xff")))
    rejecting = plan(("priority", t.ByteType()), ("exchange", t.StringType()), mode="REJECT")
    got = rows(rejecting, bad + FULL + worse + bad, on_reject=lambda p, why: calls.append((p, why)))
    assert [row["exchange"] for row in got] == ["amq.topic"]
    assert calls == [
        ([7, 10], "priority: 255 does not fit TINYINT"),
        ([9], "exchange: its 1 bytes are not UTF-8: invalid start byte at byte 0"),
    ]


def test_the_number_of_reasons_reported_is_bounded() -> None:
    calls: list[tuple[list[int], str]] = []
    block = b"".join(wire.transfer(wire.delivery(priority=bytes([n]))) for n in range(128, 256))
    rows(plan(("priority", t.ByteType()), mode="REJECT"), block, on_reject=lambda p, why: calls.append((p, why)))
    assert len(calls) == 11
    assert sorted(position for positions, _ in calls for position in positions) == list(range(7, 135))


def test_failfast_names_the_first_message_that_does_not_fit_and_what_to_do() -> None:
    bad = wire.transfer(wire.delivery(exchange=wire.str8(b"\xff")))
    with pytest.raises(MessageFormatError) as raised:
        rows(plan(("priority", t.ByteType()), ("exchange", t.StringType())), FULL + bad + bad, queue="ticks")
    assert raised.value.position == 8
    for part in ("'ticks'", "position 8", "'exchange'", "not UTF-8", "mode=PERMISSIVE", "_corrupt_record STRING"):
        assert part in str(raised.value)
    assert "REJECT" not in str(raised.value), "which only some guarantees allow"
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE", "REJECT"])
def test_no_row_is_made_of_what_is_skipped_whether_it_fits_or_not(mode: str) -> None:
    good, bad = FULL, wire.transfer(wire.delivery(exchange=wire.str8(b"\xff")))
    rejected: list[int] = []
    got = rows(
        plan(("position", t.LongType()), ("exchange", t.StringType()), mode=mode),
        good + bad + good,
        wire.transfer(b"\0\0\1\0", b"broken") + good + good,
        skipped=(8, 9, 10, 99),
        on_reject=lambda positions, _: rejected.extend(positions),
    )
    assert [row["position"] for row in got] == [7, 11, 12]
    assert rejected == []


def test_all_rows_of_a_batch_may_be_skipped() -> None:
    assert rows(plan(("position", t.LongType())), FULL + FULL, skipped=[7, 8]) == []


def test_ends_that_are_not_those_of_the_frames_are_a_decode_error() -> None:
    for ends in ([len(FULL) + 1], [len(FULL), len(FULL)], [len(FULL), 5], [0]):
        with pytest.raises(DecodeError, match="the ends of the transfers do not fit the frames"):
            list(DEFAULT.batches([Chunk.of(FULL, ends)], queue="q", first_position=0))


@pytest.mark.parametrize("octet", [0, 3, 5, 13])
def test_a_transfer_whose_frames_are_damaged_costs_itself_only(octet: int) -> None:
    damaged = FULL[:octet] + b"\x50" + FULL[octet + 1 :]
    permissive = ColumnPlan.build(DEFAULT_SCHEMA, mode="PERMISSIVE", timestamp_unit="auto")
    chunk = Chunk.of(FULL + damaged + FULL, [len(FULL), 2 * len(FULL), 3 * len(FULL)])
    (batch,) = permissive.batches([chunk], queue="q", first_position=7)
    lost = dict.fromkeys(FULL_ROW) | {"queue": "q", "position": 8}
    assert batch.to_pylist() == [FULL_ROW, lost, FULL_ROW | {"position": 9}]


# ---- schema --------------------------------------------------------------------------------------------------------

SCHEMAS = [
    DEFAULT_SCHEMA,
    schema(("application_headers", t.VariantType()), ("body", t.VariantType())),
    schema(("application_headers", t.MapType(t.StringType(), t.LongType(), valueContainsNull=False))),
    t.StructType(
        [
            t.StructField("position", t.LongType(), nullable=False),
            t.StructField("body", t.ArrayType(t.StringType(), containsNull=False), metadata={"comment": "x"}),
            t.StructField(
                "application_headers",
                t.StructType(
                    [
                        t.StructField("a", t.DecimalType(10, 2), nullable=False),
                        t.StructField("b", schema(("v", t.VariantType()), ("t", t.TimestampNTZType()))),
                    ]
                ),
            ),
        ]
    ),
]


@pytest.mark.parametrize("index", range(len(SCHEMAS)))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_arrow_schema_is_the_one_that_spark_compares_with(index: int) -> None:
    wanted = to_arrow_schema(SCHEMAS[index], timezone="UTC")
    plan = ColumnPlan.build(SCHEMAS[index], mode="REJECT", timestamp_unit="auto")
    assert plan.arrow_schema.equals(wanted, check_metadata=True)
    headers = wire.map_(
        [
            (b"a", 0x95, wire.vbin16(b"1.50")),
            (b"b", 0xA8, wire.map_([(b"v", 0x08, b"\1"), (b"t", 0x38, U64(1_700_000_000))])),
        ]
    )
    header = wire.message(content_type=wire.str8(b"amqp/list"), application_headers=headers)
    if index == 2:
        header = wire.message(application_headers=wire.map_([(b"a", 0x31, U64(3))]))
    (batch,) = plan.batches(
        [chunk_of(wire.transfer(header, wire.list_([(0x95, wire.vbin16(b"x"))])))], queue="q", first_position=0
    )
    assert batch.schema.equals(wanted, check_metadata=True)
    assert [c.type for c in batch.columns] == [f.type for f in wanted]


def test_every_problem_of_a_schema_is_reported_at_once_with_what_is_allowed() -> None:
    wrong = schema(
        ("body", t.IntegerType()),
        ("nonsense", t.StringType()),
        ("ttl", t.StringType()),
        ("BODY", t.BinaryType()),
        ("reply_to", schema(("who", t.StringType()))),
        ("application_headers", schema(("a", t.MapType(t.IntegerType(), t.StringType())), ("b", t.NullType()))),
        ("routing_key", t.StringType()),
    )
    with pytest.raises(SchemaError) as raised:
        ColumnPlan.build(wrong, mode="FAILFAST", timestamp_unit="auto")
    text = str(raised.value)
    for part in (
        "[AMQP_COLUMN_TYPE_UNSUPPORTED] Column 'body' cannot have the type INT. Use BINARY, STRING (strictly",
        "[AMQP_COLUMN_UNKNOWN] There is no column 'nonsense'. Use one of queue, position,",
        "Column 'ttl' cannot have the type STRING. Use BIGINT, or INT (checked).",
        "[AMQP_COLUMN_DUPLICATE] Column 'BODY' occurs twice.",
        "'reply_to' cannot have the type STRUCT<WHO:STRING>. Use STRUCT of any of exchange STRING, routing_key STRING",
        "The type of 'application_headers.a' is not supported: the keys of a map are STRING, not int.",
        "The type of 'application_headers.b' is not supported: void cannot be read from a map. Use BOOLEAN",
    ):
        assert part in text
    assert len(raised.value.problems) == 7
    assert "'routing_key'" not in text


@pytest.mark.parametrize("name", columns.COLUMNS)
def test_every_column_refuses_a_type_it_cannot_have(name: str) -> None:
    with pytest.raises(SchemaError) as raised:
        plan((name, t.DayTimeIntervalType()))
    what = f"[AMQP_COLUMN_TYPE_UNSUPPORTED] Column '{name}' cannot have the type INTERVAL DAY TO SECOND."
    assert raised.value.problems == (f"{what} Use {columns.COLUMNS[name].allowed}.",)


def test_an_unknown_mode_or_unit_and_an_empty_schema_are_refused() -> None:
    with pytest.raises(SchemaError) as raised:
        ColumnPlan.build(t.StructType([]), mode="LENIENT", timestamp_unit="us")
    assert len(raised.value.problems) == 3


def test_not_null_columns_are_kept_so() -> None:
    strict = t.StructType([t.StructField("ttl", t.LongType(), nullable=False)])
    assert rows(ColumnPlan.build(strict, mode="FAILFAST", timestamp_unit="auto"), FULL) == [{"ttl": 60_000}]
    with pytest.raises(MessageFormatError, match="absent, and NOT NULL was asked for"):
        rows(ColumnPlan.build(strict, mode="FAILFAST", timestamp_unit="auto"), FULL + wire.transfer())
    assert rows(ColumnPlan.build(strict, mode="REJECT", timestamp_unit="auto"), FULL + wire.transfer()) == [
        {"ttl": 60_000}
    ]
    with pytest.raises(SchemaError, match=r"AMQP_COLUMN_NOT_NULL.* 'ttl' is NOT NULL, and mode=PERMISSIVE"):
        ColumnPlan.build(strict, mode="PERMISSIVE", timestamp_unit="auto")


def test_a_not_null_part_of_reply_to_that_is_absent_is_an_error() -> None:
    whole, half = wire.reply_to(b"", b"answers"), wire.reply_to(None, b"answers")
    block = b"".join(wire.transfer(wire.message(reply_to=each), b"") for each in (whole, half)) + wire.transfer()
    parts = t.StructType([t.StructField(name, t.StringType(), nullable=False) for name in ("exchange", "routing_key")])
    with pytest.raises(MessageFormatError, match="exchange: absent, and NOT NULL was asked for"):
        rows(plan(("reply_to", parts)), block)
    wanted = schema(("reply_to", parts), ("_corrupt_record", t.StringType()))
    permissive = ColumnPlan.build(wanted, mode="PERMISSIVE", timestamp_unit="auto")
    found = rows(permissive, block)
    assert [row["reply_to"] for row in found] == [{"exchange": "", "routing_key": "answers"}, None, None]
    assert [row["_corrupt_record"] is None for row in found] == [True, False, True]


def test_a_plan_pickles() -> None:
    copy = pickle.loads(pickle.dumps(DEFAULT))
    assert copy.arrow_schema.equals(DEFAULT.arrow_schema, check_metadata=True)
    assert (copy.mode, copy.timestamp_unit) == ("FAILFAST", "auto")
    assert rows(copy, FULL) == [FULL_ROW]
    assert rows(pickle.loads(pickle.dumps(copy)), FULL) == [FULL_ROW]  # after use, too


# ---- batches -------------------------------------------------------------------------------------------------------


def test_batches_are_bounded_in_rows() -> None:
    narrow = plan(("position", t.LongType()), ("body", t.BinaryType()))
    batches = list(narrow.batches([chunk_of(FULL * 25_000)], queue="q", first_position=100))
    assert [batch.num_rows for batch in batches] == [10_000, 10_000, 5_000]
    assert pa.Table.from_batches(batches).column("position").to_pylist() == list(range(100, 25_100))


def test_batches_are_bounded_in_bytes_and_a_larger_message_is_alone() -> None:
    big, small = wire.transfer(FULL_DELIVERY, b"x" * (20 << 20)), wire.transfer(FULL_DELIVERY, b"y" * (5 << 20))
    narrow = plan(("body", t.BinaryType()))
    sizes = [
        [len(row["body"]) >> 20 for row in batch.to_pylist()]
        for batch in narrow.batches([chunk_of(small * 4 + big + small)], queue="q", first_position=0)
    ]
    assert sizes == [[5, 5, 5], [5], [20], [5]]


def test_small_blocks_are_decoded_together_and_large_ones_are_not_joined() -> None:
    narrow = plan(("position", t.LongType()))
    batches = list(narrow.batches([chunk_of(FULL)] * 500, queue="q", first_position=0))
    assert [batch.num_rows for batch in batches] == [500]
    block = wire.transfer(FULL_DELIVERY, b"x" * (3 << 20))
    batches = list(narrow.batches(map(chunk_of, [block, block, FULL]), queue="q", first_position=0))
    assert [batch.column(0).to_pylist() for batch in batches] == [[0], [1, 2]]


def test_no_blocks_give_no_batches() -> None:
    assert rows(DEFAULT) == []
    assert rows(DEFAULT, b"", wire.heartbeat()) == []


def test_blocks_are_taken_one_after_the_other() -> None:
    """A stream of blocks is not gathered in memory before the first batch is out."""
    taken = 0

    def blocks() -> Any:
        nonlocal taken
        for _ in range(10):
            taken += 1
            yield chunk_of(wire.transfer(FULL_DELIVERY, b"x" * (3 << 20)))

    batches = plan(("body", t.BinaryType())).batches(blocks(), queue="q", first_position=0)
    next(batches)
    assert taken == 2
