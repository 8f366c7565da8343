"""Columns and encoded headers that a stream of RabbitMQ does not keep are refused with ``queueType=stream``."""

from __future__ import annotations

from decimal import Decimal

import pytest
from pyspark.sql import types as t

from amqp_spark.errors import OptionError, RowError, SchemaError
from amqp_spark.validation import check_sink
from tests.spark.message_support import sink_options
from tests.spark.publish_support import encoded, one
from tests.support.wire_0_9 import long, table

INT, TEXT = t.IntegerType(), t.StringType()


def problems(name: str, kind: t.DataType, **options: str) -> tuple[str, ...]:
    schema = t.StructType([t.StructField("body", t.BinaryType()), t.StructField(name, kind)])
    try:
        check_sink({"url": "amqp://h", "exchange": "e", "queueType": "stream"} | options, schema)
    except SchemaError as error:
        return error.problems
    return ()


def headers(**kinds: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in kinds.items()])


@pytest.mark.parametrize(
    ("name", "kind", "part"),
    [
        ("application_headers", headers(a=INT, list=t.ArrayType(INT)), "application_headers.list"),
        ("application_headers", headers(inner=headers(a=INT)), "application_headers.inner"),
        ("application_headers", t.MapType(TEXT, t.MapType(TEXT, INT)), "application_headers.value"),
        ("application_headers", t.VariantType(), "application_headers"),
        ("cluster_id", TEXT, "cluster_id"),
    ],
)
def test_what_a_stream_leaves_out_is_refused(name: str, kind: t.DataType, part: str) -> None:
    (problem,) = problems(name, kind)
    assert f"{part!r} is not supported: a stream of RabbitMQ leaves it out" in problem
    assert "onUnsupported=drop" in problem
    assert problems(name, kind, onUnsupported="drop") == ()


def test_it_is_refused_together_with_wrong_options() -> None:
    with pytest.raises(OptionError) as caught:
        problems("cluster_id", TEXT, heartbeat="never")
    assert ["'heartbeat'" in caught.value.problems[0], "'cluster_id'" in caught.value.problems[-1]] == [True] * 2
    with pytest.raises(OptionError) as caught:
        problems("cluster_id", TEXT, heartbeat="never", onUnsupported="drop")
    assert len(caught.value.problems) == 1


def test_a_decimal_is_sent_as_text_which_a_stream_keeps() -> None:
    kind = headers(price=t.DecimalType(9, 2))
    assert problems("application_headers", kind) == ()
    schema = t.StructType([t.StructField("body", t.BinaryType()), t.StructField("application_headers", kind)])
    row = {"body": b"", "application_headers": {"price": Decimal("1.50")}}
    assert one(schema, row, sink_options(queueType="stream")).headers == {"price": ("S", "1.50")}


def test_what_a_stream_keeps_is_sent() -> None:
    assert problems("application_headers", headers(a=INT, b=TEXT, c=t.DoubleType(), d=t.BinaryType())) == ()
    assert problems("message_id", TEXT) == ()
    with pytest.raises(OptionError, match=r"'queueType' has the value 'quorum'.*Allowed: stream"):
        problems("message_id", TEXT, queueType="quorum")


RAW = t.StructType([t.StructField("body", t.BinaryType()), t.StructField("application_headers", t.BinaryType())])
NUMBER = (b"n", b"I" + bytes(4))
PLAIN = table(NUMBER, (b"text", b"S" + long(b"a")), (b"raw", b"x" + long(b"\xff")), ("é".encode(), b"V"))
DECIMAL = b"D\x02" + bytes(4)
ARRAY, INNER = b"A" + long(b"I" + bytes(4)), b"F" + table(NUMBER)


def refused(*raw: bytes | None, **options: object) -> str:
    """Why one of these encoded headers is refused; nothing if all are sent."""
    rows = [{"body": b"", "application_headers": each} for each in raw]
    try:
        encoded(RAW, rows, sink_options(**{"queueType": "stream"} | options))
    except RowError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("value", "what"),
    [(ARRAY, "an array"), (INNER, "a table"), (b"A" + long(DECIMAL), "an array"), (b"F" + long(b""), "a table")],
)
def test_encoded_headers_that_a_stream_leaves_out_are_refused(value: bytes, what: str) -> None:
    headers_ = table(NUMBER, (b"legs", value), NUMBER)
    found = refused(PLAIN, None, headers_, PLAIN)
    assert "Row 2 of" in found
    assert f"'application_headers' has {what} at ['legs'], which a stream of RabbitMQ leaves out" in found
    assert refused(headers_, onUnsupported="drop") == ""
    rows = [{"body": b"", "application_headers": headers_}]
    assert len(encoded(RAW, rows, sink_options())) == 1, "a queue keeps it"


def test_an_encoded_decimal_is_always_refused() -> None:
    for found in ("fail", "drop"):
        headers_ = table((b"legs", ARRAY), (b"price", DECIMAL)) if found == "drop" else table((b"price", DECIMAL))
        text = refused(PLAIN, headers_, onUnsupported=found)
        assert "Row 1 of" in text
        assert "has a decimal at ['price'], and RabbitMQ closes the connection" in text


def test_encoded_headers_that_a_stream_keeps_are_sent() -> None:
    many = table(*((b"k%d" % number, b"I" + bytes(4)) for number in range(100)))
    assert refused(PLAIN, None, table(), many) == ""
    assert refused(PLAIN, None, table(), many, stampHeaders=True) == ""


def test_a_malformed_table_has_the_reason_of_every_table() -> None:
    assert "the value at byte 6 is longer than the table" in refused(long(b"\x01aA" + bytes([0, 0, 9, 9])))
    assert "unknown type letter" in refused(long(b"\x01aZ"))
