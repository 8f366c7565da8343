"""A declarative pipeline: a queue is a streaming table, a table over it is kept up to date, and rows go back to the broker.

Each table says what it contains; Spark finds the order, starts the queries, and keeps their checkpoints in `storage`.
Every run takes what is on the queue, and ends. A table that reads a queue must be streaming: a message can be read once.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyspark import pipelines as dp
from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

spark = SparkSession.active()
broker = {"url": os.environ.get("AMQP_URL", "amqp://localhost:5672"), "username": "guest", "password": "guest"}

dp.create_sink("large_orders", "amqp", {**broker, "routingKey": "large"})


@dp.table
def ticks() -> DataFrame:
    """Every message of the queue."""
    columns = "message_id STRING, body STRING, application_headers STRUCT<symbol STRING, price DOUBLE, qty INT>"
    return spark.readStream.format("amqp").options(**broker).option("queue", "ticks").schema(columns).load()


@dp.materialized_view
def volumes() -> DataFrame:
    """The volume of each symbol."""
    return spark.read.table("ticks").groupBy("application_headers.symbol").agg({"application_headers.qty": "sum"})


@dp.append_flow(target="large_orders")
def send_large_orders() -> DataFrame:
    """Large ones, to the queue "large"."""
    return spark.readStream.table("ticks").where("application_headers.qty >= 450").select("body", "message_id")
