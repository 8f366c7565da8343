"""A declarative pipeline: a queue becomes a table, a second table sums it up, and some rows go back to the broker.

Each function says what a table contains; Spark starts the queries in order, and keeps their checkpoints in `storage`.
Each run takes what is on the queue, and ends. A table that reads a queue has to be a streaming one (`@dp.table`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

spark = SparkSession.active()
broker = {
    "url": os.environ.get("AMQP_URL", "amqp://localhost:5672"),
    "username": os.environ.get("AMQP_USERNAME", "guest"),
    "password": os.environ.get("AMQP_PASSWORD", "guest"),
}

dp.create_sink("large_orders", "amqp", {**broker, "routingKey": "large"})


@dp.table
def ticks() -> DataFrame:
    """Every message of the queue."""
    columns = "message_id STRING, body STRING, application_headers STRUCT<symbol STRING, price DOUBLE, qty INT>"
    return spark.readStream.format("amqp").options(**broker).option("queue", "ticks").schema(columns).load()


@dp.materialized_view
def volumes() -> DataFrame:
    """The volume of each symbol."""
    orders = spark.read.table("ticks").select("application_headers.*")
    return orders.groupBy("symbol").agg(f.sum("qty").alias("volume"))


@dp.append_flow(target="large_orders")
def send_large_orders() -> DataFrame:
    """Large ones, to the queue "large"."""
    return spark.readStream.table("ticks").where("application_headers.qty >= 450").select("body", "message_id")
