"""SQL over queues: temporary views, and tables, which keep no options."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException

from tests.broker.stream_support import bodies, depth, numbers, publish

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.support.fixtures import Broker, Connect

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture
def name(spark: SparkSession) -> Iterator[str]:
    """A name for a view or table, which is dropped after the test."""
    name = f"t{uuid.uuid4().hex}"
    yield name
    spark.catalog.dropTempView(name)
    spark.sql(f"DROP TABLE IF EXISTS {name}")


def options(broker: Broker, **more: str) -> str:
    given = {"url": broker.url(), "username": broker.username, "password": broker.password} | more
    return ", ".join(f"'{key}' = '{value}'" for key, value in given.items())


def test_a_temporary_view_has_options_and_a_schema(
    spark: SparkSession, broker: Broker, connect: Connect, queue: str, name: str
) -> None:
    client = connect(heartbeat=0)
    publish(client, queue, numbers(10))
    given = options(broker, queue=queue)
    spark.sql(f"CREATE TEMPORARY VIEW {name} (body BINARY, position BIGINT) USING amqp OPTIONS ({given})")
    assert bodies(spark.sql(f"SELECT * FROM {name} ORDER BY position").collect()) == numbers(10)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {name} USING amqp OPTIONS ({given})")
    assert [tuple(row) for row in spark.sql(f"SELECT queue, count(*) FROM {name} GROUP BY queue").collect()] == [
        (queue, 10)
    ]
    assert depth(client, queue) == 10
    shown = spark.sql(f"EXPLAIN EXTENDED SELECT * FROM {name}").collect() + spark.sql(f"DESCRIBE {name}").collect()
    assert f"password={broker.password}" not in str(shown)


def test_a_table_is_given_its_options_at_each_use(
    spark: SparkSession, broker: Broker, connect: Connect, queue: str, name: str
) -> None:
    given = options(broker, queue=queue)
    with pytest.raises(AnalysisException, match=r"\[AMQP_TABLE_KEEPS_NO_OPTIONS\].*Use CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE {name} USING amqp OPTIONS ({given})")
    spark.sql(f"CREATE TABLE {name} (body STRING) USING amqp OPTIONS ({given})")
    with pytest.raises(AnalysisException, match="Option 'url' is required"):
        spark.sql(f"SELECT * FROM {name}").collect()
    spark.sql(f"INSERT INTO {name} WITH ({options(broker, routingKey=queue)}) VALUES ('a'), ('b')")
    assert depth(connect(heartbeat=0), queue) == 2
    found = spark.sql(f"SELECT * FROM {name} WITH ({given})").collect()
    assert sorted(row.body for row in found) == ["a", "b"]
