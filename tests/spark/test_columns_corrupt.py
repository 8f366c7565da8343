"""The column that says why a message did not fit, and keeps what its columns could not take."""

from __future__ import annotations

import base64
import json
import pickle
import struct
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import types as t

from amqp_spark import validate
from amqp_spark.arrow.decode import DEFAULT_SCHEMA, ColumnPlan, schema_with
from amqp_spark.errors import UNDECODABLE, OptionError, SchemaError
from tests.support import wire
from tests.support.received import batches_both_ways, chunk_of

if TYPE_CHECKING:
    from typing import Any

TEXT, NUMBER = t.StringType(), t.IntegerType()
MAP = wire.map_([(b"qty", 0x31, struct.pack(">q", 2**40))])
HEADERS = wire.message(application_headers=MAP)
SCHEMA = t.StructType(
    [
        t.StructField("position", t.LongType()),
        t.StructField("_corrupt_record", TEXT),
        t.StructField("body", TEXT),
        t.StructField("application_headers", t.StructType([t.StructField("qty", NUMBER)])),
    ]
)
GOOD = wire.transfer(b"", b"fine")
BAD = wire.transfer(HEADERS, b"ab\xff")
BROKEN = wire.transfer(b"\0\0\1\0", b"body")


def plan(schema: t.StructType = SCHEMA, mode: str = "PERMISSIVE", **options: str) -> ColumnPlan:
    built = ColumnPlan.build(schema, mode=mode, timestamp_unit="auto", **options)
    copied: ColumnPlan = pickle.loads(pickle.dumps(built))
    return copied


def rows(columns: ColumnPlan, *blocks: bytes) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for batch in batches_both_ways(columns, map(chunk_of, blocks), first_position=7):
        assert batch.schema.equals(columns.arrow_schema, check_metadata=True)
        out += batch.to_pylist()
    return out


def test_it_has_every_reason_and_what_the_columns_could_not_take() -> None:
    first, second, third = rows(plan(), GOOD + BAD + GOOD)
    assert first == {"position": 7, "_corrupt_record": None, "body": "fine", "application_headers": None}
    assert third["_corrupt_record"] is None
    assert (second["position"], second["body"], second["application_headers"]) == (8, None, None)
    record = json.loads(second["_corrupt_record"])
    assert record["reasons"].keys() == {"body", "application_headers"}
    assert "not UTF-8" in record["reasons"]["body"]
    assert "qty: int64 1099511627776 does not fit INT" in record["reasons"]["application_headers"]
    assert base64.b64decode(record["body"]) == b"ab\xff"
    assert base64.b64decode(record["application_headers"]) == MAP
    assert "transfer" not in record


def test_of_a_message_that_cannot_be_decoded_it_has_the_frames() -> None:
    _, second, third = rows(plan(), GOOD + BROKEN + BAD)
    record = json.loads(second["_corrupt_record"])
    assert record["reasons"].keys() == {UNDECODABLE}
    assert base64.b64decode(record["transfer"]) == BROKEN
    assert "body" not in record
    assert base64.b64decode(json.loads(third["_corrupt_record"])["body"]) == b"ab\xff"


def test_a_message_whose_headers_are_malformed_and_not_asked_for_keeps_its_body() -> None:
    schema = t.StructType([t.StructField("body", TEXT), t.StructField("_corrupt_record", TEXT)])
    (row,) = rows(plan(schema), wire.transfer(b"\0\0\1\0", b"\xff"))
    assert base64.b64decode(json.loads(row["_corrupt_record"])["body"]) == b"\xff"


def test_the_record_of_one_message_takes_nothing_from_another_whose_headers_are_malformed() -> None:
    schema = t.StructType([t.StructField("_corrupt_record", TEXT), t.StructField("body", TEXT)])
    first, second = rows(plan(schema), BAD + BROKEN)
    assert json.loads(first["_corrupt_record"])["reasons"].keys() == {"body"}
    assert second == {"_corrupt_record": None, "body": "body"}


def test_another_name_is_compared_without_case() -> None:
    schema = t.StructType([t.StructField("Why", TEXT), t.StructField("body", TEXT)])
    (row,) = rows(plan(schema, corrupt_column="why"), BAD)
    assert "not UTF-8" in json.loads(row["Why"])["reasons"]["body"]


@pytest.mark.parametrize("mode", ["FAILFAST", "REJECT"])
def test_in_other_modes_it_is_null(mode: str) -> None:
    (row,) = rows(plan(mode=mode), GOOD)
    assert row["_corrupt_record"] is None


@pytest.mark.parametrize(
    ("field", "options", "text"),
    [
        (t.StructField("_corrupt_record", t.BinaryType()), {}, "'_corrupt_record' cannot have the type binary.*STRING"),
        (t.StructField("_corrupt_record", TEXT, nullable=False), {}, "cannot have the type string NOT NULL"),
        (t.StructField("body", TEXT), {"corrupt_column": "Body"}, "'Body', which is a column of messages"),
        (
            t.StructField("body", TEXT),
            {"corrupt_column": "why"},
            "'why', which the schema does not have. Use a STRING",
        ),
        (t.StructField("_corrupt_record", TEXT), {"corrupt_column": "why"}, "There is no column '_corrupt_record'"),
    ],
)
def test_a_column_that_cannot_be_is_refused(field: t.StructField, options: dict[str, str], text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        plan(t.StructType([field]), **options)


def test_without_a_schema_the_option_adds_the_column() -> None:
    assert schema_with(None) == DEFAULT_SCHEMA
    assert schema_with("body") == DEFAULT_SCHEMA
    assert schema_with("why").fields[-1] == t.StructField("why", TEXT)
    given = {"url": "amqp://h", "queue": "q", "mode": "PERMISSIVE", "columnNameOfCorruptRecord": "why"}
    assert validate(given, schema_with("why")).corrupt_column == "why"
    with pytest.raises((OptionError, SchemaError), match="the schema does not have"):
        validate(given, DEFAULT_SCHEMA)
