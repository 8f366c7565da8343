"""The durable broker is killed at any moment: what was confirmed is there, what was committed is done, once."""

from __future__ import annotations

import contextlib
import random
import threading
import uuid
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Self

import pika
import pytest

from amqp_core.address import ConnectOptions, parse_url
from amqp_core.api import Xid
from amqp_core.errors import AmqpError, NotFound
from amqp_core.local_transaction import local_transaction
from amqp_core.v0_10 import spec
from amqp_core.v0_10.client import Client
from amqp_core.v0_10.messages import Message
from tests.support.box_process import BoxProcess
from tests.support.choice import all_cases
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

KILLS = 20 if all_cases() else 5
LOST = (AmqpError, pika.exceptions.AMQPError, OSError)
PERSISTENT = spec.DeliveryProperties(routing_key="in", delivery_mode=spec.MessageDeliveryMode.PERSISTENT)


class Peer(ABC):
    """A connection that publishes with confirms, and moves messages from queue ``in`` to ``out`` in transactions."""

    def __init__(self, broker: BoxProcess) -> None:
        self.broker = broker

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @abstractmethod
    def publish(self, bodies: list[bytes]) -> None:
        """Publish to queue ``in``; return when all are confirmed."""

    @abstractmethod
    def move(self, count: int) -> None:
        """Move up to ``count`` messages to queue ``out`` in one transaction."""


class Peer09(Peer):
    """Over 0-9-1, with pika."""

    def __init__(self, broker: BoxProcess) -> None:
        super().__init__(broker)
        self._connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
        self._publishing = self._connection.channel()
        self._publishing.confirm_delivery()
        self._moving = self._connection.channel()
        self._moving.tx_select()

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(*LOST):
            self._connection.close()

    def publish(self, bodies: list[bytes]) -> None:
        for body in bodies:
            self._publishing.basic_publish("", "in", body, pika.BasicProperties(delivery_mode=2))

    def move(self, count: int) -> None:
        for _ in range(count):
            found, properties, body = self._moving.basic_get("in")
            if found is None:
                break
            self._moving.basic_publish("", "out", body, properties)
            self._moving.basic_ack(found.delivery_tag)
        self._moving.tx_commit()


class Peer010(Peer):
    """Over 0-10, with our client."""

    def __init__(self, broker: BoxProcess) -> None:
        super().__init__(broker)
        hosts, virtual_host, _ = parse_url(broker.url())
        options = ConnectOptions(hosts=hosts, virtual_host=virtual_host, username="guest", password="guest")
        self._publishing = Client.connect(options, call_timeout_s=20)
        self._moving = Client.connect(options, call_timeout_s=20)
        self._waiting = self._moving.fetcher("in")

    def __exit__(self, *_: object) -> None:
        self._publishing.abort()
        self._moving.abort()

    def publish(self, bodies: list[bytes]) -> None:
        for body in bodies:
            self._publishing.publish(Message(body, PERSISTENT))
        self._publishing.confirm()

    def move(self, count: int) -> None:
        with local_transaction(self._moving.transactions):
            found = self._waiting.take(count)
            for message in found:
                self._moving.publish(Message(message.body, PERSISTENT), routing_key="out")
            self._moving.confirm()
            self._moving.accept([(each.command_id, each.command_id) for each in found if each.command_id is not None])


class PeerXa(Peer010):
    """Over 0-10, with distributed transactions: a branch that is prepared is committed, whoever lives by then."""

    def __enter__(self) -> Self:
        self._resolve()
        return self

    def move(self, count: int) -> None:
        xid = Xid(format=1, global_id=uuid.uuid4().bytes, branch_id=b"")
        with self._moving.transactions.branch(xid):
            found = self._waiting.take(count)
            for message in found:
                self._moving.publish(Message(message.body, PERSISTENT), routing_key="out")
            self._moving.confirm()
            self._moving.accept([(each.command_id, each.command_id) for each in found if each.command_id is not None])
        self._moving.transactions.commit_branch(xid)

    def _resolve(self) -> None:
        """Commit what another client has prepared: both are done with it."""
        for xid in self._moving.transactions.recover():
            with contextlib.suppress(NotFound):
                self._moving.transactions.commit_branch(xid)


PEERS: dict[str, Callable[[BoxProcess], Peer]] = {"0-9-1": Peer09, "0-10": Peer010, "0-10 dtx": PeerXa}


@pytest.fixture
def broker() -> Iterator[BoxProcess]:
    with BoxProcess() as process:
        yield process


def queues(broker: BoxProcess) -> dict[str, list[int]]:
    """Numbers in the queues, in their order; they are taken out."""
    with contextlib.closing(pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))) as connection:
        channel = connection.channel()
        found: dict[str, list[int]] = {"in": [], "out": []}
        for name, numbers in found.items():
            while (body := channel.basic_get(name, auto_ack=True)[2]) is not None:
                numbers.append(int(body.split(b":")[0]))
        return found


@pytest.mark.sampled("protocol", every=2)
@pytest.mark.parametrize("protocol", PEERS)
def test_kills(broker: BoxProcess, protocol: str) -> None:
    """Each number is published once and never again, so that it must not be there twice; a confirmed one must be."""
    with contextlib.closing(pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))) as connection:
        for name in ("in", "out"):
            connection.channel().queue_declare(name, durable=True)
    done = threading.Event()
    confirmed: list[int] = []
    moves = [0]

    def work(do: Callable[[Peer, random.Random], None], seed: int) -> None:
        drawn = random.Random(seed)
        while not done.is_set():
            with contextlib.suppress(*LOST), PEERS[protocol](broker) as peer:
                while not done.is_set():
                    do(peer, drawn)

    numbers = iter(range(1_000_000_000))

    def publish(peer: Peer, drawn: random.Random) -> None:
        some = [next(numbers) for _ in range(drawn.randint(1, 50))]
        peer.publish([b"%d:" % each + bytes(drawn.choice((0, 200, 20_000))) for each in some])
        confirmed.extend(some)

    def move(peer: Peer, drawn: random.Random) -> None:
        peer.move(drawn.randint(1, 30))
        moves[0] += 1

    def reached(least: tuple[int, int]) -> bool:
        return len(confirmed) >= least[0] and moves[0] >= least[1]

    threads = [threading.Thread(target=work, args=(do, seed)) for seed, do in enumerate((publish, move))]
    for thread in threads:
        thread.start()
    drawn = random.Random(protocol)
    try:
        for _ in range(KILLS):
            least = len(confirmed) + drawn.randint(1, 200), moves[0] + drawn.randint(1, 5)
            wait_until(partial(reached, least), "more messages", timeout_s=60)
            broker.restart(kill=True)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    broker.restart(kill=True)
    with PEERS[protocol](broker):
        pass  # it commits what is prepared
    found = queues(broker)
    everything = sorted(found["in"] + found["out"])
    assert len(everything) == len(set(everything)), "nothing is there twice"
    assert set(confirmed) <= set(everything), "nothing that was confirmed is lost"
    assert found["out"], "transactions were committed"


@pytest.mark.parametrize("protocol", PEERS)
def test_an_orderly_stop_keeps_everything(broker: BoxProcess, protocol: str) -> None:
    with contextlib.closing(pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))) as connection:
        for name in ("in", "out"):
            connection.channel().queue_declare(name, durable=True)
    with PEERS[protocol](broker) as peer:
        peer.publish([b"%d:" % number for number in range(20)])
        peer.move(5)
    broker.restart()
    assert queues(broker) == {"in": list(range(5, 20)), "out": list(range(5))}
