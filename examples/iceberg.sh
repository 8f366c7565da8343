#!/bin/sh
# Iceberg as the target: a catalog with the name "lake" in a directory, and the table lake.db.ticks in it.
# Iceberg 1.12.0, the newest, is made for Spark 4.1 and does not load with Spark 4.2 and 4.3: the job ends with an error, and
# every message stays on the queue. When there is an Iceberg for your Spark, name it in the line with --packages.
set -eu
jobs=$(dirname "$0")/../jobs

spark-submit --master 'local[2,4]' \
  --packages org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0 \
  --conf spark.sql.catalog.lake=org.apache.iceberg.spark.SparkCatalog \
  --conf spark.sql.catalog.lake.type=hadoop \
  --conf spark.sql.catalog.lake.warehouse=data/lake \
  "$jobs/ingest.py" --queue ticks \
  --schema 'message_id STRING, body STRING, application_headers STRUCT<symbol STRING, price DOUBLE, qty INT>' \
  --format iceberg --table lake.db.ticks --checkpoint data/iceberg.checkpoint --available-now
