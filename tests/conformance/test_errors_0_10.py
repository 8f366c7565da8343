"""Errors of 0-10: each action with its code; all end the session alone. The codes are those of the specification's
exceptions, by command and name of the exception."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.v0_10 import spec
from amqp_core.v0_10.framing import COMMAND, MAX_FRAME_SIZE, TRACK_COMMAND, encode_assembly
from tests.conformance.peer import Declared, outcome
from tests.conformance.peer_0_10 import NONE, Peer010

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.conftest import Connect
    from tests.conformance.targets import Address, Target

SESSION = "session"


def _transfer(peer: Peer010, exchange: str, key: str, *, accept_mode: int = NONE, **delivery: Any) -> None:
    peer.transfer(exchange, spec.DeliveryProperties(routing_key=key, **delivery), None, b"", accept_mode=accept_mode)


def _raw(peer: Peer010, code: bytes) -> None:
    """A command by its code, without arguments."""
    segment = code + b"\x01\x01" + b"\0\0"
    peer.outgoing += b"".join(encode_assembly(0, TRACK_COMMAND, [(COMMAND, segment)], MAX_FRAME_SIZE))
    peer._next += 1


# A test makes before: the queues "q" (empty), "full" (one message), "consumed" (a subscription of another), "foreign"
# (exclusive to another), "locked" (an exclusive subscription of another), "reserve" (with the alternate exchange
# "alternate"), and the exchange "x" (direct, "q" is bound to it with "k").
ACTIONS: dict[str, tuple[Any, object]] = {
    # exchange.declare
    "reserved-names": (lambda peer, name: peer.declare_exchange("amq.own", "direct"), (SESSION, 530)),
    "exchange-name-required": (lambda peer, name: peer.declare_exchange("", "direct"), (SESSION, 542)),
    "typed": (lambda peer, name: peer.declare_exchange(name("x"), "topic"), (SESSION, 530)),
    "exchange-type-not-found": (lambda peer, name: peer.declare_exchange(name("y"), "unknown"), (SESSION, 404)),
    "pre-existing-exchange": (
        lambda peer, name: peer.declare_exchange(name("x"), "direct", alternate="amq.fanout"),
        (SESSION, 530),
    ),
    "declare passive: no exchange": (
        lambda peer, name: peer.declare_exchange(name("none"), "direct", passive=True),
        (SESSION, 404),
    ),
    "declare: an exchange with an unknown alternate": (
        lambda peer, name: peer.declare_exchange(name("y"), "direct", alternate=name("none")),
        (SESSION, 404),
    ),
    "declare: an exchange as it is": (lambda peer, name: peer.declare_exchange(name("x"), "direct"), "ok"),
    "declare: an exchange that is durable now": (
        lambda peer, name: peer.declare_exchange(name("x"), "direct", durable=True),
        "ok",
    ),
    "declare: an exchange with an unknown argument": (
        lambda peer, name: peer.declare_exchange(name("y"), "direct", arguments={"unknown": 1}),
        (SESSION, 540),
    ),
    # exchange.delete
    "exchange.delete exists": (lambda peer, name: peer.delete_exchange(name("none")), (SESSION, 404)),
    "exchange.delete exchange-name-required": (lambda peer, name: peer.delete_exchange(""), (SESSION, 542)),
    "used-as-alternate": (lambda peer, name: peer.delete_exchange(name("alternate")), (SESSION, 530)),
    "exchange-in-use": (lambda peer, name: peer.delete_exchange(name("x"), if_unused=True), (SESSION, 406)),
    "exchange.delete: amq.direct": (lambda peer, name: peer.delete_exchange("amq.direct"), (SESSION, 530)),
    # exchange.bind, exchange.unbind
    "bind empty-queue": (lambda peer, name: peer.bind("", "amq.direct", "k"), (SESSION, 542)),
    "bind queue-existence": (lambda peer, name: peer.bind(name("none"), "amq.direct", "k"), (SESSION, 404)),
    "bind exchange-existence": (lambda peer, name: peer.bind(name("q"), name("none"), "k"), (SESSION, 404)),
    "bind exchange-name-required": (lambda peer, name: peer.bind(name("q"), "", "k"), (SESSION, 542)),
    "unbind non-existent-queue": (lambda peer, name: peer.unbind(name("none"), "amq.direct", "k"), (SESSION, 404)),
    "unbind non-existent-exchange": (lambda peer, name: peer.unbind(name("q"), name("none"), "k"), (SESSION, 404)),
    "unbind exchange-name-required": (lambda peer, name: peer.unbind(name("q"), "", "k"), (SESSION, 542)),
    "unbind non-existent-binding-key": (lambda peer, name: peer.unbind(name("q"), name("x"), "other"), (SESSION, 404)),
    # queue.declare
    "reserved-prefix": (lambda peer, name: peer.declare_queue("amq.own"), (SESSION, 530)),
    "queue.declare pre-existing-exchange": (
        lambda peer, name: peer.declare_queue(name("reserve"), alternate="amq.fanout"),
        (SESSION, 530),
    ),
    "queue.declare unknown-exchange": (
        lambda peer, name: peer.declare_queue(name("y"), alternate=name("none")),
        (SESSION, 404),
    ),
    "declare passive: no queue": (lambda peer, name: peer.declare_queue(name("none"), passive=True), (SESSION, 404)),
    "declare: a queue without a name": (lambda peer, name: peer.declare_queue(""), (SESSION, 542)),
    "declare: another's exclusive queue": (lambda peer, name: peer.declare_queue(name("foreign")), (SESSION, 405)),
    "declare: a shared queue without consumers as exclusive": (
        lambda peer, name: peer.declare_queue(name("q"), exclusive=True),
        "ok",
    ),
    "declare: exclusively what others consume": (
        lambda peer, name: peer.declare_queue(name("consumed"), exclusive=True),
        (SESSION, 405),
    ),
    "declare passive: another's exclusive queue": (
        lambda peer, name: peer.declare_queue(name("foreign"), passive=True),
        (SESSION, 405),
    ),
    "declare: a queue that is durable now": (lambda peer, name: peer.declare_queue(name("q"), durable=True), "ok"),
    "declare: a queue that is auto-delete now": (
        lambda peer, name: peer.declare_queue(name("q"), auto_delete=True),
        "ok",
    ),
    "declare: a queue with an unknown argument": (
        lambda peer, name: peer.declare_queue(name("y"), arguments={"unknown": 1}),
        (SESSION, 540),
    ),
    # queue.delete, queue.purge
    "queue.delete empty-name": (lambda peer, name: peer.delete_queue(""), (SESSION, 542)),
    "queue.delete queue-exists": (lambda peer, name: peer.delete_queue(name("none")), (SESSION, 404)),
    "if-unused-flag": (lambda peer, name: peer.delete_queue(name("consumed"), if_unused=True), (SESSION, 406)),
    "not-empty": (lambda peer, name: peer.delete_queue(name("full"), if_empty=True), (SESSION, 406)),
    "delete: another's exclusive queue": (lambda peer, name: peer.delete_queue(name("foreign")), (SESSION, 405)),
    "queue.purge empty-name": (lambda peer, name: peer.purge(""), (SESSION, 542)),
    "queue.purge queue-exists": (lambda peer, name: peer.purge(name("none")), (SESSION, 404)),
    "purge: another's exclusive queue": (lambda peer, name: peer.purge(name("foreign")), (SESSION, 405)),
    "bind: another's exclusive queue": (
        lambda peer, name: peer.bind(name("foreign"), "amq.direct", "k"),
        (SESSION, 405),
    ),
    # message
    "nonexistent-exchange": (lambda peer, name: _transfer(peer, name("none"), "k"), (SESSION, 404)),
    "transfer: unroutable, accept-mode none": (lambda peer, name: _transfer(peer, "amq.direct", name("none")), "ok"),
    "transfer: user-id is another": (
        lambda peer, name: peer.transfer(
            "", spec.DeliveryProperties(routing_key=name("q")), spec.MessageProperties(user_id=b"another"), b""
        ),
        (SESSION, 403),
    ),
    "subscribe queue-not-found": (lambda peer, name: peer.subscribe(name("none"), "d"), (SESSION, 404)),
    "subscribe: without a queue": (
        lambda peer, name: peer.send(spec.MessageSubscribe(destination="d", accept_mode=0, acquire_mode=0)),
        (SESSION, 542),
    ),
    "unique-subscriber-destination": (
        lambda peer, name: (peer.subscribe(name("q"), "d"), peer.subscribe(name("q"), "d")),
        (SESSION, 530),
    ),
    "subscribe in-use": (lambda peer, name: peer.subscribe(name("locked"), "d"), (SESSION, 405)),
    "subscribe: exclusively where others are": (
        lambda peer, name: peer.subscribe(name("consumed"), "d", exclusive=True),
        (SESSION, 405),
    ),
    "subscribe: another's exclusive queue": (lambda peer, name: peer.subscribe(name("foreign"), "d"), (SESSION, 405)),
    "subscription-not-found": (lambda peer, name: peer.cancel("unknown"), (SESSION, 404)),
    "flow: an unknown destination": (lambda peer, name: peer.flow("unknown"), (SESSION, 404)),
    "stop: an unknown destination": (
        lambda peer, name: peer.send(spec.MessageStop(destination="unknown")),
        (SESSION, 404),
    ),
    "accept: an unknown id": (lambda peer, name: peer.send(spec.MessageAccept(transfers=[(5, 9)])), "ok"),
    # others
    "tx.rollback select-required": (lambda peer, name: peer.send(spec.TxRollback()), (SESSION, 409)),
    "a command of class file": (lambda peer, name: _raw(peer, b"\x09\x01"), (SESSION, 540)),
    "an unknown command": (lambda peer, name: _raw(peer, b"\x04\x7f"), (SESSION, 503)),
}


@pytest.fixture
def world(connect_0_10: Connect, name: Callable[[str], str]) -> Peer010:
    """A client beside another one, which owns what the actions need."""
    other: Peer010 = connect_0_10()
    other.declare_exchange(name("alternate"), "fanout")
    other.declare_exchange(name("x"), "direct")
    for queue in ("q", "full", "consumed", "locked"):
        other.declare_queue(name(queue))
    other.declare_queue(name("reserve"), alternate=name("alternate"))
    other.declare_queue(name("foreign"), exclusive=True, auto_delete=True)
    other.bind(name("q"), name("x"), "k")
    other.subscribe(name("consumed"), "d1")
    other.subscribe(name("locked"), "d2", exclusive=True)
    other.publish_all(name("full"), [b""])
    peer: Peer010 = connect_0_10()
    return peer


@pytest.mark.parametrize("case", ACTIONS)
def test_an_action(world: Peer010, name: Callable[[str], str], target: Target, case: str) -> None:
    action, specified = ACTIONS[case]

    def run() -> None:
        action(world, name)
        world.sync()

    assert outcome(run) == target.expects(f"0-10: {case}", specified)


def test_after_an_error_the_connection_goes_on(world: Peer010, name: Callable[[str], str]) -> None:
    """The session ends alone: what it had done stays, and another session can be attached."""
    world.publish("", name("q"), b"before")
    world.purge(name("none"))
    assert outcome(world.sync) == (SESSION, 404)
    world.after_error()
    assert world.bodies(name("q")) == [b"before"]


def test_an_error_says_which_command_it_was(peer_0_10: Peer010, name: Callable[[str], str], target: Target) -> None:
    peer_0_10.sync()
    peer_0_10.purge(name("none"))
    assert outcome(peer_0_10.sync) == (SESSION, 404)
    exception = peer_0_10.exception
    assert exception is not None
    assert exception.command_id == 1
    codes = (exception.class_code, exception.command_code)
    assert codes == target.expects("execution.exception: class and command", (8, 3))


def test_queries_of_what_is_not_there_are_no_errors(peer_0_10: Peer010, name: Callable[[str], str]) -> None:
    assert not peer_0_10.query(name("none")).queue
    exchange = peer_0_10.ask(spec.ExchangeQuery(name=name("none")), spec.ExchangeQueryResult)
    assert exchange.not_found
    bound = peer_0_10.ask(spec.ExchangeBound(exchange=name("none"), queue=name("none")), spec.ExchangeBoundResult)
    assert (bound.exchange_not_found, bound.queue_not_found) == (True, True)


def test_what_is_bound(peer_0_10: Peer010, name: Callable[[str], str]) -> None:
    peer_0_10.declare_exchange(name("x"), "topic")
    for queue in ("q", "other"):
        peer_0_10.declare_queue(name(queue))
    peer_0_10.bind(name("q"), name("x"), "a.*")

    def missing(**criteria: Any) -> list[str]:
        result = peer_0_10.ask(spec.ExchangeBound(exchange=name("x"), **criteria), spec.ExchangeBoundResult)
        words = ("queue_not_matched", "key_not_matched", "args_not_matched")
        return [word for word in words if getattr(result, word)]

    assert missing(queue=name("q")) == []
    assert missing(queue=name("q"), binding_key="a.*") == []
    assert missing(binding_key="a.*") == []
    assert missing(queue=name("other")) == ["queue_not_matched"]
    assert missing(binding_key="a.b") == ["key_not_matched"]
    assert missing(queue=name("q"), binding_key="a.b") == ["key_not_matched"]


def test_a_session_name_that_is_in_use(connect_0_10: Connect) -> None:
    """session.attach: detached with code 1 (session-busy)."""
    first: Peer010 = connect_0_10()
    second: Peer010 = connect_0_10()
    second.control(spec.SessionDetach(name=second.session_name))
    second.wait_control(spec.SessionDetached)
    second.control(spec.SessionAttach(name=first.session_name))
    assert second.wait_control(spec.SessionDetached).code == spec.SessionDetachCode.SESSION_BUSY


def test_a_deleted_queue_ends_the_session_of_its_subscriber(
    connect_0_10: Connect, name: Callable[[str], str], target: Target
) -> None:
    """0-10 section message.subscribe, queue-deletion."""
    peer: Peer010 = connect_0_10()
    other: Peer010 = connect_0_10()
    peer.declare_queue(name("q"))
    peer.subscribe(name("q"), "d")
    peer.sync()
    other.delete_queue(name("q"))
    other.sync()
    assert outcome(peer.sync) == target.expects("subscribe: its queue is deleted", (SESSION, 408))


def test_an_unknown_virtual_host(address: Address, connect_0_10: Connect) -> None:
    del connect_0_10
    assert outcome(lambda: Peer010(replace(address, virtual_host="none"), Declared())) == ("connection", 402)


def test_a_wrong_password(address: Address, connect_0_10: Connect) -> None:
    del connect_0_10
    assert outcome(lambda: Peer010(replace(address, password="wrong"), Declared())) == ("connection", 320)
