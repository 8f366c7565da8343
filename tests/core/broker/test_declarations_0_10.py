"""Exchanges and queues over 0-10: what is declared, and the codes of what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from amqp_core.v0_10 import spec

if TYPE_CHECKING:
    from tests.core.broker.peer_0_10 import Peer, World


@pytest.fixture
def peer(world: World) -> Peer:
    """A client with the queue ``q``, the exchange ``x`` (topic), and the queue ``held`` of somebody else."""
    other = world.connect()
    other.attach(name=b"other")
    other.call(spec.QueueDeclare(queue="held", exclusive=True, auto_delete=True))
    other.call(spec.QueueDeclare(queue="consumed"))
    other.subscribe("consumed")
    peer = world.connect()
    peer.attach()
    peer.call(spec.QueueDeclare(queue="q"))
    peer.call(spec.ExchangeDeclare(exchange="x", type="topic"))
    return peer


def refusal(peer: Peer, command: spec.Command) -> int | None:
    """The code with which a command is refused."""
    peer.call(command)
    return next((each.error_code for each in peer.received(spec.ExecutionException)), None)


REFUSALS: list[tuple[spec.Command, int]] = [
    (spec.QueueDeclare(queue=""), 542),
    (spec.QueueDeclare(queue="amq.mine"), 530),
    (spec.QueueDeclare(queue="missing", passive=True), 404),
    (spec.QueueDeclare(queue="held"), 405),
    (spec.QueueDeclare(queue="held", passive=True), 405),
    (spec.QueueDeclare(queue="consumed", exclusive=True), 405),
    (spec.QueueDeclare(queue="new", alternate_exchange="missing"), 404),
    (spec.QueueDeclare(queue="q", alternate_exchange="x"), 530),
    (spec.QueueDeclare(queue="new", arguments={"qpid.policy_type": "self-destruct"}), 542),
    (spec.QueueDeclare(queue="new", arguments={"qpid.last_value_queue_key": "k"}), 540),
    (spec.QueueDeclare(queue="new", arguments={"qpid.max_count": "many"}), 406),
    (spec.QueueDeclare(queue="new", arguments={"qpid.max_count": "9" * 5000}), 406),
    (spec.QueueDelete(queue=""), 542),
    (spec.QueueDelete(queue="missing"), 404),
    (spec.QueueDelete(queue="held"), 405),
    (spec.QueuePurge(queue=""), 542),
    (spec.QueuePurge(queue="missing"), 404),
    (spec.ExchangeDeclare(exchange="", type="topic"), 530),
    (spec.ExchangeDeclare(exchange="amq.mine", type="topic"), 530),
    (spec.ExchangeDeclare(exchange="x", type="direct"), 530),
    (spec.ExchangeDeclare(exchange="new", type="x-unknown"), 404),
    (spec.ExchangeDeclare(exchange="missing", type="topic", passive=True), 404),
    (spec.ExchangeDeclare(exchange="x", type="topic", alternate_exchange="amq.fanout"), 530),
    (spec.ExchangeDeclare(exchange="new", type="topic", alternate_exchange="missing"), 404),
    (spec.ExchangeDelete(exchange=""), 542),
    (spec.ExchangeDelete(exchange="missing"), 404),
    (spec.ExchangeDelete(exchange="amq.topic"), 530),
    (spec.ExchangeBind(queue="", exchange="x", binding_key="k"), 542),
    (spec.ExchangeBind(queue="missing", exchange="x", binding_key="k"), 404),
    (spec.ExchangeBind(queue="q", exchange="missing", binding_key="k"), 404),
    (spec.ExchangeBind(queue="q", exchange="", binding_key="k"), 542),
    (spec.ExchangeBind(queue="held", exchange="x", binding_key="k"), 405),
    (spec.ExchangeUnbind(queue="q", exchange="x", binding_key="k"), 404),
    (spec.ExchangeUnbind(queue="missing", exchange="x", binding_key="k"), 404),
]


@pytest.mark.parametrize(("command", "code"), REFUSALS, ids=lambda value: str(value)[:80])
def test_refusals(peer: Peer, command: spec.Command, code: int) -> None:
    before = set(peer.world.host.queues), set(peer.world.host.exchanges)
    assert refusal(peer, command) == code
    assert (set(peer.world.host.queues), set(peer.world.host.exchanges)) == before


@pytest.mark.parametrize(
    "command",
    [
        spec.QueueDeclare(queue="q", durable=True, auto_delete=True, arguments={"qpid.max_count": 1}),
        spec.QueueDeclare(queue="q", passive=True),
        spec.ExchangeDeclare(exchange="x", type="topic", durable=True, auto_delete=True),
        spec.ExchangeDeclare(exchange="x", type="", passive=True),
        spec.ExchangeDeclare(exchange="amq.topic", type="topic"),
    ],
)
def test_what_exists_stays_as_it_is(peer: Peer, command: spec.Command) -> None:
    assert refusal(peer, command) is None
    assert not peer.ask(spec.QueueQuery(queue="q"), spec.QueueQueryResult).durable
    assert not peer.ask(spec.ExchangeQuery(name="x"), spec.ExchangeQueryResult).durable


def test_queue_query(peer: Peer) -> None:
    arguments = {"qpid.max_count": 5, "qpid.policy_type": "ring", "x": "y"}
    declare = spec.QueueDeclare(queue="full", durable=True, alternate_exchange="x", arguments=arguments)
    assert refusal(peer, declare) is None
    for number in range(7):
        peer.publish(b"%d" % number, "full")
    peer.subscribe("full")
    peer.flow(2)
    found = peer.ask(spec.QueueQuery(queue="full"), spec.QueueQueryResult)
    assert found == spec.QueueQueryResult(
        queue="full",
        alternate_exchange="x",
        durable=True,
        arguments=arguments,
        message_count=5,
        subscriber_count=1,
    )
    assert peer.bodies == [b"2", b"3"], "a ring drops the oldest"
    assert peer.ask(spec.QueueQuery(queue="missing"), spec.QueueQueryResult) == spec.QueueQueryResult()
    held = peer.ask(spec.QueueQuery(queue="held"), spec.QueueQueryResult)
    assert (held.exclusive, held.auto_delete) == (True, True)


@pytest.mark.parametrize(
    ("name", "value", "attribute", "expected"),
    [
        ("qpid.max_count", "3", "max_length", 3),
        ("qpid.max_size", "70", "max_bytes", 70),
        ("x-qpid-capacity", "70", "max_bytes", 70),
        ("x-qpid-maximum-delivery-count", "2", "delivery_limit", 1),
    ],
)
def test_numbers_that_are_texts(peer: Peer, name: str, value: str, attribute: str, expected: int) -> None:
    peer.call(spec.QueueDeclare(queue="new", arguments={name: value}))
    assert getattr(peer.world.host.queues["new"].settings, attribute) == expected
    found = peer.ask(spec.QueueQuery(queue="new"), spec.QueueQueryResult)
    assert found.arguments == {name: value}


@pytest.mark.parametrize("name", ["x-qpid-priorities", "qpid.priorities"])
@pytest.mark.parametrize(
    ("levels", "order"),
    [
        (1, "4935706182"),
        (2, "9576843012"),
        (5, "9768543012"),
        (6, "9786543012"),
        ("9", "9876543210"),
        (10, "9876543210"),
        (12, "9876543210"),
    ],
)
def test_levels_of_priority_are_those_of_broker_j(peer: Peer, name: str, levels: object, order: str) -> None:
    """The level of p among n is p - (5 - ceil(n / 2)), within the levels; Broker-J delivers in these orders."""
    peer.call(spec.QueueDeclare(queue="new", arguments={name: levels}))
    for priority in (4, 9, 3, 5, 7, 0, 6, 1, 8, 2):
        peer.publish(b"%d" % priority, "new", priority=priority)
    peer.subscribe("new")
    peer.flow(None)
    assert b"".join(peer.bodies).decode() == order


def test_the_default_exchange_is_declared_already(peer: Peer) -> None:
    """The JMS client declares it for a destination such as ``direct:////queue``."""
    assert refusal(peer, spec.ExchangeDeclare(exchange="", type="direct")) is None
    assert refusal(peer, spec.ExchangeDeclare(exchange="", type="direct", passive=True)) is None


def test_exchange_query(peer: Peer) -> None:
    found = peer.ask(spec.ExchangeQuery(name="x"), spec.ExchangeQueryResult)
    assert found == spec.ExchangeQueryResult(type="topic", arguments={})
    assert peer.ask(spec.ExchangeQuery(name="y"), spec.ExchangeQueryResult) == spec.ExchangeQueryResult(not_found=True)
    assert peer.ask(spec.ExchangeQuery(), spec.ExchangeQueryResult).type == "direct"


BOUND: list[tuple[dict[str, Any], dict[str, bool]]] = [
    ({"exchange": "x"}, {}),
    ({"exchange": "x", "queue": "q"}, {}),
    ({"exchange": "x", "queue": "q", "binding_key": "a"}, {}),
    ({"exchange": "x", "binding_key": "b"}, {}),
    ({"exchange": "x", "queue": "q", "binding_key": "b"}, {"key_not_matched": True}),
    ({"exchange": "x", "binding_key": "c"}, {"key_not_matched": True}),
    ({"exchange": "x", "queue": "third"}, {"queue_not_matched": True}),
    ({"exchange": "x", "queue": "third", "binding_key": "c"}, {"queue_not_matched": True, "key_not_matched": True}),
    ({"exchange": "x", "arguments": {"one": 1}}, {"args_not_matched": True}),
    ({"exchange": "none", "queue": "none"}, {"exchange_not_found": True, "queue_not_found": True}),
    ({"exchange": "x", "queue": "none"}, {"queue_not_found": True}),
    ({"exchange": "amq.topic"}, {"queue_not_matched": True}),
    ({"queue": "q", "binding_key": "q"}, {}),
    ({"binding_key": "q"}, {}),
    ({"binding_key": "none"}, {"key_not_matched": True}),
    ({"queue": "q", "binding_key": "second"}, {"key_not_matched": True}),
]


@pytest.mark.parametrize(("asked", "expected"), BOUND, ids=str)
def test_exchange_bound(peer: Peer, asked: dict[str, Any], expected: dict[str, bool]) -> None:
    for queue in ("second", "third"):
        peer.call(spec.QueueDeclare(queue=queue))
    peer.call(spec.ExchangeBind(queue="q", exchange="x", binding_key="a"))
    peer.call(spec.ExchangeBind(queue="second", exchange="x", binding_key="b"))
    assert peer.ask(spec.ExchangeBound(**asked), spec.ExchangeBoundResult) == spec.ExchangeBoundResult(**expected)


def test_bind_twice_and_unbind_once(peer: Peer) -> None:
    tables: list[dict[str, object]] = [{}, {"x": 1}]
    for arguments in tables:
        peer.call(spec.ExchangeBind(queue="q", exchange="x", binding_key="#.z", arguments=arguments))
    assert len(peer.world.host.exchanges["x"].bindings) == 1
    peer.publish(b"1", "a.z", "x")
    assert peer.world.host.queues["q"].message_count == 1
    peer.call(spec.ExchangeUnbind(queue="q", exchange="x", binding_key="#.z"))
    assert not peer.world.host.exchanges["x"].bindings
    assert not peer.received(spec.ExecutionException)


def test_an_exchange_in_use(peer: Peer) -> None:
    peer.call(spec.ExchangeBind(queue="q", exchange="x", binding_key="k"))
    assert refusal(peer, spec.ExchangeDelete(exchange="x", if_unused=True)) == 406


@pytest.mark.parametrize("user", ["queue", "exchange"])
def test_an_alternate_exchange_cannot_be_deleted(peer: Peer, user: str) -> None:
    if user == "queue":
        peer.call(spec.QueueDeclare(queue="u", alternate_exchange="x"))
    else:
        peer.call(spec.ExchangeDeclare(exchange="u", type="topic", alternate_exchange="x"))
    assert refusal(peer, spec.ExchangeDelete(exchange="x")) == 530


def test_conditions_of_queue_delete(peer: Peer) -> None:
    peer.publish(b"1")
    assert refusal(peer, spec.QueueDelete(queue="q", if_empty=True)) == 406
    peer.commands.clear()
    peer.attach(0, b"next")
    peer.subscribe()
    assert refusal(peer, spec.QueueDelete(queue="q", if_unused=True)) == 406


def test_orphans_go_to_the_alternate_exchange(peer: Peer) -> None:
    peer.call(spec.QueueDeclare(queue="dead"))
    peer.call(spec.ExchangeBind(queue="dead", exchange="amq.fanout", binding_key=""))
    peer.call(spec.QueueDeclare(queue="old", alternate_exchange="amq.fanout"))
    for body in (b"1", b"2"):
        peer.publish(body, "old")
    peer.call(spec.QueueDelete(queue="old"))
    assert peer.world.host.queues["dead"].message_count == 2


def old_queue(peer: Peer, **more: Any) -> None:
    """A queue ``old`` with three messages, whose alternate exchange passes them to the queue ``dead``."""
    peer.call(spec.QueueDeclare(queue="dead"))
    peer.call(spec.ExchangeBind(queue="dead", exchange="amq.fanout", binding_key=""))
    peer.call(spec.QueueDeclare(queue="old", alternate_exchange="amq.fanout", **more))
    for body in (b"1", b"2", b"3"):
        peer.publish(body, "old")


def take_one(peer: Peer) -> list[tuple[int, int]]:
    peer.subscribe("old")
    peer.flow(1)
    ((command_id, *_),) = peer.transfers
    return [(command_id, command_id)]


def dead(peer: Peer) -> list[bytes]:
    assert "old" not in peer.world.host.queues
    found = []
    while (entry := peer.world.host.get("dead", owner=None)) is not None:
        found.append(entry.message.body)
    return found


@pytest.mark.parametrize(
    ("more", "wait_s"),
    [
        ({"auto_delete": True}, 0.0),
        ({"auto_delete": True, "exclusive": True}, 0.0),
        ({"arguments": {"x-expires": 1000}}, 2.0),
    ],
)
def test_orphans_of_queues_that_end_by_themselves(peer: Peer, more: dict[str, Any], wait_s: float) -> None:
    old_queue(peer, **more)
    take_one(peer)
    peer.session.detach()
    peer.pump()
    peer.world.host.expire(peer.world.now + wait_s)
    assert sorted(dead(peer)) == [b"1", b"2", b"3"]


_XID: Final = spec.Xid(0, b"g", b"b")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([], []),  # the session ends
        ([], [spec.MessageRelease()]),
        ([], [spec.MessageReject(code=spec.MessageRejectCode.UNSPECIFIED)]),
        ([spec.TxSelect(), spec.MessageAccept()], [spec.TxRollback()]),
        (
            [spec.DtxSelect(), spec.DtxStart(xid=_XID), spec.MessageAccept()],
            [spec.DtxEnd(xid=_XID), spec.DtxRollback(xid=_XID)],
        ),
    ],
)
def test_what_is_held_when_its_queue_is_deleted_is_an_orphan_later(
    peer: Peer, before: list[spec.Command], after: list[spec.Command]
) -> None:
    """Rule alternate-exchange of queue.declare: rejected or orphaned messages must be routed."""
    old_queue(peer)
    held = take_one(peer)
    for command in (*before, spec.MessageCancel(destination="d"), spec.QueueDelete(queue="old"), *after):
        if isinstance(command, spec.MessageAccept | spec.MessageRelease | spec.MessageReject):
            command.transfers = held
        peer.call(command)
    peer.session.detach()
    peer.pump()
    assert dead(peer) == [b"2", b"3", b"1"]


def test_orphans_that_come_back_to_their_queue_are_gone(peer: Peer) -> None:
    peer.call(spec.QueueDeclare(queue="old", alternate_exchange="amq.fanout"))
    for queue in ("old", "q"):
        peer.call(spec.ExchangeBind(queue=queue, exchange="amq.fanout", binding_key=""))
    for body in (b"1", b"2"):
        peer.publish(body, "old")
    peer.call(spec.QueueDelete(queue="old"))
    assert "old" not in peer.world.host.queues
    assert peer.world.host.queues["q"].message_count == 2


def test_exclusive_queues_and_the_end_of_their_session(peer: Peer) -> None:
    host = peer.world.host
    peer.call(spec.QueueDeclare(queue="gone", exclusive=True, auto_delete=True))
    peer.call(spec.QueueDeclare(queue="stays", exclusive=True))
    peer.subscribe("gone")
    peer.call(spec.MessageCancel(destination="d"))
    assert "gone" in host.queues, "exclusive ones do not end with their last subscription"
    peer.call(spec.QueueDeclare(queue="stays", exclusive=True))
    peer.session.detach()
    peer.pump()
    assert "gone" not in host.queues
    assert host.queues["stays"].exclusive is None, "anybody may use it now"
    peer.attach(0, b"next")
    peer.call(spec.QueueDeclare(queue="shared", auto_delete=True))
    peer.subscribe("shared")
    peer.call(spec.MessageCancel(destination="d"))
    assert "shared" not in host.queues


def test_an_exclusive_queue_whose_owner_is_gone_gets_another(peer: Peer) -> None:
    """So the JMS client of Qpid goes on with a durable subscription; qpidd and Broker-J allow it."""
    host = peer.world.host
    declare = spec.QueueDeclare(queue="lasting", exclusive=True, durable=True)
    peer.call(declare)
    peer.publish(b"1", "lasting")
    for name in (b"second", b"third"):
        peer.session.detach()
        peer.pump()
        peer.attach(0, name)
        peer.call(declare)
        assert host.queues["lasting"].exclusive is not None
        peer.attach(1, b"other of " + name)
        peer.call(spec.QueueDeclare(queue="lasting"), channel=1)
        assert [each.error_code for each in peer.received(spec.ExecutionException)] == [405]
        peer.commands.clear()
    assert host.queues["lasting"].message_count == 1


def test_a_restored_queue_outlives_the_owner_that_it_gets(peer: Peer) -> None:
    host = peer.world.host
    host.restore_queue("lasting", auto_delete=False, arguments={}, now=0)
    peer.call(spec.QueueDeclare(queue="lasting", exclusive=True, durable=True))
    assert host.queues["lasting"].is_kept
    peer.session.detach()
    peer.pump()
    assert host.queues["lasting"].exclusive is None
