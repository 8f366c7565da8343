"""convert_headers: headers that are passed from one protocol to another."""

from __future__ import annotations

import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_core.typed_values import Datetime, Typed
from amqp_core.v0_9 import type_codes as letter
from amqp_core.v0_9._read import read_table_typed
from amqp_core.v0_9._write import write_table
from amqp_core.v0_10 import type_codes as code
from amqp_core.v0_10._read import read_map_typed
from amqp_core.v0_10._write import write_map
from amqp_spark import cli
from amqp_spark.arrow.encode import convert_maps
from amqp_spark.errors import OptionError
from amqp_spark.functions import convert_headers
from tests.support.frames import assert_rows
from tests.support.values_0_9 import WRITTEN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = write_table({"symbol": "SAP", "price": 1.5, "legs": [1, {"a": None}]})
MAP = write_map({"symbol": "SAP", "price": 1.5, "legs": [1, {"a": None}]})
TYPED: list[st.SearchStrategy[Typed]] = [
    st.builds(Typed, st.just(number), values if number != letter.LONG_STRING else st.text(max_size=60))
    for number, values in WRITTEN.items()
]
VALUES = st.recursive(
    st.one_of(TYPED),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=9), inner, max_size=3)),
    max_leaves=6,
)


def converted(item: bytes | None, protocol: str) -> bytes | None:
    values, errors = convert_maps(pa.array([item], pa.binary()), protocol)
    assert errors == {}
    found: bytes | None = values.to_pylist()[0]
    return found


def problem(item: bytes, protocol: str) -> str:
    values, errors = convert_maps(pa.array([TABLE, item], pa.binary()), protocol)
    assert values.to_pylist()[1] is None
    assert set(errors) == {1}
    return errors[1]


def test_a_table_becomes_a_map_and_a_map_a_table() -> None:
    assert converted(TABLE, "0-10") == MAP
    assert converted(MAP, "0-9-1") == converted(MAP, "0-9") == TABLE


def test_what_has_the_form_of_the_protocol_is_not_changed() -> None:
    odd = b"\x00\x00\x00\x04\x01aU\x00"  # a value that lacks a byte: the sink checks it
    for item, protocol in ((TABLE, "0-9-1"), (MAP, "0-10"), (odd, "0-9"), (None, "0-10"), (None, "0-9-1")):
        assert converted(item, protocol) == item


@pytest.mark.parametrize("empty", [bytes(4), write_map({})])
def test_empty_headers_stay_empty(empty: bytes) -> None:
    assert converted(empty, "0-9-1") == write_table({})
    assert converted(empty, "0-10") == write_map({})


@pytest.mark.parametrize("value", [None, True, 1, "text", [1], {"": 2}, Typed(letter.INT8, 3)])
@pytest.mark.parametrize("more", [{}, {"symbol": "SAP"}])
def test_a_table_whose_first_key_is_empty_is_a_table(value: object, more: dict[str, object]) -> None:
    table = write_table({"": value} | more)
    there = converted(table, "0-10")
    assert there is not None
    assert list(read_map_typed(there, 0)[0]) == ["", *more]
    assert converted(table, "0-9-1") == table
    assert converted(there, "0-9-1") == table
    assert converted(there, "0-10") == there


def test_a_map_of_very_many_entries_is_a_map() -> None:
    entries = {f"{number:x}": None for number in range(70_000)}
    assert converted(write_map(entries), "0-9-1") == write_table(entries)


@pytest.mark.parametrize("number", range(256))
def test_every_character_of_old_clients_is_converted(number: int) -> None:
    there = converted(b"\0\0\0\x04\x01hk" + bytes((number,)), "0-10")
    assert there is not None
    assert read_map_typed(there, 0)[0]["h"].value == chr(number)


@given(st.dictionaries(st.text(max_size=20), VALUES, max_size=5))
def test_a_table_that_becomes_a_map_and_a_table_again_is_the_same(headers: dict[str, Any]) -> None:
    table = write_table(headers)
    there = converted(table, "0-10")
    assert there is not None
    back = converted(there, "0-9-1")
    assert back is not None
    assert read_table_typed(back, 0) == read_table_typed(table, 0)


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        (Typed(code.UINT64, 2**63 - 1), Typed(letter.INT64, 2**63 - 1)),
        (Typed(code.UINT32, 2**32 - 1), Typed(letter.UINT32, 2**32 - 1)),
        (Typed(code.UINT8, 255), Typed(letter.UINT8, 255)),
        (Typed(code.STR8, "€"), Typed(letter.LONG_STRING, "€")),
        (Typed(code.STR16_LATIN, "é"), Typed(letter.LONG_STRING, "é")),
        (Typed(code.CHAR, "c"), Typed(letter.LONG_STRING, "c")),
        (Typed(code.VBIN8, b"\xff"), Typed(letter.BINARY, b"\xff")),
        (Typed(code.BIN16, b"ab"), Typed(letter.BINARY, b"ab")),
        (Typed(code.UUID_, uuid.UUID(int=5)), Typed(letter.LONG_STRING, str(uuid.UUID(int=5)))),
        (Typed(code.DATETIME, Datetime(1_700_000_000)), Typed(letter.TIMESTAMP, 1_700_000_000)),
        (Typed(code.DEC32, Decimal("-1.25")), Typed(letter.DECIMAL, Decimal("-1.25"))),
        (Typed(code.DEC64, Decimal("1.5")), Typed(letter.DECIMAL, Decimal("1.5"))),
        (Typed(code.ARRAY, [Typed(code.INT16, 1)]), Typed(letter.ARRAY, [Typed(letter.INT16, 1)])),
        (Typed(code.VOID, None), Typed(letter.VOID, None)),
    ],
)
def test_a_type_that_0_9_1_lacks_becomes_the_next_one(typed: Typed, wanted: Typed) -> None:
    found = converted(write_map({"h": typed}), "0-9-1")
    assert found is not None
    assert read_table_typed(found, 0)[0] == {"h": wanted}


def test_a_text_that_is_no_utf_8_becomes_bytes() -> None:
    found = converted(write_table({"h": Typed(letter.LONG_STRING, b"\xff")}), "0-10")
    assert found is not None
    assert read_map_typed(found, 0)[0] == {"h": Typed(code.VBIN32, b"\xff")}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (Typed(code.UINT64, 2**63), "'bad': 9223372036854775808 is not an int64"),
        (Typed(code.DEC64, Decimal(2**40)), "'bad': 1099511627776 is not a decimal of at most 10 digits"),
        (float("nan"), "'bad': nan is not a finite number"),
        (Typed(code.STRUCT32, b"\x00\x01"), "a value of type 0xab, for which 0-9-1 has no type"),
    ],
)
def test_a_value_that_0_9_1_cannot_hold_is_named(value: object, reason: str) -> None:
    assert reason in problem(write_map({"good": 1, "bad": value}), "0-9-1")


def test_a_text_that_0_10_cannot_hold_is_named() -> None:
    assert "'bad'" in problem(write_table({"good": 1, "bad": "x" * 65_536}), "0-10")


@pytest.mark.parametrize("octets", [b"", b"\0\0\0", MAP[:-1], MAP + b"x", MAP[:4] + b"\0" + b"\xff" * (len(MAP) - 5)])
def test_octets_that_are_no_headers_are_named(octets: bytes) -> None:
    assert problem(octets, "0-9-1")


@given(st.binary(max_size=60), st.sampled_from([TABLE, MAP]), st.sampled_from(["0-10", "0-9-1"]))
def test_any_octets_are_converted_or_named(octets: bytes, front: bytes, protocol: str) -> None:
    items = [octets, front + octets, front[:6] + octets, None]
    values, errors = convert_maps(pa.array(items, pa.binary()), protocol)
    assert len(values) == 4
    assert set(errors) <= {0, 1, 2}


def test_a_protocol_that_does_not_exist_is_refused() -> None:
    with pytest.raises(OptionError, match=r"'protocol' has the value '1\.0'.* Allowed: 0-10, 0-9-1, 0-9\."):
        convert_headers("application_headers", "1.0")


@pytest.mark.spark
def test_a_query_converts_headers(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(TABLE,), (None,), (MAP,)], "application_headers BINARY")
    found = rows.select(convert_headers("application_headers", "0-10").alias("application_headers"))
    assert_rows(found, [(MAP,), (None,), (MAP,)], "application_headers BINARY")


@pytest.mark.spark
def test_headers_that_cannot_be_converted_fail_the_query(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(write_map({"n": float("inf")}),)], "application_headers BINARY")
    with pytest.raises(Exception, match="HeadersNotConverted") as caught:
        rows.select(convert_headers("application_headers", "0-9-1")).collect()
    text, exit_code = cli.explain(caught.value)
    assert text.startswith("[AMQP_HEADERS_NOT_CONVERTED] Encoded headers cannot be converted to AMQP 0-9-1 in 1 row(s)")
    assert "'n': inf is not a finite number" in text
    assert exit_code == 1
