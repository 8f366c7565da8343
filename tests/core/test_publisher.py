"""The publisher against peers that do what a script says: window, flow control, rejects, completion, patience."""

from __future__ import annotations

import array
import contextlib
import logging
import threading
import time
import weakref
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

from amqp_core.errors import (
    ConnectionClosed,
    ConnectionLost,
    DeadlineExceeded,
    NotFound,
    UsageError,
)
from amqp_core.transport import Transport
from amqp_core.v0_10 import publisher as publisher_module
from amqp_core.v0_10 import spec
from amqp_core.v0_10.messages import Message
from amqp_core.v0_10.publisher import Counted, Rejected, Transfers
from tests.support.fakepeer import QPIDD, FakePeer, Peer, serve
from tests.support.machines import HEARTBEAT
from tests.support.process import wait_until
from tests.support.runs import bodies_of, numbered, numbers_of, run, transfer
from tests.support.taking import again

if TYPE_CHECKING:
    from collections.abc import Callable


def completed(*ranges: tuple[int, int]) -> spec.SessionCompleted:
    return spec.SessionCompleted(commands=list(ranges))


def impatient(monkeypatch: pytest.MonkeyPatch, *, ask: float = 0.02, warn: float = 60.0, silence: float = 60.0) -> None:
    monkeypatch.setattr(publisher_module, "_ASK_EVERY_S", ask)
    monkeypatch.setattr(publisher_module, "_WARN_EVERY_S", warn)
    monkeypatch.setattr(publisher_module, "_SILENCE_S", silence)


class Receiver:
    """Collects what a script's peer receives, and acts on it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.events: list[str] = []
        self.done = threading.Event()

    def __call__(self, peer: Peer) -> None:
        peer.open()
        self.watch(peer)
        peer.serve()
        self.done.set()

    def watch(self, peer: Peer) -> None:
        peer.watch = self.take

    def take(self, command: spec.Command, body: bytes | None) -> None:
        if isinstance(command, spec.MessageTransfer):
            self.bodies.append(body or b"")
        self.events.append(command.NAME)


# ------------------------------------------------------------------------------------------------------------- sending
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


def test_one_sync_is_enough_for_a_broker_that_can_be_trusted() -> None:
    receiver = Receiver()
    with FakePeer(receiver, server_properties=QPIDD) as server:
        publisher = server.connect().publisher()
        publisher.send(numbered(43))
        publisher.finish()
        assert receiver.events == ["message.transfer"] * 43 + ["execution.sync"]


def test_a_broker_that_ends_before_it_proves_itself_is_not_believed() -> None:
    """Broker-J, stopped in order, completes what it no longer stores, and then closes the connection."""

    def script(peer: Peer) -> None:
        peer.completing = False
        peer.open()
        for _ in range(5):
            peer.expect(spec.MessageTransfer)
        first, _ = peer.expect(spec.ExecutionSync)
        peer.control(completed((0, first)))
        second, _ = peer.expect(spec.ExecutionSync)
        assert second == first + 1
        if proving:
            peer.control(completed((second, second)))
        peer.control(spec.ConnectionClose(reply_code=320, reply_text="forced"))

    for proving in (True, False):
        with FakePeer(script) as server:
            publisher = server.connect().publisher()
            publisher.send(numbered(5))
            if proving:
                with contextlib.suppress(ConnectionClosed):  # the end may be seen together with the proof
                    publisher.finish()
                assert publisher.unfinished() == []
                assert publisher.completed == publisher.sent
            else:
                with pytest.raises(ConnectionClosed, match="forced"):
                    publisher.finish()
                assert numbers_of(publisher.unfinished()) == list(range(5))
                assert publisher.in_flight == 5
                assert publisher.completed == Counted()


def test_a_transfer_that_is_not_completed_is_not_asked_for_again_and_again() -> None:
    def script(peer: Peer) -> None:
        peer.completing = False
        peer.open()
        peer.expect(spec.MessageTransfer)
        for _ in range(3):
            if not peer.comes(spec.ExecutionSync, 1.0):
                break
            sync = peer.session.received_next - 1
            peer.control(completed((1, 2), (sync, sync)))
        else:
            pytest.fail("the same is asked again and again")
        peer.control(completed((0, 0)))
        peer.completing = True
        peer.serve()

    with FakePeer(script) as server:
        publisher = server.connect().publisher()
        publisher.send(numbered(3))
        publisher.finish()
        assert publisher.completed.transfers == 3


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
    with pytest.raises(UsageError, match="a run of 5 bytes whose last transfer ends at"):
        Transfers(b"12345", ends)


def test_a_run_shows_how_much_it_is_and_nothing_of_what() -> None:
    assert repr(run([b"secret"], tag="t")) == f"<1 transfers, {len(transfer(b'secret'))} bytes, from number 0>"


@pytest.mark.parametrize("window", [{"max_in_flight": 0}, {"max_bytes_in_flight": 0}])
def test_a_window_that_lets_nothing_pass_is_refused(window: dict[str, int]) -> None:
    with FakePeer(serve) as server:
        client = server.connect()
        with pytest.raises(UsageError, match="lets nothing pass"):
            client.publisher(**window)
        client.publish(Message(b"x"))
        client.confirm()


def test_what_a_broker_has_to_be_told_depends_on_the_broker() -> None:
    with FakePeer(serve) as java, FakePeer(serve, server_properties=QPIDD, max_frame_size=8192) as qpidd:
        publisher = java.connect().publisher()
        assert (publisher.accept_mode, publisher.max_frame_size) == (spec.MessageAcceptMode.EXPLICIT, 65535)
        publisher = qpidd.connect().publisher()
        assert (publisher.accept_mode, publisher.max_frame_size) == (spec.MessageAcceptMode.NONE, 8192)


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
        assert publisher.credit is None
        client.close()


def test_the_credit_outlives_the_publisher() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.expect(spec.ExecutionSync)
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
        assert publisher.credit == 1
        publisher.send(numbered(1))
        with pytest.raises(DeadlineExceeded, match="allow publishing again"):
            publisher.send(numbered(1), timeout_s=0.1)


# ------------------------------------------------------------------------------------------------------------- rejects
def test_rejects_name_run_and_number() -> None:
    def script(peer: Peer) -> None:
        peer.completing = False
        peer.open()
        # ids: run a is 0 to 3 and, after the sync 4, 5 and 6; run b is 7 and 8; run c is 10 to 13 and 15
        for _ in range(13):
            peer.expect(spec.MessageTransfer)
        reject = spec.MessageReject
        peer.send(reject(transfers=[(3, 5), (13, 13)], code=1, text="Unroutable"))
        peer.send(reject(transfers=[(5, 5), (14, 15)], code=2, text="nobody there"))
        peer.send(reject(transfers=[(10_000, 10_001)], code=1))
        peer.send(reject())
        peer.completing = True
        peer.control(completed((0, peer.session.received_next - 1)))
        peer.serve()

    with FakePeer(script) as server:
        publisher = server.connect().publisher(max_in_flight=16)
        publisher.send(numbered(6, tag="a"))
        publisher.send(numbered(2, tag="b"))
        rest = numbered(12, tag="c").cut(7, 12)
        assert publisher.locate(0) == ("a", 0)
        publisher.send(rest)
        publisher.finish()
        assert publisher.rejected == [
            Rejected("a", 3, 1, "Unroutable"),
            Rejected("a", 4, 1, "Unroutable"),
            Rejected("c", 10, 1, "Unroutable"),
            Rejected("c", 11, 2, "nobody there"),
        ]
        assert publisher.unfinished() == []
        assert publisher.take_rejected()
        assert publisher.take_rejected() == []


def test_a_rejected_transfer_is_not_sent_again() -> None:
    def script(peer: Peer) -> None:
        peer.completing = False
        peer.open()
        for _ in range(5):
            peer.expect(spec.MessageTransfer)
        peer.send(spec.MessageReject(transfers=[(1, 1), (3, 3)], code=1))
        peer.control(completed((0, 1)))

    with FakePeer(script, server_properties=QPIDD) as server:
        publisher = server.connect().publisher()
        publisher.send(numbered(5, tag="t"))
        with pytest.raises(ConnectionLost):
            publisher.finish()
        left = publisher.unfinished()
        assert numbers_of(left) == [2, 4]
        assert [(one.tag, one.first) for one in left] == [("t", 2), ("t", 4)]
        assert [one.index for one in publisher.rejected] == [1, 3]


def test_many_rejects_share_their_text_and_can_be_taken() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.hooks[spec.MessageTransfer] = lambda _: peer.session.send(
            spec.MessageReject(transfers=[(peer.session.received_next,) * 2], code=1, text="Unroutable")
        )
        peer.serve()

    with FakePeer(script) as server:
        publisher = server.connect().publisher(max_in_flight=100)
        taken: list[Rejected] = []
        for number in range(10):
            publisher.send(numbered(100, 100 * number, tag=number))
            taken += publisher.take_rejected()
        publisher.finish()
        taken += publisher.take_rejected()
        assert [(one.tag, one.index) for one in taken] == [(tag, index) for tag in range(10) for index in range(100)]
        assert len({id(one.text) for one in taken}) <= 11


def test_accepts_say_nothing_and_count() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.hooks[spec.MessageTransfer] = lambda _: peer.session.send(
            spec.MessageAccept(transfers=[(peer.session.received_next,) * 2])
        )
        peer.serve()

    with FakePeer(script, server_properties=QPIDD) as server:
        client = server.connect()
        publisher = client.publisher(max_in_flight=10)
        publisher.send(numbered(100))
        publisher.finish()
        assert publisher.completed.transfers == 100
        assert publisher.rejected == []
        assert client._driver.session.received_next == 100
        client.sync()


# ---------------------------------------------------------------------------------------------------------- completion
def test_completion_out_of_order_is_united() -> None:
    def script(peer: Peer) -> None:
        peer.completing = False
        peer.open()
        peer.expect(spec.ExecutionSync)
        peer.control(completed((7, 9)))
        peer.control(completed((0, 0), (2, 3)))
        peer.control(completed((7, 8)))  # said before: sets are united, never replaced
        peer.control(completed((10, 10), (500, 600)))
        peer.silent()

    with FakePeer(script, server_properties=QPIDD) as server:
        publisher = server.connect().publisher()
        publisher.send(numbered(10))
        with pytest.raises(DeadlineExceeded):
            publisher.finish(timeout_s=0.3)
        left = publisher.unfinished()
        assert numbers_of(left) == [1, 4, 5, 6]
        assert [one.first for one in left] == [1, 4]
        assert publisher.completed == Counted(6, publisher.sent.nbytes - sum(one.frames.nbytes for one in left))
        assert publisher.in_flight == 4


def test_what_is_completed_is_let_go_at_once() -> None:
    class Buffer(array.array):  # type: ignore[type-arg]  # a buffer that can be referred to weakly
        pass

    go_on = threading.Event()

    def script(peer: Peer) -> None:
        peer.completing = False
        peer.open()
        for _ in range(20):
            peer.expect(spec.MessageTransfer)
        peer.control(completed((10, 19)))
        go_on.wait(10)
        peer.control(completed((0, 9)))
        peer.completing = True
        peer.serve()

    with FakePeer(script, server_properties=QPIDD) as server:
        client = server.connect()
        publisher = client.publisher()
        buffers = []
        for first in (0, 10):
            transfers = numbered(10, first)
            buffer = Buffer("B", bytes(transfers.frames))
            buffers.append(weakref.ref(buffer))
            publisher.send(Transfers(memoryview(buffer), transfers.ends))
            del buffer, transfers

        def second_is_gone() -> bool:
            client.service()
            return publisher.in_flight == 10 and buffers[1]() is None

        wait_until(second_is_gone, "the second run to be let go before the first")
        assert buffers[0]() is not None
        go_on.set()
        publisher.finish()
        assert buffers[0]() is None


def test_a_long_life_leaves_nothing_behind() -> None:
    with FakePeer(serve) as server:
        client = server.connect()
        publisher = client.publisher(max_in_flight=20)
        most = 0
        for number in range(200):
            publisher.send(numbered(20, number, tag=number))
            most = max(most, len(publisher._ledger._parts))
        assert most < 40, "what can no longer be rejected is to be forgotten"
        publisher.finish()
        session = client._driver.session
        assert session.completed.ranges() == [(0, session.next_id - 1)]
        assert session._names == {}
        assert publisher._ledger._parts == []
        assert publisher.locate(3) is None
        assert publisher.completed.transfers == 4000


def test_command_ids_run_through_their_wrap() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.hooks[spec.MessageTransfer] = lambda _: (
            peer.session.send(spec.MessageReject(transfers=[(peer.session.received_next & 0xFFFFFFFF,) * 2], code=1))
            if peer.session.received_next % 7 == 0
            else None
        )
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        session = client._driver.session
        session.first_id = session.next_id = (1 << 32) - 50
        session._command_point()
        publisher = client.publisher(max_in_flight=20)
        ids = [publisher.send(numbered(1, number, tag=number)) for number in range(100)]
        publisher.finish()
        assert ids[0] < 1 << 32 < ids[-1]
        assert [one.tag for one in publisher.rejected] == [tag for tag, one in enumerate(ids) if one % 7 == 0]
        assert publisher.completed.transfers == 100


# ------------------------------------------------------------------------------------------------------------ patience
def test_a_broker_that_lives_is_waited_for_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    impatient(monkeypatch, warn=0.1, silence=3.0)
    asked = threading.Event()

    def script(peer: Peer) -> None:
        peer.completing = False
        peer.open()
        began = time.monotonic()
        while time.monotonic() < began + 4.0:  # longer than silence would be forgiven
            peer.expect_control(spec.SessionFlush)
            peer.controls.clear()
            peer.control(completed())
        asked.set()
        peer.control(completed((0, peer.session.received_next - 1)))
        peer.completing = True
        peer.serve()

    with FakePeer(script) as server, caplog.at_level(logging.WARNING, logger=publisher_module.__name__):
        publisher = server.connect().publisher(max_in_flight=4)
        publisher.send(numbered(9))
        publisher.finish()
        assert asked.is_set()
    texts = {record.getMessage().partition(" for 0 s")[0] for record in caplog.records}
    assert "waiting for the completion of transfers (maxInFlight)" in texts
    assert any("4 transfer(s)" in record.getMessage() for record in caplog.records)


def test_a_silent_broker_without_heartbeats_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch, silence=0.2)

    def script(peer: Peer) -> None:
        peer.completing = False
        peer.open()
        peer.silent()

    with FakePeer(script, script) as server:
        publisher = server.connect().publisher(max_in_flight=4)
        with pytest.raises(DeadlineExceeded, match=r"the completion of transfers \(maxInFlight\)"):
            publisher.send(numbered(9))
        assert numbers_of(publisher.unfinished()) == list(range(9))
        with pytest.raises(DeadlineExceeded):
            publisher.send(numbered(1, 9))
        assert numbers_of(publisher.unfinished()) == list(range(10))
        publisher = server.connect().publisher()
        publisher.send(numbered(3))
        with pytest.raises(DeadlineExceeded, match="the completion of what is published"):
            publisher.finish()
        assert [len(one) for one in publisher.unfinished()] == [3]


def test_a_broker_that_sends_heartbeats_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch, ask=60.0, silence=0.1)
    waited = threading.Event()

    def script(peer: Peer) -> None:
        peer.completing = False
        peer.open()
        peer.expect(spec.ExecutionSync)
        assert not peer.hears(1.0)
        waited.set()
        peer.control(completed((0, peer.session.received_next - 1)))
        peer.completing = True
        peer.serve()

    with FakePeer(script, heartbeat=30) as server:
        publisher = server.connect(heartbeat=30).publisher()
        publisher.send(numbered(3))
        publisher.finish()
        assert waited.is_set()


def test_heartbeats_go_out_while_completion_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch, ask=60.0)
    waited = threading.Event()

    def script(peer: Peer) -> None:
        peer.completing = False
        peer.open()
        peer.expect(spec.ExecutionSync)
        for _ in range(2):
            peer.raw(HEARTBEAT)
            assert peer.hears(10.0), "no heartbeat came"
        waited.set()
        peer.control(completed((0, peer.session.received_next - 1)))
        peer.completing = True
        peer.serve()

    with FakePeer(script, heartbeat=2) as server:
        publisher = server.connect(heartbeat=2).publisher()
        publisher.send(numbered(3))
        publisher.finish()
        assert waited.is_set()


def test_a_stopped_publisher_asks_whether_the_broker_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """All is completed, so that Broker-J would not answer session.flush: an execution.sync is always answered."""
    impatient(monkeypatch, ask=0.1, silence=3.0)

    def script(peer: Peer) -> None:
        peer.open()
        peer.expect(spec.ExecutionSync)
        peer.send(spec.MessageStop(destination=""))
        for _ in range(40):
            peer.expect(spec.ExecutionSync)
        peer.send(spec.MessageFlow(destination="", unit=0, value=0x7FFFFFFF))
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        client.sync()
        publisher = client.publisher()
        client.sync()
        publisher.send(numbered(1))
        publisher.finish()


# -------------------------------------------------------------------------------------------------------------- endings
def test_an_exception_names_its_transfer() -> None:
    def script(peer: Peer) -> None:
        peer.completing = False
        peer.open()
        for _ in range(6):
            peer.expect(spec.MessageTransfer)
        peer.control(completed((0, 2)))
        peer.exception(404, 4, "no such exchange")
        peer.serve()

    with FakePeer(script, server_properties=QPIDD) as server:
        publisher = server.connect().publisher()
        publisher.send(numbered(2, tag="a"))
        publisher.send(numbered(4, 2, tag="b"))
        with pytest.raises(NotFound) as raised:
            publisher.finish()
        assert raised.value.command_id is not None
        assert publisher.locate(raised.value.command_id) == ("b", 2)
        assert publisher.locate(6) is None  # the sync
        assert publisher.locate(-1) is None
        assert numbers_of(publisher.unfinished()) == [3, 4, 5]


def test_an_interrupted_send_is_not_taken_for_a_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakePeer(serve) as server:
        client = server.connect()
        publisher = client.publisher(max_in_flight=40)

        def interrupt() -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(publisher, "_look_now_and_then", interrupt)
            with pytest.raises(KeyboardInterrupt):
                publisher.send(numbered(30))
        with pytest.raises(UsageError, match="not sent whole"):
            publisher.finish()
        left = publisher.unfinished()
        assert numbers_of(left)[-20:] == list(range(10, 30))
        with pytest.raises(UsageError, match="not finished"):
            client.publisher()


def test_one_publisher_at_a_time() -> None:
    receiver = Receiver()
    with FakePeer(receiver) as server:
        client = server.connect()
        first = client.publisher()
        first.send(numbered(1))
        with pytest.raises(UsageError, match="not finished"):
            client.publisher()
        first.finish()
        second = client.publisher()
        with pytest.raises(UsageError, match="another publisher"):
            first.send(numbered(1))
        client.publish(Message(b"5:"))
        assert second.in_flight == 1
        client.confirm()
        assert second.completed.transfers == 1
        assert first.completed.transfers == 1


def test_everything_that_was_given_is_unfinished_after_a_loss() -> None:
    def script(peer: Peer) -> None:
        peer.completing = False
        peer.open()
        peer.expect(spec.MessageTransfer)

    with FakePeer(script) as server:
        publisher = server.connect().publisher(max_in_flight=5)
        whole = numbered(9, tag="t")
        with pytest.raises(ConnectionLost):
            publisher.send(whole)
        left = publisher.unfinished()
        assert left == [whole]  # joined again, though it went out in parts
        with pytest.raises(ConnectionLost):
            publisher.finish()


# ------------------------------------------------------------------------------------------ a client that is not in use
def test_service_sends_heartbeats_and_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    beaten, gone = threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        peer.open()
        for _ in range(2):
            peer.raw(HEARTBEAT)
            assert peer.hears(10.0), "no heartbeat came"
        beaten.set()
        gone.wait(10)

    with FakePeer(script, heartbeat=2) as server:
        client = server.connect(heartbeat=2)

        def served(done: Callable[[], bool]) -> Callable[[], bool]:
            def step() -> bool:
                client.service()
                return done()

            return step

        wait_until(served(beaten.is_set), "two heartbeats")
        gone.set()
        with pytest.raises(ConnectionLost):
            wait_until(served(lambda: False), "the end")


def test_discard_ends_in_order_when_it_can() -> None:
    seen: list[str] = []

    def script(peer: Peer) -> None:
        serve(peer)
        seen.extend(control.NAME for control in peer.controls)
        assert peer.ended is not None

    with FakePeer(script) as server:
        client = server.connect()
        client.publisher().send(numbered(3))
        client.discard()
        client.discard()
        with pytest.raises(UsageError, match="closed"):
            client.sync()
    assert "session.detach" in seen


@pytest.mark.parametrize("pending", [False, True])
def test_discard_resets_what_cannot_end_in_order(monkeypatch: pytest.MonkeyPatch, pending: bool) -> None:
    monkeypatch.setattr("amqp_core.v0_10.driver._CLOSE_TIMEOUT_S", 0.2)
    discarded = threading.Event()
    taken: list[int] = []

    def script(peer: Peer) -> None:
        peer.open()
        discarded.wait(10)
        with pytest.raises(ConnectionResetError):
            again(lambda: taken.append(len(peer.sock.recv(1 << 16)) or pytest.fail("ended in order")))

    with FakePeer(script) as server:
        client = server.connect()
        publisher = client.publisher()
        publisher.send(numbered(3))
        while pending and not client._driver.transport.pending_bytes:
            publisher.send(numbered(1, size=1 << 16))
        client.discard()
        discarded.set()
    assert sum(taken) < publisher.sent.nbytes or not pending
