"""Columns that a stream of RabbitMQ does not keep are refused by ``queueType=stream`` of the sink."""

from __future__ import annotations

import pytest
from pyspark.sql import types as t

from amqp_spark.errors import OptionError, SchemaError
from amqp_spark.validation import check_sink

INT, TEXT = t.IntegerType(), t.StringType()


def problems(name: str, kind: t.DataType, **options: str) -> tuple[str, ...]:
    schema = t.StructType([t.StructField("body", t.BinaryType()), t.StructField(name, kind)])
    try:
        check_sink({"url": "amqp://h", "queueType": "stream"} | options, schema)
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


def test_a_decimal_for_which_the_connection_is_closed_is_always_refused() -> None:
    for found in ("fail", "drop"):
        kind = headers(price=t.DecimalType(9, 2))
        (problem,) = problems("application_headers", kind, onUnsupported=found)
        assert "'application_headers.price' is not supported: RabbitMQ closes the connection" in problem


def test_what_a_stream_keeps_is_sent() -> None:
    assert problems("application_headers", headers(a=INT, b=TEXT, c=t.DoubleType(), d=t.BinaryType())) == ()
    assert problems("message_id", TEXT) == ()
    with pytest.raises(OptionError, match=r"'queueType' has the value 'quorum'.*Allowed: stream"):
        problems("message_id", TEXT, queueType="quorum")
