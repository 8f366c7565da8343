"""decode_headers: headers that are passed on untouched, looked at in a query."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

from amqp_core.v0_9._write import write_table
from amqp_core.v0_10._write import write_map
from amqp_spark import cli
from amqp_spark.arrow.decode import decode_maps
from amqp_spark.errors import SchemaError
from amqp_spark.functions import TEXTS, decode_headers
from tests.support.frames import assert_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAP = write_map({"symbol": "SAP", "price": 1.5, "qty": 7}, "test")
EMPTY = write_map({}, "test")
TYPED = t.StructType(
    [t.StructField("price", t.DoubleType()), t.StructField("qty", t.LongType()), t.StructField("no", t.StringType())]
)


def decoded(maps: list[bytes | None], kind: t.DataType) -> tuple[list[object], dict[int, str]]:
    column, errors = decode_maps(pa.array(maps, pa.binary()), kind)
    return column.to_pylist(), errors


def test_maps_become_typed_headers_or_texts() -> None:
    maps = [SAP, None, EMPTY]
    nothing = {"price": None, "qty": None, "no": None}
    assert decoded(maps, TYPED) == ([{"price": 1.5, "qty": 7, "no": None}, None, nothing], {})
    assert decoded(maps, TEXTS) == ([[("symbol", "SAP"), ("price", "1.5"), ("qty", "7")], None, []], {})
    numbers = t.MapType(t.StringType(), t.DoubleType())
    only = [write_map({"a": 1.0}, "test"), None]
    assert decoded(only, numbers) == ([[("a", 1.0)], None], {})


@pytest.mark.parametrize("value", ["x", None, 5])
def test_a_table_whose_first_key_is_empty_is_decoded(value: object) -> None:
    table = write_table({"": value, "qty": 7})
    text = None if value is None else str(value)
    values, errors = decoded([SAP, table, None, write_table({"": value})], TEXTS)
    assert values[1:] == [[("", text), ("qty", "7")], None, [("", text)]]
    assert errors == {}
    assert decoded([table, SAP], TYPED)[0][0] == {"price": None, "qty": 7, "no": None}


def test_rows_that_do_not_fit_are_named() -> None:
    wrong = t.StructType([t.StructField("symbol", t.IntegerType())])
    _, errors = decoded([EMPTY, SAP, None], wrong)
    assert errors == {1: "symbol: str16 is not an integer, INT was asked for"}


@pytest.mark.parametrize("kind", [TYPED, TEXTS])
@pytest.mark.parametrize(
    "octets", [b"", b"\0\0\0", SAP[:-1], SAP + b"x", b"\xff" * 40, SAP[:4] + b"\xff" * (len(SAP) - 4)]
)
def test_octets_that_are_no_map_are_named(octets: bytes, kind: t.DataType) -> None:
    values, errors = decoded([SAP, octets, SAP], kind)
    assert set(errors) == {1}
    assert values[0] == values[2]
    assert values[0] is not None


@pytest.mark.parametrize("kind", [TYPED, TEXTS])
def test_slices_and_no_rows_at_all(kind: t.DataType) -> None:
    maps = pa.array([EMPTY, None, SAP, EMPTY], pa.binary())
    whole = decode_maps(maps, kind)[0].to_pylist()
    for start in range(5):
        for stop in range(start, 5):
            assert decode_maps(maps[start:stop], kind)[0].to_pylist() == whole[start:stop]
    assert decode_maps(pa.array([], pa.binary()), kind)[0].to_pylist() == []


@given(st.lists(st.one_of(st.none(), st.binary(max_size=60), st.binary(max_size=60).map(lambda each: SAP + each))))
def test_any_octets_are_decoded_or_named(maps: list[bytes | None]) -> None:
    for kind in (TYPED, TEXTS):
        values, errors = decoded(maps, kind)
        assert len(values) == len(maps)
        assert set(errors) <= {row for row, each in enumerate(maps) if each is not None}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (t.StringType(), "STRUCT<header TYPE, ...>"),
        (t.StructType([t.StructField("a", t.DayTimeIntervalType())]), "headers.a"),
        (t.MapType(t.IntegerType(), t.StringType()), "keys of a map are STRING"),
    ],
)
def test_types_that_no_header_can_become_are_refused(kind: t.DataType, text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        decode_headers("application_headers", kind)


@pytest.mark.spark
def test_a_query_sees_headers(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(SAP,), (None,), (EMPTY,)], "application_headers BINARY")
    texts = rows.withColumn("headers", decode_headers("application_headers"))
    found = texts.filter("headers['symbol'] = 'SAP'").select("headers")
    assert_rows(found, [({"symbol": "SAP", "price": "1.5", "qty": "7"},)], "headers MAP<STRING, STRING>")
    typed = rows.withColumn("headers", decode_headers("application_headers", TYPED))
    assert_rows(typed.filter("headers.price > 1").select("application_headers"), [(SAP,)], "application_headers BINARY")


@pytest.mark.spark
@pytest.mark.parametrize("words", ["symbol STRING, price DOUBLE", "STRUCT<symbol: STRING, price: DOUBLE>"])
def test_the_type_of_headers_in_the_words_of_spark(spark: SparkSession, words: str) -> None:
    rows = spark.createDataFrame([(SAP,)], "application_headers BINARY")
    found = rows.select(decode_headers("application_headers", words).alias("headers")).select("headers.*")
    assert_rows(found, [("SAP", 1.5)], "symbol STRING, price DOUBLE")


@pytest.mark.spark
def test_headers_that_do_not_fit_fail_the_query(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(SAP,)], "application_headers BINARY")
    wrong = t.StructType([t.StructField("symbol", t.IntegerType())])
    query = rows.filter(decode_headers("application_headers", wrong)["symbol"] == 1)
    with pytest.raises(Exception, match="HeadersError") as caught:
        query.collect()
    text, code = cli.explain(caught.value)
    assert text.startswith("[AMQP_HEADERS_UNFIT] Encoded headers cannot be decoded in 1 row(s) of a batch")
    assert "; the first: symbol: str16 is not an integer" in text
    assert code == 1
    assert "SAP" not in text
