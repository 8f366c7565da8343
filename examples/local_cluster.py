"""Executors in processes of their own: local-cluster is a cluster on one machine, to try what differs from local mode.

The driver receives the messages, executors pull them from it and publish rows. They need the broker, the driver (option
`transferHost`), and a Python with amqp-spark at the same path on every node (PYSPARK_PYTHON), or --py-files.
"""

from __future__ import annotations

import os

from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local-cluster[2,1,1024]")  # two executors with one core and 1024 MB each
    .config("spark.executor.memory", "512m")
    .getOrCreate()
)
broker = {
    "url": os.environ.get("AMQP_URL", "amqp://localhost:5672"),
    "username": os.environ.get("AMQP_USERNAME", "guest"),
    "password": os.environ.get("AMQP_PASSWORD", "guest"),
}

ticks = (
    spark.readStream.format("amqp")
    .options(**broker)
    .option("queue", "ticks")
    .option("transfer", "pull")
    .schema("body STRING, message_id STRING, application_headers STRUCT<symbol STRING, price DOUBLE, qty INT>")
    .load()
)
query = (
    ticks.where("application_headers.qty >= 450")
    .select("body", "message_id")
    .writeStream.format("amqp")
    .options(**broker)
    .option("routingKey", "large")
    .option("checkpointLocation", "data/local_cluster.checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
spark.stop()
