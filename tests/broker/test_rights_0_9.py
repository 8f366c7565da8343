"""The least rights of a login on RabbitMQ for each use of the connector, as docs/operations.md lists them."""

from __future__ import annotations

import re
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StructType

from amqp_core.errors import AmqpError
from amqp_spark.errors import StateError, UnsupportedModeError
from tests.broker.log_support import Streams
from tests.broker.sink_0_9_support import Place as SinkPlace
from tests.broker.sink_0_9_support import rows
from tests.broker.source_0_9_support import ExactlyOncePlace, Place, drained, numbers
from tests.support.rabbitmq import Rights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.rabbitmq import RabbitMQNode

pytestmark = pytest.mark.broker

NOTHING = "^$"
LOCKS = r"^amqp-spark\.lock\..*$"


@pytest.fixture
def permit(rabbitmq: RabbitMQNode) -> Iterator[Callable[..., None]]:
    """A function that gives the second login the named rights and no other one."""

    def give(vhost: str = "durable", **rights: str) -> None:
        given = {"configure": NOTHING, "write": NOTHING, "read": NOTHING} | rights
        rabbitmq.set_rights("trader", vhost, Rights(**given))

    yield give
    for vhost in ("durable", "default"):
        rabbitmq.set_rights("trader", vhost, Rights())


def only(*names: str) -> str:
    return f"^({'|'.join(map(re.escape, names))})$"


def owner(rabbitmq: RabbitMQNode, queue_type: str) -> Place:
    """The place of a login that may do everything."""
    return Place(rabbitmq.url("durable"), rabbitmq.username, rabbitmq.password, queue_type)


def trader(rabbitmq: RabbitMQNode) -> dict[str, Any]:
    return {"username": "trader", "password": rabbitmq.config.users["trader"]}


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_a_source_reads(rabbitmq: RabbitMQNode, permit: Callable[..., None], queue_type: str) -> None:
    with closing(owner(rabbitmq, queue_type)) as place:
        place.declare()
        place.publish(numbers(10))
        permit(read=only(place.queue))
        assert drained(place.driver(available_now=True, **trader(rabbitmq))) == numbers(10)
        place.stop()
        permit(configure=".*", write=".*")
        with pytest.raises(AmqpError, match=r"AMQP_ACCESS_REFUSED.*read access to queue"):
            place.driver(**trader(rabbitmq), retry__maxAttempts=0).rows(1)


def test_a_source_declares_and_binds(rabbitmq: RabbitMQNode, permit: Callable[..., None]) -> None:
    with closing(owner(rabbitmq, "quorum")) as place:
        options = {"declare": "ifMissing", "queueType": "quorum", **trader(rabbitmq)}
        permit(configure=only(place.queue), read=only(place.queue))
        assert drained(place.driver(available_now=True, **options)) == []
        place.stop()
        permit(configure=only(place.queue), read=only(place.queue, "amq.topic"), write=only(place.queue))
        assert drained(place.driver(available_now=True, bind="amq.topic/a.#", **options)) == []


def test_a_stream_is_read(rabbitmq: RabbitMQNode, permit: Callable[..., None]) -> None:
    with closing(Streams(rabbitmq.url("durable"), rabbitmq.username, rabbitmq.password)) as place:
        place.declare()
        place.publish(numbers(10))
        permit(read=only(place.queue))
        assert [row[2] for row in place.read(**trader(rabbitmq))] == numbers(10)
        driver = place.log_driver(**trader(rabbitmq))
        assert len(driver.rows(10)) == 10


@pytest.fixture
def exactly_once(rabbitmq: RabbitMQNode, tmp_path: Path) -> Iterator[ExactlyOncePlace]:
    with closing(ExactlyOncePlace(rabbitmq.url("durable"), rabbitmq.username, rabbitmq.password, "quorum")) as place:
        place.directory = tmp_path
        place.declare(x_delivery_limit=-1)
        place.publish(numbers(10))
        yield place


def test_a_quorum_queue_is_read_exactly_once(
    rabbitmq: RabbitMQNode, permit: Callable[..., None], exactly_once: ExactlyOncePlace
) -> None:
    queue = re.escape(exactly_once.queue)
    permit(configure=rf"{LOCKS}|^{queue}$", read=f"^{queue}$")
    assert drained(exactly_once.driver(available_now=True, **trader(rabbitmq))) == numbers(10)


@pytest.mark.parametrize(
    ("configure", "error", "text"),
    [
        (LOCKS, UnsupportedModeError, "AMQP_QUEUE_TYPE_UNKNOWN.*Give it the right to configure the queue"),
        ("^test-.*$", StateError, r"AMQP_PERMISSION_MISSING.*may not declare the queue 'amqp-spark\.lock\."),
    ],
)
def test_without_a_right_of_exactly_once(
    rabbitmq: RabbitMQNode,
    permit: Callable[..., None],
    exactly_once: ExactlyOncePlace,
    configure: str,
    error: type[Exception],
    text: str,
) -> None:
    permit(configure=configure, read=only(exactly_once.queue))
    with pytest.raises(error, match=text):
        exactly_once.driver(**trader(rabbitmq)).trigger_until_rows()
    exactly_once.stop()
    assert sorted(exactly_once.take()) == numbers(10)


def test_a_sink_writes(rabbitmq: RabbitMQNode, permit: Callable[..., None]) -> None:
    with ExitStack() as stack:
        place = SinkPlace(rabbitmq, "quorum", stack)
        queue = place.queue(bound_to="amq.direct")
        permit("default", write=only("amq.direct"))
        schema = StructType().add("body", "string")
        place.run([rows(3)], schema, exchange="amq.direct", routingKey=queue, **trader(rabbitmq))
        permit("default", write=only("amq.default"))
        place.run([rows(3)], schema, routingKey=queue, **trader(rabbitmq))
