"""jobs/bridge.py: from a queue of one broker to an exchange of another, every property kept."""

from __future__ import annotations

import re
import shlex
import signal
import sys
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.v0_10 import spec
from amqp_core.v0_10.messages import Message
from amqp_spark import cli
from amqp_spark.state.names import CONSUMER, Names
from tests.broker.exactly_once_support import Writer, nothing_is_left
from tests.broker.job_support import (
    QUICK,
    Here,
    environment,
    error_lines,
    job_path,
    left,
    login,
    received,
    started,
    submitted,
)  # fmt: skip
from tests.support.capabilities import needs
from tests.support.jobs import ROOT
from tests.support.process import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.fixtures import Broker, Connect, OwnBroker

pytestmark = [pytest.mark.spark, pytest.mark.broker]

HEADERS: dict[str, object] = {
    "text": "grün", "empty": "", "int": 42, "negative": -(1 << 40), "float": 2.5, "true": True, "bytes": b"\x00\xff",
    "none": None, "map": {"a": 1, "list": [1, "b", {"c": False}]}, "uuid": uuid.UUID(int=9),
}  # fmt: skip
MESSAGES = [
    Message(
        b"\x00body\xff",
        spec.DeliveryProperties(
            discard_unroutable=True, immediate=False, priority=7, delivery_mode=2, timestamp=1_700_000_000,
            expiration=4_000_000_000_000, resume_id="resume", resume_ttl=5,
        ),
        spec.MessageProperties(
            content_length=6, message_id=uuid.UUID(int=7), correlation_id=b"corr\x00elation",
            reply_to=spec.ReplyTo(exchange="amq.direct", routing_key="back"), content_type="text/plain",
            content_encoding="utf-8", user_id=b"guest", app_id=b"\xff", application_headers=HEADERS,
        ),
    ),
    Message(b"", spec.DeliveryProperties(delivery_mode=1, ttl=600_000), spec.MessageProperties(application_headers={})),
    Message(b"bare"),
    Message(b"x" * 300_000, spec.DeliveryProperties(priority=0)),
]  # fmt: skip
NOT_KEPT = {"queue", "position", "exchange", "redelivered"}


@pytest.fixture
def bridge(broker: Broker, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Here:
    """From the virtual host "default" to the virtual host "durable"."""
    return Here("bridge", login(broker, "FROM_") | login(broker, "TO_", "durable"), monkeypatch)


def send(connect: Connect, queue: str, messages: list[Message]) -> None:
    client = connect()
    for message in messages:
        client.publish(message, routing_key=queue)
    client.confirm()


def ticks(count: int) -> list[Message]:
    return [
        Message(
            b"%d" % number,
            properties=spec.MessageProperties(
                application_headers={"symbol": ("SAP", "BMW")[number % 2], "price": number / 2}
            ),
        )
        for number in range(count)
    ]


def exact(spark: SparkSession, broker: Broker, queue: str) -> list[dict[str, Any]]:
    """The messages of a queue, with encoded headers, without the properties that a bridge cannot keep."""
    options = {"url": broker.url(), "username": broker.username, "password": broker.password, "queue": queue}
    rows = spark.read.format("amqp").options(**options).schema(cli.exact_ddl()).load()
    return sorted(
        ({key: value for key, value in row.asDict().items() if key not in NOT_KEPT} for row in rows.collect()),
        key=lambda row: len(row["body"]),
    )


@needs("is_broker_j")  # the other one is
@pytest.mark.thorough
def test_every_property_is_kept_between_two_brokers(
    broker: Broker, own_broker: OwnBroker, connect: Connect, spark: SparkSession, queue: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    there = own_broker()
    client = connect(broker=there)
    client.declare_queue("copies")
    client.bind("copies", "amq.fanout", "")
    send(connect, queue, MESSAGES)
    before = exact(spark, broker, queue)
    assert len(before) == len(MESSAGES)

    bridge = Here("bridge", login(broker, "FROM_") | login(there, "TO_"), monkeypatch)
    where = ["--queue", queue, "--exchange", "amq.fanout", "--checkpoint", str(tmp_path / "ck"), "--available-now"]
    assert bridge(*where, "--from-option", "numPartitions=1") == 0
    assert left(connect, queue) == 0
    after = exact(spark, there, "copies")
    for row in (*before, *after):
        if row["ttl"] is not None:
            assert row.pop("expiration") is not None  # the broker's own: its time plus ttl
    assert after == before

    copies = received(connect(broker=there), "copies")  # what another client sees
    assert [message.body for message in copies] == [message.body for message in MESSAGES]
    assert {message.delivery.exchange for message in copies} == {"amq.fanout"}
    assert {message.routing_key for message in copies} == {queue}
    sent, got = MESSAGES[0], copies[0]
    assert got.headers == HEADERS
    assert [type(value) for value in got.headers.values()] == [type(value) for value in HEADERS.values()]
    assert got.properties == sent.properties
    for name in ("priority", "delivery_mode", "timestamp", "expiration"):  # Broker-J passes no others on
        assert getattr(got.delivery, name) == getattr(sent.delivery, name), name
    assert capfd.readouterr().out.startswith(f"bridge: {len(MESSAGES)} rows in 1 batch, ")


@pytest.mark.sampled("arguments", every=2)
@pytest.mark.parametrize(
    ("arguments", "numbers"),
    [
        (["--filter", "headers['symbol'] = 'SAP'"], [0, 2, 4, 6, 8]),
        (["--headers", "price DOUBLE", "--filter", "headers.price >= 3.5"], [7, 8, 9]),
        (["--filter", "cast(body as string) < '3' and application_headers is not null"], [0, 1, 2]),
        (["--filter", "false"], []),
    ],
)
def test_a_filter_chooses_by_columns_and_headers(
    bridge: Here, connect: Connect, queue: str, durable_queue: str, tmp_path: Path,
    capfd: pytest.CaptureFixture[str], arguments: list[str], numbers: list[int],
) -> None:  # fmt: skip
    send(connect, queue, ticks(10))
    where = ["--queue", queue, "--routing-key", durable_queue, "--checkpoint", str(tmp_path / "ck"), "--available-now"]
    assert bridge(*where, *arguments) == 0
    copies = received(connect("durable"), durable_queue)
    assert sorted(int(message.body) for message in copies) == numbers
    assert all(message.headers == ticks(10)[int(message.body)].headers for message in copies)
    assert left(connect, queue) == 0
    assert f"bridge: 10 rows, {len(numbers)} written in 1 batch" in capfd.readouterr().out


def test_routing_keys_are_computed_and_properties_left_out(
    bridge: Here, connect: Connect, queue: str, durable_queue: str, tmp_path: Path
) -> None:
    send(connect, queue, [*ticks(4), *MESSAGES])
    client = connect("durable")
    client.bind(durable_queue, "amq.topic", "copy.BMW")
    client.bind(durable_queue, "amq.topic", "copy.none")
    where = ["--queue", queue, "--exchange", "amq.topic", "--checkpoint", str(tmp_path / "ck"), "--available-now"]
    key = ["--routing-key-expr", "concat('copy.', coalesce(headers['symbol'], 'none'))"]
    # Nothing is bound for SAP.
    dropped = ["--to-option", "onUnroutable=discard", "--without", "user_id", "--without", "reply_to"]
    assert bridge(*where, *key, *dropped, "--from-option", "numPartitions=1") == 0
    copies = received(connect("durable"), durable_queue)
    assert [message.routing_key for message in copies] == ["copy.BMW"] * 2 + ["copy.none"] * len(MESSAGES)
    (full,) = (message for message in copies if message.body == MESSAGES[0].body)
    assert full.headers == HEADERS
    assert (full.properties.user_id, full.properties.reply_to) == (None, None)
    assert full.properties.app_id == b"\xff"


@pytest.mark.sampled("arguments", every=3)
@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--queue", "no-such-queue"], 3, "no-such-queue"),
        (["--exchange", "no-such-exchange"], 3, "no-such-exchange"),
        (["--routing-key", "no-such-queue"], 3, "no-such-queue"),
        (["--filter", "bdy is null"], 2, "bdy"),
        (["--routing-key-expr", "headers.symbol", "--headers", "symbol STRNG"], 2, "STRNG"),
        (["--headers", "symbol INT", "--filter", "headers.symbol = 1"], 1, "symbol: str16 is not an integer"),
        (["--routing-key-expr", "repeat('k', 300)"], 1, "'routing_key'"),
    ],
)
def test_what_cannot_be_bridged_is_one_clear_line(
    bridge: Here, connect: Connect, queue: str, tmp_path: Path, capfd: pytest.CaptureFixture[str],
    arguments: list[str], code: int, text: str,
) -> None:  # fmt: skip
    send(connect, queue, ticks(3))
    more = arguments if arguments[0] == "--queue" else ["--queue", queue, *arguments]
    where = ["--checkpoint", str(tmp_path / "ck"), "--available-now", "--from-option", "retry.maxAttempts=0"]
    assert bridge(*where, *more) == code
    (error,) = error_lines(capfd.readouterr().err, "bridge")
    assert text in error
    wait_until(lambda: left(connect, queue) == 3, "the messages to be back on their queue")


@needs("checks_passwords")
@pytest.mark.parametrize("side", ["FROM_", "TO_"])
def test_a_login_that_is_refused_ends_with_3(
    side: str, broker: Broker, connect: Connect, queue: str, durable_queue: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    variables = login(broker, "FROM_") | login(broker, "TO_", "durable") | {f"AMQP_{side}PASSWORD": "n0t-the-one"}
    bridge = Here("bridge", variables, monkeypatch)
    send(connect, queue, ticks(3))
    where = ["--queue", queue, "--routing-key", durable_queue, "--checkpoint", str(tmp_path / "ck"), "--available-now"]
    assert bridge(*where) == 3
    shown = capfd.readouterr()
    (error,) = error_lines(shown.err, "bridge")
    assert "login" in error
    assert "n0t-the-one" not in shown.err + shown.out
    wait_until(lambda: left(connect, queue) == 3, "the messages to be back on their queue")


def stop_in_the_middle(command: list[str], env: dict[str, str], directory: Path) -> None:
    """Run a bridge in batches of 100 until the second one is done, and stop it in order."""
    slow = ["--from-option", "maxMessagesPerTrigger=100", "--processing-time", "2 seconds"]
    with started([*command, *slow], env, directory) as (job, log):
        wait_until(lambda: "batch 1:" in log.read_text() or job.poll() is not None, "the second batch", 120)
        job.send_signal(signal.SIGTERM)
        assert job.wait(60) == 143, log.read_text()
    assert "stopped by SIGTERM" in log.read_text()


@pytest.mark.thorough
def test_a_bridge_that_is_stopped_goes_on_where_it_was(
    broker: Broker, connect: Connect, queue: str, durable_queue: str, tmp_path: Path
) -> None:
    send(connect, queue, ticks(1000))
    env = environment(login(broker, "FROM_") | login(broker, "TO_", "durable"))
    command = [
        sys.executable, job_path("bridge"), "--queue", queue, "--routing-key", durable_queue,
        "--checkpoint", str(tmp_path / "ck"), "--master", "local[1]", *QUICK,
    ]  # fmt: skip
    stop_in_the_middle(command, env, tmp_path)
    assert 0 < left(connect, durable_queue, "durable") < 1000
    wait_until(lambda: left(connect, queue) > 0, "the rest to be back on the queue")
    with started([*command, "--available-now"], env, tmp_path) as (job, log):
        assert job.wait(180) == 0, log.read_text()
    numbers = sorted(int(message.body) for message in received(connect("durable"), durable_queue))
    assert sorted(set(numbers)) == list(range(1000))
    assert len(numbers) <= 1100  # the last batch may not have been accepted: it came again


@pytest.mark.thorough
def test_a_bridge_with_exactly_once_that_is_stopped_moves_every_message_once(
    broker: Broker, connect: Connect, queue: str, durable_queue: str, tmp_path: Path
) -> None:
    """With the options that docs/operations.md shows."""
    documented = re.search(r"`(--from-option deliveryGuarantee[^`]+)`", (ROOT / "docs" / "operations.md").read_text())
    assert documented is not None
    writer, spool = Writer(broker, durable_queue, "durable"), tmp_path / "spool"
    options = shlex.split(documented[1].replace("=ID", f"={writer.identity}").replace("=DIRECTORY", f"={spool}"))
    assert len(options) == 10
    send(connect, queue, ticks(1000))
    env = environment(login(broker, "FROM_") | login(broker, "TO_", "durable"))
    command = [
        sys.executable, job_path("bridge"), "--queue", queue, "--routing-key", durable_queue, *options,
        "--checkpoint", str(tmp_path / "ck"), "--master", "local[2,4]", *QUICK,
    ]  # fmt: skip
    stop_in_the_middle(command, env, tmp_path)
    assert 0 < left(connect, durable_queue, "durable") < 1000
    with started([*command, "--available-now"], env, tmp_path) as (job, log):
        assert job.wait(180) == 0, log.read_text()
    client = connect("durable")
    assert sorted(int(message.body) for message in received(client, durable_queue)) == list(range(1000))
    assert left(connect, queue) == 0
    assert list(spool.glob("*.spool")) == []
    assert connect().query_queue(Names(CONSUMER, writer.identity).lock) is None
    nothing_is_left(client, writer)


@pytest.mark.thorough
def test_spark_submit_ships_what_expressions_need(
    broker: Broker, connect: Connect, queue: str, durable_queue: str, tmp_path: Path
) -> None:
    send(connect, queue, ticks(100))
    arguments = [
        "--queue", queue, "--routing-key", durable_queue, "--filter", "headers['symbol'] = 'SAP'",
        "--checkpoint", str(tmp_path / "ck"), "--available-now", *QUICK,
    ]  # fmt: skip
    env = environment(login(broker, "FROM_") | login(broker, "TO_", "durable"))
    job = submitted("bridge", arguments, suffix="whl", master="local-cluster[2,1,1024]", env=env, directory=tmp_path)
    assert job.returncode == 0, job.stdout + job.stderr
    assert "bridge: 100 rows, 50 written" in job.stdout
    numbers = sorted(int(message.body) for message in received(connect("durable"), durable_queue))
    assert numbers == list(range(0, 100, 2))
