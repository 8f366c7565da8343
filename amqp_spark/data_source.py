"""The data source of ``format("amqp")``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import UnsupportedModeError
from amqp_spark.options import CONNECTION, SourceOptions
from amqp_spark.python_workers import Portable

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from amqp_spark.datasource.batch_reader import AmqpBatchReader
    from amqp_spark.datasource.log.batch_reader import AmqpLogBatchReader
    from amqp_spark.datasource.log.stream_reader import AmqpLogStreamReader
    from amqp_spark.datasource.stream_reader import AmqpStreamReader
    from amqp_spark.sink.writer import AmqpBatchWriter, AmqpStreamWriter


_LOGIN = {option.name.lower() for option in CONNECTION if option.secret} | {"username", "passwordfile", "tls.keyfile"}


class AmqpDataSource(Portable, DataSource):
    """AMQP 0-10 and 0-9-1 for Spark: read queues and streams of RabbitMQ, write rows to exchanges.

    Reading::

        ticks = (spark.readStream.format("amqp")
                 .option("url", "amqp://broker:5672/default")
                 .option("username", "guest").option("passwordFile", "/run/secrets/amqp")
                 .option("queue", "ticks")
                 .schema("body STRING, routing_key STRING, application_headers STRUCT<symbol STRING, qty INT>")
                 .load())

    Without a schema every property of a message is a column. ``url`` and ``queue`` are required; the other options
    (credentials, TLS, bounds of a batch, delivery guarantee, ...) are listed in ``docs/options.md`` with their
    defaults, and in the tables of ``amqp_spark.options``. ``spark.read.format("amqp")`` browses the messages that are
    in the queue now and consumes none (AMQP 0-10), or reads a range of a stream of RabbitMQ.

    Writing::

        query = (ticks.writeStream.format("amqp")
                 .option("url", "amqp://broker:5672/default")
                 .option("username", "guest").option("passwordFile", "/run/secrets/amqp")
                 .option("exchange", "amq.topic")
                 .option("checkpointLocation", ...)
                 .start())

    ``frame.write.format("amqp").mode("append")`` writes a static frame. ``url`` and a column ``body`` are required;
    ``docs/columns.md`` lists the other columns, and the wire type of each type. Executors connect to the broker, so the
    credentials are sent to them inside the pickled writer. For ``foreachBatch`` use
    :class:`amqp_spark.sink.AmqpBatchSink`.

    Spark makes one object for each use and calls it on one thread.
    """

    _redacted = False

    @classmethod
    def name(cls) -> str:
        """The name for ``format()``."""
        return "amqp"

    def schema(self) -> StructType:
        """Return the default schema: every property that a message can have, its queue, position and body.

        Spark calls it in ``load()`` if no schema was given.

        Raises:
            OptionError: it lists every problem of the options.
        """
        # Imported here and below: each is a new process of Spark, and needs a part of the package only.
        from amqp_spark.arrow.decode import schema_with  # noqa: PLC0415

        options = SourceOptions.parse(self.options)
        return schema_with(options.corrupt_column)

    def reader(self, schema: StructType) -> AmqpBatchReader | AmqpLogBatchReader:
        """Return a reader that browses the messages that the queues hold now.

        Args:
            schema: columns to read.

        Raises:
            OptionError: it lists every problem of the options; ``mode=REJECT`` is one.
            SchemaError: it lists every column that cannot be read.
        """
        from amqp_spark.validation import check_source  # noqa: PLC0415

        options, columns = check_source(self.options, schema, streaming=False)
        self._redacted = True
        if options.reads_streams:
            from amqp_spark.datasource.log.batch_reader import AmqpLogBatchReader  # noqa: PLC0415

            return AmqpLogBatchReader(options, columns)
        from amqp_spark.datasource.batch_reader import AmqpBatchReader  # noqa: PLC0415

        return AmqpBatchReader(options, columns)

    def streamReader(self, schema: StructType) -> AmqpStreamReader | AmqpLogStreamReader:  # noqa: N802  Spark's name
        """Return the reader of a streaming query.

        Args:
            schema: columns to read.

        Raises:
            OptionError: it lists every problem of the options.
            SchemaError: it lists every column that cannot be read.
        """
        from amqp_spark.validation import check_source  # noqa: PLC0415

        options, columns = check_source(self.options, schema, streaming=True)
        self._redacted = True
        if options.reads_streams:
            from amqp_spark.datasource.log.stream_reader import AmqpLogStreamReader  # noqa: PLC0415

            return AmqpLogStreamReader(options, columns)
        from amqp_spark.datasource.stream_reader import AmqpStreamReader  # noqa: PLC0415

        return AmqpStreamReader(options, columns)

    def writer(self, schema: StructType, overwrite: bool) -> AmqpBatchWriter:  # noqa: FBT001  Spark's signature
        """Return the writer of a static frame.

        Args:
            schema: columns of the frame.
            overwrite: refused, since an exchange stores no messages.

        Raises:
            OptionError: it lists every problem of the options.
            SchemaError: it lists every column that cannot be written.
            UnsupportedModeError: ``overwrite`` is set.
        """
        from amqp_spark.sink.writer import AmqpBatchWriter  # noqa: PLC0415
        from amqp_spark.validation import check_sink  # noqa: PLC0415

        options, plan = check_sink(self.options, schema, batch_write=True)
        if overwrite:
            reason, alternative = "an exchange holds nothing to replace", 'mode("append")'
            problem = SparkCondition.MODE_UNSUPPORTED(mode='mode("overwrite")', reason=reason, alternative=alternative)
            raise UnsupportedModeError(problem)
        return AmqpBatchWriter(options, plan)

    def streamWriter(self, schema: StructType, overwrite: bool) -> AmqpStreamWriter:  # noqa: N802, FBT001
        """Return the writer of a streaming query.

        Args:
            schema: columns of the frame.
            overwrite: outputMode complete: each batch has all rows of the result, and all are sent.

        Raises:
            OptionError: it lists every problem of the options.
            SchemaError: it lists every column that cannot be written.
        """
        from amqp_spark.sink.writer import AmqpStreamWriter  # noqa: PLC0415
        from amqp_spark.validation import check_sink  # noqa: PLC0415

        options, plan = check_sink(self.options, schema)
        return AmqpStreamWriter(options, plan)

    def __getstate__(self) -> dict[str, object]:
        """Leave out credentials once the reader was made: from then on this object is only pickled for executors."""
        state = dict(self.__dict__)
        if self._redacted:
            state["options"] = {key: value for key, value in self.options.items() if key.lower() not in _LOGIN}
        return state
