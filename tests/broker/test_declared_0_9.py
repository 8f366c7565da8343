"""A queue that exists, compared with what declare=ifMissing would declare: RabbitMQ tells it, other brokers do not."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.errors import DeclaredDifferently, NotFound, PreconditionFailed
from amqp_spark.errors import LogError
from tests.broker.log_support import Streams
from tests.broker.source_0_9_support import Place, numbers
from tests.spark.driver import bodies
from tests.support.process import wait_until
from tests.support.rabbitmq import Rights, binary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.brokerj import BrokerJ
    from tests.support.rabbitmq import RabbitMQNode

pytestmark = pytest.mark.broker

IF_MISSING: dict[str, Any] = {"declare": "ifMissing"}


@pytest.fixture
def classic(rabbitmq: RabbitMQNode) -> Iterator[Place]:
    place = Place(rabbitmq.url("durable"), rabbitmq.username, rabbitmq.password, "classic")
    yield place
    place.close()


def refused(place: Place, **options: Any) -> str:
    """The text of the error of a reader, which has received nothing."""
    place.publish(numbers(3))
    driver = place.driver(**IF_MISSING, **options)
    with pytest.raises(PreconditionFailed) as raised:
        driver.rows(1)
    place.stop()
    assert raised.value.condition == "AMQP_QUEUE_DECLARED_DIFFERENTLY"
    place.wait_for_count(3, 0)
    assert not any(message.redelivered for message in taken(place))
    return str(raised.value)


def taken(place: Place) -> list[Any]:
    with place.connect() as client:
        found = [client.get(place.queue) for _ in range(3)]
    assert None not in found
    return found


def reads(place: Place, **options: Any) -> None:
    """The reader of the queue gets its messages."""
    place.publish(numbers(3))
    driver = place.driver(**IF_MISSING, **options)
    assert bodies(driver.rows(3)) == numbers(3)
    driver.trigger()
    place.stop()
    wait_until(lambda: place.count() == (0, 0), "nothing is left")


@pytest.mark.parametrize(
    ("has", "options", "texts"),
    [
        ({}, {"queueType": "quorum"}, ["x-queue-type 'classic', and option 'queueType' asks for 'quorum'"]),
        ({"x_max_length": 5}, {"queueArguments": "x-max-length=6"},
         ["x-max-length '5', and option 'queueArguments' asks for '6'"]),
        ({}, {"queueArguments": "x-dead-letter-exchange=dead"},
         ["x-dead-letter-exchange absent, and option 'queueArguments' asks for 'dead'"]),
        # what differs first is not named by an option
        ({"x_max_length": 5, "x_overflow": "reject-publish", "x_message_ttl": 600_000},
         {"queueArguments": "x-message-ttl=1", "queueType": "classic"}, ["x-message-ttl '600000'", "asks for '1'"]),
    ],
)  # fmt: skip
def test_an_argument_that_differs_is_refused_before_anything_is_received(
    classic: Place, has: dict[str, Any], options: dict[str, Any], texts: list[str]
) -> None:
    classic.declare(**has)
    error = refused(classic, **options)
    for text in (f"Queue '{classic.queue}' exists with ", *texts):
        assert text in error


@pytest.mark.parametrize("queue_type", ["quorum", "classic"])
def test_a_queue_of_the_default_type_has_no_limit_of_deliveries(rabbitmq: RabbitMQNode, queue_type: str) -> None:
    vhost = f"default-{queue_type}"
    rabbitmq.evaluate(f"ok = rabbit_vhost:add({binary(vhost)}, #{{default_queue_type => {binary(queue_type)}}}, <<>>)")
    try:
        rabbitmq.set_rights(rabbitmq.username, vhost, Rights())
        place = Place(rabbitmq.url(vhost), rabbitmq.username, rabbitmq.password)
        assert place.driver(**IF_MISSING).trigger() is None
        place.stop()
        reads(place)
        given: dict[str, object] = {"x-queue-type": queue_type}
        given |= {"x-delivery-limit": -1} if queue_type == "quorum" else {}
        with place.connect() as client:
            client.declare_queue(place.queue, durable=True, arguments=given)  # refused if one differs
    finally:
        rabbitmq.evaluate(f"rabbit_vhost:delete({binary(vhost)}, <<>>)")


@pytest.mark.parametrize("options", [{"queueType": "classic"}, {"queueArguments": "x-max-length=50"}])
def test_what_the_options_do_not_name_may_differ(classic: Place, options: dict[str, Any]) -> None:
    classic.declare(
        x_max_length=50, x_overflow="reject-publish", x_dead_letter_exchange="", x_dead_letter_routing_key="d"
    )
    reads(classic, **options)


def test_a_queue_that_is_not_durable(rabbitmq: RabbitMQNode) -> None:
    place = Place(rabbitmq.url("durable"), rabbitmq.username, rabbitmq.password)
    with place.connect() as client:
        client.declare_queue(place.queue, arguments={"x-max-length": 50})
    reads(place, queueType="classic")
    assert "x-queue-type 'classic', and option 'queueType' asks for 'quorum'" in refused(place, queueType="quorum")
    place.take()
    assert "x-max-length '50'" in refused(place, queueArguments="x-max-length=5")
    place.close()


def test_a_quorum_queue_of_an_operator_may_have_its_own_limit_of_deliveries(rabbitmq: RabbitMQNode) -> None:
    place = Place(rabbitmq.url("durable"), rabbitmq.username, rabbitmq.password, "quorum")
    place.declare(x_delivery_limit=7)
    reads(place, queueType="quorum")
    assert "x-delivery-limit '7'" in refused(place, queueArguments="x-delivery-limit=-1")
    place.close()


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_a_queue_that_was_declared_so_is_read_again(rabbitmq: RabbitMQNode, queue_type: str) -> None:
    place = Place(rabbitmq.url("durable"), rabbitmq.username, rabbitmq.password)
    options: dict[str, Any] = {"queueType": queue_type, "queueArguments": "x-max-length=50;x-overflow=reject-publish"}
    place.driver(**IF_MISSING, **options).trigger()
    place.stop()
    for _ in range(2):
        reads(place, **options)
    place.close()


def test_a_stream_that_was_declared_so_is_read_again(rabbitmq: RabbitMQNode) -> None:
    place = Streams(rabbitmq.url("durable"), rabbitmq.username, rabbitmq.password)
    options: dict[str, Any] = {"queueArguments": "x-max-age=7D;x-max-length-bytes=2000000", **IF_MISSING}
    driver = place.log_driver(**options)
    with place.connect() as client, pytest.raises(DeclaredDifferently) as raised:
        client.declare_queue(place.queue, durable=True, arguments={"x-queue-type": "stream", "x-max-age": "7D"})
    assert (raised.value.argument, raised.value.value) == ("x-max-length-bytes", 2_000_000), "it has x-max-age"
    for begin in (0, 3):
        place.publish(numbers(3, begin))
        driver = place.log_driver(driver, **options)
        rows = driver.trigger_until_rows()
        assert [(row[1], row[2]) for row in rows] == list(enumerate(numbers(3, begin), begin))
    with pytest.raises(
        PreconditionFailed, match="x-max-age '604800000', and option 'queueArguments' asks for '691200000'"
    ):
        place.read(**IF_MISSING, queueArguments="x-max-age=8D")
    place.close()


@pytest.mark.parametrize("has", [{}, {"x_queue_type": "quorum"}])
@pytest.mark.parametrize("declare", ["never", "ifMissing"])
def test_a_queue_is_no_stream(rabbitmq: RabbitMQNode, has: dict[str, Any], declare: str) -> None:
    place = Streams(rabbitmq.url("durable"), rabbitmq.username, rabbitmq.password)
    place.queue_type = None
    place.declare(**has)
    place.publish(numbers(3))
    with pytest.raises(LogError, match=r"AMQP_LOG_IS_QUEUE.*no stream.*Remove queueType=stream"):
        place.read(declare=declare)
    with pytest.raises(LogError, match="AMQP_LOG_IS_QUEUE"):
        place.log_driver(declare=declare)
    assert place.take() == numbers(3), "nothing was received"
    place.close()


def test_an_old_release_compares_too(rabbitmq310: RabbitMQNode) -> None:
    """Release 3.10 says that a queue which was declared without a type has none."""
    place = Place(rabbitmq310.url("durable"), rabbitmq310.username, rabbitmq310.password)
    place.declare(x_max_length=50)
    reads(place, queueType="classic")
    assert "x-queue-type absent, and option 'queueType' asks for 'quorum'" in refused(place, queueType="quorum")
    place.close()


def test_a_login_that_may_not_configure_the_queue_reads_it(
    rabbitmq: RabbitMQNode, classic: Place, caplog: pytest.LogCaptureFixture
) -> None:
    classic.declare()
    rabbitmq.set_rights("trader", "durable", Rights(configure="^$"))
    try:
        place = Place(classic.address, "trader", rabbitmq.config.users["trader"], queue=classic.queue)
        with caplog.at_level(logging.INFO):
            reads(place, queueType="quorum")
    finally:
        rabbitmq.set_rights("trader", "durable", Rights())
    (record,) = (each for each in caplog.records if "are not compared" in each.getMessage())
    assert record.levelno == logging.INFO
    assert "configure access" in record.getMessage()


def test_a_name_so_long_that_rabbitmq_cuts_its_answer(rabbitmq: RabbitMQNode, caplog: pytest.LogCaptureFixture) -> None:
    """The answer names what differs, and not what the queue has: that cannot be taken over."""
    place = Place(rabbitmq.url("durable"), rabbitmq.username, rabbitmq.password, "classic", queue="q" * 255)
    place.declare(x_max_length=50)
    with caplog.at_level(logging.INFO):
        reads(place, queueType="classic")
    assert "not all of its arguments can be compared" in caplog.text
    assert "with x-max-length (the broker does not show it), and option" in refused(
        place, queueArguments="x-max-length=5"
    )
    place.close()


@pytest.mark.parametrize("protocol", ["0-9-1", "0-10"])
def test_broker_j_does_not_compare(brokerj_0_9: BrokerJ, protocol: str) -> None:
    place = Place(brokerj_0_9.url("durable"), brokerj_0_9.username, brokerj_0_9.password)
    place.declare(x_qpid_maximum_message_count=50)
    driver = place.driver(**IF_MISSING, protocol=protocol, queueArguments="x-qpid-maximum-message-count=60")
    driver.latest()
    wait_until(lambda: place.count() == (0, 1), "the reader consumes")
    place.close()


@pytest.mark.parametrize(
    ("broker", "protocol"), [("rabbitmq", "0-9-1"), ("brokerj_0_9", "0-9-1"), ("brokerj_0_9", "0-10")]
)
def test_a_missing_exchange_of_a_binding_names_the_option(
    request: pytest.FixtureRequest, broker: str, protocol: str
) -> None:
    node: RabbitMQNode | BrokerJ = request.getfixturevalue(broker)
    place = Place(node.url("durable"), node.username, node.password)
    place.declare()
    driver = place.driver(protocol=protocol, bind="amq.topic/a.#;no-such-exchange/b.*")
    with pytest.raises(NotFound) as raised:
        driver.rows(1)
    place.close()
    assert raised.value.condition == "AMQP_BIND_TARGET_NOT_FOUND"
    assert "Option 'bind' has 'no-such-exchange/b.*'" in str(raised.value)
