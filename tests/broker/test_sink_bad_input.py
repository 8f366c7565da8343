"""Input that cannot be sent: each an error that says where, what and what is allowed, with nothing of it on a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException

from amqp_spark.errors import OptionError, SchemaError
from amqp_spark.sink import AmqpBatchSink
from tests.broker.sink_support import login, write
from tests.broker.stream_support import depth
from tests.support.capabilities import needs
from tests.support.dial import address
from tests.support.taking import take

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.support.brokerj import BrokerJ
    from tests.support.fixtures import Broker, Connect, OwnBroker

pytestmark = [pytest.mark.spark, pytest.mark.broker]

UUID_TEXT = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"
BATCH = 12


def bad_second(spark: SparkSession, column: str, good: str, bad: str) -> DataFrame:
    """Three rows of one partition; the second has the SQL value ``bad`` in the column."""
    rows = spark.range(0, 3, 1, 1)
    value = f"IF(id = 1, {bad}, {good}) AS {column}"
    return rows.selectExpr(value) if column == "body" else rows.selectExpr(value, "IF(id = 1, 'bad', 'good') AS body")


def bodies_on(connect: Connect, queue: str) -> set[bytes]:
    client = connect(heartbeat=0)
    count = depth(client, queue)
    subscription = client.subscribe(queue)
    subscription.grant(count)
    return {message.body for message in take(subscription, count)} if count else set()


TEXT_300 = "repeat('k', 300)"
DEEP = "concat(repeat('{\"a\":', 20), '1', repeat('}', 20))"

ROWS = {
    "body NULL": ("body", "'good'", "NULL", "column 'body' is NULL; write an empty body instead"),
    "body, text in a map": (
        "body", "map('a', 'good')", "map('a', repeat('k', 65536))",
        "column 'body' has a text of 65,536 bytes at ['a']; a STRING inside a map or list has at most 65,535 bytes",
    ),
    "body, scalar VARIANT": (
        "body", "parse_json('{}')", "parse_json('5')",
        "column 'body' is a VARIANT of a scalar; an object (amqp/map) or an array (amqp/list) is allowed",
    ),
    "routing key": ("routing_key", "'q'", TEXT_300, "column 'routing_key' has 300 bytes; at most 255 are allowed"),
    "routing key, characters of two bytes": (
        "routing_key", "'q'", "repeat('ü', 128)", "column 'routing_key' has 256 bytes; at most 255 are allowed",
    ),
    "routing key that is not UTF-8": (
        "routing_key", "'q'", "CAST(X'ff4142' AS STRING)", "column 'routing_key' has 3 bytes that are not UTF-8",
    ),
    "exchange": ("exchange", "''", TEXT_300, "column 'exchange' has 300 bytes; at most 255 are allowed"),
    "exchange, octets that are not UTF-8": (
        "exchange", "X''", "X'ff4142'", "column 'exchange' is not UTF-8, as every name of an exchange is",
    ),
    "exchange that is not UTF-8": (
        "exchange", "''", "CAST(X'ff4142' AS STRING)", "column 'exchange' has 3 bytes that are not UTF-8",
    ),
    "content type": ("content_type", "'a/b'", TEXT_300, "column 'content_type' has 300 bytes; at most 255 are allowed"),
    "content encoding": (
        "content_encoding", "''", TEXT_300, "column 'content_encoding' has 300 bytes; at most 255 are allowed",
    ),
    "correlation id": (
        "correlation_id", "X''", "CAST(repeat('k', 65536) AS BINARY)",
        "column 'correlation_id' has 65,536 bytes; at most 65,535 are allowed",
    ),
    "reply to": (
        "reply_to", "named_struct('exchange', 'e', 'routing_key', 'r')",
        f"named_struct('exchange', 'e', 'routing_key', {TEXT_300})",
        "column 'reply_to.routing_key' has 300 bytes; at most 255 are allowed",
    ),
    "priority": ("priority", "9", "10", "column 'priority' is 10; 0 to 9 are allowed"),
    "delivery mode": ("delivery_mode", "1Y", "3Y", "column 'delivery_mode' is 3; 1 to 2 are allowed"),
    "ttl": ("ttl", "0L", "-1L", "column 'ttl' is -1; 0 and above are allowed"),
    "timestamp": (
        "timestamp", "TIMESTAMP'1970-01-01 00:00:00Z'", "TIMESTAMP'1969-12-31 23:59:59Z'",
        "column 'timestamp' is before 1970; times from then on are allowed",
    ),
    "expiration": (
        "expiration", "TIMESTAMP'2100-01-01 00:00:00Z'", "TIMESTAMP'1969-12-31 23:59:59Z'",
        "column 'expiration' is before 1970; times from then on are allowed",
    ),
    "message id": (
        "message_id", f"'{UUID_TEXT}'", f"replace('{UUID_TEXT}', '-', '')",
        "column 'message_id' has a text of 32 bytes that is no UUID; it has to look like f81d4fae-7dec-11d0",
    ),
    "message id, octets": (
        "message_id", "unhex(repeat('00', 16))", "X'0102'", "column 'message_id' has 2 bytes; a UUID has 16",
    ),
    "header key": (
        "application_headers", "map('a', 1)", "map(repeat('ü', 128), 1)",
        "column 'application_headers' has a key of 256 bytes; a key of a map has at most 255 bytes in UTF-8",
    ),
    "header key inside": (
        "application_headers", "named_struct('trace', map('a', 1))", f"named_struct('trace', map({TEXT_300}, 1))",
        "column 'application_headers' has a key of 300 bytes at trace; a key of a map has at most 255 bytes in UTF-8",
    ),
    "header text": (
        "application_headers", "named_struct('legs', array('a'))",
        "named_struct('legs', array('a', repeat('k', 65536)))",
        "column 'application_headers' has a text of 65,536 bytes at legs[1]; a STRING inside a map or list has at most",
    ),
    "header text that is not UTF-8": (
        "application_headers", "named_struct('symbol', 'a')", "named_struct('symbol', CAST(X'ff4142' AS STRING))",
        "column 'application_headers' has a text of 3 bytes that are not UTF-8 at symbol; cast it to BINARY",
    ),
    "header date": (
        "application_headers", "named_struct('day', DATE'2026-11-21')", "named_struct('day', DATE'+10000-01-01')",
        "column 'application_headers' has a DATE outside of the years 1 to 9999 at day; only these years have a text",
    ),
    "headers VARIANT, too deep": (
        "application_headers", "parse_json('{}')", f"parse_json({DEEP})",
        "column 'application_headers' has maps and lists nested too deep at a.a.",
    ),
    "headers VARIANT, no object": (
        "application_headers", "parse_json('{}')", "parse_json('[1]')",
        "column 'application_headers' has a VARIANT that is an array; only an object can be sent as a map",
    ),
    "headers encoded": (
        "application_headers", "X'0000000400000000'", "X'00000005000000'",
        "column 'application_headers' is no encoded map: the size in its first 4 bytes is not the number of bytes",
    ),
    "headers encoded, entries": (
        "application_headers", "X'0000000400000000'", "X'00000006000000020161'",
        "column 'application_headers' is no encoded map: ",
    ),
    "headers of more than a frame": (
        "application_headers", "map('a', 'b')", "map('a', repeat('k', 40000), 'b', repeat('k', 40000))",
        "its properties and headers (columns application_headers) take 80,0",
    ),
}  # fmt: skip
"""Column, a good value, a bad one, and what the error says."""


@pytest.mark.sampled("name", every=3)
@pytest.mark.parametrize("name", ROWS)
def test_a_row_that_cannot_be_sent_is_named_and_not_sent(
    name: str, spark: SparkSession, broker: Broker, connect: Connect, queue: str
) -> None:
    column, good, bad, reason = ROWS[name]
    options = login(broker, exchangeFromColumn=column == "exchange")
    options |= {} if column == "routing_key" else {"routingKey": queue}
    frame = bad_second(spark, column, good.replace("'q'", f"'{queue}'"), bad)
    with pytest.raises(PythonException) as failed:
        AmqpBatchSink(**options)(frame, BATCH)  # type: ignore[arg-type]
    text = str(failed.value)
    assert f"RowError: [AMQP_ROW_INVALID] Row 1 of partition 0 in batch {BATCH} cannot be sent: {reason}" in text
    assert "kkkkkkkk" not in text, "the value is not in the text"
    assert bodies_on(connect, queue) <= {b"good"}


@pytest.mark.thorough
def test_rows_are_counted_in_their_partition(spark: SparkSession, broker: Broker, queue: str) -> None:
    frame = spark.range(0, 40_000, 1, 2).selectExpr("IF(id = 35000, NULL, '') AS body")
    with pytest.raises(PythonException, match="Row 15000 of partition 1 in batch 3 cannot be sent: column 'body'"):
        write(frame, login(broker, routingKey=queue, batchId=3))
    with pytest.raises(PythonException, match="Row 15000 of partition 1 cannot be sent: column 'body'"):
        write(frame, login(broker, routingKey=queue))


def test_a_stream_names_its_batch(spark: SparkSession, broker: Broker, queue: str, tmp_path: Path) -> None:
    rows, checkpoint = str(tmp_path / "rows"), str(tmp_path / "checkpoint")

    def run(body: str) -> None:
        spark.sql(f"SELECT {body} AS body").write.mode("append").parquet(rows)
        writer = spark.readStream.schema("body STRING").parquet(rows).writeStream.format("amqp")
        writer = writer.options(**login(broker, routingKey=queue)).option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    run("'good'")
    with pytest.raises(
        StreamingQueryException, match="Row 0 of partition 0 in batch 1 cannot be sent: column 'body' is"
    ):
        run("CAST(NULL AS STRING)")


SCHEMAS = {
    "unknown column": (
        ["'' AS body", "1 AS prioritty"],
        ["no column 'prioritty', which is similar to priority."],
    ),
    "no body": (["1 AS priority"], ["Column 'body' is missing. Add it as BINARY, STRING"]),
    "wrong types": (
        [
            "1 AS body",
            "'high' AS priority",
            "1.5BD AS ttl",
            "true AS message_id",
            "array('a') AS application_headers",
            "named_struct('queue', 'x') AS reply_to",
        ],
        [
            "Column 'body' cannot have the type INT. Use BINARY, STRING",
            "Column 'priority' cannot have the type STRING. Use TINYINT, SMALLINT, INT, BIGINT",
            "Column 'ttl' cannot have the type DECIMAL(2,1). Use BIGINT, INT",
            "Column 'message_id' cannot have the type BOOLEAN. Use STRING (the usual text of 36 characters)",
            "Column 'application_headers' cannot have the type ARRAY<STRING>. Use STRUCT<header TYPE, ...>",
            "Column 'reply_to' cannot have the type STRUCT<QUEUE:STRING>. Use STRUCT of any of exchange STRING",
        ],
    ),
    "no wire type": (
        ["'' AS body", "named_struct('wait', INTERVAL '1' DAY, 'at', map(1, 'x')) AS application_headers"],
        ["'application_headers.wait' is not", "'application_headers.at' is not"],
    ),
    "header key": (
        ["'' AS body", f"named_struct('{'k' * 256}', 1) AS application_headers"],
        ["'application_headers' is not supported: the name of a field has 256 bytes"],
    ),
    "a column twice": (["'' AS body", "1 AS priority", "2 AS PRIORITY"], ["Column 'PRIORITY' occurs twice"]),
}
"""The selected columns, and the text of the error."""


@pytest.mark.sampled("name", every=2)
@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_that_cannot_be_sent_is_refused_before_any_task(
    name: str, spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    select, problems = SCHEMAS[name]
    frame = spark.range(1).selectExpr(*select)
    options = login(broker) | {"url": "amqp://127.0.0.1:1/default"}  # the port is closed: nothing may connect
    with pytest.raises(SchemaError) as refused:
        AmqpBatchSink(**options)(frame, 0)  # type: ignore[arg-type]
    assert all(problem in str(refused.value) for problem in problems), str(refused.value)
    with pytest.raises(AnalysisException, match="SchemaError") as failed:
        write(frame, options)
    assert all(problem in str(failed.value) for problem in problems), str(failed.value)
    stream = spark.readStream.format("rate").load().selectExpr(*select)
    writer = stream.writeStream.format("amqp").options(**options).option("checkpointLocation", str(tmp_path))
    with pytest.raises(StreamingQueryException, match="SchemaError") as ended:
        writer.start().awaitTermination(120)
    assert all(problem in str(ended.value) for problem in problems), str(ended.value)


def test_options_and_schema_are_told_together(spark: SparkSession, broker: Broker) -> None:
    frame = spark.sql("SELECT map('a', 1) AS body, 1 AS qty")
    options = login(broker, routingKey="k" * 256, priority=256, deliveryMode="sometimes", contentType="text/plain")
    problems = [
        "Option 'routingKey'",
        "Option 'priority' has the value '256'",
        "Option 'deliveryMode' has the value 'sometimes'",
        "A body of type MAP<STRING,INT> is sent as amqp/map, and option contentType is 'text/plain'",
        "There is no column 'qty'",
    ]
    with pytest.raises(AnalysisException, match=r"OptionError: \[AMQP_OPTIONS_INVALID\] 5 ") as failed:
        write(frame, options)
    assert all(problem in str(failed.value) for problem in problems), str(failed.value)
    with pytest.raises(OptionError, match="Option 'routingKey'"):
        AmqpBatchSink(**options)  # type: ignore[arg-type]


# ---- what only the broker knows


@pytest.fixture
def strict(own_broker: OwnBroker) -> BrokerJ:
    """A broker that takes small messages only, and where ``trader`` may not publish everywhere."""
    return own_broker(
        context={"qpid.max_message_size": "20000"},
        durable=False,
        acl=(
            'ACL DENY trader PUBLISH EXCHANGE name="amq.topic"',
            'ACL DENY trader PUBLISH EXCHANGE name="" routingkey="secret"',
        ),
    )


def test_what_a_broker_refuses_names_row_exchange_and_its_reason(
    strict: BrokerJ, spark: SparkSession, connect: Connect
) -> None:
    client = connect(broker=strict, heartbeat=0)
    for queue in ("q", "secret"):
        client.declare_queue(queue)
        client.bind(queue, "amq.topic", "#")
    trader = {"username": "trader", "password": strict.config.users["trader"]}

    def refused(frame: DataFrame, **options: Any) -> str:
        with pytest.raises(PythonException) as failed:
            AmqpBatchSink(**login(strict, **options))(frame, BATCH)  # type: ignore[arg-type]
        text = str(failed.value)
        assert trader["password"] not in text
        assert depth(client, "q") == depth(client, "secret") == 0
        return text

    large = bad_second(spark, "body", "''", "repeat('k', 20001)").where("body != ''")
    text = refused(large, routingKey="q")
    where = f"row 0 of partition 0 in batch {BATCH} for exchange '' with routing key 'q': "
    assert f"PublishFailed: [AMQP_PUBLISH_REFUSED] Cannot publish {where}" in text
    assert "506" in text
    assert "20001 greater than allowed maximum of 20000" in text

    rows = spark.createDataFrame([("a", "k.1"), ("b", "k.2")], "body STRING, routing_key STRING").coalesce(1)
    text = refused(rows, exchange="amq.topic", **trader)
    assert (
        f"Cannot publish row 0 of partition 0 in batch {BATCH} for exchange 'amq.topic' with routing key 'k.1'" in text
    )
    assert "403: Permission PERFORM_ACTION(publish) is denied for : Exchange 'amq.topic'" in text
    text = refused(rows.select("body"), routingKey="secret", **trader)
    assert "403: Access denied to publish to default exchange" in text
    write(rows.select("body"), login(strict, routingKey="q", **trader))  # what is allowed goes on
    assert depth(client, "q") == 2


def test_a_missing_exchange_is_refused_before_the_first_row(
    spark: SparkSession, broker: Broker, connect: Connect, queue: str
) -> None:
    """Broker-J would route it by queue name: here that would reach the queue."""
    rows = [("a", None, queue), ("b", "amq.direct", queue), ("c", "no.such.exchange", queue)]
    frame = spark.createDataFrame(rows, "body STRING, exchange STRING, routing_key STRING").coalesce(1)
    sink = AmqpBatchSink(**login(broker, exchange="no.exchange.at.all"))  # type: ignore[arg-type]
    with pytest.raises(PythonException) as failed:
        sink(frame, BATCH)
    exchange = "PublishFailed: [AMQP_EXCHANGE_NOT_FOUND] Cannot publish"
    where = f"{exchange} row 0 of partition 0 in batch {BATCH} for exchange 'no.exchange.at.all': "
    assert f"{where}there is no such exchange. Create the exchange, or name another one (option exchange)." in str(
        failed.value
    )
    sink = AmqpBatchSink(**login(broker, exchangeFromColumn=True))  # type: ignore[arg-type]
    with pytest.raises(PythonException) as failed:
        sink(frame, BATCH)
    where = f"{exchange} row 2 of partition 0 in batch {BATCH} for exchange 'no.such.exchange': "
    assert f"{where}there is no such exchange. Create the exchange, or name another one (option exchange, " in str(
        failed.value
    )
    assert depth(connect(heartbeat=0), queue) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"password": "wrong-s3cret"}, "AuthenticationFailed", marks=needs("checks_passwords")),
        pytest.param({"url": "amqp://{host}/nowhere"}, "VirtualHostRefused", marks=needs("virtual_hosts")),
        ({"url": "amqp://127.0.0.1:{closed}/default", "retry.maxAttempts": "1"}, "127.0.0.1:{closed}"),
        ({"passwordFile": "/no/such/file", "password": None}, "/no/such/file"),
    ],
)
def test_a_broker_that_cannot_be_used_is_named_without_secrets(
    options: dict[str, str | None], message: str, spark: SparkSession, broker: Broker, free_port: int
) -> None:
    names = {"host": "{}:{}".format(*address(broker)), "closed": free_port}
    given: dict[str, str | None] = {**login(broker, routingKey="q"), **options}
    filled = {key: value.format(**names) for key, value in given.items() if value is not None}
    with pytest.raises(PythonException) as failed:
        write(spark.sql("SELECT '' AS body"), filled)
    assert message.format(**names) in str(failed.value)
    assert "s3cret" not in str(failed.value)
