"""Spark Connect: the query runs on a server, and this program is only its client.

Only the server (SPARK_REMOTE=sc://host:15002 names yours) needs amqp-spark. It logs options: give it a passwordFile.
For exactly-once the sink is format("amqp"): AmqpBatchSink (foreachBatch) cannot know its query here, and refuses it.
"""

from __future__ import annotations

import os

from pyspark.sql import SparkSession

spark = SparkSession.builder.remote(os.environ.get("SPARK_REMOTE", "local[2]")).getOrCreate()
broker = {
    "url": os.environ.get("AMQP_URL", "amqp://localhost:5672"),
    "username": os.environ.get("AMQP_USERNAME", "guest"),
    "password": os.environ.get("AMQP_PASSWORD", "guest"),
}

ticks = (
    spark.readStream.format("amqp")
    .options(**broker)
    .option("queue", "ticks")
    .schema("body STRING, routing_key STRING, application_headers STRUCT<symbol STRING, price DOUBLE, qty INT>")
    .load()
)
query = (
    ticks.selectExpr("routing_key", "application_headers.*")
    .writeStream.format("parquet")
    .option("checkpointLocation", "data/connect.checkpoint")
    .trigger(availableNow=True)
    .start("data/connect")
)
query.awaitTermination()

spark.read.parquet("data/connect").groupBy("symbol").sum("qty").orderBy("symbol").show()
