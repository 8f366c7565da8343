"""Real Spark hands columns over, in each of its layouts, and reads them back as they were."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.sql import types as t

from amqp_core.v0_10 import type_codes as code
from amqp_core.v0_10._read import read_map_typed
from amqp_core.v0_10.type_codes import Typed
from amqp_spark.arrow.columns.conversion import unsupported_parts
from amqp_spark.arrow.decode import ColumnPlan
from tests.support import wire
from tests.support.received import chunk_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ROWS = """
    SELECT named_struct(
        'text', if(id % 2 = 0, 'é' || id, NULL),
        'octets', X'ff00',
        'tiny', CAST(id AS TINYINT),
        'real', CAST(1.5 AS FLOAT),
        'price', CAST(id / 1000 AS DECIMAL(38, 18)),
        'at', TIMESTAMP '2026-07-01 12:00:00.5+02:00',
        'local', TIMESTAMP_NTZ '2026-07-01 12:00:00',
        'day', DATE '2020-02-29',
        'tags', map('k', CAST(id AS STRING)),
        'items', array(id, NULL)
    ) AS h FROM range(3)
"""
VARIANTS = """
    SELECT to_variant_object(named_struct(
        'json', parse_json('{"a": [1, 2.5, "x", null, true, 1e300, 123456789012], "b": {}}'),
        'tiny', CAST(7 AS TINYINT), 'real', CAST(1.5 AS FLOAT), 'price', CAST(1.5 AS DECIMAL(10, 2)), 'octets', X'ff00',
        'at', TIMESTAMP '2026-07-01 12:00:00.5+02:00', 'local', TIMESTAMP_NTZ '2026-07-01 12:00:00',
        'day', DATE '2020-02-29'
    )) AS h
"""


@pytest.fixture(params=["false", "true"], ids=["usual types", "large types"])
def session(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    settings = {"spark.sql.execution.arrow.useLargeVarTypes": request.param}
    settings["spark.sql.session.timeZone"] = "America/New_York"
    before = {key: spark.conf.get(key) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    yield spark
    for key, old in before.items():
        assert old is not None
        spark.conf.set(key, old)


def encoder(kind: Any) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def encode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as arrow  # noqa: ICN001, PLC0415 - the function travels to the workers by value

        from amqp_spark.arrow.rows.dialect import AMQP_0_10  # noqa: PLC0415
        from amqp_spark.arrow.rows.values import encode_map  # noqa: PLC0415

        for batch in batches:
            column, errors = encode_map(batch.column(0), kind, AMQP_0_10)
            assert not errors
            yield arrow.RecordBatch.from_arrays([column], ["h"])

    return encode


def encoded(spark: SparkSession, query: str) -> tuple[DataFrame, list[bytes]]:
    """The rows, and what the workers have made of them."""
    frame = spark.sql(query)
    kind = frame.schema["h"].dataType
    assert unsupported_parts(kind, "h", sent=True) == []
    rows = frame.mapInArrow(encoder(kind), "h BINARY").collect()
    return frame, [bytes(row.h) for row in rows]


def test_every_type_from_spark_and_back(session: SparkSession) -> None:
    before, maps = encoded(session, ROWS)
    fields = read_map_typed(maps[1], 0)[0]
    assert {name: (item.code, item.value) for name, item in fields.items()} == {
        "octets": (code.VBIN32, b"\xff\0"),
        "tiny": (code.INT8, 1),
        "real": (code.FLOAT, 1.5),
        "price": (code.STR16, "0.001000000000000000"),
        "at": (code.STR16, "2026-07-01T10:00:00.500000Z"),
        "local": (code.STR16, "2026-07-01T12:00:00.000000"),
        "day": (code.STR16, "2020-02-29"),
        "tags": (code.MAP, {"k": Typed(code.STR16, "1")}),
        "items": (code.LIST, [Typed(code.INT64, 1), Typed(code.VOID, None)]),
    }
    assert read_map_typed(maps[2], 0)[0]["text"] == Typed(code.STR16, "é2")
    # With Arrow 18, createDataFrame() takes no table with NOT NULL inside a STRUCT.
    columns = t.StructType([t.StructField("application_headers", before.schema["h"].dataType)]).toNullable()
    plan = ColumnPlan.build(columns, mode="FAILFAST", timestamp_unit="auto")
    block = b"".join(wire.transfer(wire.message(application_headers=row), b"body") for row in maps)
    table = pa.Table.from_batches(plan.batches([chunk_of(block)], queue="q", first_position=0))
    back = session.createDataFrame(table, schema=columns)
    wanted = before.select("h.*")
    expected = session.createDataFrame(wanted.collect(), schema=wanted.schema.toNullable())
    assert_df_equality(back.select("application_headers.*"), expected)


def test_variants_that_spark_makes(session: SparkSession) -> None:
    _, (row,) = encoded(session, VARIANTS)
    fields = read_map_typed(row, 0)[0]
    items = [
        *(Typed(code.INT8, 1), Typed(code.STR16, "2.5"), Typed(code.STR16, "x"), Typed(code.VOID, None)),
        *(Typed(code.BOOLEAN, True), Typed(code.DOUBLE, 1e300), Typed(code.INT64, 123456789012)),
    ]
    assert fields == {
        "json": Typed(code.MAP, {"a": Typed(code.LIST, items), "b": Typed(code.MAP, {})}),
        "tiny": Typed(code.INT8, 7),
        "real": Typed(code.FLOAT, 1.5),
        "price": Typed(code.STR16, "1.50"),
        "octets": Typed(code.VBIN32, b"\xff\0"),
        "at": Typed(code.STR16, "2026-07-01T10:00:00.500000Z"),
        "local": Typed(code.STR16, "2026-07-01T12:00:00.000000"),
        "day": Typed(code.STR16, "2020-02-29"),
    }
