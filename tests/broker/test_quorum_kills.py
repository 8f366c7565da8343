"""Exactly-once from a quorum queue whose reader and broker are killed (kill -9) at each point and in between."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import pytest

from amqp_spark import crashpoints
from tests.broker.killed_readers import Killing
from tests.support.process import wait_until
from tests.support.rabbitmq import OLD, REFERENCE, let_queues_grow_old

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.fixtures import OwnRabbitMQ
    from tests.support.rabbitmq import RabbitMQNode, Release

pytestmark = pytest.mark.broker

RELEASES = ["RabbitMQ 4", pytest.param("RabbitMQ 3.10", marks=pytest.mark.thorough)]
FOREIGN_ROUNDS = 8
TIMEOUT_ROUNDS = 4
BATCH_POINTS = (
    crashpoints.END_RETURNED_UNLOGGED,
    crashpoints.LOGGED_BEFORE_PARTITIONS,
    crashpoints.PARTITIONS_RETURNED,
    crashpoints.COMMIT_LOGGED,
)
"""Points where the query waits and the reader goes on."""


@pytest.fixture(params=RELEASES)
def node(request: pytest.FixtureRequest) -> RabbitMQNode:
    """One that is not killed."""
    name = "rabbitmq310" if request.param.endswith("3.10") else "rabbitmq"
    found: RabbitMQNode = request.getfixturevalue(name)
    return found


@pytest.fixture(params=RELEASES)
def victim(request: pytest.FixtureRequest) -> RabbitMQNode:
    """One that may be killed."""
    if request.param.endswith("3.10"):
        start: OwnRabbitMQ = request.getfixturevalue("own_rabbitmq")
        return start(release=OLD)
    found: RabbitMQNode = request.getfixturevalue("rabbitmq_private")
    return found


def unique(number: int) -> bytes:
    return b"%08d" % number


def equal(_number: int) -> bytes:
    return b"same"


def mixed(number: int) -> bytes:
    """Most messages have equals; one of seven has none."""
    return unique(number) if number % 7 == 0 else b"same %d" % (number % 3)


def published(killing: Killing) -> Counter[bytes]:
    return Counter(killing.body_of(number) for number in range(killing.published))


def killed_at(node: RabbitMQNode, directory: Path, point: str, *, with_node: bool) -> None:
    with closing(Killing(node, directory / "query")) as killing:
        if with_node:
            let_queues_grow_old()
        killing.publish(200)
        killing.start()
        assert killing.kill_at(point, node=with_node, after=1)
        killing.go_on()
        assert killing.finish() == published(killing)


@pytest.mark.sampled("point", every=3)
@pytest.mark.parametrize("point", crashpoints.QUORUM_POINTS)
def test_the_reader_is_killed_at_a_point(node: RabbitMQNode, tmp_path: Path, point: str) -> None:
    killed_at(node, tmp_path, point, with_node=False)


def test_the_node_is_killed_just_after_an_acknowledgement(victim: RabbitMQNode, tmp_path: Path) -> None:
    killed_at(victim, tmp_path, crashpoints.ACKED_WITHOUT_BARRIER, with_node=True)


@pytest.mark.thorough
@pytest.mark.parametrize("point", [crashpoints.RECOGNISED_UNACKED, crashpoints.REACKED_WITHOUT_BARRIER])
def test_the_reader_is_killed_while_messages_are_recognised(node: RabbitMQNode, tmp_path: Path, point: str) -> None:
    whole = {"minMessagesPerTrigger": "40"}
    with closing(Killing(node, tmp_path / "query", options=whole)) as killing:
        killing.publish(200)
        killing.start()
        assert killing.kill_at(crashpoints.SPOOLED_UNACKED, node=False, after=1)
        killing.start()
        assert killing.kill_at(point, node=False)
        killing.start()
        assert killing.finish() == published(killing)
        assert killing.recognised() == (40 if point == crashpoints.REACKED_WITHOUT_BARRIER else 80, 0)


@pytest.mark.thorough
def test_equal_messages_are_not_lost(node: RabbitMQNode, tmp_path: Path) -> None:
    with closing(Killing(node, tmp_path / "query", body_of=equal)) as killing:
        killing.rounds(5, nodes=0, points=crashpoints.QUORUM_POINTS)
        assert killing.finish()[b"same"] >= killing.published


def many_kills(
    node: RabbitMQNode, directory: Path, body_of: Callable[[int], bytes], *, named: bool = False, exactly: bool = True
) -> None:
    with closing(Killing(node, directory / "query", body_of=body_of, named=named)) as killing:
        let_queues_grow_old()
        killing.rounds(30)
        found, expected = killing.finish(), published(killing)
        assert not expected - found, "lost"
        assert not exactly or not found - expected, "twice"


@pytest.mark.thorough
@pytest.mark.parametrize("body_of", [unique, equal, mixed])
def test_many_kills(victim: RabbitMQNode, tmp_path: Path, body_of: Callable[[int], bytes]) -> None:
    many_kills(victim, tmp_path, body_of, exactly=body_of is unique)


@pytest.mark.thorough
def test_many_kills_with_message_ids(victim: RabbitMQNode, tmp_path: Path) -> None:
    many_kills(victim, tmp_path, unique, named=True)


@pytest.mark.thorough
def test_the_reader_is_killed_thirty_times_in_a_row(node: RabbitMQNode, tmp_path: Path) -> None:
    """More often than RabbitMQ delivers a message by default."""
    with closing(Killing(node, tmp_path / "query")) as killing:
        killing.publish(200)
        for _ in range(30):
            killing.start()
            assert killing.kill_at(crashpoints.SPOOL_PARTIAL, node=False, within_s=60.0)
        killing.start()
        assert killing.finish() == published(killing)


@pytest.mark.thorough
@pytest.mark.parametrize("named", [True, False])
def test_a_foreign_consumer_comes_and_goes(node: RabbitMQNode, tmp_path: Path, *, named: bool) -> None:
    """It may get what the query has read; nothing is lost, and with message ids the query reads nothing twice."""
    with closing(Killing(node, tmp_path / "query", named=named)) as killing:
        taken: Counter[bytes] = Counter()
        killing.start()
        for _ in range(FOREIGN_ROUNDS):
            killing.publish(3 * killing.per_batch)
            point = killing.random.choice(crashpoints.QUORUM_POINTS)
            if killing.random.random() < 0.5:  # it comes while the query runs, and is there when that starts again
                with killing.foreign(30) as foreign:
                    if not killing.kill_at(point, node=False):
                        killing.kill()
                    taken += foreign.take(10)
                    killing.go_on()
            else:
                if not killing.kill_at(point, node=False):
                    killing.kill()
                with killing.foreign(30) as foreign:
                    taken += foreign.take(10)
                killing.go_on()
        found = killing.finish()
        assert not published(killing) - (found + taken), "lost"
        assert taken.total() > FOREIGN_ROUNDS
        if named:
            assert not found - published(killing), "twice"


HELD_LONG = "AMQP_MESSAGES_HELD_LONG"
TAKEN_BACK = "within the broker's consumer_timeout"


def has_said_more(killing: Killing, said: str, before: int) -> bool:
    return killing.logged(said) > before


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("release", "options", "said"),
    [
        pytest.param(REFERENCE, {"consumerTimeout": "12s"}, HELD_LONG, id="RabbitMQ 4"),
        pytest.param(OLD, {}, TAKEN_BACK, id="RabbitMQ 3.10"),
    ],
)
def test_batches_that_last_longer_than_the_broker_waits(
    own_rabbitmq: OwnRabbitMQ, tmp_path: Path, release: Release, options: dict[str, str], said: str
) -> None:
    """The query works on a batch for longer than consumer_timeout, while messages wait; half of its readers die."""
    node = own_rabbitmq(release=release, consumer_timeout_ms=3000)
    node.evaluate("application:set_env(rabbit, channel_tick_interval, 500)")
    with closing(Killing(node, tmp_path / "query", options=options)) as killing:
        killing.start()
        for number in range(TIMEOUT_ROUNDS):
            point = killing.random.choice(BATCH_POINTS)
            before = killing.logged(said)
            killing.arm(point)  # before the messages come: some of them have to wait
            killing.publish(5 * killing.per_batch)
            assert killing.arrives(point)
            wait_until(partial(has_said_more, killing, said, before), "the messages are fetched again", 60)
            if number % 2:
                killing.kill()
            killing.release()
            killing.go_on()
        assert killing.finish() == published(killing)


@pytest.mark.sampled("point", every=2)
@pytest.mark.parametrize("point", [crashpoints.SPOOLED_UNACKED, crashpoints.ACKED_WITHOUT_BARRIER])
def test_messages_that_are_taken_back_at_a_point(rabbitmq: RabbitMQNode, tmp_path: Path, point: str) -> None:
    """RabbitMQ 4.3 ignores an acknowledgement that comes after consumer_timeout, without a word."""
    options = {"consumerTimeout": "4s", "heartbeat": "60"}
    with closing(Killing(rabbitmq, tmp_path / "query", options=options)) as killing:
        killing.publish(200)
        killing.start()
        assert killing.reach(point, after=1)
        wait_until(lambda: killing.place.count()[0] > 0, "the broker takes messages back", 60)
        killing.release()
        assert killing.finish() == published(killing)
