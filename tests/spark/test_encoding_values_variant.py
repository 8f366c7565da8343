"""VARIANT as maps and lists: every type of the format, what Spark writes, and octets that are no VARIANT."""

from __future__ import annotations

import struct
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

from amqp_core.v0_10 import type_codes as code
from amqp_core.v0_10._read import read_list_typed, read_map_typed
from amqp_core.v0_10.type_codes import MAX_DEPTH, Typed
from amqp_spark.arrow.columns.variant import encode
from amqp_spark.arrow.rows import values as encoding
from amqp_spark.arrow.rows import variants as variant_encoding
from amqp_spark.arrow.rows.dialect import AMQP_0_10
from tests.support.encoded import encode_map

encode_list = partial(encoding.encode_list, wire=AMQP_0_10)
bodies = partial(variant_encoding.bodies, wire=AMQP_0_10)

VARIANT = t.VariantType()
ARROW = pa.struct([pa.field("value", pa.binary(), nullable=False), pa.field("metadata", pa.binary(), nullable=False)])


def variants(*rows: Any, kind: pa.DataType = ARROW) -> Any:
    return pa.array(list(rows), kind)


def variant(value: bytes, *keys: bytes) -> dict[str, bytes]:
    """A VARIANT with these names of fields."""
    ends = [sum(map(len, keys[:i])) for i in range(len(keys) + 1)]
    metadata = b"\x81" + b"".join(n.to_bytes(3, "little") for n in (len(keys), *ends)) + b"".join(keys)
    return {"value": value, "metadata": metadata}


def array_of(*items: bytes) -> bytes:
    ends = [sum(map(len, items[:i])) for i in range(len(items) + 1)]
    return b"".join([b"\x0b", bytes([len(items)]), *(n.to_bytes(3, "little") for n in ends), *items])


def object_of(*items: bytes) -> bytes:
    """An object whose fields have the ids 0, 1 and so on."""
    ends = [sum(map(len, items[:i])) for i in range(len(items) + 1)]
    return b"".join(
        [b"\x0a", bytes([len(items)]), bytes(range(len(items))), *(n.to_bytes(3, "little") for n in ends), *items]
    )


def primitive(number: int, octets: bytes = b"") -> bytes:
    return bytes([number << 2]) + octets


def listed(*items: bytes) -> list[Typed]:
    """The items of an array, as the reader of the core reads the list."""
    encoded, errors = encode_list(variants(variant(array_of(*items))), VARIANT)
    assert errors == {}
    (row,) = encoded.to_pylist()
    assert row is not None
    values, end = read_list_typed(row, 0)
    assert end == len(row)
    return values


def fault(value: bytes, *keys: bytes) -> str:
    encoded, errors = encode_list(variants(variant(b"\x03\x00\x00"), variant(value, *keys)), VARIANT)
    assert list(errors) == [1]
    assert encoded[0].as_py() == bytes.fromhex("0000000400000000")
    return errors[1]


MALFORMED = "has a VARIANT that is malformed; its value and metadata are those that Spark writes"
DAY = 24 * 3600 * 1_000_000

PRIMITIVES: list[tuple[bytes, Typed]] = [
    (primitive(0), Typed(code.VOID, None)),
    (primitive(1), Typed(code.BOOLEAN, True)),
    (primitive(2), Typed(code.BOOLEAN, False)),
    (primitive(3, b"\x80"), Typed(code.INT8, -128)),
    (primitive(4, struct.pack("<h", -2)), Typed(code.INT16, -2)),
    (primitive(5, struct.pack("<i", -(2**31))), Typed(code.INT32, -(2**31))),
    (primitive(6, struct.pack("<q", 2**63 - 1)), Typed(code.INT64, 2**63 - 1)),
    (primitive(7, struct.pack("<d", 1.1)), Typed(code.DOUBLE, 1.1)),
    (primitive(8, b"\x02" + struct.pack("<i", -150)), Typed(code.STR16, "-1.50")),
    (primitive(9, b"\x00" + struct.pack("<q", 7)), Typed(code.STR16, "7")),
    (primitive(10, b"\x26" + (1).to_bytes(16, "little")), Typed(code.STR16, "0." + "0" * 37 + "1")),
    (primitive(11, struct.pack("<i", 19_782)), Typed(code.STR16, "2024-02-29")),
    (primitive(11, struct.pack("<i", -719_162)), Typed(code.STR16, "0001-01-01")),
    (primitive(12, struct.pack("<q", 19_782 * DAY + 5)), Typed(code.STR16, "2024-02-29T00:00:00.000005Z")),
    (primitive(12, struct.pack("<q", -1)), Typed(code.STR16, "1969-12-31T23:59:59.999999Z")),
    (primitive(13, struct.pack("<q", 0)), Typed(code.STR16, "1970-01-01T00:00:00.000000")),
    (primitive(14, struct.pack("<f", 0.5)), Typed(code.FLOAT, 0.5)),
    (primitive(15, b"\x02\0\0\0\xff\0"), Typed(code.VBIN32, b"\xff\0")),
    (primitive(16, b"\x02\0\0\0\xc3\xa9"), Typed(code.STR16, "é")),
    (primitive(16, struct.pack("<I", 65_535) + b"x" * 65_535), Typed(code.STR16, "x" * 65_535)),
    (primitive(20, bytes(range(16))), Typed(code.UUID_, UUID(bytes=bytes(range(16))))),
    (b"\x01", Typed(code.STR16, "")),
    (b"\xfd" + b"x" * 63, Typed(code.STR16, "x" * 63)),
]


@pytest.mark.parametrize("case", range(len(PRIMITIVES)))
def test_every_primitive_has_a_wire_type(case: int) -> None:
    octets, expected = PRIMITIVES[case]
    assert listed(octets, primitive(0), octets) == [expected, Typed(code.VOID, None), expected]
    encoded, errors = encode_map(variants(variant(object_of(octets), b"k")), VARIANT)
    assert errors == {}
    (row,) = encoded.to_pylist()
    assert row is not None
    assert read_map_typed(row, 0) == ({"k": expected}, len(row))


def test_bodies_are_what_each_variant_is() -> None:
    rows = [variant(object_of(), b"a"), None, variant(array_of()), variant(primitive(0)), variant(b"")]
    octets, kinds, faults = bodies(variants(*rows))
    empty = bytes.fromhex("0000000400000000")
    assert octets.to_pylist() == [empty, None, empty, None, None]
    assert kinds.tolist() == [code.MAP, 0, code.LIST, 0, 0]
    assert {row: str(fault) for row, fault in faults.items()} == {4: MALFORMED}


def test_only_objects_are_maps_and_only_arrays_are_lists() -> None:
    rows = variants(variant(object_of()), None, variant(array_of()), variant(primitive(1)))
    octets, errors = encode_map(rows, VARIANT)
    assert octets[0].as_py() == bytes.fromhex("0000000400000000")
    assert octets[1].as_py() is None
    assert errors == {
        2: "has a VARIANT that is an array; only an object can be sent as a map",
        3: "has a VARIANT that is neither object nor array; only an object can be sent as a map",
    }
    assert encode_list(rows, VARIANT)[1] == {
        0: "has a VARIANT that is an object; only an array can be sent as a list",
        3: "has a VARIANT that is neither object nor array; only an array can be sent as a list",
    }


def test_wide_ids_offsets_and_counts() -> None:
    # more than 255 fields, names beyond 65,535 octets and a value beyond 65,535: all widths of ids and offsets
    names = [f"{i:0200}".encode() for i in range(400)]
    fields = {name.decode(): Typed(code.INT32, i) for i, name in enumerate(names)}
    fields["long"] = Typed(code.VBIN32, b"x" * 70_000)
    fields["list"] = Typed(code.LIST, [Typed(code.INT8, 1)] * 300)
    encoded, errors = encode_map(variants(encode(Typed(code.MAP, fields), "auto")), VARIANT)
    assert errors == {}
    assert read_map_typed(encoded.to_pylist()[0] or b"", 0)[0] == fields


def test_a_variant_inside_of_other_types() -> None:
    kind = t.StructType([t.StructField("v", VARIANT), t.StructField("l", t.ArrayType(VARIANT))])
    seven = variant(primitive(3, b"\x07"))
    rows = [{"v": seven, "l": [None, seven, variant(primitive(0))]}, {"v": None, "l": None}, None]
    column = pa.array(rows, pa.struct([("v", ARROW), ("l", pa.list_(ARROW))]))
    encoded, errors = encode_map(column, kind)
    assert errors == {}
    void = Typed(code.VOID, None)
    first, second, third = encoded.to_pylist()
    assert first is not None
    assert second is not None
    number = Typed(code.INT8, 7)
    assert read_map_typed(first, 0)[0] == {"v": number, "l": Typed(code.LIST, [void, number, void])}
    assert read_map_typed(second, 0)[0] == {}
    assert third is None
    _, errors = encode_map(pa.array([{"v": variant(b"\x0c")}, {"l": [seven, variant(b"\x0c")]}], column.type), kind)
    assert errors == {0: MALFORMED.replace(";", " at v;"), 1: MALFORMED.replace(";", " at l[1];")}
    assert encode_map(column.slice(1), kind)[0].to_pylist() == [second, None]


def test_layouts() -> None:
    rows = [variant(object_of(primitive(3, bytes([i]))), b"k") for i in range(5)]
    expected = encode_map(variants(*rows), VARIANT)[0].to_pylist()
    assert encode_map(variants(*rows).slice(2, 2), VARIANT)[0].to_pylist() == expected[2:4]
    swapped = pa.struct([("metadata", pa.large_binary()), ("value", pa.large_binary())])
    assert encode_map(variants(*rows, kind=swapped), VARIANT)[0].to_pylist() == expected
    assert encode_map(variants(), VARIANT)[0].to_pylist() == []


# ---- what cannot be sent -------------------------------------------------------------------------------------------


def test_faults_name_their_place() -> None:
    text = primitive(16, struct.pack("<I", 65_536) + b"x" * 65_536)
    rule = "a STRING inside a map or list has at most 65,535 bytes"
    value = array_of(primitive(0), object_of(primitive(0), array_of(text)))
    assert fault(value, b"a", b"legs") == f"has a text of 65,536 bytes at [1].legs[0]; {rule}"
    rule = "a key of a map has at most 255 bytes in UTF-8"
    assert fault(array_of(object_of(primitive(0))), b"k" * 256) == f"has a key of 256 bytes at [0]; {rule}"
    bad = fault(array_of(primitive(0), b"\x05\xff"))
    assert bad == "has a text of 1 bytes that are not UTF-8 at [1]; cast it to BINARY to send the bytes as they are"
    for number, octets, name in (
        (11, struct.pack("<i", 2_932_897), "DATE"),
        (12, struct.pack("<q", 2**63 - 1), "TIMESTAMP"),
        (13, struct.pack("<q", -62_135_596_800_000_001), "TIMESTAMP_NTZ"),
    ):
        reason = f"has a {name} outside of the years 1 to 9999 at [0]; only these years have a text"
        assert fault(array_of(primitive(number, octets))) == reason
    for number, name in ((17, "TIME"), (18, "TIMESTAMP of nanoseconds"), (19, "TIMESTAMP_NTZ of nanoseconds")):
        reason = f"has a {name} in a VARIANT at [0]; it has no wire type; cast it to TIMESTAMP or STRING"
        assert fault(array_of(primitive(number, bytes(8)))) == reason


def test_an_unused_long_key_is_no_fault() -> None:
    encoded, errors = encode_map(variants(variant(object_of(primitive(0)), b"k", b"x" * 300)), VARIANT)
    assert errors == {}
    assert read_map_typed(encoded.to_pylist()[0] or b"", 0)[0] == {"k": Typed(code.VOID, None)}


def test_nested_too_deep() -> None:
    value = primitive(0)
    for _ in range(MAX_DEPTH):
        value = array_of(value)
    encoded, errors = encode_list(variants(variant(value)), VARIANT)
    assert errors == {}
    read_list_typed(encoded.to_pylist()[0] or b"", 0)
    path = "[0]" * MAX_DEPTH
    assert fault(array_of(value)) == f"has maps and lists nested too deep at {path}; at most 16 levels are allowed"
    kind = t.StructType([t.StructField("v", VARIANT)])
    _, errors = encode_map(pa.array([{"v": variant(value)}], pa.struct([("v", ARROW)])), kind)
    assert list(errors) == [0]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x0c",  # int8 without its octet
        b"\x03",  # array without a count
        b"\x03\x01\x00",  # ends before its offsets
        b"\x03\x01\x00\x05\x00",  # items beyond the end
        b"\x03\x01\x00\x01\x00\x00",  # octets behind the end
        b"\x03\x01\x09\x01\x00",  # an item that begins beyond the end
        b"\x13\xff\xff\xff\xff\x00",  # four thousand million items
        b"\x03\x02\x00\x00\x01\x00",  # two items that share an octet
        b"\x03\x01\x00\x02\x09x",  # a text that ends early
        b"\x03\x01\x00\x05\x40\xff\xff\xff\x7f",  # a text of 2 GiB
        b"\x03\x01\x00\x05\x3c\xff\xff\xff\x7f",  # octets of 2 GiB
        b"\x03\x01\x00\x06\x20\x27\0\0\0\0",  # a decimal of 39 places
        b"\x03\x01\x00\x02\x54\x00",  # an unknown type
        b"\x02\x01\x07\x00\x01\x00",  # an id without a name
        b"\x02\x02\x00\x00\x00\x01\x02\x00\x00",  # a name twice
    ],
)
def test_octets_that_are_no_variant(value: bytes) -> None:
    _, kinds, faults = bodies(variants(variant(value, b"a", b"b"), variant(array_of())))
    assert list(faults) == [0]
    assert faults[0].what == "a VARIANT that is malformed"
    assert kinds.tolist() == [0, code.LIST]


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\x01",
        b"\x02\x00\x00",  # version 2
        b"\x01\x01\x00",  # ends before its offsets
        b"\x01\x01\x00\x05a",  # a name beyond the end
        b"\x01\x02\x00\x05\x01abcde",  # offsets that go back
        b"\x01\x01\x00\x01\xff",  # a name that is not UTF-8
        b"\xc1\xff\xff\xff\xff",  # four thousand million names
    ],
)
def test_octets_that_are_no_metadata(metadata: bytes) -> None:
    _, errors = encode_map(variants({"value": b"\x02\x00\x00", "metadata": metadata}), VARIANT)
    assert errors == {0: MALFORMED}


@settings(deadline=None)
@given(st.binary(max_size=40), st.binary(max_size=20) | st.just(b"\x01\x02\x00\x01\x02ab"))
def test_any_octets_are_encoded_or_refused(value: bytes, metadata: bytes) -> None:
    octets, kinds, faults = bodies(variants({"value": value, "metadata": metadata}))
    (row,) = octets.to_pylist()
    if row is None:
        assert list(faults) == [0] or value[0] & 3 in (0, 1)  # a fault, or no container
        return
    read = read_map_typed if kinds[0] == code.MAP else read_list_typed
    assert read(row, 0)[1] == len(row)


def test_values_that_share_octets_cost_no_time() -> None:
    # 16 levels of 200 items which are all the same octets would be 200 to the power of 16 values
    value = primitive(0)
    for _ in range(MAX_DEPTH - 1):
        value = b"".join([b"\x07\xc8", *(n.to_bytes(2, "little") for n in [0] * 200 + [len(value)]), value])
    assert fault(value).startswith(MALFORMED.split(";", maxsplit=1)[0])


# ---- round trips ---------------------------------------------------------------------------------------------------

typed = st.recursive(
    st.one_of(
        st.integers(-(2**7), 2**7 - 1).map(lambda n: Typed(code.INT8, n)),
        st.integers(-(2**15), 2**15 - 1).map(lambda n: Typed(code.INT16, n)),
        st.integers(-(2**31), 2**31 - 1).map(lambda n: Typed(code.INT32, n)),
        st.integers(-(2**63), 2**63 - 1).map(lambda n: Typed(code.INT64, n)),
        st.floats(allow_nan=False).map(lambda n: Typed(code.DOUBLE, n)),
        st.floats(allow_nan=False, width=32).map(lambda n: Typed(code.FLOAT, n)),
        st.booleans().map(lambda n: Typed(code.BOOLEAN, n)),
        st.text(max_size=80).map(lambda n: Typed(code.STR16, n)),
        st.binary(max_size=80).map(lambda n: Typed(code.VBIN32, n)),
        st.just(Typed(code.VOID, None)),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda n: Typed(code.LIST, n)),
        st.dictionaries(st.text(max_size=20), inner, max_size=4).map(lambda n: Typed(code.MAP, n)),
    ),
    max_leaves=20,
)


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=20), typed, max_size=6), max_size=4))
def test_maps_that_the_source_reads_as_variant_are_written_back(rows: list[dict[str, Typed]]) -> None:
    column = variants(*(encode(Typed(code.MAP, row), "auto") for row in rows))
    encoded, errors = encode_map(column, VARIANT)
    assert errors == {}
    read = [read_map_typed(row or b"", 0)[0] for row in encoded.to_pylist()]
    assert read == rows
    again = variants(*(encode(Typed(code.MAP, row), "auto") for row in read))
    assert again.equals(column)


@settings(deadline=None)
@given(st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**20), max_value=10**20))
def test_decimals_keep_their_places(value: Decimal) -> None:
    column = variants(encode(Typed(code.LIST, [Typed(code.DEC64, value)]), "auto"))
    (row,) = encode_list(column, VARIANT)[0].to_pylist()
    ((number, text),) = read_list_typed(row or b"", 0)[0]
    assert number == code.STR16
    assert text == f"{value:f}" or not value
    assert Decimal(str(text)) == value


@settings(deadline=None)
@given(st.datetimes(), st.dates())
def test_times_of_variants_and_of_columns_have_the_same_text(moment: datetime, day: date) -> None:
    microseconds = (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1)  # noqa: DTZ001 - UTC throughout
    days = (day - date(1970, 1, 1)).days
    items = (primitive(12, struct.pack("<q", microseconds)), primitive(13, struct.pack("<q", microseconds)))
    from_variant = listed(*items, primitive(11, struct.pack("<i", days)))
    kind = t.StructType(
        [
            t.StructField("a", t.TimestampType()),
            t.StructField("b", t.TimestampNTZType()),
            t.StructField("c", t.DateType()),
        ]
    )
    arrow = pa.struct([("a", pa.timestamp("us", "UTC")), ("b", pa.timestamp("us")), ("c", pa.date32())])
    encoded, _ = encode_map(pa.array([{"a": moment, "b": moment, "c": day}], arrow), kind)
    (row,) = encoded.to_pylist()
    assert list(read_map_typed(row or b"", 0)[0].values()) == from_variant
