#!/bin/sh
# Delta as the target: Spark downloads Delta from Maven Central, and two settings make it known to Spark.
# A batch and its number are one commit of Delta, which skips a number that it has: a batch that is repeated after a crash
# is written once. The broker's messages are accepted after that commit.
set -eu
jobs=$(dirname "$0")/../jobs

spark-submit --master 'local[2,4]' \
  --packages io.delta:delta-spark_2.13:4.4.0 \
  --conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension \
  --conf spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog \
  "$jobs/ingest.py" --queue ticks \
  --schema 'message_id STRING, body STRING, application_headers STRUCT<symbol STRING, price DOUBLE, qty INT>' \
  --format delta --output data/delta --checkpoint data/delta.checkpoint --available-now
