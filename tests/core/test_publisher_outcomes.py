"""The outcome of each transfer with scripted peers: completed, rejected, ended by an exception."""

from __future__ import annotations

import array
import contextlib
import threading
import weakref

import pytest

from amqp_core.errors import ConnectionClosed, ConnectionLost, NotFound, RejectedUnexpectedly
from amqp_core.v0_10 import spec
from amqp_core.v0_10.messages import Message
from amqp_core.v0_10.publisher import Counted, Rejected, Transfers
from tests.core.publisher_support import Receiver, completed
from tests.support.fakepeer import QPIDD, FakePeer, Peer, serve
from tests.support.process import wait_until
from tests.support.runs import numbered, numbers_of


# ---------------------------------------------------------------------------------------------------------- completion
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


def test_completion_out_of_order_is_united() -> None:
    def script(peer: Peer) -> None:
        peer.completing = False
        peer.open()
        peer.expect(spec.ExecutionSync)
        peer.control(completed((7, 9)))
        peer.control(completed((0, 0), (2, 3)))
        peer.control(completed((7, 8)))  # said before: sets are united, never replaced
        peer.control(completed((10, 10), (500, 600)))
        peer.control(spec.ConnectionClose(reply_code=320, reply_text="forced"))
        peer.silent()

    with FakePeer(script, server_properties=QPIDD) as server:
        publisher = server.connect().publisher()
        publisher.send(numbered(10))
        with pytest.raises(ConnectionClosed, match="forced"):
            publisher.finish()
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
        peer.send(reject(transfers=[(5, 5), (14, 15)], code=2, text="no queue"))
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
            Rejected("c", 11, 2, "no queue"),
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


# ---------------------------------------------------------------------------------------------------------- exceptions
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


LATE = r"rejects a message that it had completed, .* as delivered"


def test_a_reject_of_what_counted_as_delivered_ends_the_session() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        command_id, _ = peer.expect(spec.MessageTransfer)

        def reject(_: object) -> None:
            peer.send(spec.MessageReject(transfers=[(command_id, command_id)], code=1, text="Unroutable"))

        peer.hooks[spec.QueuePurge] = reject
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        publisher = client.publisher()
        publisher.send(numbered(1))
        publisher.finish()
        with pytest.raises(RejectedUnexpectedly, match=LATE) as late:
            client.purge_queue("q")
        assert not late.value.retryable, "another connection would not send it again"


def test_a_confirm_raises_the_reject_of_what_an_earlier_one_has_confirmed() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        first, _ = peer.expect(spec.MessageTransfer)
        peer.expect(spec.MessageTransfer)
        peer.send(spec.MessageReject(transfers=[(first, first)], code=1, text="late"))
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        client.publish(Message(b"x"))
        client.confirm()
        client.publish(Message(b"y"))
        with pytest.raises(RejectedUnexpectedly, match="late"):
            client.confirm()


def test_a_message_that_the_broker_releases_was_not_taken() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        command_id, _ = peer.expect(spec.MessageTransfer)
        peer.send(spec.MessageRelease(transfers=[(command_id, command_id)]))
        peer.serve()

    with FakePeer(script) as server:
        publisher = server.connect().publisher()
        publisher.send(numbered(2))
        publisher.finish()
        (rejected,) = publisher.take_rejected()
        assert (rejected.index, rejected.code, rejected.is_unroutable) == (0, 0, False)
        assert "message.release" in rejected.text


def test_a_reject_may_be_said_again_much_later() -> None:
    def script(peer: Peer) -> None:
        peer.open()

        def reject(_: object) -> None:
            peer.send(spec.MessageReject(transfers=[(0, 0)], code=1, text="Unroutable"))

        peer.hooks[spec.MessageTransfer] = peer.hooks[spec.QueuePurge] = reject
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        publisher = client.publisher()
        publisher.send(numbered(1))
        publisher.finish()
        assert [each.index for each in publisher.take_rejected()] == [0]
        client.purge_queue("q")
        assert publisher.take_rejected() == []
