"""Exactly-once from a quorum queue whose reader and broker are killed (kill -9) at each point and in between."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from amqp_spark import crashpoints
from tests.broker.killed_readers import Killing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.rabbitmq import RabbitMQNode

pytestmark = pytest.mark.broker


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
            killing.grow_old()
        killing.publish(200)
        killing.start()
        assert killing.kill_at(point, node=with_node, after=1)
        killing.go_on()
        assert killing.finish() == published(killing)


@pytest.mark.parametrize("point", crashpoints.QUORUM_POINTS)
def test_the_reader_is_killed_at_a_point(rabbitmq: RabbitMQNode, tmp_path: Path, point: str) -> None:
    killed_at(rabbitmq, tmp_path, point, with_node=False)


def test_the_node_is_killed_just_after_an_acknowledgement(rabbitmq_private: RabbitMQNode, tmp_path: Path) -> None:
    killed_at(rabbitmq_private, tmp_path, crashpoints.ACKED_WITHOUT_BARRIER, with_node=True)


@pytest.mark.parametrize("point", [crashpoints.RECOGNISED_UNACKED, crashpoints.REACKED_WITHOUT_BARRIER])
def test_the_reader_is_killed_while_messages_are_recognised(rabbitmq: RabbitMQNode, tmp_path: Path, point: str) -> None:
    with closing(Killing(rabbitmq, tmp_path / "query")) as killing:
        killing.publish(200)
        killing.start()
        assert killing.kill_at(crashpoints.SPOOLED_UNACKED, node=False, after=1)
        killing.start()
        assert killing.kill_at(point, node=False)
        killing.start()
        assert killing.finish() == published(killing)
        assert killing.recognised() == (40 if point == crashpoints.REACKED_WITHOUT_BARRIER else 80, 0)


def test_equal_messages_are_not_lost(rabbitmq: RabbitMQNode, tmp_path: Path) -> None:
    with closing(Killing(rabbitmq, tmp_path / "query", body_of=equal)) as killing:
        killing.rounds(5, nodes=0, points=crashpoints.QUORUM_POINTS)
        assert killing.finish()[b"same"] >= killing.published


def many_kills(
    node: RabbitMQNode, directory: Path, body_of: Callable[[int], bytes], *, named: bool = False, exactly: bool = True
) -> None:
    with closing(Killing(node, directory / "query", body_of=body_of, named=named)) as killing:
        killing.grow_old()
        killing.rounds(30)
        found, expected = killing.finish(), published(killing)
        assert not expected - found, "lost"
        assert not exactly or not found - expected, "twice"


@pytest.mark.thorough
@pytest.mark.parametrize("body_of", [unique, equal, mixed])
def test_many_kills(rabbitmq_private: RabbitMQNode, tmp_path: Path, body_of: Callable[[int], bytes]) -> None:
    many_kills(rabbitmq_private, tmp_path, body_of, exactly=body_of is unique)


@pytest.mark.thorough
def test_many_kills_with_message_ids(rabbitmq_private: RabbitMQNode, tmp_path: Path) -> None:
    many_kills(rabbitmq_private, tmp_path, unique, named=True)


@pytest.mark.thorough
def test_the_reader_is_killed_thirty_times_in_a_row(rabbitmq: RabbitMQNode, tmp_path: Path) -> None:
    """More often than RabbitMQ delivers a message by default."""
    with closing(Killing(rabbitmq, tmp_path / "query")) as killing:
        killing.publish(200)
        for _ in range(30):
            killing.start()
            assert killing.kill_at(crashpoints.SPOOL_PARTIAL, node=False)
        killing.start()
        assert killing.finish() == published(killing)
