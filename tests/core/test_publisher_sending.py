"""Transfers of the publisher, and their times, with scripted peers: runs, window, flow control."""

from __future__ import annotations

import array
import threading
from typing import cast

import numpy as np
import pytest

from amqp_core.errors import DeadlineExceeded, UsageError
from amqp_core.transport import Transport
from amqp_core.v0_10 import spec
from amqp_core.v0_10.messages import Message
from amqp_core.v0_10.publisher import Counted, Transfers
from tests.core.publisher_support import Receiver, completed
from tests.support.fakepeer import QPIDD, FakePeer, Peer, serve
from tests.support.runs import bodies_of, numbered, run, transfer


# ---------------------------------------------------------------------------------------------------------------- runs
@pytest.mark.parametrize("size", [0, 1, 300, 70_000])
def test_runs_arrive_as_they_are(size: int) -> None:
    receiver = Receiver()
    with FakePeer(receiver) as server:
        publisher = server.connect().publisher()
        runs = [numbered(40, 0, size=size, tag="a"), numbered(0), numbered(3, 40, size=size)]
        for transfers in runs:
            publisher.send(transfers)
        publisher.finish()
        assert publisher.sent == publisher.completed == Counted(43, sum(one.frames.nbytes for one in runs))
        assert publisher.in_flight == 0
        assert publisher.rejected == []
        assert receiver.bodies == bodies_of(runs)
        assert receiver.events.count("execution.sync") == 2


def test_any_buffer_and_any_sequence_will_do() -> None:
    plain = numbered(5)
    data = bytes(plain.frames)
    ends = np.array(plain.ends, dtype=np.int32)
    signed = memoryview(data).cast("b")
    receiver = Receiver()
    with FakePeer(receiver) as server:
        publisher = server.connect().publisher(max_in_flight=2)
        publisher.send(Transfers(np.frombuffer(data, np.uint8).data, cast("list[int]", ends)))
        publisher.send(Transfers(signed, array.array("I", plain.ends)))
        publisher.send(Transfers(bytearray(data), tuple(plain.ends)))
        publisher.finish()
        assert receiver.bodies == bodies_of([plain]) * 3
        assert type(publisher.sent.nbytes) is int


@pytest.mark.parametrize("ends", [[], [4], [2, 6]])
def test_a_run_that_is_not_as_long_as_it_says_is_refused(ends: list[int]) -> None:
    with pytest.raises(UsageError, match="A run of 5 bytes is not valid: its last transfer ends at"):
        Transfers(b"12345", ends)


def test_a_run_shows_how_much_it_is_and_nothing_of_what() -> None:
    assert repr(run([b"secret"], tag="t")) == f"<1 transfers, {len(transfer(b'secret'))} bytes, from number 0>"


def test_what_a_broker_has_to_be_told_depends_on_the_broker() -> None:
    product: dict[str, object] = {"product": "Apache Qpid Broker-J Core"}
    with (
        FakePeer(serve, server_properties=product) as java,
        FakePeer(serve, server_properties=QPIDD, max_frame_size=8192) as qpidd,
    ):
        publisher = java.connect().publisher()
        assert (publisher.accept_mode, publisher.max_frame_size) == (spec.MessageAcceptMode.EXPLICIT, 65535)
        publisher = qpidd.connect().publisher()
        assert (publisher.accept_mode, publisher.max_frame_size) == (spec.MessageAcceptMode.NONE, 8192)


# -------------------------------------------------------------------------------------------------------------- window
def test_completion_is_asked_for_every_quarter_of_the_window() -> None:
    receiver = Receiver()
    with FakePeer(receiver, server_properties=QPIDD) as server:
        publisher = server.connect().publisher(max_in_flight=40)
        publisher.send(numbered(100))
        publisher.finish()
        kinds = "".join("s" if name == "execution.sync" else "." for name in receiver.events)
        assert kinds == ("." * 10 + "s") * 10
        publisher.finish()  # nothing was sent since: nothing is asked
        assert len(receiver.events) == 110


def test_completion_is_asked_for_every_quarter_of_the_bytes() -> None:
    receiver = Receiver()
    with FakePeer(receiver, server_properties=QPIDD) as server:
        one = len(transfer(b"0:" + bytes(1000)))
        publisher = server.connect().publisher(max_bytes_in_flight=8 * one)
        for number in range(10):
            publisher.send(numbered(1, number, size=1000))
        publisher.finish()
        kinds = "".join("s" if name == "execution.sync" else "." for name in receiver.events)
        assert kinds == "..s" * 5


def test_a_transfer_larger_than_the_window_passes_alone() -> None:
    receiver = Receiver()
    with FakePeer(receiver) as server:
        publisher = server.connect().publisher(max_bytes_in_flight=1000)
        sizes = [10, 5000, 10, 3_000_000, 10]
        publisher.send(run(bytes(size) for size in sizes))
        publisher.finish()
        assert [len(body) for body in receiver.bodies] == sizes


@pytest.mark.parametrize(("transfers", "nbytes"), [(7, 1 << 20), (1, 1 << 20), (10_000, 3000)])
def test_the_window_holds_transfers_back_until_some_are_completed(transfers: int, nbytes: int) -> None:
    held = threading.Event()

    def script(peer: Peer) -> None:
        peer.completing = False
        peer.open()
        one = len(transfer(b"00:"))
        most = min(transfers, nbytes // one)
        last = -1
        open_ids: list[int] = []
        while last < 59:
            while len(open_ids) < min(most, 59 - last):
                command_id, _ = peer.expect(spec.MessageTransfer)
                open_ids.append(command_id)
            last += len(open_ids)
            assert not peer.comes(spec.MessageTransfer, 0.05), "more than the window allows"
            held.set()
            peer.control(completed((open_ids[0], open_ids[-1])))
            open_ids.clear()
        peer.control(completed((0, peer.session.received_next - 1)))
        peer.completing = True
        peer.serve()

    with FakePeer(script, server_properties=QPIDD) as server:
        publisher = server.connect().publisher(max_in_flight=transfers, max_bytes_in_flight=nbytes)
        publisher.send(numbered(60, 10))  # two digits each
        assert held.is_set()
        publisher.finish()


def test_what_is_not_completed_for_certain_is_bounded_too() -> None:
    """A broker that completes transfers, but answers no sync, gets two windows of them and no more."""
    held = threading.Event()

    def script(peer: Peer) -> None:
        peer.completing = False
        peer.open()
        ids = []
        for _ in range(16):
            ids.append(peer.expect(spec.MessageTransfer)[0])
            peer.control(completed((ids[-1], ids[-1])))
        assert not peer.comes(spec.MessageTransfer, 0.3), "more than two windows"
        held.set()
        peer.completing = True
        peer.control(completed((0, peer.session.received_next - 1)))
        peer.serve()

    with FakePeer(script) as server:
        publisher = server.connect().publisher(max_in_flight=8)
        publisher.send(numbered(40))
        assert held.is_set()
        publisher.finish()


def test_what_a_peer_does_not_read_waits_unwritten_in_small_part_only(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, pending = threading.Event(), [0]
    flush = Transport.flush

    def watch(transport: Transport) -> None:
        flush(transport)
        pending.append(transport.pending_bytes)
        if transport.pending_bytes:
            go_on.set()

    def script(peer: Peer) -> None:
        peer.open()
        assert go_on.wait(10), "the socket is never full"
        peer.serve()
        assert sum(isinstance(command, spec.MessageTransfer) for _, command in peer.commands) == 200

    with FakePeer(script) as server:
        client = server.connect()
        publisher = client.publisher()
        monkeypatch.setattr(Transport, "flush", watch)
        publisher.send(numbered(200, size=100_000))
        publisher.finish()
        client.close()
    assert 0 < max(pending) <= (1 << 20) + (1 << 19)


@pytest.mark.parametrize("window", [{"max_in_flight": 0}, {"max_bytes_in_flight": 0}])
def test_a_window_that_lets_nothing_pass_is_refused(window: dict[str, int]) -> None:
    with FakePeer(serve) as server:
        client = server.connect()
        with pytest.raises(UsageError, match="lets nothing pass"):
            client.publisher(**window)
        client.publish(Message(b"x"))
        client.confirm()


# -------------------------------------------------------------------------------------------------------- flow control
def test_parts_of_a_run_go_out_as_the_broker_grants_credit() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.send(spec.MessageSetFlowMode(destination="", flow_mode=0))
        peer.send(spec.MessageStop(destination=""))
        peer.expect(spec.ExecutionSync)
        for credit in (1, 5, 2):
            peer.send(spec.MessageFlow(destination="", unit=spec.MessageCreditUnit.BYTE, value=0xFFFFFFFF))
            peer.send(spec.MessageFlow(destination="", unit=spec.MessageCreditUnit.MESSAGE, value=credit))
            for _ in range(credit):
                peer.expect(spec.MessageTransfer)
            assert not peer.comes(spec.MessageTransfer, 0.05), "more than was granted"
        peer.send(spec.MessageFlow(destination="", unit=spec.MessageCreditUnit.MESSAGE, value=0x7FFFFFFF))
        peer.serve()
        assert sum(isinstance(command, spec.MessageTransfer) for _, command in peer.commands) == 30

    with FakePeer(script) as server:
        client = server.connect()
        client.sync()
        client.sync()
        publisher = client.publisher()
        publisher.send(numbered(30))
        publisher.finish()
        assert publisher.credit.left is None
        client.close()


def test_the_credit_outlives_the_publisher() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.expect(spec.ExecutionSync)
        peer.send(spec.MessageSetFlowMode(destination="", flow_mode=0))
        peer.send(spec.MessageStop(destination=""))
        peer.send(spec.MessageFlow(destination="", unit=0, value=2))
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        client.sync()
        client.sync()
        client.publisher().send(numbered(1))
        client.confirm()
        publisher = client.publisher()
        assert publisher.credit.left == 1
        publisher.send(numbered(1))
        with pytest.raises(DeadlineExceeded, match="allow publishing again"):
            publisher.send(numbered(1), timeout_s=0.1)
