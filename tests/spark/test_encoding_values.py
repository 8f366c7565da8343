"""Columns of Spark as encoded maps and lists: type codes, octets, layouts of Arrow, what cannot be sent."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from amqp_core.v0_10 import type_codes as code
from amqp_core.v0_10._read import read_list_typed, read_map_typed
from amqp_core.v0_10.type_codes import MAX_DEPTH, Typed
from amqp_spark.arrow.columns.conversion import unsupported_parts
from amqp_spark.arrow.rows import row_bytes
from amqp_spark.arrow.rows import values as encoding
from amqp_spark.arrow.rows.dialect import AMQP_0_10
from amqp_spark.arrow.without_pandas import buffer
from tests.support.encoded import encode_map

encode_list = partial(encoding.encode_list, wire=AMQP_0_10)

STRING, LONG, BINARY = t.StringType(), t.LongType(), t.BinaryType()
MAP = t.MapType(STRING, STRING)


def struct_of(**fields: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in fields.items()])


def array(kind: t.DataType, values: list[Any]) -> Any:
    return pa.array(values, to_arrow_type(kind, timezone="UTC"))


def read(row: Any) -> dict[str, Typed]:
    return read_map_typed(row, 0)[0]


def maps(kind: t.StructType | t.MapType, values: list[Any]) -> list[dict[str, Typed] | None]:
    """Decode the encoded rows with the reader of the core."""
    encoded, errors = encode_map(array(kind, values), kind)
    assert errors == {}
    encoded.validate(full=True)
    out: list[dict[str, Typed] | None] = []
    for row in encoded.to_pylist():
        if row is None:
            out.append(None)
            continue
        entries, end = read_map_typed(row, 0)
        assert end == len(row)
        out.append(entries)
    return out


def lists(kind: t.ArrayType, values: list[Any]) -> list[list[Typed] | None]:
    encoded, errors = encode_list(array(kind, values), kind)
    assert errors == {}
    return [None if row is None else read_list_typed(row, 0)[0] for row in encoded.to_pylist()]


def faults(kind: t.StructType | t.MapType, values: list[Any]) -> dict[int, str]:
    return encode_map(array(kind, values), kind)[1]


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type, misc]


def naive(*parts: int) -> datetime:
    return datetime(*parts)  # type: ignore[arg-type]  # noqa: DTZ001 - TIMESTAMP_NTZ has no zone


SCALARS: list[tuple[t.DataType, Any, Typed]] = [
    (t.BooleanType(), True, Typed(code.BOOLEAN, True)),
    (t.BooleanType(), False, Typed(code.BOOLEAN, False)),
    (t.ByteType(), -128, Typed(code.INT8, -128)),
    (t.ShortType(), -(2**15), Typed(code.INT16, -(2**15))),
    (t.IntegerType(), 2**31 - 1, Typed(code.INT32, 2**31 - 1)),
    (LONG, -(2**63), Typed(code.INT64, -(2**63))),
    (t.FloatType(), 0.5, Typed(code.FLOAT, 0.5)),
    (t.FloatType(), float("-inf"), Typed(code.FLOAT, float("-inf"))),
    (t.DoubleType(), 1.1, Typed(code.DOUBLE, 1.1)),
    (STRING, "", Typed(code.STR16, "")),
    (STRING, "é", Typed(code.STR16, "é")),
    (STRING, "x" * 65_535, Typed(code.STR16, "x" * 65_535)),
    (BINARY, b"", Typed(code.VBIN32, b"")),
    (BINARY, b"\xff" * 70_000, Typed(code.VBIN32, b"\xff" * 70_000)),
    (t.DecimalType(10, 2), Decimal("-1.50"), Typed(code.STR16, "-1.50")),
    (t.DecimalType(10, 2), Decimal("0.00"), Typed(code.STR16, "0.00")),
    (t.DecimalType(10, 0), Decimal(-7), Typed(code.STR16, "-7")),
    (t.DecimalType(2, 2), Decimal("0.99"), Typed(code.STR16, "0.99")),
    (t.DecimalType(38, 18), Decimal(0), Typed(code.STR16, "0." + "0" * 18)),
    (t.DecimalType(38, 18), Decimal("-1E-18"), Typed(code.STR16, "-0." + "0" * 17 + "1")),
    (t.DecimalType(38, 38), Decimal("1E-38"), Typed(code.STR16, "0." + "0" * 37 + "1")),
    (t.DecimalType(38, 38), Decimal("-0." + "9" * 38), Typed(code.STR16, "-0." + "9" * 38)),
    (t.DecimalType(38, 0), Decimal("-" + "9" * 38), Typed(code.STR16, "-" + "9" * 38)),
    (t.DateType(), date(1, 1, 1), Typed(code.STR16, "0001-01-01")),
    (t.DateType(), date(2024, 2, 29), Typed(code.STR16, "2024-02-29")),
    (t.DateType(), date(9999, 12, 31), Typed(code.STR16, "9999-12-31")),
    (t.TimestampType(), utc(1, 1, 1), Typed(code.STR16, "0001-01-01T00:00:00.000000Z")),
    (t.TimestampType(), utc(1969, 12, 31, 23, 59, 59, 999_999), Typed(code.STR16, "1969-12-31T23:59:59.999999Z")),
    (t.TimestampType(), utc(2026, 11, 21, 0, 5, 30, 123456), Typed(code.STR16, "2026-11-21T00:05:30.123456Z")),
    (t.TimestampType(), utc(9999, 12, 31, 23, 59, 59, 999_999), Typed(code.STR16, "9999-12-31T23:59:59.999999Z")),
    (t.TimestampNTZType(), naive(2026, 11, 21), Typed(code.STR16, "2026-11-21T00:00:00.000000")),
]


@pytest.mark.parametrize("case", range(len(SCALARS)))
def test_every_type_has_one_wire_type(case: int) -> None:
    kind, value, expected = SCALARS[case]
    assert maps(struct_of(h=kind), [{"h": value}, {"h": None}, None]) == [{"h": expected}, {}, None]
    assert maps(t.MapType(STRING, kind), [{"k": value, "n": None}]) == [{"k": expected, "n": Typed(code.VOID, None)}]
    assert lists(t.ArrayType(kind), [[None, value], [], None]) == [[Typed(code.VOID, None), expected], [], None]


def test_all_types_side_by_side() -> None:
    kind = struct_of(**{f"f{i}": of for i, (of, _, _) in enumerate(SCALARS)})
    full = {f"f{i}": value for i, (_, value, _) in enumerate(SCALARS)}
    odd = {name: value for i, (name, value) in enumerate(full.items()) if i % 2}
    wire = {f"f{i}": typed for i, (_, _, typed) in enumerate(SCALARS)}
    half = {name: wire[name] for name in odd}
    assert maps(kind, [full, None, odd, {}, full]) == [wire, None, half, {}, wire]


def test_literal_octets() -> None:
    kind = struct_of(symbol=STRING, qty=t.IntegerType(), price=t.DoubleType())
    encoded, _ = encode_map(array(kind, [{"symbol": "AB", "qty": 7, "price": None}]), kind)
    entries = b"\x06symbol\x95\0\x02AB" + b"\x03qty\x21\0\0\0\x07"
    assert encoded.to_pylist() == [struct.pack(">II", 4 + len(entries), 2) + entries]
    encoded, _ = encode_map(array(MAP, [[("k", "v"), ("n", None)], []]), MAP)
    entries = b"\x01k\x95\0\x01v" + b"\x01n\xf0"
    assert encoded.to_pylist() == [struct.pack(">II", 4 + len(entries), 2) + entries, bytes.fromhex("0000000400000000")]
    numbers = t.ArrayType(t.ShortType())
    encoded, _ = encode_list(array(numbers, [[1, None], []]), numbers)
    assert encoded.to_pylist() == [bytes.fromhex("0000000800000002 110001 f0"), bytes.fromhex("0000000400000000")]


def test_nested_values() -> None:
    leg = struct_of(symbol=STRING, parts=t.ArrayType(t.IntegerType()))
    kind = struct_of(legs=t.ArrayType(leg), tags=t.MapType(STRING, t.MapType(STRING, LONG)), one=leg)
    rows = [
        {"legs": [{"symbol": "a", "parts": [1, None]}, None, {"symbol": None, "parts": None}], "tags": None},
        None,
        {"legs": [], "tags": {"x": {"y": 1}, "z": None, "w": {}}, "one": {"symbol": "b", "parts": []}},
    ]
    void = Typed(code.VOID, None)
    parts = Typed(code.LIST, [Typed(code.INT32, 1), void])
    full = Typed(code.MAP, {"symbol": Typed(code.STR16, "a"), "parts": parts})
    assert maps(kind, rows) == [
        {"legs": Typed(code.LIST, [full, void, Typed(code.MAP, {})])},
        None,
        {
            "legs": Typed(code.LIST, []),
            "tags": Typed(
                code.MAP, {"x": Typed(code.MAP, {"y": Typed(code.INT64, 1)}), "z": void, "w": Typed(code.MAP, {})}
            ),
            "one": Typed(code.MAP, {"symbol": Typed(code.STR16, "b"), "parts": Typed(code.LIST, [])}),
        },
    ]


def test_no_rows_and_only_nulls() -> None:
    kind = struct_of(
        a=STRING, b=t.ArrayType(LONG), c=MAP, d=t.DecimalType(38, 18), e=t.TimestampType(), v=t.VariantType()
    )
    for of in (kind, MAP, t.MapType(STRING, kind)):
        assert maps(of, []) == []
        assert maps(of, [None, None]) == [None, None]
    assert maps(kind, [{}, {}]) == [{}, {}]
    assert lists(t.ArrayType(kind), []) == []
    assert lists(t.ArrayType(kind), [None]) == [None]
    assert lists(t.ArrayType(kind), [[]]) == [[]]


def test_what_lies_behind_a_null_is_not_sent() -> None:
    # Arrow allows any octets where a row is null: children of a null STRUCT, items of a null list or map.
    inner = pa.array(["secret", "x"])
    column = pa.StructArray.from_arrays([inner], names=["a"], mask=pa.array([True, False]))
    kind = struct_of(a=STRING)
    outer = pa.StructArray.from_arrays([column], names=["n"])
    encoded, errors = encode_map(outer, struct_of(n=kind))
    assert errors == {}
    expected = {"n": Typed(code.MAP, {"a": Typed(code.STR16, "x")})}
    assert [read(row) for row in encoded.to_pylist()] == [{}, expected]
    assert encode_map(column, kind)[0].to_pylist()[0] is None
    hidden = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), inner, mask=pa.array([True, False]))
    encoded, _ = encode_map(pa.StructArray.from_arrays([hidden], names=["l"]), struct_of(l=t.ArrayType(STRING)))
    expected = {"l": Typed(code.LIST, [Typed(code.STR16, "x")])}
    assert [read(row) for row in encoded.to_pylist()] == [{}, expected]


def test_a_fault_behind_a_null_is_none() -> None:
    long = pa.array(["x" * 70_000, "x"])
    column = pa.StructArray.from_arrays([long], names=["a"], mask=pa.array([True, False]))
    kind = struct_of(a=STRING)
    assert encode_map(column, kind)[1] == {}
    assert encode_map(pa.StructArray.from_arrays([column], names=["n"]), struct_of(n=kind))[1] == {}


# ---- layouts -------------------------------------------------------------------------------------------------------

WIDE = t.StructType(
    [
        *(t.StructField("s", STRING), t.StructField("b", BINARY), t.StructField("i", t.IntegerType())),
        *(t.StructField("t", t.BooleanType()), t.StructField("d", t.DecimalType(20, 9))),
        *(t.StructField("l", t.ArrayType(STRING)), t.StructField("m", t.MapType(STRING, BINARY))),
        t.StructField("n", struct_of(x=STRING, y=t.DateType())),
    ]
)
ROWS: list[Any] = [
    None
    if i % 7 == 3
    else {
        "s": None if i % 5 == 0 else f"text {i}",
        "b": bytes([i]) * i,
        "i": i,
        "t": i % 3 == 0,
        "d": Decimal(i).scaleb(-9),
        "l": [f"{i}", None, "x" * i],
        "m": {f"k{j}": b"v" * j for j in range(i % 4)},
        "n": {"x": f"n{i}", "y": None if i % 2 else date(2024, 1, i + 1)},
    }
    for i in range(20)
]


def test_slices_chunks_and_large_types_give_the_same_octets() -> None:
    column = array(WIDE, ROWS)
    whole, errors = encode_map(column, WIDE)
    assert errors == {}
    expected = whole.to_pylist()
    for start, count in ((0, 20), (1, 5), (3, 1), (19, 1), (7, 0), (4, 16)):
        assert encode_map(column.slice(start, count), WIDE)[0].to_pylist() == expected[start : start + count]
        inner = column.slice(2).slice(start, count)
        assert encode_map(inner, WIDE)[0].to_pylist() == expected[2:][start : start + count]
    chunked = pa.chunked_array([column.slice(0, 9), column.slice(9, 0), column.slice(9)])
    assert encode_map(chunked, WIDE)[0].to_pylist() == expected
    large = pa.array(ROWS, to_arrow_type(WIDE, timezone="UTC", prefers_large_types=True))
    assert pa.types.is_large_string(cast("Any", large.type).field("s").type)
    assert encode_map(large, WIDE)[0].to_pylist() == expected
    assert encode_map(large.slice(5, 9), WIDE)[0].to_pylist() == expected[5:14]
    views = pa.array([{"s": "x" * i} for i in range(20)], pa.struct([("s", pa.string_view())]))
    plain = pa.array([{"s": "x" * i} for i in range(20)])
    assert encode_map(views, struct_of(s=STRING))[0] == encode_map(plain, struct_of(s=STRING))[0]


def test_a_small_slice_of_a_column_of_gigabytes() -> None:
    # 64-bit offsets beyond 32 bits; the pages in front are never touched
    start = 3 << 30
    data = np.zeros(start + 5, np.uint8)
    data[start:] = list(b"abcde")
    offsets = np.array([0, start, start + 2, start + 2, start + 5], np.int64)
    texts = pa.Array.from_buffers(pa.large_string(), 4, [None, buffer(offsets), buffer(data)])
    column = pa.StructArray.from_arrays([texts], names=["s"]).slice(1)
    encoded, errors = encode_map(column, struct_of(s=STRING))
    assert errors == {}
    assert [read(row)["s"].value for row in encoded.to_pylist()] == ["ab", "", "cde"]


def test_slices_of_lists() -> None:
    kind = t.ArrayType(t.ArrayType(STRING))
    rows: list[Any] = [[["a"], None, ["b", None]], None, [], [[], ["ccc"]], [["d"]]]
    column = array(kind, rows)
    expected = encode_list(column, kind)[0].to_pylist()
    for start in range(6):
        for count in range(6 - start):
            assert encode_list(column.slice(start, count), kind)[0].to_pylist() == expected[start : start + count]


def test_a_session_in_another_zone_writes_utc() -> None:
    kind = struct_of(at=t.TimestampType())
    moment = datetime(2026, 7, 1, 12, tzinfo=UTC)
    column = pa.array([{"at": moment}], pa.struct([("at", pa.timestamp("us", "America/New_York"))]))
    encoded, _ = encode_map(column, kind)
    (row,) = encoded.to_pylist()
    assert read(row) == {"at": Typed(code.STR16, "2026-07-01T12:00:00.000000Z")}


# ---- what cannot be sent -------------------------------------------------------------------------------------------


def test_long_texts_name_their_place() -> None:
    text = "x" * 65_536
    rule = "a STRING inside a map or list has at most 65,535 bytes"
    assert faults(struct_of(a=STRING, b=STRING), [{"a": "x"}, {"b": text}, {"a": text, "b": text}]) == {
        1: f"has a text of 65,536 bytes at b; {rule}",
        2: f"has a text of 65,536 bytes at a; {rule}",
    }
    assert faults(struct_of(a=STRING), [{"a": "é" * 33_000}]) == {0: f"has a text of 66,000 bytes at a; {rule}"}
    leg = struct_of(symbol=STRING)
    rows = [
        {"legs": []},
        {"legs": [{}, {"symbol": text}, {"symbol": text}]},
        {"legs": None},
        {"legs": [{"symbol": text}]},
    ]
    assert faults(struct_of(legs=t.ArrayType(leg)), rows) == {
        1: f"has a text of 65,536 bytes at legs[1].symbol; {rule}",
        3: f"has a text of 65,536 bytes at legs[0].symbol; {rule}",
    }
    assert faults(MAP, [{"a": "x"}, {}, {"a": "x", "trace": text}]) == {
        2: f"has a text of 65,536 bytes at ['trace']; {rule}"
    }
    kind = t.ArrayType(STRING)
    assert encode_list(array(kind, [["x"], ["x", text]]), kind)[1] == {1: f"has a text of 65,536 bytes at [1]; {rule}"}
    sliced = array(kind, [["x"] * 3, None, ["x", text]]).slice(1)
    assert encode_list(sliced, kind)[1] == {1: f"has a text of 65,536 bytes at [1]; {rule}"}


def test_long_keys() -> None:
    good = "k" * 255
    assert maps(MAP, [{good: "v"}]) == [{good: Typed(code.STR16, "v")}]
    rule = "a key of a map has at most 255 bytes in UTF-8"
    assert faults(MAP, [{"a": "b"}, {"a": "b", "é" * 128: "v"}]) == {1: f"has a key of 256 bytes; {rule}"}
    kind = struct_of(tags=t.MapType(STRING, LONG))
    assert faults(kind, [{"tags": {good + "x": 1}}]) == {0: f"has a key of 256 bytes at tags; {rule}"}


def test_texts_that_are_not_utf8() -> None:
    # what CAST(binary AS STRING) gives
    data = pa.array([b"fine", b"\xff\xfe", None]).view(pa.string())
    column = pa.StructArray.from_arrays([data], names=["a"])
    rule = "cast it to BINARY to send the bytes as they are"
    assert encode_map(column, struct_of(a=STRING))[1] == {1: f"has a text of 2 bytes that are not UTF-8 at a; {rule}"}
    ends: Any = pa.array([0, 1, 2, 2], pa.int32())
    keys = pa.MapArray.from_arrays(ends, cast("Any", data.slice(0, 2)), pa.array(["v", "v"]))
    assert list(encode_map(keys, MAP)[1]) == [1]
    both = pa.MapArray.from_arrays(ends, cast("Any", data.slice(0, 2)), cast("Any", data.slice(0, 2)))
    assert encode_map(both, MAP)[1] == {1: f"has a text of 2 bytes that are not UTF-8; {rule}"}


@pytest.mark.parametrize(
    ("kind", "number", "name"),
    [
        (t.DateType(), -719_163, "DATE"),
        (t.DateType(), 2_932_897, "DATE"),
        (t.DateType(), -(2**31), "DATE"),
        (t.TimestampType(), -62_135_596_800_000_001, "TIMESTAMP"),
        (t.TimestampType(), 253_402_300_800_000_000, "TIMESTAMP"),
        (t.TimestampNTZType(), 2**63 - 1, "TIMESTAMP_NTZ"),
        (t.TimestampNTZType(), -(2**63), "TIMESTAMP_NTZ"),
    ],
)
def test_times_without_a_text(kind: t.DataType, number: int, name: str) -> None:
    arrow = to_arrow_type(kind, timezone="UTC")
    wide = pa.int32() if isinstance(kind, t.DateType) else pa.int64()
    column = pa.StructArray.from_arrays([pa.array([0, number, None], wide).cast(arrow)], names=["at"])
    encoded, errors = encode_map(column, struct_of(at=kind))
    assert errors == {1: f"has a {name} outside of the years 1 to 9999 at at; only these years have a text"}
    first, _, last = encoded.to_pylist()
    assert str(read(first)["at"].value).startswith("1970-01-01")
    assert read(last) == {}


def test_a_reason_quotes_no_value() -> None:
    for errors in (
        faults(struct_of(a=STRING), [{"a": "secret" * 20_000}]),
        faults(MAP, [{"a": "secret" * 20_000}]),
        faults(MAP, [{"secret" * 100: "x"}]),
    ):
        assert len(errors) == 1
        assert "secret" not in errors[0]


SENDABLE = [kind for kind, _, _ in SCALARS] + [t.VariantType(), MAP, t.ArrayType(MAP), WIDE, t.StringType("UNICODE")]


@pytest.mark.parametrize("kind", SENDABLE, ids=lambda kind: kind.simpleString()[:40])
def test_types_that_can_be_sent(kind: t.DataType) -> None:
    assert unsupported_parts(struct_of(x=kind), "application_headers", sent=True) == []
    assert unsupported_parts(t.ArrayType(kind), "body", sent=True) == []


def nested(levels: int) -> t.StructType:
    """A STRUCT with this many maps and lists inside each other, itself included."""
    kind: t.DataType = LONG
    for level in range(levels - 1):
        kind = (t.ArrayType(kind), t.MapType(STRING, kind), struct_of(x=kind))[level % 3]
    return struct_of(x=kind)


ALLOWED = (
    "BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL, STRING, BINARY, DATE, TIMESTAMP, "
    "TIMESTAMP_NTZ, VARIANT, ARRAY, MAP<STRING, ...>, STRUCT"
)


def unsupported(part: str, reason: str, allowed: str = ALLOWED) -> str:
    return f"[AMQP_COLUMN_PART_UNSUPPORTED] The type of {part!r} is not supported: {reason}. Use {allowed}."


UNSENDABLE: list[tuple[t.DataType, list[str]]] = [
    (struct_of(), [unsupported("h", "it is a STRUCT without fields", "one or more fields")]),
    (struct_of(a=t.NullType()), [unsupported("h.a", "void cannot be sent in a map or list")]),
    (
        struct_of(a=t.ArrayType(t.DayTimeIntervalType())),
        [unsupported("h.a.element", "interval day to second cannot be sent in a map or list")],
    ),
    (
        struct_of(a=t.YearMonthIntervalType()),
        [unsupported("h.a", "interval year to month cannot be sent in a map or list")],
    ),
    (struct_of(a=t.TimeType()), [unsupported("h.a", "time(6) cannot be sent in a map or list")]),
    (t.MapType(LONG, STRING), [unsupported("h", "the keys of a map are STRING, not bigint", "MAP<STRING, ...>")]),
    (
        t.MapType(LONG, t.MapType(BINARY, t.NullType())),
        [
            unsupported("h", "the keys of a map are STRING, not bigint", "MAP<STRING, ...>"),
            unsupported("h.value", "the keys of a map are STRING, not binary", "MAP<STRING, ...>"),
            unsupported("h.value.value", "void cannot be sent in a map or list"),
        ],
    ),
    (
        t.StructType([t.StructField("a", LONG), t.StructField("b", LONG), t.StructField("a", STRING)]),
        [unsupported("h", "the field a occurs twice", "each field once")],
    ),
    (
        struct_of(n=struct_of(**{"é" * 128: LONG})),
        [
            unsupported(
                "h.n", f"the name of a field has 256 bytes ({'é' * 20}...)", "at most 255 bytes as the key of a map"
            )
        ],
    ),
    (
        nested(MAX_DEPTH + 1),
        [
            unsupported(
                "h.x.element" + ".x.value.element" * 4 + ".x.value",
                "maps and lists are nested too deep",
                "at most 16 levels",
            )
        ],
    ),
]


@pytest.mark.parametrize("case", range(len(UNSENDABLE)))
def test_types_that_cannot_be_sent(case: int) -> None:
    kind, expected = UNSENDABLE[case]
    assert unsupported_parts(kind, "h", sent=True) == expected


def test_a_key_of_255_bytes_and_the_deepest_type_are_sent() -> None:
    name = "é" * 127 + "x"
    kind = struct_of(**{name: LONG})
    assert unsupported_parts(kind, "h", sent=True) == []
    assert maps(kind, [{name: 1}]) == [{name: Typed(code.INT64, 1)}]
    deepest = nested(MAX_DEPTH)
    assert unsupported_parts(deepest, "h", sent=True) == []
    value: Any = 1
    for level in range(MAX_DEPTH - 1):
        value = ([value], {"k": value}, {"x": value})[level % 3]
    (deep,) = maps(deepest, [{"x": value}])
    assert deep is not None  # and the core's reader has taken all levels


def test_rows_that_arrow_cannot_hold_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = t.ArrayType(LONG)
    rows: list[Any] = [[1] * 10, [2] * 20, None, [3] * 300, [4], [5] * 15]
    column = array(kind, rows)
    expected = encode_list(column, kind)[0].to_pylist()
    expected[3] = None
    monkeypatch.setattr(row_bytes, "LARGEST", 1000)  # for 2 GiB
    encoded, errors = encode_list(column, kind)
    assert encoded.to_pylist() == expected
    assert list(errors) == [3]
    assert "has more than 2 GiB" in errors[3]


def test_parts_with_a_list_that_arrow_cannot_hold_are_encoded_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = struct_of(numbers=t.ArrayType(LONG))
    column = array(kind, [{"numbers": [1] * 10}, {"numbers": [2] * 300}])
    assert encoding.map_parts(column, kind, AMQP_0_10) is not None
    monkeypatch.setattr(row_bytes, "LARGEST", 1000)  # for 2 GiB
    assert encoding.map_parts(column, kind, AMQP_0_10) is None
    assert list(encoding.encode_map(column, kind, AMQP_0_10)[1]) == [1]
