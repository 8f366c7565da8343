"""Credit that a broker gives to a producer: by destination, infinite or counted, in credit mode and in window mode."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from amqp_core.errors import DeadlineExceeded, LimitExceeded
from amqp_core.sequence_numbers import RangeSet
from amqp_core.transfer_ledger import Transfers
from amqp_core.v0_10 import spec
from amqp_core.v0_10.messages import Message
from amqp_core.v0_10.producer_credit import ProducerCredit
from tests.support import wire
from tests.support.fakepeer import FakePeer, Peer

if TYPE_CHECKING:
    from collections.abc import Sequence

MESSAGE, BYTE = spec.MessageCreditUnit.MESSAGE, spec.MessageCreditUnit.BYTE
INFINITE = 0xFFFFFFFF


def flow(value: int | None, destination: str | None = "", unit: int = MESSAGE) -> spec.MessageFlow:
    return spec.MessageFlow(destination=destination, unit=unit, value=value)


def stop(destination: str | None = "") -> spec.MessageStop:
    return spec.MessageStop(destination=destination)


def mode(flow_mode: int, destination: str | None = "") -> spec.MessageSetFlowMode:
    return spec.MessageSetFlowMode(destination=destination, flow_mode=flow_mode)


def credit_after(*commands: spec.Command) -> ProducerCredit:
    credit = ProducerCredit()
    for command in commands:
        credit.receive(command)
    return credit


def run(*destinations: str) -> Transfers:
    frames = [wire.transfer(wire.delivery(), b"x", destination=name.encode()) for name in destinations]
    ends = [len(b"".join(frames[: index + 1])) for index in range(len(frames))]
    return Transfers(b"".join(frames), ends)


@pytest.mark.parametrize(
    ("commands", "left"),
    [
        ([], None),
        ([stop()], 0),
        ([stop(None)], 0),
        ([stop(), flow(None)], None),
        ([stop(), flow(INFINITE)], None),
        ([stop(), flow(0x7FFFFFFF)], None),
        ([stop(), flow(0)], 0),
        ([stop(), flow(3), flow(4)], 7),
        ([stop(), flow(None), flow(1 << 30)], None),
        ([flow(1 << 30)], None),
        ([stop(), flow(None), stop(), flow(5)], 5),
        ([stop(), *[flow(0x7FFFFFFE)] * 5], 0xFFFFFFFE),
        ([stop(), *[flow(0x7FFFFFFE)] * 5, flow(None)], None),
        ([stop(), flow(INFINITE, unit=BYTE)], 0),
        ([stop(), flow(None, "other")], 0),
        ([stop("other")], None),
        ([stop("other"), stop(), flow(2)], 2),
    ],
)
def test_what_is_left(commands: Sequence[spec.Command], left: int | None) -> None:
    assert credit_after(*commands).left == left


@pytest.mark.parametrize(
    ("commands", "sent"),
    [
        ([], 6),
        ([stop("a")], 0),
        ([stop("b")], 2),
        ([stop("c")], 6),
        ([stop("a"), flow(1, "a")], 1),
        ([stop("a"), flow(2, "a")], 3),
        ([stop("b"), flow(1, "b")], 4),
        ([stop("b"), flow(1, "b"), stop(), flow(3)], 3),
        ([stop("b"), flow(None, "b")], 6),
        ([stop(), flow(4)], 4),
    ],
)
def test_a_stop_for_one_destination_stops_what_goes_there(commands: Sequence[spec.Command], sent: int) -> None:
    """In order: what follows the first transfer without credit waits with it."""
    transfers = run("a", "a", "b", "a", "b", "a")
    assert credit_after(*commands).room(transfers, 0, 6) == sent


def test_credit_of_each_destination_is_spent_apart() -> None:
    transfers = run("a", "b", "a", "b")
    credit = credit_after(stop("a"), flow(2, "a"), stop("b"), flow(1, "b"))
    assert credit.room(transfers, 0, 4) == 3
    credit.spend(transfers, 0, 3, 100)
    assert credit.room(transfers, 3, 4) == 3
    credit.receive(flow(1, "b"))
    assert credit.room(transfers, 3, 4) == 4


@pytest.mark.parametrize("destination", ["", "a"])
@pytest.mark.parametrize(
    ("modes", "windowed"),
    [
        ([], True),
        ([spec.MessageFlowMode.WINDOW], True),
        ([spec.MessageFlowMode.CREDIT], False),
        ([spec.MessageFlowMode.CREDIT, spec.MessageFlowMode.WINDOW], True),
    ],
)
def test_completion_gives_credit_back_in_window_mode(destination: str, modes: Sequence[int], windowed: bool) -> None:
    transfers = run("a", "a", "a")
    changes = [mode(each, destination) for each in modes]
    credit = credit_after(*changes, stop(destination), flow(2, destination))
    credit.spend(transfers, 0, 2, 10)
    assert credit.room(transfers, 2, 3) == 2
    credit.settle(RangeSet([(0, 9)]))
    assert credit.room(transfers, 2, 3) == 2
    credit.settle(RangeSet([(0, 10)]))
    credit.settle(RangeSet([(0, 10)]))
    assert credit.room(transfers, 2, 3) == (3 if windowed else 2)
    # what was sent before a stop gives nothing back after it
    credit.receive(stop(destination))
    credit.settle(RangeSet([(0, 11)]))
    assert credit.room(transfers, 2, 3) == 2


def test_a_broker_that_limits_thousands_of_destinations_is_refused() -> None:
    credit = credit_after(*[stop(f"d{number}") for number in range(4096)])
    credit.receive(stop("d0"))
    with pytest.raises(LimitExceeded, match="more than 4096 destinations"):
        credit.receive(stop("one more"))


def test_a_publisher_goes_on_when_credit_is_infinite() -> None:
    """A flow without value, and one that comes on top, let it send without end."""

    def script(peer: Peer) -> None:
        peer.open()
        for command in (mode(spec.MessageFlowMode.CREDIT), stop(), flow(None), flow(1)):
            peer.send(command)
        peer.expect(spec.ExecutionSync)
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        client.sync()
        client.sync()
        for _ in range(10):
            client.publish(Message(b"x"), routing_key="q")
        client.confirm()


def test_a_stop_that_comes_with_the_session_is_obeyed() -> None:
    """In the same bytes as session.attached, before there is a publisher."""

    def script(peer: Peer) -> None:
        attached = peer.session.receive_control

        def attach(control: spec.Control) -> None:
            attached(control)
            if isinstance(control, spec.SessionCommandPoint):
                peer.session.send(stop())

        peer.session.receive_control = attach  # type: ignore[method-assign]
        peer.open()
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect(call_timeout_s=0.3)
        with pytest.raises(DeadlineExceeded, match="allow publishing again"):
            client.publish(Message(b"x"), routing_key="q")


def test_a_publisher_waits_for_its_own_destination_only() -> None:
    published = threading.Event()

    def script(peer: Peer) -> None:
        peer.open()
        peer.send(mode(spec.MessageFlowMode.CREDIT, "e"))
        peer.send(stop("e"))
        peer.expect(spec.ExecutionSync)
        for _ in range(5):
            assert peer.expect(spec.MessageTransfer)[1].destination == "free"
        assert not peer.comes(spec.MessageTransfer, 0.2)
        published.set()
        peer.send(flow(1, "e"))
        assert peer.expect(spec.MessageTransfer)[1].destination == "e"
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        client.sync()
        client.sync()  # whatever the peer read together with the first one, this comes after the stop
        for _ in range(5):
            client.publish(Message(b"x"), exchange="free", routing_key="q")
        client.publish(Message(b"x"), exchange="e", routing_key="q")
        assert published.is_set()
        client.confirm()


def test_a_window_is_used_again_when_transfers_are_complete() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.send(stop())
        peer.send(flow(2))
        peer.serve()
        assert sum(isinstance(command, spec.MessageTransfer) for _, command in peer.commands) == 20

    with FakePeer(script) as server:
        client = server.connect()
        client.sync()
        client.sync()
        for _ in range(20):
            client.publish(Message(b"x"), routing_key="q")
        client.confirm()
        client.close()


def test_a_mode_that_stays_leaves_what_completion_gives_back() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.send(stop())
        peer.send(flow(2))
        peer.expect(spec.ExecutionSync)
        peer.expect(spec.ExecutionSync)
        peer.completing = False
        peer.expect(spec.MessageTransfer)
        last, _ = peer.expect(spec.MessageTransfer)
        peer.send(mode(spec.MessageFlowMode.WINDOW))
        peer.control(spec.SessionCompleted(commands=[(0, last)]))
        peer.expect(spec.MessageTransfer)
        peer.completing = True
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        client.sync()
        client.sync()
        for _ in range(3):
            client.publish(Message(b"x"), exchange="e")


def test_large_messages_to_another_destination_than_the_stopped_one() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.send(stop("e"))
        peer.expect(spec.ExecutionSync)
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        client.sync()
        client.sync()
        for _ in range(3):
            client.publish(Message(bytes(100_000)), exchange="free", routing_key="k" * 255)
        client.confirm()
