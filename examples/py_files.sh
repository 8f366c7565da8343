#!/bin/sh
# Without an installation: spark-submit sends the wheel, the only argument, to the driver and to all executors.
# Workers still need a Python with pyarrow, pandas, numpy and cryptography. Your own program calls amqp_spark.register(spark)
# first; the jobs do. A zip of the wheel's content works as well.
set -eu
wheel=$1
jobs=$(dirname "$0")/../jobs

spark-submit --master 'local[2,4]' --py-files "$wheel" \
  "$jobs/ingest.py" --queue ticks --schema 'body STRING, routing_key STRING' \
  --format parquet --output data/py_files --checkpoint data/py_files.checkpoint --available-now
