"""Option ``protocol`` of sink and source in a real Spark: the headers that reach a broker, and rows there and back."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from tests.broker.sink_support import login, write
from tests.broker.source_0_9_support import Place, numbers
from tests.broker.stream_support import Stream
from tests.support.dial import address, by_way_of
from tests.support.proxy import FaultProxy

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.brokerj import BrokerJ

pytestmark = [pytest.mark.broker, pytest.mark.spark]

COUNT = 500
HEADERS = {"0-10": b"AMQP\x01\x01\x00\x0a", "0-9-1": b"AMQP\x00\x00\x09\x01", "0-9": b"AMQP\x01\x01\x00\x09"}
SCHEMA = "body STRING, message_id STRING, priority TINYINT, application_headers STRUCT<number: BIGINT, text: STRING>"


@pytest.mark.parametrize(
    ("server", "protocol", "sent"),
    [
        ("brokerj_0_9", "0-9", {"0-9"}),
        ("rabbitmq", "0-9", {"0-9"}),
        ("rabbitmq", "auto", {"0-10", "0-9-1"}),
        pytest.param("rabbitmq310", "auto", {"0-10", "0-9-1"}, marks=pytest.mark.thorough),
    ],
)
def test_sink_and_source_speak_what_the_option_says(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, server: str, protocol: str, sent: set[str]
) -> None:
    broker = request.getfixturevalue(server)
    place = Place(broker.url(), broker.username, broker.password)
    place.declare()
    rows = spark.range(0, COUNT, 1, 2).selectExpr(
        "CAST(id AS STRING) AS body", "concat('m-', id) AS message_id", "CAST(id % 10 AS TINYINT) AS priority",
        "named_struct('number', id, 'text', 'größe') AS application_headers",
    )  # fmt: skip
    stream = Stream(spark, broker, tmp_path)
    try:
        for action in ("write", "read"):
            with FaultProxy(address(broker)) as proxy:
                options = {"url": by_way_of(proxy.port, place.address), "protocol": protocol}
                if action == "write":
                    write(rows, login(broker, routingKey=place.queue) | options)
                else:
                    stream.drain(stream.frame(place.queue, SCHEMA, **options))
                headers = {connection.from_client[:8] for connection in proxy.connections}
            assert headers == {HEADERS[version] for version in sent}, action
        place.wait_for_count(0, 0)
    finally:
        place.close()
    found = sorted((row["application_headers"]["number"], row) for row in stream.rows)
    assert [
        (number, row["body"], row["message_id"], row["priority"], row["application_headers"]["text"])
        for number, row in found
    ] == [(n, str(n), f"m-{n}", n % 10, "größe") for n in range(COUNT)]


@pytest.mark.thorough
@pytest.mark.sampled("guarantee", every=2)
@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
def test_a_checkpoint_of_the_other_protocol_is_refused(
    brokerj_0_9: BrokerJ, spark: SparkSession, tmp_path: Path, guarantee: str
) -> None:
    broker = brokerj_0_9
    place = Place(broker.url(), broker.username, broker.password)
    place.declare()
    stream = Stream(spark, broker, tmp_path)

    def drain(protocol: str) -> None:
        stream.drain(stream.frame(place.queue, "body BINARY", protocol=protocol, deliveryGuarantee=guarantee))

    try:
        place.publish(numbers(100))
        drain("auto")  # which is 0-10
        place.publish(numbers(100, 100))
        with pytest.raises(StreamingQueryException, match=r"AMQP_CHECKPOINT_OF_OTHER_PROTOCOL.*protocol=0-10"):
            drain("0-9-1")
        place.wait_for_count(100, 0)
        drain("0-10")
        assert sorted(stream.bodies()) == numbers(200)
        for logged in (tmp_path / "checkpoint" / "offsets").iterdir():  # as an earlier release has written it
            if logged.suffix == ".crc":
                logged.unlink()
                continue
            text = logged.read_text()
            assert '"protocol": "0-10"' in text or '"protocol":"0-10"' in text
            logged.write_text(re.sub(r'"protocol": ?"0-10", ?"version": ?2', '"version": 1', text))
        place.publish(numbers(100, 200))
        drain("0-9-1")
        assert sorted(stream.bodies()) == numbers(300)
    finally:
        place.close()
