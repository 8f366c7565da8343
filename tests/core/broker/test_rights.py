"""Rights: what patterns match, and which command of 0-10 needs which right to which name."""

from __future__ import annotations

import re
from typing import Any

import pytest

from amqp_core.broker.logins import Logins
from amqp_core.broker.model.errors import Refused
from amqp_core.broker.passwords import ClearPassword
from amqp_core.broker.rights import Grants, Patterns, Right, Rights
from amqp_core.broker.users_file import User
from amqp_core.errors import VirtualHostRefused
from amqp_core.v0_10 import spec
from tests.core.broker.peer_0_10 import Peer, World

Need = tuple[str, str, str]
"""Right, kind and name."""


@pytest.mark.parametrize(
    ("pattern", "allowed", "refused"),
    [
        (".*", ["", "a", "amq.default"], []),
        ("", [""], ["a"]),
        ("^$", [""], ["a"]),
        ("b", ["b", "abc"], ["", "ac"]),
        ("^b", ["b", "bc"], ["ab"]),
        ("^b$", ["b"], ["ab", "bc"]),
        ("^(amq\\.gen.*|amq\\.default)$", ["amq.gen-x", "amq.default"], ["amq.direct", "xamq.gen"]),
    ],
)
def test_a_pattern_is_found_anywhere_and_an_empty_one_allows_nothing(
    pattern: str, allowed: list[str], refused: list[str]
) -> None:
    patterns = Patterns(pattern, "", "")
    assert [name for name in allowed + refused if patterns.allow(Right.CONFIGURE, name)] == allowed
    assert not any(patterns.allow(Right.WRITE, name) for name in ("x", "\n"))


def test_virtual_hosts_may_have_patterns_of_their_own() -> None:
    everywhere, here = Patterns("a", "a", "a"), Patterns("b", "b", "b")
    assert Grants(everywhere, {"here": here}).of("here") == here
    assert Grants(everywhere, {"here": here}).of("there") == everywhere
    assert Grants(None, {"here": here}).of("there") is None


def test_more_exchanges_than_are_remembered() -> None:
    rights = Rights(Patterns("", "^x", ""), "carol", "/")
    for number in range(2500):
        rights.publish(f"x{number % 1200}")
        with pytest.raises(Refused):
            rights.publish(f"y{number % 1200}")


def a(right: str, place: str) -> Need:
    """One need, as ``"write", "exchange x"``."""
    kind, _, name = place.partition(" ")
    return right, kind, name


TRANSFER = spec.MessageTransfer(destination="x", accept_mode=0, acquire_mode=0)
TRANSFER_DEFAULT = spec.MessageTransfer(destination="", accept_mode=0, acquire_mode=0)
TABLE: list[tuple[spec.Command, list[Need]]] = [
    (spec.QueueDeclare(queue="new"), [a("configure", "queue new")]),
    (spec.QueueDeclare(queue="q"), [a("configure", "queue q")]),
    (spec.QueueDeclare(queue="q", passive=True), [a("configure", "queue q")]),
    (
        spec.QueueDeclare(queue="new", alternate_exchange="x"),
        [a("configure", "queue new"), a("read", "queue new"), a("write", "exchange x")],
    ),
    (
        spec.QueueDeclare(queue="new", arguments={"x-dead-letter-exchange": ""}),
        [a("configure", "queue new"), a("read", "queue new"), a("write", "exchange amq.default")],
    ),
    (spec.QueueDelete(queue="q"), [a("configure", "queue q")]),
    (spec.QueuePurge(queue="q"), [a("read", "queue q")]),
    (spec.QueueQuery(queue="q"), [a("configure", "queue q")]),
    (spec.QueueQuery(queue="missing"), [a("configure", "queue missing")]),
    (spec.ExchangeDeclare(exchange="new", type="topic"), [a("configure", "exchange new")]),
    (spec.ExchangeDeclare(exchange="x", type="topic"), [a("configure", "exchange x")]),
    (spec.ExchangeDeclare(exchange="x", type="topic", passive=True), [a("configure", "exchange x")]),
    (
        spec.ExchangeDeclare(exchange="new", type="topic", alternate_exchange="x"),
        [a("configure", "exchange new"), a("read", "exchange new"), a("write", "exchange x")],
    ),
    (
        spec.ExchangeDeclare(exchange="new", type="topic", arguments={"alternate-exchange": "x"}),
        [a("configure", "exchange new"), a("read", "exchange new"), a("write", "exchange x")],
    ),
    (spec.ExchangeDelete(exchange="x"), [a("configure", "exchange x")]),
    (spec.ExchangeQuery(name="x"), [a("configure", "exchange x")]),
    (spec.ExchangeQuery(name=""), [a("configure", "exchange amq.default")]),
    (spec.ExchangeBound(exchange="x", queue="q"), [a("configure", "exchange x"), a("configure", "queue q")]),
    (spec.ExchangeBind(queue="q", exchange="x", binding_key="k"), [a("write", "queue q"), a("read", "exchange x")]),
    (spec.ExchangeUnbind(queue="q", exchange="x", binding_key="b"), [a("write", "queue q"), a("read", "exchange x")]),
    (spec.MessageSubscribe(queue="q", destination="d", accept_mode=0, acquire_mode=0), [a("read", "queue q")]),
    (TRANSFER, [a("write", "exchange x")]),
    (TRANSFER_DEFAULT, [a("write", "exchange amq.default")]),
]


def patterns_for(needs: list[Need]) -> Patterns:
    """Patterns that allow these needs and nothing else."""
    names = {right.value: [re.escape(name) for kind, _, name in needs if kind == right.value] for right in Right}
    return Patterns(**{right: f"^({'|'.join(found)})$" if found else "" for right, found in names.items()})


def world_of(needs: list[Need]) -> tuple[World, Peer]:
    """A broker where carol has just these rights, and its owner, who has declared q and x."""
    world = World()
    users = {
        "guest": User(ClearPassword("guest")),
        "carol": User(ClearPassword("secret"), Grants(patterns_for(needs))),
    }
    world.logins = Logins(users=users)
    owner = world.connect()
    owner.attach(name=b"owner")
    owner.call(spec.QueueDeclare(queue="q"))
    owner.call(spec.ExchangeDeclare(exchange="x", type="topic"))
    return world, owner


def result(command: spec.Command, needs: list[Need]) -> list[spec.ExecutionException]:
    """The exceptions of a command, for a login that has just these rights."""
    world, owner = world_of(needs)
    owner.call(spec.ExchangeBind(queue="q", exchange="x", binding_key="b"))
    peer: Peer = world.connect("carol", "secret")
    peer.attach()
    if isinstance(command, spec.MessageTransfer):
        peer.publish(b"x", exchange=command.destination or "")
    else:
        peer.call(command)
    return peer.received(spec.ExecutionException)


@pytest.mark.parametrize(("command", "needs"), TABLE, ids=lambda value: getattr(value, "NAME", ""))
def test_a_command_needs_these_rights_and_no_others(command: spec.Command, needs: list[Need]) -> None:
    assert result(command, needs) == []
    for missing in needs:
        (found,) = result(command, [each for each in needs if each != missing])
        right, kind, name = missing
        assert found.error_code == spec.ExecutionErrorCode.UNAUTHORIZED_ACCESS
        assert found.description == f"{right} access to {kind} '{name}' in vhost '/' refused for user 'carol'"


XID = spec.Xid(1, b"job", b"1")
RESOLVING = [spec.DtxCommit(XID), spec.DtxRollback(XID), spec.DtxSetTimeout(XID, 5)]
WORK = [a("write", "exchange x"), a("read", "queue q")]


def resolved(command: spec.Command, needs: list[Need]) -> tuple[list[spec.ExecutionException], bool]:
    """The exceptions of a command for another's prepared branch, which publishes to x and accepts from q; and whether
    the branch is still there."""
    world, owner = world_of(needs)
    owner.call(spec.ExchangeBind(queue="q", exchange="x", binding_key="q"))
    owner.publish(b"taken")
    owner.call(spec.DtxSelect())
    owner.ask(spec.DtxStart(XID), spec.XaResult)
    owner.publish(b"sent", exchange="x")
    owner.subscribe()
    owner.flow()
    owner.call(spec.MessageAccept(transfers=[(command_id, command_id) for command_id, *_ in owner.transfers]))
    owner.ask(spec.DtxEnd(XID), spec.XaResult)
    owner.ask(spec.DtxPrepare(XID), spec.XaResult)
    peer: Peer = world.connect("carol", "secret")
    peer.attach()
    peer.call(spec.DtxSelect())
    peer.call(command)
    return peer.received(spec.ExecutionException), bool(world.host.branches.prepared)


@pytest.mark.parametrize("command", RESOLVING, ids=lambda value: value.NAME)
def test_a_branch_is_resolved_by_whoever_may_do_its_work(command: spec.Command) -> None:
    errors, is_there = resolved(command, WORK)
    assert (errors, is_there) == ([], isinstance(command, spec.DtxSetTimeout))
    for missing in WORK:
        (found,), is_there = resolved(command, [each for each in WORK if each != missing])
        assert found.error_code == spec.ExecutionErrorCode.UNAUTHORIZED_ACCESS
        assert f"{missing[0]} access to {missing[1]} '{missing[2]}'" in (found.description or "")
        assert is_there


@pytest.mark.parametrize("right", ["configure", "write", "read"])
def test_any_right_is_enough_to_see_something(right: str) -> None:
    queue, exchange = a(right, "queue q"), a(right, "exchange x")
    assert result(spec.QueueDeclare(queue="q", passive=True), [queue]) == []
    assert result(spec.QueueQuery(queue="q"), [queue]) == []
    assert result(spec.ExchangeDeclare(exchange="x", type="topic", passive=True), [exchange]) == []
    assert result(spec.ExchangeQuery(name="x"), [exchange]) == []
    assert result(spec.ExchangeBound(exchange="x", queue="q"), [queue, exchange]) == []


def test_a_virtual_host_that_the_login_may_not_open() -> None:
    world = World()
    grants = Grants(None, {"other": Patterns()})
    world.logins = Logins(users={"carol": User(ClearPassword("secret"), grants)})
    assert world.connect("carol", "secret", "other").opened
    refused = world.connect("carol", "secret", "/")
    assert not refused.opened
    assert isinstance(refused.error, VirtualHostRefused)
    assert "access to vhost '/' refused for user 'carol'" in str(refused.error)


def test_a_refused_command_ends_the_session_and_not_the_connection() -> None:
    world = World()
    options: dict[str, Any] = {"configure": "^mine$"}
    users = {"carol": User(ClearPassword("secret"), Grants(Patterns(**options)))}
    world.logins = Logins(users=users)
    peer = world.connect("carol", "secret")
    peer.attach()
    peer.call(spec.QueueDeclare(queue="theirs"))
    assert peer.received(spec.SessionDetach)
    peer.attach(1, b"again")
    peer.call(spec.QueueDeclare(queue="mine"), channel=1)
    assert list(world.host.queues) == ["mine"]
