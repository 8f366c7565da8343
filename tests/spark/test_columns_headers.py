"""application_headers and self-describing bodies: widening, texts, VARIANT."""

from __future__ import annotations

import json
import struct
import tracemalloc
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t
from pyspark.sql.types import VariantVal

from amqp_core.v0_10._write import write_map
from amqp_core.v0_10.type_codes import VBIN32, Typed
from amqp_spark.arrow.columns import batch as columns
from amqp_spark.arrow.columns import headers
from amqp_spark.arrow.columns.conversion import ConversionError
from amqp_spark.arrow.columns.variant import LARGEST, encode
from amqp_spark.arrow.decode import ColumnPlan
from amqp_spark.errors import MessageFormatError
from tests.support import wire
from tests.support.received import batches_both_ways, chunk_of

LONG, STRING, BINARY, DOUBLE, FLOAT = t.LongType(), t.StringType(), t.BinaryType(), t.DoubleType(), t.FloatType()
MAP, VARIANT = t.MapType(STRING, STRING), t.VariantType()
U64, I64, F64, F32 = (struct.Struct(f">{c}").pack for c in "Qqdf")
UUID = bytes(range(16))
UUID_TEXT = "00010203-0405-0607-0809-0a0b0c0d0e0f"
VOID = (0xF0, b"")


def schema(*fields: tuple[str, t.DataType]) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in fields])


def message(*entries: tuple[bytes, int, bytes], body: bytes | None = None) -> bytes:
    return wire.transfer(wire.message(application_headers=wire.map_(entries)), body)


def decode(
    kind: t.DataType, *messages: bytes, mode: str = "FAILFAST", unit: str = "auto", column: str = ""
) -> list[Any]:
    name = column or "application_headers"
    plan = ColumnPlan.build(schema((name, kind)), mode=mode, timestamp_unit=unit)
    out: list[Any] = []
    for batch in batches_both_ways(plan, [chunk_of(b"".join(messages))]):
        assert batch.schema.equals(plan.arrow_schema, check_metadata=True)
        batch.validate(full=True)
        out += [row[name] for row in batch.to_pylist()]
    return out


def header(kind: t.DataType, *values: tuple[int, bytes], **options: Any) -> list[Any]:
    return [row["h"] for row in decode(schema(("h", kind)), *(message((b"h", *v)) for v in values), **options)]


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type, misc]


def naive(*parts: int) -> datetime:
    return datetime(*parts)  # type: ignore[arg-type]  # noqa: DTZ001 - TIMESTAMP_NTZ has no zone


def text(value: str) -> tuple[int, bytes]:
    return 0x95, wire.vbin16(value.encode())


ACCEPTED: list[tuple[t.DataType, int, bytes, Any]] = [
    # integers: any width of the wire, if the value fits
    (t.ByteType(), 0x01, b"\x80", -128),
    (t.ByteType(), 0x31, I64(-128), -128),
    (t.ByteType(), 0x32, U64(127), 127),
    (t.ShortType(), 0x02, b"\xff", 255),
    (t.IntegerType(), 0x11, b"\xff\xfe", -2),
    (t.IntegerType(), 0x12, b"\xff\xfe", 65534),
    (t.IntegerType(), 0x21, b"\x80\0\0\0", -(2**31)),
    (LONG, 0x22, b"\xff\xff\xff\xff", 2**32 - 1),
    (LONG, 0x31, I64(-(2**63)), -(2**63)),
    (LONG, 0x32, U64(2**63 - 1), 2**63 - 1),
    # floating point: float and double, integers and narrower where exact
    (DOUBLE, 0x33, F64(1.1), 1.1),
    (DOUBLE, 0x23, F32(0.5), 0.5),
    (DOUBLE, 0x21, b"\0\0\0\x07", 7.0),
    (DOUBLE, 0x33, F64(float("inf")), float("inf")),
    (FLOAT, 0x23, F32(0.5), 0.5),
    (FLOAT, 0x33, F64(0.5), 0.5),
    (FLOAT, 0x33, F64(float("-inf")), float("-inf")),
    (FLOAT, 0x01, b"\xff", -1.0),
    (t.BooleanType(), 0x08, b"\1", True),
    (t.BooleanType(), 0x08, b"\0", False),
    # texts: every string type, octets that are UTF-8 (what C++ clients send), uuid
    (STRING, 0x85, wire.str8("é".encode()), "é"),
    (STRING, 0x95, wire.vbin16("é".encode()), "é"),
    (STRING, 0x84, wire.str8(b"\xe9"), "é"),
    (STRING, 0x94, wire.vbin16(b"\xa4"), "€"),
    (STRING, 0x86, wire.str8("é".encode("utf-16-be")), "é"),
    (STRING, 0x96, wire.vbin16("é".encode("utf-16-be")), "é"),
    (STRING, 0x04, b"A", "A"),
    (STRING, 0x27, b"\0\1\xf6\0", "\U0001f600"),
    (STRING, 0x80, wire.str8(b"abc"), "abc"),
    (STRING, 0x90, wire.vbin16(b"abc"), "abc"),
    (STRING, 0xA0, wire.vbin32(b"abc"), "abc"),
    (STRING, 0x48, UUID, UUID_TEXT),
    (BINARY, 0x90, wire.vbin16(b"\xff\0"), b"\xff\0"),
    (BINARY, 0x20, b"\1\2\3\4", b"\1\2\3\4"),
    (BINARY, 0x95, wire.vbin16(b"abc"), b"abc"),
    (BINARY, 0x94, wire.vbin16(b"\xe9"), "é".encode()),
    (BINARY, 0x48, UUID, UUID),
    # decimals: exact only
    (t.DecimalType(10, 2), 0xC8, b"\1" + b"\0\0\0\x0f", Decimal("1.50")),
    (t.DecimalType(10, 2), 0xD8, b"\2" + I64(-150), Decimal("-1.50")),
    (t.DecimalType(10, 2), *text("12345678.90"), Decimal("12345678.90")),
    (t.DecimalType(10, 2), *text("1.5E+3"), Decimal("1500.00")),
    (t.DecimalType(10, 2), 0x21, b"\0\0\0\x07", Decimal("7.00")),
    (t.DecimalType(38, 0), *text("9" * 38), Decimal("9" * 38)),
    (t.DecimalType(2, 2), *text("0.99"), Decimal("0.99")),
    (t.DecimalType(2, 2), *text("0"), Decimal("0.00")),
    # dates and times: ISO 8601 texts, datetime, integers by timestampUnit
    (t.DateType(), *text("2024-02-29"), date(2024, 2, 29)),
    (t.DateType(), 0x38, I64(86_400), date(1970, 1, 2)),
    (t.DateType(), 0x31, I64(-86_400_000_000_0), date(1942, 8, 16)),
    (t.TimestampType(), *text("2024-02-29T12:00:00.000001Z"), utc(2024, 2, 29, 12, 0, 0, 1)),
    (t.TimestampType(), *text("2024-02-29 12:00:00"), utc(2024, 2, 29, 12)),
    (t.TimestampType(), *text("2024-02-29T12:00:00.1234560000+02:00"), utc(2024, 2, 29, 10, 0, 0, 123456)),
    (t.TimestampType(), *text("2024-02-29T12:00-0130"), utc(2024, 2, 29, 13, 30)),
    (t.TimestampType(), *text("2024-02-29"), utc(2024, 2, 29)),
    (t.TimestampType(), *text("1969-12-31T23:59:59.5Z"), utc(1969, 12, 31, 23, 59, 59, 500_000)),
    (t.TimestampType(), 0x38, I64(1_700_000_000), utc(2023, 11, 14, 22, 13, 20)),
    (t.TimestampType(), 0x31, I64(1_700_000_000_123), utc(2023, 11, 14, 22, 13, 20, 123_000)),
    (t.TimestampType(), 0x38, I64(-1), utc(1969, 12, 31, 23, 59, 59)),
    (t.TimestampNTZType(), *text("2024-02-29T12:00:00"), naive(2024, 2, 29, 12)),
    (t.TimestampNTZType(), 0x38, I64(1_700_000_000), naive(2023, 11, 14, 22, 13, 20)),
    # nested
    (t.ArrayType(LONG), 0xA9, wire.list_([(0x02, b"\1"), VOID, (0x31, I64(2))]), [1, None, 2]),
    (t.ArrayType(STRING), 0xAA, wire.array_(0x95, [wire.vbin16(b"a"), wire.vbin16(b"b")]), ["a", "b"]),
    (t.ArrayType(STRING), 0xAA, b"\0\0\0\0", []),
    (t.MapType(STRING, LONG), 0xA8, wire.map_([(b"a", 0x21, b"\0\0\0\1")]), [("a", 1)]),
    (MAP, 0xA8, wire.map_([(b"a", 0x21, b"\0\0\0\1"), (b"b", *VOID)]), [("a", "1"), ("b", None)]),
    (schema(("a", LONG), ("b", STRING)), 0xA8, wire.map_([(b"a", 0x21, b"\0\0\0\1")]), {"a": 1, "b": None}),
]


@pytest.mark.parametrize("case", range(len(ACCEPTED)))
def test_a_header_is_widened_where_nothing_is_lost(case: int) -> None:
    kind, code, encoded, expected = ACCEPTED[case]
    assert header(kind, (code, encoded)) == [expected]
    # with another wire type beside it, values are converted one by one: the same must come out
    assert header(kind, (code, encoded), VOID, (code, encoded)) == [expected, None, expected]


REFUSED: list[tuple[t.DataType, int, bytes, str]] = [
    (t.ByteType(), 0x02, b"\x80", "uint8 128 does not fit TINYINT"),
    (t.ShortType(), 0x21, b"\0\0\x80\0", "int32 32768 does not fit SMALLINT"),
    (t.IntegerType(), 0x31, I64(2**31), "int64 2147483648 does not fit INT"),
    (LONG, 0x32, U64(2**63), "uint64 9223372036854775808 does not fit BIGINT"),
    (LONG, 0x33, F64(1.0), "double 1.0 is not an integer, BIGINT was asked for"),
    (LONG, *text("7"), "str16 is not an integer, BIGINT was asked for"),
    (LONG, 0x08, b"\1", "boolean is not an integer"),
    (LONG, 0x38, I64(5), "datetime 5 is not an integer"),
    (DOUBLE, 0x31, I64(2**53 + 1), "int64 9007199254740993 is not exact as DOUBLE"),
    (DOUBLE, *text("1.5"), "str16 is not a number, DOUBLE was asked for"),
    (FLOAT, 0x33, F64(0.1), "double 0.1 is not exact as FLOAT"),
    (FLOAT, 0x33, F64(1e300), "double 1e+300 does not fit FLOAT"),
    (FLOAT, 0x21, b"\x7f\xff\xff\xff", "int32 2147483647 is not exact as FLOAT"),
    (t.BooleanType(), 0x02, b"\1", "uint8 1 is not a boolean"),
    (STRING, 0x21, b"\0\0\0\1", "int32 1 is not a text, STRING was asked for"),
    (STRING, 0x90, wire.vbin16(b"ab\xff"), "its 3 bytes are not UTF-8: invalid start byte at byte 2"),
    (STRING, 0x95, wire.vbin16(b"\xc3"), "UTF-8"),
    (STRING, 0xA8, wire.map_([]), "map is not a text"),
    (BINARY, 0x31, I64(1), "int64 1 is not opaque, BINARY was asked for"),
    (t.DecimalType(4, 2), *text("1.005"), "str16 is not exact as DECIMAL(4,2)"),
    (t.DecimalType(4, 2), *text("100"), "str16 does not fit DECIMAL(4,2)"),
    (t.DecimalType(4, 2), *text("NaN"), "str16 is not the text of a decimal"),
    (t.DecimalType(4, 2), *text("1e999"), "is not exact as DECIMAL(4,2)"),
    (t.DecimalType(4, 2), 0x33, F64(1.5), "double 1.5 is not a decimal"),
    (t.DateType(), *text("2023-02-29"), "is no date: day"),
    (t.DateType(), *text("20240229"), "is not an ISO 8601 date"),
    (t.DateType(), 0x38, I64(86_401), "datetime 86401 is not the start of a day"),
    (t.TimestampType(), *text("2024-02-29T12:00:00.0000001Z"), "is not an ISO 8601 time of microseconds"),
    (t.TimestampType(), *text("2024-02-29T12:00.5Z"), "is not an ISO 8601 time"),  # half a minute, not half a second
    (t.TimestampType(), *text("yesterday"), "is not an ISO 8601 time"),
    (t.TimestampType(), *text("2024-02-29T25:00:00Z"), "is no time: hour"),
    (t.TimestampType(), *text("0001-01-01T00:00:00+23:59"), "str16 is no time of the years 1 to 9999"),
    (t.TimestampType(), *text("9999-12-31T23:59:59-23:59"), "str16 is no time of the years 1 to 9999"),
    (t.DateType(), *text("\u0662\u0660\u0662\u0664-\u0660\u0661-\u0660\u0661"), "str16 is not an ISO 8601 date"),
    (t.TimestampType(), 0x38, I64(2**62), "4611686018427387904 is no time of the years 1 to 9999"),
    (t.TimestampType(), 0x33, F64(1.0), "double 1.0 is not a time"),
    (t.TimestampNTZType(), *text("2024-02-29T12:00:00Z"), "has a time zone, TIMESTAMP_NTZ was asked for"),
    (t.ArrayType(LONG), 0x31, I64(1), "int64 1 is neither list nor array"),
    (t.ArrayType(LONG), 0xA9, wire.list_([text("x")]), "str16 is not an integer"),
    (t.ArrayType(LONG, containsNull=False), 0xA9, wire.list_([VOID]), "NOT NULL elements"),
    (t.MapType(STRING, LONG), 0xA8, wire.map_([(b"a", *text("x"))]), "a: str16 is not an integer"),
    (schema(("a", LONG)), 0xA8, wire.map_([(b"a", *text("x"))]), "a: str16 is not an integer"),
    (schema(("a", LONG)), 0xA9, wire.list_([]), "list is not a map, STRUCT was asked for"),
    (MAP, 0x31, I64(1), "int64 1 is not a map, MAP was asked for"),
]


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_a_header_that_would_lose_something_is_an_error_that_says_what_was_found(case: int) -> None:
    kind, code, encoded, reason = REFUSED[case]
    good = message((b"other", 0x02, b"\1"))
    for block in ([good, message((b"h", code, encoded))], [message((b"h", *VOID)), message((b"h", code, encoded))]):
        with pytest.raises(MessageFormatError) as raised:
            decode(schema(("h", kind)), *block)
        assert raised.value.position == 1
        assert raised.value.column == "application_headers"
        assert raised.value.reason.startswith("h: ")
        assert reason in raised.value.reason
        got = decode(schema(("h", kind)), *block, mode="PERMISSIVE")
        assert got == [{"h": None}, None]


def test_reasons_do_not_quote_texts_or_octets() -> None:
    for code in (0x95, 0x90):
        for kind in (LONG, t.DecimalType(4, 2), t.DateType(), t.TimestampType(), t.BooleanType()):
            with pytest.raises(MessageFormatError) as raised:
                header(kind, (code, wire.vbin16(b"hunter2")))
            assert "hunter2" not in str(raised.value)


def test_headers_are_found_wherever_they_are_in_the_map() -> None:
    wanted = schema(("qty", LONG), ("symbol", STRING), ("price", DOUBLE), ("a_rather_long_header_name", LONG))
    entries = [
        (b"symbol", 0x95, wire.vbin16(b"EURUSD")),
        (b"price", 0x33, F64(1.5)),
        (b"qty", 0x31, I64(7)),
        (b"a_rather_long_header_name", 0x02, b"\1"),
        (b"a_rather_long_header_nam3", 0x02, b"\2"),
        (b"qt", 0xA9, wire.list_([(0x31, I64(1))])),
        (b"", 0xA0, wire.vbin32(b"\3qty\x31")),
        (b"nested", 0xA8, wire.map_([(b"qty", 0x31, I64(8))])),
    ]
    full = {"qty": 7, "symbol": "EURUSD", "price": 1.5, "a_rather_long_header_name": 1}
    blocks, expected = [], []
    for turn in range(len(entries)):
        some = entries[turn:] + entries[:turn]
        for size in range(len(entries) + 1):
            blocks.append(message(*some[:size]))
            names = {key.decode() for key, _, _ in some[:size]}
            expected.append({key: value if key in names else None for key, value in full.items()})
    assert decode(wanted, *blocks) == expected


def test_messages_without_headers_and_null_maps() -> None:
    wanted = schema(("qty", LONG))
    null_map = wire.transfer(wire.message(application_headers=b"\0\0\0\0"))
    blocks = [message((b"qty", 0x31, I64(7))), wire.transfer(), wire.transfer(wire.message()), null_map, message()]
    assert decode(wanted, *blocks) == [{"qty": 7}, None, None, {"qty": None}, {"qty": None}]
    assert decode(MAP, *blocks) == [[("qty", "7")], None, None, [], []]
    assert decode(BINARY, *blocks) == [wire.map_([(b"qty", 0x31, I64(7))]), None, None, b"\0\0\0\0", wire.map_([])]
    assert [v if v is None else to_python(v) for v in decode(VARIANT, *blocks)] == [{"qty": 7}, None, None, {}, {}]


def test_of_a_key_that_occurs_twice_the_first_counts_in_a_struct_and_the_last_in_a_map() -> None:
    twice = message((b"a", 0x02, b"\1"), (b"a", 0x02, b"\2"), (b"b", 0x02, b"\3"))
    assert decode(schema(("a", LONG), ("b", LONG)), twice) == [{"a": 1, "b": 3}]
    assert decode(MAP, twice, message((b"a", 0x02, b"\1"))) == [[("a", "2"), ("b", "3")], [("a", "1")]]


def test_type_codes_unknown_to_the_specification_are_skipped_by_their_class() -> None:
    unknown = ((b"x", 0x2F, b"1234"), (b"y", 0x8F, b"\3abc"), (b"z", 0xAF, b"\0\0\0\1z"), (b"n", 0xF7, b""))
    block = message(*unknown, (b"qty", 0x31, I64(7)))
    assert decode(schema(("qty", LONG)), block) == [{"qty": 7}]
    with pytest.raises(MessageFormatError, match="x: unknown type code 0x2f"):
        decode(schema(("x", STRING)), block)


MALFORMED = [
    (wire.map_([(b"k", 0x95, b"\0\x09abc")]), "an entry reaches beyond its end"),
    (wire.map_([(b"k", 0xB1, b"abc")]), "an entry reaches beyond its end"),
    (struct.pack(">II", 4, 1), "cannot hold as many entries"),
    (struct.pack(">II", 6, 1) + b"\x09k", "an entry reaches beyond its end"),
    (struct.pack(">II", 9, 1) + b"\1k\x02\1\0", "bytes follow its last entry"),
    (struct.pack(">II", 4 + 70 * 4, 69) + b"\1k\x02\1" * 70, "bytes follow its last entry"),
    (struct.pack(">II", 4 + 70 * 4, 70) + b"\1k\x02\1" * 69 + b"\1k\xa0\1", "an entry reaches beyond its end"),
    (b"\0\0\0\2\0\0", "cannot hold as many entries"),
]


@pytest.mark.parametrize("case", range(len(MALFORMED)))
@pytest.mark.parametrize(
    "kind",
    [schema(("qty", LONG), ("k2", LONG)), schema(*((name, LONG) for name in ("qty", *"abcdefghij"))), MAP, VARIANT],
    ids=["struct", "many", "map", "variant"],
)
def test_a_malformed_map_is_an_error_of_its_message(case: int, kind: t.DataType) -> None:
    encoded, reason = MALFORMED[case]
    good = message((b"qty", 0x31, I64(7)))
    bad = wire.transfer(wire.message(application_headers=encoded))
    with pytest.raises(MessageFormatError) as raised:
        decode(kind, good, bad, good)
    assert raised.value.position == 1
    if isinstance(kind, t.StructType):
        assert reason in raised.value.reason
    got = decode(kind, good, bad, good, mode="PERMISSIVE")
    assert got[1] is None
    assert got[0] == got[2] == decode(kind, good)[0]
    assert decode(kind, bad, mode="PERMISSIVE") == [None], "it is alone"


def test_maps_of_very_many_headers() -> None:
    many = [(b"h%d" % i, 0x31, I64(i)) for i in range(300)]
    small = message((b"h299", 0x31, I64(-1)))
    block = [small, message(*many), small]
    wanted = schema(("h0", LONG), ("h299", LONG), ("h150", LONG))
    last, full = {"h0": None, "h299": -1, "h150": None}, {"h0": 0, "h299": 299, "h150": 150}
    assert decode(wanted, *block) == [last, full, last]
    assert decode(schema(("h0", LONG), ("none", LONG)), *block)[1] == {"h0": 0, "none": None}
    assert decode(MAP, *block)[1] == [(f"h{i}", str(i)) for i in range(300)]
    assert to_python(decode(VARIANT, *block)[1]) == {f"h{i}": i for i in range(300)}
    # when most messages have so many, they stay together
    block = [message(*many[: 70 + i % 3]) for i in range(200)]
    found = decode(schema(("h69", LONG), ("h71", LONG)), *block)
    assert found == [{"h69": 69, "h71": 71 if i % 3 == 2 else None} for i in range(200)]
    assert decode(MAP, *block) == [[(f"h{n}", str(n)) for n in range(70 + i % 3)] for i in range(200)]


def test_many_headers_are_found_wherever_they_are() -> None:
    names = [b"h%d" % i if i % 2 else b"a_rather_long_header_name_%02d" % i for i in range(40)]
    entries = [(name, 0x31, I64(i)) for i, name in enumerate(names)]
    others = [(b"other_%d" % i, 0x02, b"\1") for i in range(5)]
    again = [(name, 0x31, I64(-1)) for name in names[:3]]
    blocks, expected = [], []
    for turn in range(30):  # more different keys at one place than are looked for one by one
        some = entries[turn:] + others[: turn % 6] + entries[: turn // 2] + again
        blocks.append(message(*some))
        found: dict[bytes, int] = {}
        for name, _, value in some:
            found.setdefault(name, int.from_bytes(value, "big", signed=True))
        expected.append({name.decode(): found.get(name) for name in names})
    wanted = schema(*((name.decode(), LONG) for name in names))
    assert decode(wanted, *blocks) == expected
    assert decode(wanted, *blocks[3:5]) == expected[3:5]


def test_a_struct_of_many_headers_is_not_looked_for_in_every_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    named = headers._Walk.named

    def counted(walk: headers._Walk, key: bytes) -> Any:
        nonlocal looks
        looks += 1
        return named(walk, key)

    monkeypatch.setattr(headers._Walk, "named", counted)
    count = 200
    block = message(*((b"h%d" % i, 0x31, I64(i)) for i in range(count)))
    wanted = schema(*((f"h{i}", LONG) for i in range(0, count, 2)))
    assert decode(wanted, *[block] * 150) == [{f"h{i}": i for i in range(0, count, 2)}] * 150
    assert looks < 5 * count  # it is decoded in two ways


# ---- maps of texts -------------------------------------------------------------------------------------------------

TEXTS: list[tuple[int, bytes, str | None]] = [
    (*text("é"), "é"),
    (0x90, wire.vbin16(b"from C++"), "from C++"),
    (0x90, wire.vbin16(b"\xff\xfe"), '{"base64":"//4="}'),
    (0x21, b"\xff\xff\xff\xff", "-1"),
    (0x32, U64(2**64 - 1), "18446744073709551615"),
    (0x08, b"\1", "true"),
    (0x08, b"\0", "false"),
    (0x33, F64(1.0), "1.0"),
    (0x33, F64(0.1), "0.1"),
    (0x33, F64(1e300), "1e+300"),
    (0x33, F64(float("nan")), "NaN"),
    (0x33, F64(float("-inf")), "-Infinity"),
    (0x23, F32(0.1), "0.1"),
    (0x23, F32(16777216.0), "16777216.0"),
    (0x38, I64(1_700_000_000), "2023-11-14T22:13:20Z"),
    (0x38, I64(1_700_000_000_123), "2023-11-14T22:13:20.123000Z"),
    (0x38, I64(2**62), str(2**62)),
    (0x48, UUID, UUID_TEXT),
    (0xC8, b"\2" + b"\0\0\0\x96", "1.50"),
    (0xD8, b"\x14" + I64(1), "0.00000000000000000001"),
    (0x04, b"A", "A"),
    (*VOID, None),
    (0xA9, wire.list_([(0x02, b"\1"), text("é"), VOID, (0x08, b"\1")]), '[1,"é",null,true]'),
    (0xAA, wire.array_(0x23, [F32(0.1)]), "[0.1]"),
    (0xA8, wire.map_([(b"a", 0x33, F64(0.5)), (b"b", 0x90, wire.vbin16(b"\xff"))]), '{"a":0.5,"b":{"base64":"/w=="}}'),
    (0xA9, wire.list_([(0x33, F64(float("nan"))), (0x48, UUID)]), f'["NaN","{UUID_TEXT}"]'),
    (0xAB, b"\0\0\0\4\4\1\0\0", '{"base64":"BAEAAA=="}'),
]


@pytest.mark.parametrize("case", range(len(TEXTS)))
def test_headers_as_a_map_of_texts(case: int) -> None:
    code, encoded, expected = TEXTS[case]
    assert decode(MAP, message((b"h", code, encoded))) == [[("h", expected)]]
    around = [(b"b", 0x21, b"\0\0\0\1"), (b"h", code, encoded), (b"a", *text("x"))]
    assert decode(MAP, message(*around), message(), message(*around)) == [
        [("b", "1"), ("h", expected), ("a", "x")],
        [],
        [("b", "1"), ("h", expected), ("a", "x")],
    ]
    if code in (0xA8, 0xA9, 0xAA, 0xAB):
        json.loads(expected or "")


def test_texts_are_octets_of_a_binary_header_whatever_others_send() -> None:
    """How one message is read depends on no other one that happens to come with it."""
    latin = message((b"h", 0x95, wire.vbin16(b"\xff\xfe")))
    for other in ((0x90, wire.vbin16(b"hi")), (0x95, wire.vbin16(b"hi")), (0x85, b"\2hi")):
        got = decode(schema(("h", BINARY)), latin, message((b"h", *other)))
        assert got == [{"h": b"\xff\xfe"}, {"h": b"hi"}]


def test_a_text_that_is_not_utf8_is_an_error() -> None:
    bad = message((b"a", 0x02, b"\1"), (b"h", 0x95, wire.vbin16(b"\xff")))
    with pytest.raises(MessageFormatError, match=r"h: str16 is not UTF-8"):
        decode(MAP, bad)
    assert decode(MAP, message((b"a", 0x02, b"\1")), bad, mode="PERMISSIVE") == [[("a", "1")], None]


def test_maps_of_other_types() -> None:
    kind = t.MapType(STRING, LONG, valueContainsNull=False)
    assert decode(kind, message((b"a", 0x02, b"\1"), (b"b", 0x31, I64(2)))) == [[("a", 1), ("b", 2)]]
    with pytest.raises(MessageFormatError, match="b: str16 is not an integer, BIGINT was asked for"):
        decode(kind, message((b"a", 0x02, b"\1"), (b"b", *text("2"))))
    with pytest.raises(MessageFormatError, match="a: void, and NOT NULL values were asked for"):
        decode(kind, message((b"a", *VOID)))


def test_a_not_null_header_that_is_absent_is_an_error_but_absent_headers_are_null() -> None:
    kind = t.StructType([t.StructField("a", LONG, nullable=False), t.StructField("b", LONG)])
    assert decode(kind, message((b"a", 0x02, b"\1")), wire.transfer()) == [{"a": 1, "b": None}, None]
    with pytest.raises(MessageFormatError, match="a: absent, and NOT NULL was asked for"):
        decode(kind, message((b"b", 0x02, b"\1")))
    nested = schema(("n", t.StructType([t.StructField("a", LONG, nullable=False)])))
    with pytest.raises(MessageFormatError, match="n: a: absent, and NOT NULL was asked for"):
        decode(nested, message((b"n", 0xA8, wire.map_([]))))


def test_the_unit_of_times_applies_to_headers() -> None:
    for unit, expected in (("s", utc(2023, 11, 14, 22, 13, 20)), ("ms", utc(1970, 1, 20, 16, 13, 20))):
        assert header(t.TimestampType(), (0x38, I64(1_700_000_000)), unit=unit) == [expected]
        assert decode(MAP, message((b"h", 0x38, I64(1_700_000_000))), unit=unit) == [
            [("h", expected.isoformat().replace("+00:00", "Z"))]
        ]


# ---- VARIANT -------------------------------------------------------------------------------------------------------


def to_python(value: dict[str, bytes]) -> Any:
    return VariantVal(value["value"], value["metadata"]).toPython()


VARIANTS: list[tuple[int, bytes, Any, bytes]] = [
    # type code, encoded, what pyspark reads, the head octet of the encoding
    (0x01, b"\xff", -1, b"\x0c"),
    (0x11, b"\xff\xff", -1, b"\x10"),
    (0x21, b"\xff\xff\xff\xff", -1, b"\x14"),
    (0x31, I64(-1), -1, b"\x18"),
    (0x02, b"\xff", 255, b"\x10"),
    (0x12, b"\xff\xff", 65535, b"\x14"),
    (0x22, b"\xff\xff\xff\xff", 2**32 - 1, b"\x18"),
    (0x32, U64(2**63 - 1), 2**63 - 1, b"\x18"),
    (0x32, U64(2**64 - 1), Decimal(2**64 - 1), b"\x28"),
    (0x33, F64(1.1), 1.1, b"\x1c"),
    (0x23, F32(0.5), 0.5, b"\x38"),
    (0x08, b"\1", True, b"\x04"),
    (0x08, b"\0", False, b"\x08"),
    (*VOID, None, b"\x00"),
    (*text("é"), "é", b"\x09"),
    (*text("x" * 63), "x" * 63, b"\xfd"),
    (*text("x" * 64), "x" * 64, b"\x40"),
    (0x90, wire.vbin16(b"\xff\0"), b"\xff\0", b"\x3c"),
    (0xC8, b"\1" + b"\0\0\0\x0f", Decimal("1.5"), b"\x20"),
    (0xD8, b"\2" + I64(-(10**17)), Decimal(-(10**15)), b"\x24"),
    (0xD8, b"\x12" + I64(-(10**18)), Decimal(-1), b"\x28"),
    (0xD8, b"\0" + I64(2**63 - 1), Decimal(2**63 - 1), b"\x28"),
    (0x38, I64(1_700_000_000), utc(2023, 11, 14, 22, 13, 20), b"\x30"),
    (0x48, UUID, UUID_TEXT, b"\x91"),
    (0xAB, b"\0\0\0\4\4\1\0\0", b"\4\1\0\0", b"\x3c"),
    (0xA9, wire.list_([(0x02, b"\1"), VOID, text("x")]), [1, None, "x"], b"\x03"),
    (0xA9, wire.list_([]), [], b"\x03"),
    (0xA9, wire.list_([(0x02, b"\1")] * 300), [1] * 300, b"\x17"),
    (0xA8, wire.map_([(b"b", 0x02, b"\1"), (b"a", 0x02, b"\2")]), {"a": 2, "b": 1}, b"\x02"),
    (0xA8, wire.map_([(b"k%d" % i, 0x02, b"\1") for i in range(400)]), {f"k{i}": 1 for i in range(400)}, b"\x56"),
]


@pytest.mark.parametrize("case", range(len(VARIANTS)))
def test_headers_as_variant_keep_their_types(case: int) -> None:
    code, encoded, expected, head = VARIANTS[case]
    (value,) = decode(VARIANT, message((b"h", code, encoded)))
    assert to_python(value) == {"h": expected}
    (nested,) = decode(schema(("h", VARIANT)), message((b"h", code, encoded)))
    if code == 0xF0:
        assert nested["h"] is None
    else:
        assert nested["h"]["value"][:1] == head
        assert to_python(nested["h"]) == expected


def test_a_variant_of_literal_octets() -> None:
    (value,) = decode(VARIANT, message((b"b", 0x21, b"\0\0\0\7"), (b"a", *text("x"))))
    # metadata: version 1 with offsets of 1 octet, 2 names in the order of their ids, which is that of the sorted names
    assert value["metadata"] == bytes.fromhex("01 02 00 01 02 6162")
    # object: 2 fields, ids 0 1, offsets 0 2 7, short text "x", int32 7
    assert value["value"] == bytes.fromhex("02 02 00 01 00 02 07  05 78  14 07000000")


def test_values_that_no_variant_can_hold_are_errors() -> None:
    for code, encoded, reason in (
        (0xD8, b"\x27" + I64(1), "39 places"),
        (0x38, I64(2**62), "is no time of the years 1 to 9999"),
    ):
        with pytest.raises(MessageFormatError, match=reason):
            decode(VARIANT, message((b"h", code, encoded)))
    with pytest.raises(ConversionError, match="16777215"):
        encode(Typed(VBIN32, b"x" * LARGEST), "auto")
    names = {f"{number:0250}": Typed(VOID[0], None) for number in range(LARGEST // 250)}
    with pytest.raises(ConversionError, match=r"^16978\d{3} bytes as VARIANT"):  # those of the names
        encode(Typed(0xA8, names), "auto")


typed_values = st.recursive(
    st.one_of(
        st.integers(-(2**63), 2**63 - 1),
        st.booleans(),
        st.none(),
        st.floats(allow_nan=False),
        st.text(max_size=80),
        st.binary(max_size=80),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner, max_size=4),
    max_leaves=20,
)


def is_writable(value: Any) -> bool:
    if isinstance(value, dict):
        return all(len(key.encode()) < 256 and is_writable(item) for key, item in value.items())
    return all(map(is_writable, value)) if isinstance(value, list) else True


@given(st.dictionaries(st.text(max_size=20), typed_values, max_size=6))
def test_any_map_comes_back_from_variant_text_and_octets(value: dict[str, Any]) -> None:
    encoded = write_map(value)
    block = wire.transfer(wire.message(application_headers=encoded))
    (variant,) = decode(VARIANT, block)
    assert to_python(variant) == value
    assert decode(BINARY, block) == [encoded]
    texts = dict(decode(MAP, block)[0])
    assert list(texts) == list(value)
    for key, item in value.items():
        if item is None or isinstance(item, str):
            assert texts[key] == item
        elif isinstance(item, int):  # and bool
            assert texts[key] == json.dumps(item)


# ---- bodies --------------------------------------------------------------------------------------------------------

MAP_BODY = wire.map_([(b"symbol", *text("EURUSD")), (b"qty", 0x31, I64(7))])
LIST_BODY = wire.list_([(0x02, b"\1"), (0x31, I64(2))])


def with_body(body: bytes | None, content_type: bytes | None) -> bytes:
    fields = {} if content_type is None else {"content_type": wire.str8(content_type)}
    return wire.transfer(wire.message(**fields), body)


def test_self_describing_bodies() -> None:
    maps, lists = with_body(MAP_BODY, b"amqp/map"), with_body(LIST_BODY, b"amqp/list")
    kind = schema(("qty", t.IntegerType()), ("symbol", STRING), ("none", LONG))
    assert decode(kind, maps, column="body") == [{"qty": 7, "symbol": "EURUSD", "none": None}]
    assert decode(MAP, maps, column="body") == [[("symbol", "EURUSD"), ("qty", "7")]]
    assert decode(t.ArrayType(LONG), lists, column="body") == [[1, 2]]
    got = decode(VARIANT, maps, lists, column="body")
    assert [to_python(value) for value in got] == [{"symbol": "EURUSD", "qty": 7}, [1, 2]]


@pytest.mark.parametrize(
    ("kind", "body", "content_type", "reason"),
    [
        (MAP, MAP_BODY, None, "no content-type, where amqp/map is needed to decode the body; BINARY takes any body"),
        (MAP, MAP_BODY, b"text/plain", "content-type b'text/plain', where amqp/map is needed"),
        (MAP, LIST_BODY, b"amqp/list", "content-type b'amqp/list', where amqp/map is needed"),
        (t.ArrayType(LONG), MAP_BODY, b"amqp/map", "where amqp/list is needed"),
        (VARIANT, b"x", b"text/plain", "where amqp/list or amqp/map is needed"),
        (MAP, MAP_BODY + b"x", b"amqp/map", "1 bytes after the end of the map"),
        (t.ArrayType(LONG), LIST_BODY + b"xy", b"amqp/list", "2 bytes after the end of the list"),
        (MAP, MAP_BODY[:-1], b"amqp/map", "map of"),
        (MAP, b"", b"amqp/map", "map ends before it is complete"),
        (MAP, None, b"amqp/map", "map ends before it is complete"),
        (schema(("qty", STRING)), MAP_BODY, b"amqp/map", "qty: int64 7 is not a text"),
    ],
)
def test_bodies_that_cannot_be_decoded(
    kind: t.DataType, body: bytes | None, content_type: bytes | None, reason: str
) -> None:
    bad = with_body(body, content_type)
    with pytest.raises(MessageFormatError) as raised:
        decode(kind, bad, column="body")
    assert raised.value.column == "body"
    assert reason in raised.value.reason
    assert decode(kind, bad, bad, column="body", mode="PERMISSIVE") == [None, None]


def test_a_body_of_many_frames_is_decoded_as_one() -> None:
    value = {f"k{i}": i for i in range(500)}
    long = wire.transfer(wire.message(content_type=wire.str8(b"amqp/map")), write_map(value), limit=512)
    assert dict(decode(t.MapType(STRING, LONG), long, column="body")[0]) == value


@pytest.mark.parametrize("most", [1, 60, columns.CONVERTED_BYTES])
def test_bodies_are_converted_some_at_a_time(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Each in its row, whatever was converted together, also behind one that is broken."""
    monkeypatch.setattr(columns, "CONVERTED_BYTES", most)
    bodies = [with_body(wire.list_([(0x02, bytes([row]))] * row), b"amqp/list") for row in range(20)]
    bodies[7], bodies[12] = with_body(b"x", b"amqp/list"), with_body(None, None)
    wanted: list[list[int] | None] = [[row] * row for row in range(20)]
    wanted[7] = wanted[12] = None
    assert decode(t.ArrayType(LONG), *bodies, column="body", mode="PERMISSIVE") == wanted


def test_the_values_of_few_bodies_are_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of tiny items takes many times its size as objects of Python."""
    bodies = [with_body(wire.list_([(0x11, b"\x7f\xff")] * 2500), b"amqp/list") for _ in range(100)]
    plan = ColumnPlan.build(schema(("body", t.ArrayType(LONG))), mode="FAILFAST", timestamp_unit="auto")

    def peak(most: int) -> int:
        monkeypatch.setattr(columns, "CONVERTED_BYTES", most)
        tracemalloc.start()
        try:
            for _ in plan.batches([chunk_of(b"".join(bodies))], queue="q", first_position=0):
                pass
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(100_000)  # memory that is kept for the next batches
    assert peak(100_000) < 0.5 * peak(1 << 30)


@pytest.mark.parametrize("length", [1, 6, 7, 8, 9, 15, 16, 17, 255])
def test_keys_that_differ_in_their_last_octet_or_length_are_told_apart(length: int) -> None:
    key = b"k" * length
    near = [key[:-1] + b"l", key[:-1], b"l" + key[1:], key + b"k" if length < 255 else key[1:]]
    wanted = schema((key.decode(), t.IntegerType()))
    for others in (near, list(reversed(near))):
        maps = [
            message(*((other, 0x21, struct.pack(">i", -1)) for other in others), (key, 0x21, struct.pack(">i", 7))),
            message((key, 0x21, struct.pack(">i", 8)), *((other, 0x21, struct.pack(">i", -1)) for other in others)),
            message(*((other, 0x21, struct.pack(">i", -1)) for other in others if other != key)),
        ]
        for some in (maps, maps[:1] * 3, maps[1:2] * 3):
            found = [row[key.decode()] for row in decode(wanted, *some)]
            assert found == [{0: 7, 1: 8, 2: None}[maps.index(one)] for one in some]
