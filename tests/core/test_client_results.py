"""Commands with a result, and peers that answer with another one, with none, or late."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amqp_core.api import Xid
from amqp_core.errors import ProtocolError, ResourceLimitExceeded
from amqp_core.v0_10 import spec
from tests.support.fakepeer import FakePeer, Peer, serve

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.v0_10.client import Client

XID = Xid(1, b"g", b"b")

# What uses a result, by the command that has it.
USES: dict[type[spec.Command], Callable[[Client], object]] = {
    spec.QueueQuery: lambda client: client.query_queue("q"),
    spec.ExchangeQuery: lambda client: client.query_exchange("e"),
    spec.ExchangeBound: lambda client: client.bound("e", queue="q", binding_key="k"),
    spec.MessageAcquire: lambda client: client.acquire([(0, 3)]),
    spec.DtxStart: lambda client: client.transactions.start(XID),
    spec.DtxEnd: lambda client: client.transactions.end(XID),
    spec.DtxPrepare: lambda client: client.transactions.prepare(XID),
    spec.DtxCommit: lambda client: client.transactions.commit_branch(XID),
    spec.DtxRollback: lambda client: client.transactions.rollback_branch(XID),
    spec.DtxGetTimeout: lambda client: client.transactions.get_timeout(XID),
    spec.DtxRecover: lambda client: client.transactions.recover(),
}

OTHER: dict[str, Callable[[type[spec.Command]], spec.Struct | None]] = {
    "another struct": lambda command: (
        spec.QueueQueryResult(queue="q") if command is not spec.QueueQuery else spec.XaResult(status=0)
    ),
    "no struct": lambda _: None,
}


def test_every_result_that_the_specification_knows_is_used_here() -> None:
    """Except that of message.resume, which is never sent."""
    assert {command.CODE for command in USES} == {*spec.RESULT_TYPES} - {spec.MessageResume.CODE}


@pytest.mark.parametrize("command", USES, ids=lambda command: command.NAME)
@pytest.mark.parametrize("how", OTHER)
def test_a_result_of_another_type_is_an_error(command: type[spec.Command], how: str) -> None:
    def script(peer: Peer) -> None:
        peer.answers[command] = lambda _: OTHER[how](command)
        serve(peer)

    given = {"another struct": r"(queue-query|xa)-result", "no struct": "nothing"}[how]
    due = spec.RESULT_TYPES[command.CODE].NAME
    with FakePeer(script) as server:
        client = server.connect()
        with pytest.raises(ProtocolError, match=rf"answered {command.NAME} with .*{given}, where {due} is due"):
            USES[command](client)
        client.sync()


@pytest.mark.parametrize("command", USES, ids=lambda command: command.NAME)
def test_a_command_that_is_complete_without_its_result_is_an_error(command: type[spec.Command]) -> None:
    with FakePeer(serve) as server:
        client = server.connect()
        with pytest.raises(ProtocolError, match=rf"answered {command.NAME} with nothing"):
            USES[command](client)
        client.sync()


@pytest.mark.parametrize(
    ("command", "empty", "missing"),
    [
        (spec.DtxCommit, spec.XaResult(), "an xa-status"),
        (spec.DtxGetTimeout, spec.DtxGetTimeoutResult(), "a timeout"),
        (spec.DtxRecover, spec.DtxRecoverResult(), "its list of branches"),
    ],
)
def test_a_result_without_what_it_is_for_is_an_error(
    command: type[spec.Command], empty: spec.Struct, missing: str
) -> None:
    def script(peer: Peer) -> None:
        peer.answers[command] = lambda _: empty
        serve(peer)

    with (
        FakePeer(script) as server,
        pytest.raises(ProtocolError, match=rf"answered {command.NAME} without {missing}"),
    ):
        USES[command](server.connect())


def test_a_result_may_come_after_the_completion() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        command_id, _ = peer.expect(spec.QueueQuery)
        peer.hooks[spec.ExecutionSync] = lambda _: peer.send(
            spec.ExecutionResult(command_id=command_id, value=spec.QueueQueryResult(queue="q", message_count=7))
        )
        peer.serve()

    with FakePeer(script) as server:
        found = server.connect().query_queue("q")
        assert found is not None
        assert found.message_count == 7


def test_a_result_is_no_completion() -> None:
    """A command that has none waits for its completion, whatever the peer says before."""

    def script(peer: Peer) -> None:
        peer.completing = False
        peer.open()
        command_id, _ = peer.expect(spec.TxCommit)
        peer.send(spec.ExecutionResult(command_id=command_id, value=spec.XaResult(status=0)))
        assert not peer.comes(spec.ExecutionSync, 0.3), "the client goes on before its commit is complete"
        peer.control(spec.SessionCompleted(commands=[(0, command_id)]))
        peer.expect(spec.ExecutionSync)
        peer.control(spec.SessionCompleted(commands=[(0, command_id + 1)]))
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        client.transactions.commit()
        client.sync()


def test_the_answer_to_a_sync_is_none_to_the_commit_before_it() -> None:
    def script(peer: Peer) -> None:
        peer.completing = False
        peer.open()
        command_id, _ = peer.expect(spec.TxCommit)
        sync, _ = peer.expect(spec.ExecutionSync)
        peer.control(spec.SessionCompleted(commands=[(sync, sync)]))
        peer.exception(506, command_id, "the store is full")
        peer.serve()

    sent: list[None] = []
    with FakePeer(script) as server, pytest.raises(ResourceLimitExceeded, match="the store is full"):
        server.connect().transactions.commit(lambda: sent.append(None))
    assert sent == [None]


def test_an_unknown_queue_is_an_empty_result() -> None:
    """On the wire: struct32 of size 4, code 0801 and no packing flag, as both brokers send it."""
    answers = [
        (bytes.fromhex("00000004 0801 0000"), None),
        (bytes.fromhex("00000005 0801 0100 00"), spec.QueueQueryResult(queue="")),
        (bytes.fromhex("00000006 0801 0100 0171"), spec.QueueQueryResult(queue="q")),
        (bytes.fromhex("00000008 0801 4000 00000000"), spec.QueueQueryResult(message_count=0)),
        (bytes.fromhex("00000000"), ProtocolError),
    ]

    def script(peer: Peer) -> None:
        peer.open()
        for struct, _ in answers:
            command_id, _ = peer.expect(spec.QueueQuery)
            head = bytes.fromhex("0302 0100 0300") + command_id.to_bytes(4)
            peer.connection.send_assembly(0, [(1, head + struct)])
            peer.session.next_id += 1
            peer.flush()
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        for _, expected in answers:
            if expected is ProtocolError:
                with pytest.raises(ProtocolError, match=r"answered queue\.query with nothing"):
                    client.query_queue("q")
            else:
                assert client.query_queue("q") == expected


def test_a_result_that_does_not_say_of_what_is_an_error() -> None:
    def script(peer: Peer) -> None:
        peer.hooks[spec.QueueQuery] = lambda _: peer.send(spec.ExecutionResult(value=spec.QueueQueryResult(queue="x")))
        serve(peer)

    with FakePeer(script) as server, pytest.raises(ProtocolError, match=r"execution\.result arrived without the id"):
        server.connect().query_queue("q")
