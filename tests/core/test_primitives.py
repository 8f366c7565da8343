"""Every type of the wire: literal bytes, boundary values both ways, and what is refused."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from amqp_core.errors import DecodeError, EncodeError
from amqp_core.read_primitives import read_boolean
from amqp_core.v0_10 import _read, _write
from amqp_core.v0_10._read import (
    read_array,
    read_array_typed,
    read_list,
    read_map,
    read_map_typed,
    read_str8_utf16,
    read_str16_array,
    read_str16_utf16,
)
from amqp_core.v0_10._write import (
    write_array,
    write_list,
    write_map,
    write_str8_utf16,
)
from amqp_core.v0_10.type_codes import (
    ARRAY,
    BOOLEAN,
    DATETIME,
    DEC64,
    DOUBLE,
    INT32,
    INT64,
    LIST,
    MAP,
    MAX_DEPTH,
    STR16,
    UINT8,
    UINT64,
    UUID_,
    VBIN32,
    VOID,
    Datetime,
    Typed,
)
from amqp_core.write_primitives import write_str8, write_uint8, write_vbin8

U = UUID("00112233-4455-6677-8899-aabbccddeeff")

# type, value, wire bytes in hex: the bytes are written by hand from the layouts of the specification.
BOUNDARIES: list[tuple[str, Any, str]] = [
    ("uint8", 0, "00"),
    ("uint8", 255, "ff"),
    ("int8", -128, "80"),
    ("int8", -1, "ff"),
    ("int8", 0, "00"),
    ("int8", 127, "7f"),
    ("uint16", 0, "0000"),
    ("uint16", 65535, "ffff"),
    ("uint16", 258, "0102"),
    ("int16", -32768, "8000"),
    ("int16", 32767, "7fff"),
    ("int16", -2, "fffe"),
    ("uint32", 0, "00000000"),
    ("uint32", 2**32 - 1, "ffffffff"),
    ("uint32", 0x01020304, "01020304"),
    ("int32", -(2**31), "80000000"),
    ("int32", 2**31 - 1, "7fffffff"),
    ("sequence_no", 0, "00000000"),
    ("sequence_no", 2**32 - 1, "ffffffff"),
    ("uint64", 0, "0000000000000000"),
    ("uint64", 2**64 - 1, "ffffffffffffffff"),
    ("int64", -(2**63), "8000000000000000"),
    ("int64", 2**63 - 1, "7fffffffffffffff"),
    ("datetime", Datetime(0), "0000000000000000"),
    ("datetime", Datetime(-1), "ffffffffffffffff"),
    ("datetime", Datetime(2**63 - 1), "7fffffffffffffff"),
    ("float", 0.0, "00000000"),
    ("float", -0.0, "80000000"),
    ("float", 1.5, "3fc00000"),
    ("float", 3.4028234663852886e38, "7f7fffff"),
    ("float", 1.401298464324817e-45, "00000001"),
    ("float", math.inf, "7f800000"),
    ("double", -0.0, "8000000000000000"),
    ("double", 1.7976931348623157e308, "7fefffffffffffff"),
    ("double", 5e-324, "0000000000000001"),
    ("double", -math.inf, "fff0000000000000"),
    ("boolean", True, "01"),
    ("boolean", False, "00"),
    ("char", "A", "41"),
    ("char", "\x00", "00"),
    ("char", "€", "a4"),  # the euro sign tells ISO 8859-15 from 8859-1
    ("char", "ÿ", "ff"),
    ("char_utf32", "\x00", "00000000"),
    ("char_utf32", "€", "000020ac"),
    ("char_utf32", "\U0010ffff", "0010ffff"),
    ("char_utf32", "\ud7ff", "0000d7ff"),
    ("char_utf32", "\ue000", "0000e000"),
    ("uuid", U, "00112233445566778899aabbccddeeff"),
    ("dec32", Decimal(0), "0000000000"),
    ("dec32", Decimal("1.25"), "020000007d"),
    ("dec32", Decimal(-2147483648), "0080000000"),
    ("dec32", Decimal("2147483647E-255"), "ff7fffffff"),
    ("dec64", Decimal("-0.01"), "02ffffffffffffffff"),
    ("dec64", Decimal(9223372036854775807), "007fffffffffffffff"),
    ("dec64", Decimal("-9223372036854775808E-255"), "ff8000000000000000"),
    ("void", None, ""),
    ("bit", True, ""),
    ("bin8", b"\x80", "80"),
    ("bin16", b"\x00\xff", "00ff"),
    ("bin32", bytes(4), "00" * 4),
    ("bin40", bytes(range(5)), "0001020304"),
    ("bin64", b"\xff" * 8, "ff" * 8),
    ("bin72", bytes(range(9)), "000102030405060708"),
    ("bin128", bytes(16), "00" * 16),
    ("bin256", b"\x01" * 32, "01" * 32),
    ("bin512", b"\x02" * 64, "02" * 64),
    ("bin1024", b"\x03" * 128, "03" * 128),
    ("vbin8", b"", "00"),
    ("vbin8", b"x" * 255, "ff" + "78" * 255),
    ("vbin16", b"", "0000"),
    ("vbin16", b"x" * 256, "0100" + "78" * 256),
    ("vbin16", b"x" * 65535, "ffff" + "78" * 65535),
    ("vbin32", b"", "00000000"),
    ("vbin32", b"x" * 65536, "00010000" + "78" * 65536),
    ("str8", "", "00"),
    ("str8", "a", "0161"),
    ("str8", "é€😀", "09c3a9e282acf09f9880"),
    ("str8", "x" * 255, "ff" + "78" * 255),
    ("str16", "", "0000"),
    ("str16", "é" * 32767 + "x", "ffff" + "c3a9" * 32767 + "78"),
    ("str8_latin", "é€", "02e9a4"),
    ("str8_latin", "€" * 255, "ff" + "a4" * 255),
    ("str16_latin", "é€", "0002e9a4"),
    ("str16_latin", "x" * 65535, "ffff" + "78" * 65535),
    ("str8_utf16", "", "00"),
    ("str8_utf16", "a€", "04006120ac"),
    ("str8_utf16", "😀", "04d83dde00"),
    ("str8_utf16", "x" * 127, "fe" + "0078" * 127),
    ("str16_utf16", "a€", "0004006120ac"),
    ("str16_utf16", "x" * 32767, "fffe" + "0078" * 32767),
    ("sequence_set", [], "0000"),
    ("sequence_set", [(0, 0)], "0008 00000000 00000000"),
    ("sequence_set", [(0, 2), (5, 6), (15, 15)], "0018 00000000 00000002 00000005 00000006 0000000f 0000000f"),
    ("sequence_set", [(0xFFFFFFFE, 1)], "0008 fffffffe 00000001"),  # across the wrap of RFC 1982
    ("sequence_set", [(1, 0x80000000)], "0008 00000001 80000000"),
    ("sequence_set", [(7, 7)] * 8191, "fff8" + "0000000700000007" * 8191),
    ("byte_ranges", [], "0000"),
    ("byte_ranges", [(0, 2**64 - 1)], "0010 0000000000000000 ffffffffffffffff"),
    ("byte_ranges", [(1, 1)] * 4095, "fff0" + "00000000000000010000000000000001" * 4095),
    ("struct32", bytes.fromhex("06040000"), "00000004 06040000"),
    ("struct32", b"", "00000000"),
    ("map", {}, "00000004 00000000"),
    ("map", {"": None}, "00000006 00000001 00 f0"),
    ("map", {"k" * 255: True}, "00000106 00000001 ff" + "6b" * 255 + " 08 01"),
    ("map", {"a": "é", "b": -1}, "00000012 00000002 0161 95 0002c3a9 0162 21 ffffffff"),
    ("list", [], "00000004 00000000"),
    ("list", ["a", None, 1.5], "00000012 00000003 95 000161 f0 33 3ff8000000000000"),
    ("array", [], "00000005 95 00000000"),
    ("array", [1, -1], "0000000d 21 00000002 00000001 ffffffff"),
    ("array", ["a", ""], "0000000a 95 00000002 000161 0000"),
    ("str16_array", ["PLAIN"], "0000000c 95 00000001 0005504c41494e"),
]


@pytest.mark.parametrize(("kind", "value", "wire"), BOUNDARIES, ids=lambda item: str(item)[:24])
def test_boundary_values_both_ways(kind: str, value: Any, wire: str) -> None:
    raw = bytes.fromhex(wire)
    assert getattr(_write, f"write_{kind}")(value) == raw
    got, end = getattr(_read, f"read_{kind}")(b"\xaa" + raw + b"\xbb", 1)
    assert end == 1 + len(raw)
    assert got == value
    assert type(got) is type(value)
    if isinstance(value, float):
        assert math.copysign(1, got) == math.copysign(1, value)
    if isinstance(value, Decimal):
        assert got.as_tuple() == value.as_tuple()


@pytest.mark.parametrize(("kind", "value", "wire"), BOUNDARIES, ids=lambda item: str(item)[:24])
def test_every_truncation_is_a_decode_error_with_its_offset(kind: str, value: Any, wire: str) -> None:
    raw = bytes.fromhex(wire)
    for cut in {*range(min(len(raw), 40)), *range(max(len(raw) - 4, 0), len(raw))}:
        with pytest.raises(DecodeError) as refused:
            getattr(_read, f"read_{kind}")(b"\x00" + raw[:cut], 1)
        assert 0 <= refused.value.offset <= 1 + cut


TOO_MUCH: list[tuple[str, Any]] = [
    ("uint8", -1),
    ("uint8", 256),
    ("uint8", "1"),
    ("int8", -129),
    ("int8", 128),
    ("uint16", -1),
    ("uint16", 65536),
    ("int16", 32768),
    ("int16", -32769),
    ("uint32", -1),
    ("uint32", 2**32),
    ("uint32", None),
    ("uint32", 1.0),
    ("int32", 2**31),
    ("int32", -(2**31) - 1),
    ("sequence_no", 2**32),
    ("uint64", -1),
    ("uint64", 2**64),
    ("uint64", 10**5000),
    ("int64", 2**63),
    ("datetime", 2**63),
    ("datetime", -(2**63) - 1),
    ("float", 1e39),
    ("float", "1"),
    ("double", 10**400),
    ("double", None),
    ("boolean", 1),
    ("boolean", None),
    ("char", ""),
    ("char", "ab"),
    ("char", "😀"),
    ("char", 65),
    ("char_utf32", ""),
    ("char_utf32", "ab"),
    ("char_utf32", "\ud800"),
    ("char_utf32", 65),
    ("uuid", str(U)),
    ("dec32", Decimal(2**31)),
    ("dec32", Decimal("1E-256")),
    ("dec32", Decimal("1E+10")),
    ("dec32", Decimal("NaN")),
    ("dec32", Decimal("-Infinity")),
    ("dec32", 1.5),
    ("dec64", Decimal(2**63)),
    ("dec64", Decimal("1E+1000000")),
    ("dec64", Decimal("0." + "1" * 20)),
    ("void", 0),
    ("bit", False),
    ("bin8", b""),
    ("bin8", b"ab"),
    ("bin1024", bytes(127)),
    ("vbin8", bytes(256)),
    ("vbin8", "text"),
    ("vbin16", bytes(65536)),
    ("vbin32", 7),
    ("str8", "x" * 256),
    ("str8", "é" * 128),
    ("str8", b"bytes"),
    ("str8", "\ud800"),
    ("str16", "x" * 65536),
    ("str8_latin", "😀"),
    ("str8_latin", "x" * 256),
    ("str16_latin", "x" * 65536),
    ("str8_utf16", "x" * 128),
    ("str8_utf16", "\udfff"),
    ("str16_utf16", "x" * 32768),
    ("sequence_set", [(0, 0)] * 8192),
    ("sequence_set", [(0, 2**32)]),
    ("sequence_set", [(-1, 0)]),
    ("sequence_set", [(1, 0)]),
    ("sequence_set", [(0, 0x80000000)]),
    ("sequence_set", [1, 2]),
    ("sequence_set", [(1, 2, 3)]),
    ("byte_ranges", [(0, 0)] * 4096),
    ("byte_ranges", [(2, 1)]),
    ("byte_ranges", [(0, 2**64)]),
    ("byte_ranges", 5),
    ("struct32", b"\x06"),
    ("map", {"k" * 256: 1}),
    ("map", {1: 1}),
    ("map", [("a", 1)]),
    ("map", {"a": object()}),
    ("map", {"a": 2**64}),
    ("map", {"a": -(2**63) - 1}),
    ("map", {"a": {1, 2}}),
    ("map", {"a": Typed(0xFF, 1)}),
    ("map", {"a": Typed(UINT8, 256)}),
    ("map", {"a": "\ud800"}),
    ("list", "text"),
    ("list", b"bytes"),
    ("list", {"a": 1}),
    ("array", [1, "a"]),
    ("array", [None, None]),
    ("array", [1, 1.5]),
    ("array", [2**63, -1, "x"]),
    ("str16_array", "text"),
    ("str16_array", [1]),
]


@pytest.mark.parametrize(("kind", "value"), TOO_MUCH, ids=lambda item: str(item)[:24] if item != 10**5000 else "huge")
def test_what_does_not_fit_is_refused_by_name(kind: str, value: Any) -> None:
    with pytest.raises(EncodeError, match=r"queue\.declare field"):
        getattr(_write, f"write_{kind}")(value, "queue.declare field")


def test_errors_do_not_show_texts_or_bytes() -> None:
    secret = "hunter2" * 60
    for write, value in ((write_str8, secret), (write_vbin8, secret.encode()), (write_uint8, secret)):
        with pytest.raises(EncodeError) as refused:
            write(value)  # type: ignore[arg-type] # the wrong types on purpose
        assert "hunter" not in str(refused.value)
        assert "420" in str(refused.value)


BAD: list[tuple[str, str, str]] = [
    ("str8", "01ff", "not UTF-8"),
    ("str8", "02c3 28", "not UTF-8"),
    ("str8", "03eda080", "not UTF-8"),  # a surrogate
    ("str8", "02c080", "not UTF-8"),  # an overlong form
    ("str16", "0001ff", "not UTF-8"),
    ("str8_utf16", "0161", "not UTF-16"),
    ("str8_utf16", "02d800", "not UTF-16"),
    ("str16_utf16", "0002dc00", "not UTF-16"),
    ("char_utf32", "00110000", "not a character"),
    ("char_utf32", "0000d800", "not a character"),
    ("char_utf32", "ffffffff", "not a character"),
    ("sequence_set", "0004 00000000", "not whole ranges"),
    ("sequence_set", "0008 00000001 00000000", "runs backwards"),
    ("sequence_set", "0008 00000000 80000000", "runs backwards"),
    ("byte_ranges", "0008 0000000000000000", "not whole ranges"),
    ("byte_ranges", "0010 0000000000000001 0000000000000000", "runs backwards"),
    ("struct32", "00000001 06", "no room"),
    ("map", "00000003 000000", "does not fit"),
    ("map", "ffffffff 00000000", "does not fit"),
    ("map", "00000004 ffffffff", "cannot hold"),
    ("map", "00000006 00000002 00 f0", "cannot hold"),
    ("map", "00000007 00000001 00 f0 00", "says it ends"),
    ("map", "00000006 00000001 00 21 00000001", "says it ends"),  # the value reaches beyond the map
    ("map", "00000006 00000001 00 05", "unknown type code 0x05"),
    ("map", "00000008 00000001 02fffe f0 00", "not UTF-8"),
    ("map", "00000006 00000001 ff f0", "map ends"),
    ("list", "00000004 00000001", "cannot hold"),
    ("list", "00000005 00000001 ff", "unknown type code 0xff"),
    ("list", "00000006 00000001 f0 f0", "says it ends"),
    ("array", "00000004 95 000000", "does not fit"),
    ("array", "00000005 95 00000001", "1 values in no bytes"),
    ("array", "00000005 f0 ffffffff", "values in no bytes"),
    ("array", "00000006 f0 00000001 00", "says it ends"),
    ("array", "00000006 02 00000002 00", "cannot hold"),
    ("array", "00000006 99 00000001 00", "unknown type code 0x99"),
    ("str16_array", "00000006 02 00000001 00", "not strings"),
]


@pytest.mark.parametrize(("kind", "wire", "reason"), BAD)
def test_bytes_that_are_no_such_value_are_refused(kind: str, wire: str, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason) as refused:
        getattr(_read, f"read_{kind}")(bytes.fromhex(wire), 0)
    assert refused.value.offset >= 0


def test_every_octet_but_zero_is_true() -> None:
    assert [read_boolean(bytes([octet]), 0)[0] for octet in range(256)] == [False] + [True] * 255


def test_utf16_follows_the_byte_order_mark() -> None:
    assert read_str8_utf16(bytes.fromhex("06 feff 0061 20ac"), 0) == ("a€", 7)
    assert read_str8_utf16(bytes.fromhex("06 fffe 6100 ac20"), 0) == ("a€", 7)
    assert read_str16_utf16(bytes.fromhex("0004 fffe 6100"), 0) == ("a", 6)
    for text in ("\ufeff", "\ufffe", "\ufeff\ufeffx"):  # a text that begins like a mark is not taken for one
        assert read_str8_utf16(write_str8_utf16(text), 0)[0] == text


def test_datetime_is_the_number_on_the_wire() -> None:
    raw = write_map({"seconds": Datetime(1), "before 1970": Datetime(-1), "number": 1})
    got, _ = read_map(raw, 0)
    assert got == {"seconds": 1, "before 1970": -1, "number": 1}
    assert [type(value) for value in got.values()] == [Datetime, Datetime, int]


def test_natural_values_get_these_types() -> None:
    raw = write_map(
        {
            "none": None,
            "bool": True,
            "small": 2**31 - 1,
            "large": 2**31,
            "low": -(2**31) - 1,
            "largest": 2**63,
            "real": 1.0,
            "text": "t",
            "bytes": b"b",
            "array of bytes": bytearray(b"b"),
            "uuid": U,
            "decimal": Decimal("1.50"),
            "time": Datetime(5),
            "map": {"x": 1},
            "list": [1, (2,)],
            "forced": Typed(UINT8, 7),
        }
    )
    typed, end = read_map_typed(raw, 0)
    assert end == len(raw)
    assert typed == {
        "none": Typed(VOID, None),
        "bool": Typed(BOOLEAN, True),
        "small": Typed(INT32, 2**31 - 1),
        "large": Typed(INT64, 2**31),
        "low": Typed(INT64, -(2**31) - 1),
        "largest": Typed(UINT64, 2**63),
        "real": Typed(DOUBLE, 1.0),
        "text": Typed(STR16, "t"),
        "bytes": Typed(VBIN32, b"b"),
        "array of bytes": Typed(VBIN32, b"b"),
        "uuid": Typed(UUID_, U),
        "decimal": Typed(DEC64, Decimal("1.50")),
        "time": Typed(DATETIME, 5),
        "map": Typed(MAP, {"x": Typed(INT32, 1)}),
        "list": Typed(LIST, [Typed(INT32, 1), Typed(LIST, [Typed(INT32, 2)])]),
        "forced": Typed(UINT8, 7),
    }
    assert write_map(typed) == raw


def test_text_too_long_for_str16_becomes_vbin32() -> None:
    raw = write_list(["x" * 65535, "é" * 32768])
    assert read_list(raw, 0)[0] == ["x" * 65535, ("é" * 32768).encode()]


def test_integers_of_an_array_share_the_widest_type_they_need() -> None:
    assert read_array_typed(write_array([1, 2**40]), 0)[0] == [Typed(INT64, 1), Typed(INT64, 2**40)]
    assert read_array_typed(write_array([1, 2**63]), 0)[0] == [Typed(UINT64, 1), Typed(UINT64, 2**63)]
    with pytest.raises(EncodeError, match="uint64"):
        write_array([-1, 2**63])


def test_containers_of_size_zero_are_empty() -> None:
    zero = bytes(4)
    assert read_map(zero, 0) == ({}, 4)
    assert read_list(zero, 0) == ([], 4)
    assert read_array(zero, 0) == ([], 4)
    assert read_str16_array(zero, 0) == ([], 4)
    assert read_map(bytes.fromhex("00000012 00000002 0161 a8 00000000 0162 aa 00000000"), 0)[0] == {"a": {}, "b": []}


def test_an_empty_array_may_have_any_type_code() -> None:
    for code in range(256):
        assert read_array(bytes.fromhex(f"00000005 {code:02x} 00000000"), 0) == ([], 9)


def test_the_last_of_equal_keys_counts() -> None:
    assert read_map(bytes.fromhex("0000000c 00000002 0161 02 01 0161 02 02"), 0)[0] == {"a": 2}


@pytest.mark.parametrize("kind", ["map", "list", "array"])
def test_depth_is_bounded_both_ways(kind: str) -> None:
    def nested(levels: int) -> Any:
        value: Any = {} if kind == "map" else []
        for _ in range(levels - 1):
            value = {"k": value} if kind == "map" else [Typed(ARRAY, value)] if kind == "array" else [value]
        return value

    write, read = getattr(_write, f"write_{kind}"), getattr(_read, f"read_{kind}")
    deepest = write(nested(MAX_DEPTH))
    value, end = read(deepest, 0)
    assert end == len(deepest)
    assert str(value).count("[" if kind != "map" else "{") == MAX_DEPTH
    with pytest.raises(EncodeError, match="nested deeper than 16"):
        write(nested(MAX_DEPTH + 1))
    head = {"map": "00000001 016b a8", "list": "00000001 a9", "array": "aa 00000001"}[kind].replace(" ", "")
    room = len(head) // 2 + 4
    outer = bytes.fromhex(f"{len(deepest) + room - 4:08x}{head}") + deepest
    with pytest.raises(DecodeError, match="nested deeper than 16"):
        read(outer, 0)


def test_a_hundred_thousand_levels_are_refused_at_the_seventeenth() -> None:
    levels = 100_000
    heads = [(9 * inner + 4).to_bytes(4) + b"\x00\x00\x00\x01\xa9" for inner in range(levels, 0, -1)]
    data = b"".join(heads) + bytes.fromhex("00000004 00000000")
    with pytest.raises(DecodeError, match="nested deeper than 16") as refused:
        read_list(data, 0)
    assert refused.value.offset == 16 * 9


def test_a_cycle_is_refused() -> None:
    cycle: dict[str, object] = {}
    cycle["self"] = cycle
    with pytest.raises(EncodeError, match="nested deeper"):
        write_map(cycle)


def test_subclasses_are_written_as_what_they_are() -> None:
    class Name(str):
        __slots__ = ()

    class Row(dict[str, object]):
        pass

    assert write_map({"a": Name("x")}) == write_map({"a": "x"})
    assert write_map(Row(a=Row())) == write_map({"a": {}})
