"""Which tests run in each cell: those whose outcome depends on Spark, Python or the installation.

What reads the source tree (documents, layers, generated code) has no place here, and the crash matrix kills the same
processes on any Spark.
"""

from __future__ import annotations

from typing import Final

BRIEF: Final = (
    # Installation: Spark finds format("amqp") in a directory that has nothing.
    "tests/broker/test_registration.py",
    # Executors are JVMs of their own, that start workers, and pull batches.
    "tests/broker/test_local_cluster.py",
    # Interface to Spark: readers, offsets and batches as Spark calls them, types of columns in both directions.
    "tests/spark/test_source.py",
    "tests/spark/test_batch_reader.py",
    "tests/spark/test_stream_reader_batches.py",
    "tests/spark/test_stream_reader_offsets.py",
    "tests/spark/test_columns_in_spark.py",
    # What is decoded and encoded with this numpy and this Arrow.
    "tests/spark/test_shapes.py",
    "tests/spark/test_without_pandas.py",
    "tests/spark/test_encoding_values_in_spark.py",
    "tests/spark/test_functions.py",
    # Source: streams of both protocols.
    "tests/broker/test_stream_reading.py",
    "tests/broker/test_source_0_9.py",
    # Sink: streams, batches and foreachBatch of both protocols, and each type of Spark.
    "tests/broker/test_sink_basic.py",
    "tests/broker/test_sink_types.py",
    "tests/broker/test_sink_0_9.py",
    # Exactly-once: transactions, recognised redelivery.
    "tests/broker/test_exactly_once_source.py",
    "tests/broker/test_exactly_once_quorum.py",
    "tests/broker/test_exactly_once_sink.py",
    # Events and progress of queries, as this Spark reports them; the look at its session and workers.
    "tests/box/test_monitoring.py",
    "tests/box/test_job_panel.py",
    "tests/spark/test_doctor_in_spark.py",
    # The client below: sockets, TLS and threads of this Python.
    "tests/broker/test_client.py",
)
"""As ``make test`` runs them."""
THOROUGH: Final = (
    # Spark Connect: source, sink and foreachBatch in processes of its server.
    "tests/broker/test_spark_connect.py",
)
"""As ``make test-all`` runs them: ``make test`` omits them."""
