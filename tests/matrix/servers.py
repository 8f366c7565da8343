"""Kinds of servers on which the matrix runs, and what a case does with a client of each protocol."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from amqp_core import protocols
from amqp_core.address import ConnectOptions, parse_url
from amqp_core.errors import MessageRejected
from amqp_core.v0_9.client import Client as Client09
from amqp_core.v0_9.messages import Message as Message09
from amqp_core.v0_9.spec import BasicProperties, ReplyCode
from amqp_core.v0_10.client import Client as Client010
from amqp_core.v0_10.messages import Message
from amqp_core.v0_10.spec import DeliveryProperties
from tests.matrix.cases import ALO, AMO, END, EO, EXPIRE, LAPSE, LOG_POINTS, MEMORY_BROKER, QUORUM_POINTS, SOURCE
from tests.support.box_process import BoxProcess
from tests.support.brokerj import BrokerConfig, BrokerJ
from tests.support.process import wait_until
from tests.support.taking import bodies as bodies_0_10

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from amqp_core import api
    from amqp_core.api import Client
    from tests.matrix.brokers import MortalBroker
    from tests.matrix.cases import Case
    from tests.support.fixtures import Broker

_PREFETCH = 1000
_TAKE_TIMEOUT_S = 30.0
SAME: Final = b"same"
"""Body of messages that differ by their ids."""


@dataclass(frozen=True)
class Server:
    """A kind of server.

    Attributes:
        name: on the command line.
        make: makes one of our own, not started.
        protocol: option ``protocol`` of its clients and queries.
        arguments: of queue.declare.
        always_durable: whether every queue is durable.
        guarantees: that it can give.
        sinks: guarantees that it can give to queries that write.
        recognises: whether exactly-once has its state in the spool, and recognises what comes again.
        expires: whether it rolls a prepared branch back when its time is over.
        log: whether its queues are logs, which are read by offsets.
        settles_s: seconds after which a new queue survives a kill of the server (quorum: 3).
    """

    name: str
    make: Callable[[], MortalBroker]
    protocol: str = "0-10"
    arguments: Mapping[str, object] = field(default_factory=dict)
    always_durable: bool = False
    guarantees: tuple[str, ...] = (EO, ALO, AMO)
    sinks: tuple[str, ...] = (EO, ALO)
    recognises: bool = False
    expires: bool = True
    settles_s: float = 0.0
    log: bool = False

    def left_out(self, case: Case) -> str | None:
        """Why a case is not run on this server; ``None`` if it is run."""
        if case.guarantee not in self.guarantees:
            return f"{self.name} does not give {case.guarantee}"
        if case.writes and case.guarantee not in self.sinks:
            return f"{self.name} does not give {case.guarantee} to a query that writes"
        if not self.recognises and QUORUM_POINTS.keys() & {step.point for step in case.steps}:
            return f"a query over {self.name} never recognises messages"
        if not self.expires and {EXPIRE, LAPSE} & set(case.victims):
            return f"a prepared branch never expires on {self.name}"
        if self.log and (case.kind != SOURCE or not {step.point for step in case.steps} <= LOG_POINTS | {END}):
            return f"a query over {self.name} does not pass it"
        if MEMORY_BROKER in case.victims and self.always_durable:
            return f"the queues of {self.name} are durable"
        return None

    def connect(self, broker: Broker, vhost: str) -> Client:
        """Connect a client that may be idle for minutes."""
        hosts, virtual_host, tls = parse_url(broker.url(vhost))
        options = ConnectOptions(
            hosts=hosts,
            virtual_host=virtual_host,
            tls=tls,
            username=broker.username,
            password=broker.password,
            protocol=self.protocol,
            heartbeat=0,
        )
        return protocols.connect(options)


def _broker_j() -> MortalBroker:
    return BrokerJ(BrokerConfig(heap="512m"))


def _broker_j_0_9_1() -> MortalBroker:
    return BrokerJ(BrokerConfig(heap="512m", protocols=("AMQP_0_10", "AMQP_0_9_1")))


def _box() -> MortalBroker:
    return BoxProcess()


def _rabbitmq() -> MortalBroker:
    from tests.support.rabbitmq import RabbitMQNode  # noqa: PLC0415 - the others need none

    return RabbitMQNode()


def _rabbitmq310() -> MortalBroker:
    from tests.support.rabbitmq import OLD, RabbitMQConfig, RabbitMQNode  # noqa: PLC0415

    return RabbitMQNode(RabbitMQConfig(release=OLD))


def _quorum(name: str, make: Callable[[], MortalBroker], **arguments: object) -> Server:
    return Server(
        name,
        make,
        "0-9-1",
        {"x-queue-type": "quorum", **arguments},
        always_durable=True,
        sinks=(ALO,),
        recognises=True,
        settles_s=3.0,
    )


def _stream(name: str, make: Callable[[], MortalBroker]) -> Server:
    return Server(name, make, "0-9-1", {"x-queue-type": "stream"}, always_durable=True, guarantees=(EO,), log=True)


BROKER_J: Final = Server("brokerj", _broker_j)
SERVERS: Final = {
    server.name: server
    for server in (
        BROKER_J,
        Server("brokerj-0-9-1", _broker_j_0_9_1, "0-9-1", sinks=(ALO,)),
        Server("box", _box, always_durable=True, expires=False),
        Server(
            "rabbitmq-classic",
            _rabbitmq,
            "0-9-1",
            {"x-queue-type": "classic"},
            always_durable=True,
            guarantees=(ALO, AMO),
        ),
        _quorum("rabbitmq-quorum", _rabbitmq, **{"x-delivery-limit": -1}),
        _quorum("rabbitmq310-quorum", _rabbitmq310),  # it takes -1 for a limit, and drops what comes back
        _stream("rabbitmq-stream", _rabbitmq),
        _stream("rabbitmq310-stream", _rabbitmq310),
    )
}


def publish(client: Client, queue: str, bodies: Iterable[bytes], *, durable: bool, named: bool = False) -> None:
    """Publish bodies to a queue and wait until the broker has them; ``named``: as message ids of equal bodies."""
    given = list(bodies)

    def is_published() -> bool:
        """RabbitMQ 3.10 routes nothing to a stream that has not started again after its node."""
        try:
            _publish(client, queue, given, durable=durable, named=named)
        except MessageRejected as error:
            if error.code != ReplyCode.NO_ROUTE or error.count != len(given):
                raise
            return False
        return True

    wait_until(is_published, f"a route to {queue!r}", poll_s=0.2)


def _publish(client: Client, queue: str, bodies: Iterable[bytes], *, durable: bool, named: bool) -> None:
    for body in bodies:
        if named:
            assert isinstance(client, Client09)
            properties = BasicProperties(delivery_mode=2, message_id=body.decode())
            client.publish(Message09(SAME, properties), routing_key=queue)
        elif isinstance(client, Client010):
            delivery = DeliveryProperties(routing_key=queue, delivery_mode=2 if durable else 1)
            client.publish(Message(body, delivery))
        else:
            client.publish_to_queue(queue, body, content_type="text/plain")
    client.confirm()


def take_all(client: Client, queue: str) -> list[bytes]:
    """Receive what a queue holds, without accepting it."""
    info = client.query_queue(queue)
    count = 0 if info is None else info.message_count or 0
    if not count:
        return []
    if isinstance(client, Client010):
        subscription = client.subscribe(queue)
        subscription.grant(count)
        found = bodies_0_10(subscription, count)
        subscription.cancel()
        return found
    flow = client.subscribe(queue, max_unsettled=max(_PREFETCH, count))
    deadline = time.monotonic() + _TAKE_TIMEOUT_S
    messages: list[api.Message] = []
    while len(messages) < count and time.monotonic() < deadline:
        message = flow.take_one(timeout=1.0)
        if message is not None:
            messages.append(message)
    flow.cancel()
    # Broker-J counts unsettled messages for the whole channel: the next subscription would get less.
    client.release([(message.transfer_id, message.transfer_id) for message in messages])
    return [message.body for message in messages]
