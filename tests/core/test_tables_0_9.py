"""Tables and arrays of 0-9-1: every type letter in literal bytes, boundary values both ways, and what is refused."""

from __future__ import annotations

import math
import tracemalloc
from decimal import Decimal
from typing import Any

import pytest

from amqp_core.errors import DecodeError, EncodeError
from amqp_core.typed_values import MAX_DEPTH, Datetime, Typed
from amqp_core.v0_9 import type_codes as v
from amqp_core.v0_9._read import read_array, read_array_typed, read_table, read_table_typed
from amqp_core.v0_9._write import write_array, write_table


def array(wire: str) -> bytes:
    raw = bytes.fromhex(wire)
    return len(raw).to_bytes(4) + raw


def table(wire: str) -> bytes:
    return array(wire)


# letter, value, wire bytes in hex after the letter
VALUES: list[tuple[str, Any, str]] = [
    ("t", True, "01"),
    ("t", False, "00"),
    ("b", -128, "80"),
    ("b", 127, "7f"),
    ("B", 255, "ff"),
    ("s", -32768, "8000"),
    ("s", 32767, "7fff"),
    ("u", 65535, "ffff"),
    ("I", -(2**31), "80000000"),
    ("I", 2**31 - 1, "7fffffff"),
    ("i", 2**32 - 1, "ffffffff"),
    ("l", -(2**63), "8000000000000000"),
    ("l", 2**63 - 1, "7fffffffffffffff"),
    ("f", 0.5, "3f000000"),
    ("d", 0.1, "3fb999999999999a"),
    ("D", Decimal("3.14"), "02 0000013a"),
    ("D", Decimal("-0.01"), "02 ffffffff"),
    ("D", Decimal("1E-255"), "ff 00000001"),
    ("S", "", "00000000"),
    ("S", "aé", "00000003 61c3a9"),
    ("S", b"\xff", "00000001 ff"),
    ("x", b"\0\xff", "00000002 00ff"),
    ("T", Datetime(1700000000), "000000006553f100"),
    ("T", Datetime(-1), "ffffffffffffffff"),
    ("V", None, ""),
]

READ_ONLY: list[tuple[str, Any, str]] = [
    ("U", -2, "fffe"),
    ("L", -1, "ffffffffffffffff"),
    ("c", "a", "00000001 61"),
    ("C", "é", "00000002 c3a9"),
    ("k", "é", "e9"),
    ("f", math.inf, "7f800000"),
    ("d", -math.inf, "fff0000000000000"),
]


@pytest.mark.parametrize(("letter", "value", "wire"), VALUES + READ_ONLY)
def test_every_letter_is_read(letter: str, value: Any, wire: str) -> None:
    raw = array(f"{ord(letter):02x}" + wire)
    assert read_array(raw, 0) == ([value], len(raw))
    assert read_array_typed(raw, 0) == ([Typed(ord(letter), value)], len(raw))
    keyed = table(f"01 6b {ord(letter):02x}" + wire)
    assert read_table(keyed, 0) == ({"k": value}, len(keyed))
    assert read_table_typed(b"xx" + keyed, 2) == ({"k": Typed(ord(letter), value)}, 2 + len(keyed))
    assert type(read_table(keyed, 0)[0]["k"]) is type(value)


@pytest.mark.parametrize(("letter", "value", "wire"), VALUES)
def test_every_letter_that_brokers_serve_is_written(letter: str, value: Any, wire: str) -> None:
    assert write_array([Typed(ord(letter), value)]) == array(f"{ord(letter):02x}" + wire)
    assert write_table({"k": Typed(ord(letter), value)}) == table(f"01 6b {ord(letter):02x}" + wire)


@pytest.mark.parametrize("letter", [*"ULcCkZ\0"])
def test_letters_that_not_all_brokers_serve_are_not_written(letter: str) -> None:
    with pytest.raises(EncodeError, match="no type that brokers serve has the letter"):
        write_table({"k": Typed(ord(letter), 1)})


def test_natural_values_get_these_letters() -> None:
    value = {
        "none": None,
        "bool": True,
        "small": -(2**31),
        "large": 2**31,
        "real": 1.0,
        "text": "t",
        "bytes": b"b",
        "array of bytes": bytearray(b"b"),
        "decimal": Decimal("1.50"),
        "time": Datetime(5),
        "table": {"x": 1},
        "array": [1, (2,), "x"],
        "forced": Typed(v.UINT8, 7),
    }
    got, _ = read_table_typed(write_table(value), 0)
    assert {key: chr(item.code) for key, item in got.items()} == dict(
        zip(value, ["V", "t", "I", "l", "d", "S", "x", "x", "D", "T", "F", "A", "B"], strict=True)
    )
    assert got["array"].value == [Typed(v.INT32, 1), Typed(v.ARRAY, [Typed(v.INT32, 2)]), Typed(v.LONG_STRING, "x")]
    assert write_table(got) == write_table(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_not_written(value: float) -> None:
    for item in (value, Typed(v.FLOAT, value), Typed(v.DOUBLE, value)):
        with pytest.raises(EncodeError, match="finite number, and RabbitMQ"):
            write_table({"k": [item]})


TOO_MUCH: list[Any] = [
    2**63,
    -(2**63) - 1,
    1j,
    {1, 2},
    {"k" * 256: 1},
    {1: 1},
    "\ud800",
    Decimal(2**31),
    Decimal("1E-256"),
    Decimal("NaN"),
    Datetime(2**63),
    Typed(v.INT16, 2**15),
    Typed(v.UINT8, -1),
    Typed(v.FLOAT, 1e39),
    Typed(v.BOOLEAN, 1),
    Typed(v.VOID, 0),
    Typed(v.LONG_STRING, 1),
    Typed(v.TABLE, []),
    Typed(v.ARRAY, "text"),
]


@pytest.mark.parametrize("value", TOO_MUCH, ids=repr)
def test_what_does_not_fit_is_refused_by_name(value: Any) -> None:
    with pytest.raises(EncodeError, match=r"queue\.declare arguments"):
        write_table({"k": value}, "queue.declare arguments")
    with pytest.raises(EncodeError, match="headers"):
        write_array([value], "headers")


@pytest.mark.parametrize("value", [[], "text", None])
def test_what_is_no_table_is_refused(value: Any) -> None:
    with pytest.raises(EncodeError, match="not a mapping"):
        write_table(value)


BAD: list[tuple[str, str]] = [
    ("", "table ends before"),
    ("000000", "table ends before"),
    ("00000001", "table of 1 bytes does not fit"),
    ("ffffffff 00", "table of 4294967295 bytes does not fit"),
    ("00000001 01", "table ends before"),
    ("00000002 01 6b", "table ends before"),
    ("00000003 01 6b 5a", "unknown type letter 0x5a"),
    ("00000003 01 6b 00", "unknown type letter 0x00"),
    ("00000003 01 ff 56", "key of a table is not UTF-8"),
    ("00000004 01 6b 49 00", "table ends before"),
    ("00000004 01 6b 49 00 000001", "says it ends"),
    ("00000007 01 6b 53 ffffffff", "says it ends"),
    ("00000007 01 6b 78 ffffffff", "ends before"),
    ("00000007 01 6b 46 00000001", "does not fit"),
    ("00000007 01 6b 41 00000001 56", "says it ends"),
    ("00000008 01 6b 41 00000001 49", "ends before"),
    ("00000007 01 6b 44 01 000000", "ends before"),
]


@pytest.mark.parametrize(("wire", "reason"), BAD)
def test_bytes_that_are_no_table_are_refused(wire: str, reason: str) -> None:
    raw = bytes.fromhex(wire)
    with pytest.raises(DecodeError, match=reason) as refused:
        read_table(raw, 0)
    assert 0 <= refused.value.offset <= len(raw)
    with pytest.raises(DecodeError):
        read_table_typed(raw, 0)


def test_empty_containers() -> None:
    assert read_table(bytes(4), 0) == ({}, 4)
    assert read_array(bytes(4), 0) == ([], 4)
    assert write_table({}) == write_array([]) == bytes(4)


def test_the_last_of_equal_keys_counts() -> None:
    assert read_table(table("01 61 42 01 01 61 42 02"), 0)[0] == {"a": 2}


@pytest.mark.parametrize("kind", ["table", "array"])
def test_depth_is_bounded_both_ways(kind: str) -> None:
    def nested(levels: int) -> Any:
        value: Any = {} if kind == "table" else []
        for _ in range(levels - 1):
            value = {"k": value} if kind == "table" else [value]
        return value

    write, read = (write_table, read_table) if kind == "table" else (write_array, read_array)
    deepest = write(nested(MAX_DEPTH))
    assert read(deepest, 0) == (nested(MAX_DEPTH), len(deepest))
    with pytest.raises(EncodeError, match="nested deeper than 16"):
        write(nested(MAX_DEPTH + 1))
    outer = (b"\x01kF" if kind == "table" else b"A") + deepest
    for reader in (read_table, read_table_typed) if kind == "table" else (read_array, read_array_typed):
        with pytest.raises(DecodeError, match="nested deeper than 16"):
            reader(len(outer).to_bytes(4) + outer, 0)


def test_a_hundred_thousand_levels_are_refused_at_the_seventeenth() -> None:
    levels = 100_000
    data = b"".join((5 * inner + 4 - 4).to_bytes(4) + b"A" for inner in range(levels, 0, -1)) + bytes(4)
    with pytest.raises(DecodeError, match="nested deeper than 16") as refused:
        read_array(data, 0)
    assert refused.value.offset == 16 * 5


def test_a_cycle_is_refused() -> None:
    cycle: dict[str, object] = {}
    cycle["self"] = cycle
    with pytest.raises(EncodeError, match="nested deeper"):
        write_table(cycle)


@pytest.mark.parametrize("wire", ["ffffffff", "00000005 41 ffffffff", "00000007 01 6b 53 ffffffff"])
def test_huge_claims_in_few_bytes_take_no_memory(wire: str) -> None:
    data = bytes.fromhex(wire)
    tracemalloc.start()
    try:
        for read in (read_table, read_table_typed, read_array, read_array_typed):
            with pytest.raises(DecodeError):
                read(data, 0)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def test_errors_do_not_show_texts_or_bytes() -> None:
    for value in ("hunter2" * 60, b"hunter2" * 60):
        with pytest.raises(EncodeError) as refused:
            write_table({"k": Typed(v.INT32, value)})
        assert "hunter" not in str(refused.value)


def test_subclasses_are_written_as_what_they_are() -> None:
    class Name(str):
        __slots__ = ()

    class Row(dict[str, object]):
        pass

    assert write_table({"a": Name("x")}) == write_table({"a": "x"})
    assert write_table(Row(a=Row())) == write_table({"a": {}})
