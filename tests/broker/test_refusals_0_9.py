"""What jobs and commands cannot do at a RabbitMQ: the reason, the alternative, and one exit code."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.address import ConnectOptions
from amqp_core.errors import SpeaksNoAmqp
from amqp_spark.cli import EXIT_OPTIONS
from amqp_spark.connect import connect
from tests.broker.job_support import Here, error_lines, login
from tests.broker.source_0_9_support import Place
from tests.broker.transactions_support import Command
from tests.spark.job_support import must_not_be_called

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.rabbitmq import RabbitMQNode

pytestmark = pytest.mark.broker


@pytest.fixture
def place(rabbitmq: RabbitMQNode) -> Iterator[Place]:
    found = Place(rabbitmq.url(), rabbitmq.username, rabbitmq.password)
    found.declare()
    yield found
    with found.connect() as client:
        client.delete_queue(found.queue)


@pytest.mark.parametrize("arguments", [(), ("--consumer-id", "c"), ("--transactional-id", "w", "--forget", "--yes")])
def test_there_is_no_state_of_exactly_once(
    rabbitmq: RabbitMQNode,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
) -> None:
    command = Command.of(rabbitmq, monkeypatch, capsys)
    assert command(*arguments) == EXIT_OPTIONS
    assert "speaks AMQP 0-9-1, which can neither browse the state of exactly-once nor list" in command.err
    assert "Use this command with protocol=0-10, which Broker-J serves on the same port" in command.err


def test_a_dry_run_is_refused_before_spark_starts(
    place: Place, rabbitmq: RabbitMQNode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("amqp_spark.cli.spark.spark_session", must_not_be_called)
    drain = Here("drain", login(rabbitmq), monkeypatch)
    assert drain("--dry-run", "--queue", place.queue) == EXIT_OPTIONS
    [line] = error_lines(capsys.readouterr().err, "drain")
    assert "--dry-run browses, and with AMQP 0-9-1 messages cannot be read without being consumed" in line
    assert "rabbitmqctl list_queues" in line
    assert "--exact" in line


@pytest.mark.spark
@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"selector": "a = 1"}, "Option 'selector' has the value"),
        (
            {"deliveryGuarantee": "exactly-once", "consumerId": "c", "spoolLocation": "{directory}/spool"},
            "is a classic queue, and deliveryGuarantee=exactly-once",
        ),
    ],
    ids=["selector", "exactly-once"],
)
def test_a_source_that_the_broker_cannot_serve_ends_with_the_code_of_options(
    spark: SparkSession,
    place: Place,
    rabbitmq: RabbitMQNode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: dict[str, str],
    refusal: str,
) -> None:
    drain = Here("drain", login(rabbitmq), monkeypatch)
    given = [part for name, value in options.items() for part in ("--option", f"{name}={value}")]
    files = ["--output", str(tmp_path / "out"), "--checkpoint", str(tmp_path / "checkpoint")]
    arguments = [part.format(directory=tmp_path) for part in given]
    assert drain("--queue", place.queue, *files, *arguments) == EXIT_OPTIONS
    [line] = error_lines(capsys.readouterr().err, "drain")
    assert refusal in line


@pytest.mark.thorough
@pytest.mark.spark
def test_a_sink_of_exactly_once_ends_with_the_code_of_options(
    spark: SparkSession,
    place: Place,
    rabbitmq: RabbitMQNode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    spark.createDataFrame([("a",)], "body STRING").write.parquet(str(tmp_path / "rows"))
    options: dict[str, Any] = {
        "deliveryGuarantee": "exactly-once", "transactionalId": uuid.uuid4().hex, "batchId": 1,
    }  # fmt: skip
    publish = Here("publish", login(rabbitmq), monkeypatch)
    given = [part for name, value in options.items() for part in ("--option", f"{name}={value}")]
    code = publish("--input", str(tmp_path / "rows"), "--routing-key", place.queue, *given)
    shown = capfd.readouterr().err
    [line] = error_lines(shown, "publish")
    assert "has no prepared transactions (AMQP 0-9-1). Use protocol=0-10 if the broker is Broker-J; " in line
    assert "else at-least-once with stableMessageId=true" in line
    assert code == EXIT_OPTIONS
    assert "rolled back" not in shown
    place.wait_for_count(0, 0)


def test_a_port_of_another_protocol_is_named_at_once(rabbitmq: RabbitMQNode) -> None:
    """Erlang's port mapper closes a connection without an answer, as a proxy does whose broker is only starting."""
    with pytest.raises(SpeaksNoAmqp, match=f":{rabbitmq.epmd_port} closes every connection when the protocol header"):
        connect(ConnectOptions(hosts=(("127.0.0.1", rabbitmq.epmd_port),)))
