"""A message that stops a query with exactly-once: ``python -m amqp_spark.transactions --export`` and ``--skip``."""

from __future__ import annotations

import base64
import json
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from amqp_core.errors import ConnectionLost
from amqp_core.v0_10.messages import Message
from amqp_core.v0_10.spec import DeliveryProperties
from amqp_spark import crashpoints
from amqp_spark.cli import EXIT_BROKER, EXIT_DONE, EXIT_FAILED
from amqp_spark.datasource.stream_reader import AmqpStreamReader
from amqp_spark.errors import MessageFormatError
from amqp_spark.state.names import CONSUMER, Names
from amqp_spark.validation import check_source
from tests.broker.exactly_once_support import Fate, Killed
from tests.broker.stream_support import depth
from tests.spark.driver import Driver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from amqp_core.v0_10.client import Client
    from tests.broker.transactions_support import Command
    from tests.support.fixtures import Broker, Connect

pytestmark = pytest.mark.broker

BAD = b"ab\xff"
FIELDS = (StructField("queue", StringType()), StructField("position", LongType()), StructField("body", StringType()))
KEPT = [("one", 0), ("two", 1), ("four", 3)]


@dataclass
class Case:
    """A query with exactly-once that a message has stopped."""

    broker: Broker
    client: Client
    queue: str
    spool: Path
    consumer_id: str = field(default_factory=lambda: f"consumer-{uuid.uuid4().hex[:8]}")
    driver: Driver | None = None
    error: str = ""

    def start(self) -> Driver:
        """The query as it is started (again)."""
        given = {
            "url": self.broker.url(),
            "username": self.broker.username,
            "password": self.broker.password,
            "queue": self.queue,
            "deliveryGuarantee": "exactly-once",
            "consumerId": self.consumer_id,
            "spoolLocation": str(self.spool),
            "minMessagesPerTrigger": "4",
        }
        options, columns = check_source(given, StructType(list(FIELDS)))
        return Driver(AmqpStreamReader(options, columns), self.driver)

    def fail(self) -> None:
        """Run the query until the message stops it."""
        for body in (b"one", b"two", BAD, b"four"):
            self.client.publish(Message(body, DeliveryProperties(delivery_mode=None)), routing_key=self.queue)
        self.client.confirm()
        driver = self.start()
        with pytest.raises(MessageFormatError) as raised:
            driver.until(lambda _: False, attempts=100_000)
        self.error = str(raised.value)
        driver.reader.stop()
        self.driver = driver

    def replayed(self) -> list[tuple[str, int]]:
        """The rows of the batch that is run again; it is not committed."""
        driver = self.start()
        try:
            rows = driver.restart_batch()
        finally:
            driver.reader.stop()
        assert rows is not None
        return [(str(body), position) for _, position, body in rows]

    def is_stopped(self) -> bool:
        """Whether the message still stops the query."""
        driver = self.start()
        try:
            driver.restart_batch()
        except MessageFormatError:
            return True
        finally:
            driver.reader.stop()
        return False

    @property
    def place(self) -> str:
        """EPOCH:POSITION as the error has it."""
        return self.error.partition("--skip ")[2].split()[0]


@pytest.fixture
def case(broker: Broker, connect: Connect, queue: str, tmp_path: Path) -> Iterator[Case]:
    case = Case(broker, connect(heartbeat=0), queue, tmp_path / "spool")
    case.fail()
    yield case
    state = Names(CONSUMER, case.consumer_id).state
    client = connect()
    if client.query_queue(state) is not None:
        client.delete_queue(state)


def test_the_error_names_the_command_that_gets_past_the_message(case: Case, command: Command, tmp_path: Path) -> None:
    assert f"--consumer-id {case.consumer_id} --queue {case.queue} --skip" in case.error
    assert "REJECT" not in case.error
    assert depth(case.client, case.queue) == 0
    file = tmp_path / "message.json"
    who = ("--consumer-id", case.consumer_id)

    assert command(*who, "--export", case.place) == EXIT_DONE, command.err
    assert "position 2 of epoch" in command.out
    assert r"body: 3 bytes: b'ab\xff'" in command.out
    assert f"routing_key: {case.queue}" in command.out
    assert case.is_stopped(), "--export changes nothing"

    assert command(*who, "--queue", case.queue, "--skip", case.place, "--to", str(file), "--yes") == EXIT_DONE
    assert "set aside: position 2" in command.out
    written = json.loads(file.read_text())
    assert base64.b64decode(written["columns"]["body"]) == BAD
    assert BAD in base64.b64decode(written["transfer"])
    assert (written["queue"], written["position"]) == (case.queue, 2)
    assert case.replayed() == KEPT
    assert case.replayed() == KEPT, "the same however often"

    assert command(*who) == EXIT_DONE
    assert "set aside: 2" in command.out
    assert command(*who, "--skip", case.place, "--to", str(file), "--yes") == EXIT_DONE
    assert "set aside already" in command.out

    driver = case.start()
    driver.restart_batch()
    case.client.publish(Message(b"five"), routing_key=case.queue)
    case.client.publish(Message(b"six"), routing_key=case.queue)
    case.client.publish(Message(b"seven"), routing_key=case.queue)
    case.client.publish(Message(b"eight"), routing_key=case.queue)
    case.client.confirm()
    rows = driver.until(lambda rows: len(rows) >= 7, attempts=100_000)
    driver.reader.stop()
    assert [str(body) for _, _, body in rows] == ["one", "two", "four", "five", "six", "seven", "eight"]


@pytest.mark.parametrize("point", crashpoints.ASIDE_POINTS)
def test_nothing_is_lost_wherever_the_command_dies(
    case: Case, command: Command, fate: Fate, tmp_path: Path, point: str
) -> None:
    file = tmp_path / "message.json"
    arguments = ("--consumer-id", case.consumer_id, "--skip", case.place, "--to", str(file), "--yes")
    fate.kill_at(point)
    with pytest.raises(Killed):
        command(*arguments)
    command.capsys.readouterr()
    assert base64.b64decode(json.loads(file.read_text())["columns"]["body"]) == BAD, "on the disk before all else"
    again = tmp_path / "again.json"
    assert command(*arguments[:-2], str(again), "--yes") == EXIT_DONE, command.err
    assert case.replayed() == KEPT


def test_an_outcome_that_is_not_known_is_told(case: Case, command: Command, fate: Fate, tmp_path: Path) -> None:
    fate.cut_at(crashpoints.ASIDE_SENT)
    assert fate.error.args
    assert isinstance(fate.error, ConnectionLost)
    file = tmp_path / "message.json"
    arguments = ("--consumer-id", case.consumer_id, "--skip", case.place, "--to", str(file), "--yes")
    assert command(*arguments) == EXIT_BROKER
    assert "whether the message was set aside is unknown: --export shows it" in command.err
    assert file.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--export", "99"), "No owned batch has position 99"),
        (("--export", "1:2"), "No owned batch has position 2"),
        (("--export", "2", "--queue", "elsewhere"), "has no queue 'elsewhere'"),
        (("--skip", "2", "--to", "/no/such/directory/file", "--yes"), "cannot be written"),
        (("--skip", "2", "--to", "TAKEN", "--yes"), "it exists already"),
    ],
)
def test_what_cannot_be_done_is_told_and_nothing_is_changed(
    case: Case, command: Command, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    given = [str(taken) if each == "TAKEN" else each for each in arguments]
    assert command("--consumer-id", case.consumer_id, *given) == EXIT_FAILED
    assert said in command.err
    assert taken.read_text() == "mine"
    assert case.is_stopped()


def test_a_query_that_runs_is_not_interfered_with(case: Case, command: Command, tmp_path: Path) -> None:
    driver = case.start()
    with pytest.raises(MessageFormatError):
        driver.restart_batch()
    file = tmp_path / "message.json"
    assert command("--consumer-id", case.consumer_id, "--skip", "2", "--to", str(file), "--yes") == EXIT_FAILED
    assert "in use" in command.err
    assert not file.exists()
    driver.reader.stop()
