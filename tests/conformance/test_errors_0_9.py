"""Errors of 0-9-1: each action with the code, and with what it ends. The codes are the specification's (class
exceptions and rules of the methods), or those that RabbitMQ documents for what it has added."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.v0_9 import spec
from amqp_core.v0_9.framing import METHOD
from tests.conformance.peer import Declared, outcome
from tests.conformance.peer_0_9 import Peer09

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.conftest import Connect
    from tests.conformance.targets import Address, Target


CHANNEL, CONNECTION = "channel", "connection"


def _publish(peer: Peer09, exchange: str, **options: Any) -> None:
    peer.publish_raw(spec.BasicPublish(exchange=exchange, routing_key="k", **options), spec.BasicProperties(), b"")


def _open_above(peer: Peer09) -> None:
    peer.channel = peer.channel_max + 1
    peer.send(spec.ChannelOpen())


# Of each: what is sent, and what the specification has it end with. A test makes the queues and exchanges before:
# "q" (empty), "full" (one message), "consumed" (a consumer), "foreign" (exclusive to another), "x" (direct, with a
# binding), "locked" (an exclusive consumer of another).
Action = Any
ACTIONS: dict[str, tuple[Action, object]] = {
    "declare passive: no queue": (
        lambda peer, name: peer.send(spec.QueueDeclare(queue=name("none"), passive=True)),
        (CHANNEL, 404),
    ),
    "declare passive: no exchange": (
        lambda peer, name: peer.send(spec.ExchangeDeclare(exchange=name("none"), type="direct", passive=True)),
        (CHANNEL, 404),
    ),
    "bind: no queue": (lambda peer, name: peer.bind(name("none"), "amq.direct", "k"), (CHANNEL, 404)),
    "bind: no exchange": (lambda peer, name: peer.bind(name("q"), name("none"), "k"), (CHANNEL, 404)),
    "bind: the default exchange": (lambda peer, name: peer.bind(name("q"), "", "k"), (CHANNEL, 403)),
    "unbind: no queue": (lambda peer, name: peer.unbind(name("none"), "amq.direct", "k"), (CHANNEL, 404)),
    "unbind: no exchange": (lambda peer, name: peer.unbind(name("q"), name("none"), "k"), (CHANNEL, 404)),
    "unbind: no binding": (lambda peer, name: peer.unbind(name("q"), name("x"), "other"), "ok"),
    "consume: no queue": (lambda peer, name: peer.consume(name("none"), "c"), (CHANNEL, 404)),
    "get: no queue": (lambda peer, name: peer.send(spec.BasicGet(queue=name("none"))), (CHANNEL, 404)),
    "purge: no queue": (lambda peer, name: peer.purge(name("none")), (CHANNEL, 404)),
    "delete: no queue": (lambda peer, name: peer.delete_queue(name("none")), "ok"),
    "delete: no exchange": (lambda peer, name: peer.delete_exchange(name("none")), "ok"),
    "publish: no exchange": (lambda peer, name: _publish(peer, name("none")), (CHANNEL, 404)),
    "publish: immediate": (lambda peer, name: _publish(peer, "amq.direct", immediate=True), (CONNECTION, 540)),
    "delete: a queue with messages, if-empty": (
        lambda peer, name: peer.delete_queue(name("full"), if_empty=True),
        (CHANNEL, 406),
    ),
    "delete: a queue with a consumer, if-unused": (
        lambda peer, name: peer.delete_queue(name("consumed"), if_unused=True),
        (CHANNEL, 406),
    ),
    "delete: an exchange with a binding, if-unused": (
        lambda peer, name: peer.delete_exchange(name("x"), if_unused=True),
        (CHANNEL, 406),
    ),
    "delete: amq.direct": (lambda peer, name: peer.delete_exchange("amq.direct"), (CHANNEL, 403)),
    "delete: the default exchange": (lambda peer, name: peer.delete_exchange(""), (CHANNEL, 403)),
    "declare: a queue named amq.": (lambda peer, name: peer.declare_queue("amq.own"), (CHANNEL, 403)),
    "declare: an exchange named amq.": (lambda peer, name: peer.declare_exchange("amq.own", "direct"), (CHANNEL, 403)),
    "declare: the default exchange": (lambda peer, name: peer.declare_exchange("", "direct"), (CHANNEL, 403)),
    "declare: amq.direct as it is": (
        lambda peer, name: peer.send(spec.ExchangeDeclare(exchange="amq.direct", type="direct", durable=True)),
        "ok",
    ),
    "declare: an exchange of another type": (
        lambda peer, name: peer.declare_exchange(name("x"), "topic"),
        (CHANNEL, 406),
    ),
    "declare: an exchange that is durable now": (
        lambda peer, name: peer.declare_exchange(name("x"), "direct", durable=True),
        (CHANNEL, 406),
    ),
    "declare: an unknown type": (
        lambda peer, name: peer.declare_exchange(name("y"), "x-unknown"),
        (CONNECTION, 503),
    ),
    "declare: a queue that is durable now": (
        lambda peer, name: peer.declare_queue(name("q"), durable=True),
        (CHANNEL, 406),
    ),
    "declare: a queue that is auto-delete now": (
        lambda peer, name: peer.declare_queue(name("q"), auto_delete=True),
        (CHANNEL, 406),
    ),
    "declare: a queue with another argument": (
        lambda peer, name: peer.declare_queue(name("q"), arguments={"x-max-length": 5}),
        (CHANNEL, 406),
    ),
    "declare: a queue of ours that is exclusive now": (
        lambda peer, name: peer.declare_queue(name("q"), exclusive=True),
        (CHANNEL, 405),
    ),
    "declare: an argument of a wrong type": (
        lambda peer, name: peer.declare_queue(name("y"), arguments={"x-max-length": "many"}),
        (CHANNEL, 406),
    ),
    "declare: an unknown argument": (
        lambda peer, name: peer.declare_queue(name("y"), arguments={"x-unknown": 5}),
        "ok",
    ),
    "declare: another's exclusive queue": (lambda peer, name: peer.declare_queue(name("foreign")), (CHANNEL, 405)),
    "declare passive: another's exclusive queue": (
        lambda peer, name: peer.declare_queue(name("foreign"), passive=True),
        (CHANNEL, 405),
    ),
    "bind: another's exclusive queue": (
        lambda peer, name: peer.bind(name("foreign"), "amq.direct", "k"),
        (CHANNEL, 405),
    ),
    "consume: another's exclusive queue": (lambda peer, name: peer.consume(name("foreign"), "c"), (CHANNEL, 405)),
    "get: another's exclusive queue": (
        lambda peer, name: peer.send(spec.BasicGet(queue=name("foreign"))),
        (CHANNEL, 405),
    ),
    "purge: another's exclusive queue": (lambda peer, name: peer.purge(name("foreign")), (CHANNEL, 405)),
    "delete: another's exclusive queue": (lambda peer, name: peer.delete_queue(name("foreign")), (CHANNEL, 405)),
    "publish: another's exclusive queue": (lambda peer, name: peer.publish("", name("foreign"), b""), "ok"),
    "consume: a queue with an exclusive consumer": (
        lambda peer, name: peer.consume(name("locked"), "c"),
        (CHANNEL, 403),
    ),
    "consume: exclusively where others consume": (
        lambda peer, name: peer.send(spec.BasicConsume(queue=name("consumed"), exclusive=True)),
        (CHANNEL, 403),
    ),
    "consume: a tag that is in use": (
        lambda peer, name: (peer.consume(name("q"), "c"), peer.consume(name("q"), "c")),
        (CONNECTION, 530),
    ),
    "cancel: an unknown tag": (lambda peer, name: peer.cancel("unknown"), "ok"),
    "ack: an unknown tag": (lambda peer, name: peer.send(spec.BasicAck(delivery_tag=7)), (CHANNEL, 406)),
    "ack: an unknown tag, multiple": (
        lambda peer, name: peer.send(spec.BasicAck(delivery_tag=7, multiple=True)),
        (CHANNEL, 406),
    ),
    "ack: nothing is held, multiple": (
        lambda peer, name: peer.send(spec.BasicAck(delivery_tag=0, multiple=True)),
        "ok",
    ),
    "nack: an unknown tag": (lambda peer, name: peer.send(spec.BasicNack(delivery_tag=7)), (CHANNEL, 406)),
    "reject: an unknown tag": (lambda peer, name: peer.send(spec.BasicReject(delivery_tag=7)), (CHANNEL, 406)),
    "bind: three hashes": (
        lambda peer, name: peer.bind(name("q"), "amq.topic", "#.a.#.b.#"),
        "ok",
    ),
    "bind: an unknown x-match": (
        lambda peer, name: peer.bind(name("q"), "amq.match", "", {"x-match": "some"}),
        (CHANNEL, 406),
    ),
    "publish: expiration is no number": (
        lambda peer, name: peer.publish_raw(
            spec.BasicPublish(routing_key=name("q")), spec.BasicProperties(expiration="soon"), b""
        ),
        (CHANNEL, 406),
    ),
    "publish: user-id is another": (
        lambda peer, name: peer.publish_raw(
            spec.BasicPublish(routing_key=name("q")), spec.BasicProperties(user_id="another"), b""
        ),
        (CHANNEL, 406),
    ),
    "tx.select: with confirms": (lambda peer, name: peer.send(spec.TxSelect()), (CHANNEL, 406)),
    "tx.rollback: without select": (lambda peer, name: peer.send(spec.TxRollback()), (CHANNEL, 406)),
    "channel.open: is open": (lambda peer, name: peer.send(spec.ChannelOpen()), (CONNECTION, 504)),
    "channel.open: above channel-max": (lambda peer, name: _open_above(peer), (CONNECTION, 504)),
    "queue.bind: no queue was declared": (lambda peer, name: peer.bind("", "amq.direct", "k"), (CHANNEL, 404)),
}


@pytest.fixture
def world(connect_0_9: Connect, name: Callable[[str], str]) -> Peer09:
    """A client beside another one, which owns what the actions need."""
    other: Peer09 = connect_0_9()
    for queue in ("q", "full", "consumed", "locked"):
        other.declare_queue(name(queue))
    other.declare_queue(name("foreign"), exclusive=True)
    other.declare_exchange(name("x"), "direct")
    other.bind(name("q"), name("x"), "k")
    other.consume(name("consumed"), "c")
    other.send(spec.BasicConsume(queue=name("locked"), exclusive=True))
    other.publish_all(name("full"), [b""])
    peer: Peer09 = connect_0_9()
    return peer


@pytest.mark.parametrize("case", ACTIONS)
def test_an_action(world: Peer09, name: Callable[[str], str], target: Target, case: str) -> None:
    action, specified = ACTIONS[case]

    def run() -> None:
        action(world, name)
        world.sync()

    assert outcome(run) == target.expects(f"0-9-1: {case}", specified)


def test_after_an_error_the_connection_goes_on(world: Peer09, name: Callable[[str], str]) -> None:
    """A channel exception ends the channel alone: what it had done stays, and another channel can be opened."""
    world.publish("", name("q"), b"before")
    world.purge(name("none"))
    assert outcome(world.sync) == (CHANNEL, 404)
    world.after_error()
    assert world.bodies(name("q")) == [b"before"]


def test_unroutable(peer_0_9: Peer09, name: Callable[[str], str], target: Target) -> None:
    """mandatory: the message comes back with code 312 (no-route); not mandatory: it is gone."""
    peer_0_9.publish("amq.direct", name("nowhere"), b"returned", mandatory=True)
    peer_0_9.publish("amq.direct", name("nowhere"), b"gone")
    fates = [tuple(fate) for fate in peer_0_9.fates()]
    assert [(method.reply_code, method.exchange, body) for method, body in peer_0_9.returns] == [
        (312, "amq.direct", b"returned")
    ]
    assert fates == target.expects("publish: unroutable and mandatory", [("returned", 312), ("taken", 0)])


def test_a_frame_that_is_too_large(peer_0_9: Peer09, target: Target) -> None:
    """Larger than the frame-max that was agreed: a frame error."""
    peer_0_9.sync()
    peer_0_9.outgoing += struct.pack(
        ">BHI", METHOD, 1, 1 << 20
    )  # the head tells it; more would be lost with the answer
    assert outcome(lambda: peer_0_9.read_until(lambda: False)) == target.expects(
        "a frame larger than frame-max", (CONNECTION, 501)
    )


def test_a_payload_as_large_as_frame_max(peer_0_9: Peer09, name: Callable[[str], str], target: Target) -> None:
    """frame-max counts the whole frame. AMQPStorm and rabbitpy take it for that of the payload."""
    peer_0_9.declare_queue(name("q"))
    body = bytes(peer_0_9.frame_max)
    peer_0_9.publish_raw(
        spec.BasicPublish(routing_key=name("q")), spec.BasicProperties(), body, frame_max=len(body) + 8
    )
    peer_0_9.sync()
    (found,) = peer_0_9.take(name("q"), 1)
    assert found.body == body


def test_an_unknown_virtual_host(address: Address, target: Target, connect_0_9: Connect) -> None:
    made = outcome(lambda: Peer09(replace(address, virtual_host="no-such-host"), Declared()))
    assert made == target.expects("open: an unknown virtual host", (CONNECTION, 530))


def test_a_wrong_password(address: Address, target: Target, connect_0_9: Connect) -> None:
    made = outcome(lambda: Peer09(replace(address, password="wrong"), Declared()))
    assert made == target.expects("login: a wrong password", (CONNECTION, 403))


def test_a_deleted_queue_cancels_its_consumers(
    connect_0_9: Connect, name: Callable[[str], str], target: Target
) -> None:
    """basic.cancel from the broker, to a client that has announced that it understands it."""
    peer: Peer09 = connect_0_9()
    other: Peer09 = connect_0_9()
    peer.declare_queue(name("q"))
    peer.consume(name("q"), "c")
    peer.sync()
    other.delete_queue(name("q"))
    other.sync()
    told = target.expects("consumer: its queue is deleted", ["c"])
    peer.read_until(lambda: peer.cancelled == told)
    peer.sync()
    assert peer.cancelled == told
