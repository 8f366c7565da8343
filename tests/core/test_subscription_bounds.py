"""Credit that is replaced: what is under way still counts until the broker has answered, and bytes are bounded."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from amqp_core.errors import ProtocolError
from amqp_core.v0_10 import spec
from amqp_core.v0_10 import subscription as subscription_module
from tests.support import wire
from tests.support.fakepeer import FakePeer, Peer
from tests.support.process import wait_until
from tests.support.taking import again

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from amqp_core.blocks import Block
    from amqp_core.v0_10.client import Client
    from amqp_core.v0_10.messages import Message
    from amqp_core.v0_10.subscription import Subscription

BODY = b"b" * 1000


class Sender:
    """A broker that keeps to its credit as qpidd and Broker-J do, with messages of given sizes.

    Broker-J queues what it has credit for at once, and a stop does not call that back; a message larger than the byte
    credit stalls the subscription until a stop.
    """

    def __init__(self, peer: Peer, sizes: list[int]) -> None:
        self.sizes = sizes
        self.messages = 0
        self.bytes = 0.0
        self.stalled = False
        self._peer = peer
        peer.hooks |= {spec.MessageFlow: self.flow, spec.MessageStop: self.stop, spec.MessageFlush: self.stop}

    def stop(self, _: spec.Command) -> None:
        self.messages, self.bytes, self.stalled = 0, 0.0, False

    def flow(self, command: spec.MessageFlow) -> None:
        value = command.value or 0
        if command.unit == spec.MessageCreditUnit.MESSAGE:
            self.messages += value
        else:
            self.bytes += float("inf") if value == 0xFFFFFFFF else value
        while self.sizes and self.messages and not self.stalled:
            if self.sizes[0] > self.bytes:
                self.stalled = self.bytes > 0
                break
            size = self.sizes.pop(0)
            self.messages -= 1
            self.bytes -= size
            self._peer.transfer(b"b" * size)


def sending(sizes: list[int]) -> Callable[[Peer], None]:
    """The script of a peer with a :class:`Sender`."""

    def script(peer: Peer) -> None:
        Sender(peer, sizes)
        peer.open()
        peer.serve()

    return script


@contextmanager
def subscribed(script: Callable[[Peer], None]) -> Iterator[tuple[Client, Subscription]]:
    """A client of a peer, and a subscription without credit."""
    with FakePeer(script) as server:
        client = server.connect()
        yield client, client.subscribe("q")


def received(subscription: Subscription, count: int) -> int:
    """Take so many messages; return their bytes."""
    nbytes = 0
    while count > 0:
        blocks = next(blocks for _ in range(100) if (blocks := subscription.take_blocks(10.0)))
        count -= sum(block.count for block in blocks)
        nbytes += sum(block.nbytes for block in blocks)
    assert count == 0
    return nbytes


def test_credit_taken_back_counts_until_the_broker_has_answered() -> None:
    stops: list[str | None] = []

    def script(peer: Peer) -> None:
        def stop(command: spec.MessageStop) -> None:
            peer.transfer(BODY, BODY)  # under way when the stop is sent
            stops.append(command.destination)

        peer.hooks[spec.MessageStop] = stop
        peer.open()
        peer.serve()

    with subscribed(script) as (client, subscription):
        subscription.grant(10)
        subscription.renew(0)
        assert subscription.credit == 10, "what is under way may still come"
        client.sync()
        assert subscription.credit == 0
        assert not subscription.may_receive
        assert received(subscription, 2) > 2 * len(BODY)
        assert stops == ["s1"]


def test_a_renewed_credit_replaces_the_one_before() -> None:
    seen: list[str] = []

    def script(peer: Peer) -> None:
        peer.hooks[spec.MessageFlow] = lambda command: seen.append(f"flow {command.unit} {command.value}")
        peer.hooks[spec.MessageStop] = lambda _: seen.append("stop")
        peer.open()
        peer.serve()

    with subscribed(script) as (client, subscription):
        subscription.renew(5, 50_000)
        subscription.renew(7, 70_000)
        assert subscription.credit == 12
        assert subscription.credit_bytes == 120_000
        client.sync()
        assert subscription.credit == 7
        assert subscription.credit_bytes == 70_000
        assert seen == ["stop", "flow 1 50000", "flow 0 5", "stop", "flow 1 70000", "flow 0 7"]


def test_bytes_are_bounded_when_messages_become_larger() -> None:
    def script(peer: Peer) -> None:
        Sender(peer, [100] * 50 + [1_000_000] * 50)
        peer.open()
        peer.serve()

    with subscribed(script) as (client, subscription):
        subscription.renew(1000, 4_000_000)
        client.sync()  # reads all that comes before the answer
        assert received(subscription, 53) < 3_200_000
        assert subscription.credit == 1000 - 53


def test_a_message_larger_than_the_bytes_comes_with_a_new_credit() -> None:
    with subscribed(sending([100, 1_000_000, 100])) as (_, subscription):
        subscription.renew(10, 500_000)
        received(subscription, 1)
        assert subscription.take_blocks(0.05) == []
        subscription.renew(1)
        received(subscription, 1)
        subscription.renew(10, 500_000)
        received(subscription, 1)


def test_a_probe_asks_for_one_message_whatever_was_granted() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        credit = 0

        def flow(command: spec.MessageFlow) -> None:
            nonlocal credit
            credit += (command.value or 0) if command.unit == spec.MessageCreditUnit.MESSAGE else 0

        def stop(_: spec.MessageStop) -> None:
            nonlocal credit
            credit = 0

        def flush(_: spec.MessageFlush) -> None:
            nonlocal credit
            peer.transfer(*[BODY] * credit)
            credit = 0

        peer.hooks |= {spec.MessageFlow: flow, spec.MessageStop: stop, spec.MessageFlush: flush}
        peer.serve()

    with subscribed(script) as (_, subscription):
        subscription.grant(1000)
        subscription.probe()
        assert subscription.credit == 0
        assert sum(block.count for block in subscription.take_blocks(0)) == 1


def test_after_the_answer_nothing_may_come() -> None:
    def script(peer: Peer) -> None:
        peer.hooks[spec.MessageStop] = lambda _: peer.transfer(BODY, BODY)  # under way
        peer.open()
        peer.expect(spec.MessageStop)
        peer.expect(spec.ExecutionSync)
        peer.transfer(BODY)
        peer.serve()

    with subscribed(script) as (client, subscription):
        subscription.grant(10)
        subscription.renew(0)
        client._driver.send(spec.ExecutionSync())
        blocks: list[Block] = []
        with pytest.raises(ProtocolError, match=r"1 message\(s\) to destination 's1', where it had a credit of 0"):
            again(lambda: blocks.extend(subscription.take_blocks(10.0)))
        assert sum(block.count for block in blocks) == 2


def test_a_probe_while_credit_is_being_taken_back_still_gets_its_message() -> None:
    """The answer to the first stop comes first: it takes back nothing of what the probe has given since."""

    def script(peer: Peer) -> None:
        peer.hooks[spec.MessageFlush] = lambda _: peer.transfer(BODY)
        peer.open()
        peer.serve()

    with subscribed(script) as (_, subscription):
        subscription.grant(10)
        subscription.renew(0)
        subscription.probe()
        assert sum(block.count for block in subscription.take_blocks(0)) == 1
        assert subscription.credit == 0


def test_credit_that_replaces_a_full_window_reaches_the_broker_at_once() -> None:
    """An idle queue: nothing comes that could release credit which was held back."""

    def script(peer: Peer) -> None:
        Sender(peer, [])
        peer.open()
        flows = []
        for _ in range(2):
            peer.expect(spec.MessageStop)
            peer.expect(spec.MessageFlow)
            flows.append(peer.expect(spec.MessageFlow)[1].value)
        assert flows == [16_384, 1]
        peer.transfer(BODY)
        peer.serve()

    with subscribed(script) as (_, subscription):
        subscription.renew(16_384, 8_000_000)
        subscription.renew(1)
        received(subscription, 1)


@pytest.mark.parametrize("how", ["renew", "stop", "cancel"])
def test_completion_that_comes_inside_a_transfer_ends_no_credit_for_it(how: str) -> None:
    """Controls may come between the frames of a transfer, which began while there was credit."""

    def script(peer: Peer) -> None:
        def transfer(_: object) -> None:
            peer.session.number(1)
            command, header, body = wire.frames_of(wire.transfer(b"", b"x", destination=b"s1"))
            peer.raw(command + header)
            peer.control(spec.SessionCompleted(commands=[(0, peer.session.received_next)]))
            peer.raw(body)

        peer.hooks[spec.MessageCancel if how == "cancel" else spec.MessageStop] = transfer
        peer.open()
        peer.serve()

    with subscribed(script) as (client, subscription):
        subscription.grant(5)
        subscription.renew(0) if how == "renew" else getattr(subscription, how)()
        client.sync()
        assert received(subscription, 1)


@pytest.mark.parametrize("answer", ["with the messages", "while more is waited for"])
def test_credit_that_may_be_used_already_is_replaced_when_messages_are_taken(answer: str) -> None:
    """The broker completes the stop behind ten transfers that have used the credit after it."""

    left = [10, 1]  # messages that are sent for the next credit
    taken = threading.Event()
    if answer == "with the messages":
        taken.set()

    def script(peer: Peer) -> None:
        def stop(_: object) -> None:
            peer.completing = False

        def flow(command: spec.MessageFlow) -> None:
            stopped = not peer.completing
            if stopped and command.unit == spec.MessageCreditUnit.MESSAGE and left:
                peer.transfer(*[BODY] * left.pop(0))
                peer.flush()
                assert taken.wait(30)
                peer.control(spec.SessionCompleted(commands=[(0, peer.session.received_next)]))
                peer.completing = True

        peer.hooks |= {spec.MessageStop: stop, spec.MessageFlow: flow}
        peer.open()
        peer.serve()

    with subscribed(script) as (_, subscription):
        subscription.grant(10)
        subscription.renew(10)
        for _ in range(10):
            assert len(subscription.take(1)) == 1
        taken.set()
        assert len(subscription.take(1)) == 1


@pytest.mark.parametrize("how", ["take", "take_one"])
def test_credit_that_the_broker_forgot_is_replaced(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Broker-J now and then forgets one of competing consumers."""
    monkeypatch.setattr(subscription_module, "_FORGOTTEN_SECONDS", 0.05)
    stops: list[int] = []

    def script(peer: Peer) -> None:
        def flow(command: spec.MessageFlow) -> None:
            if len(stops) == 2 and command.unit == spec.MessageCreditUnit.MESSAGE:
                peer.transfer(BODY)

        peer.hooks |= {spec.MessageStop: lambda _: stops.append(1), spec.MessageFlow: flow}
        peer.open()
        peer.serve()

    with subscribed(script) as (_, subscription):
        subscription.grant(1)
        assert subscription.take(1) if how == "take" else subscription.take_one(timeout=10)
    assert len(stops) >= 2


@pytest.mark.parametrize("how", ["take", "take_one"])
def test_credit_that_is_renewed_keeps_its_bound_of_bytes(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker counts less of a transfer than its frames, so that it has more left than this side knows of."""
    monkeypatch.setattr(subscription_module, "_FORGOTTEN_SECONDS", 0.05)
    quiet = threading.Event()

    def script(peer: Peer) -> None:
        sender = Sender(peer, [1000, 1000])
        stop = sender.stop

        def again(command: spec.Command) -> None:
            stop(command)
            if quiet.is_set() and not sender.sizes:
                sender.sizes = [1500]

        peer.hooks[spec.MessageStop] = again
        peer.open()
        peer.serve()

    def took(subscription: Subscription) -> int:
        found = subscription.take(1) if how == "take" else [subscription.take_one(timeout=10)]
        assert found
        assert found[0] is not None
        return len(found[0].body)

    with subscribed(script) as (_, subscription):
        subscription.renew(100, 2500)
        assert [took(subscription), took(subscription)] == [1000, 1000]
        quiet.set()
        assert took(subscription) == 1500


def test_bytes_that_a_broker_does_not_count_are_no_fault() -> None:
    """Broker-J counts a body as it is stored, and inflates what has the content-encoding gzip."""

    def script(peer: Peer) -> None:
        def flow(command: spec.MessageFlow) -> None:
            if command.unit == spec.MessageCreditUnit.MESSAGE:
                peer.transfer(*[bytes(1_000_000)] * 10)

        peer.hooks[spec.MessageFlow] = flow
        peer.open()
        peer.serve()

    with subscribed(script) as (_, subscription):
        subscription.renew(100, 1_000_000)
        assert received(subscription, 10) > 10_000_000


def test_credit_of_any_size_keeps_no_bound_of_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_module, "_FORGOTTEN_SECONDS", 0.05)

    def script(peer: Peer) -> None:
        sender = Sender(peer, [])
        stop = sender.stop
        stops: list[int] = []

        def later(command: spec.Command) -> None:
            stop(command)
            stops.append(1)
            if len(stops) == 4:  # of renew(), stop(), and two that replace what brings nothing
                sender.sizes = [5000]

        peer.hooks[spec.MessageStop] = later
        peer.open()
        peer.serve()

    with subscribed(script) as (_, subscription):
        subscription.renew(10, 1000)
        subscription.stop()
        subscription.grant(1)
        message = subscription.take_one(timeout=10)
        assert message is not None
        assert len(message.body) == 5000


def test_what_is_granted_after_a_bound_of_bytes_is_of_any_size() -> None:
    with subscribed(sending([5000])) as (_, subscription):
        subscription.renew(1, 100)
        assert subscription.take_blocks(0.1) == []
        subscription.grant(1)
        assert received(subscription, 1) > 5000


def taken(subscription: Subscription, count: int) -> list[Message]:
    """Take exactly so many messages."""
    messages: list[Message] = []
    while len(messages) < count:
        messages += subscription.take(count - len(messages))
    return messages


def test_a_limit_of_unsettled_messages_bounds_the_credit_that_the_peer_sees() -> None:
    granted: list[int] = []

    def script(peer: Peer) -> None:
        sender = Sender(peer, [100] * 1000)

        def flow(command: spec.MessageFlow) -> None:
            if command.unit == spec.MessageCreditUnit.MESSAGE:
                granted.append(command.value or 0)
            sender.flow(command)

        peer.hooks[spec.MessageFlow] = flow
        peer.open()
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        subscription = client.subscribe("q", max_unsettled=40)
        settled = 0
        while settled < 1000:
            for block in subscription.take_blocks(10.0):
                for one in range(block.first_id, block.first_id + block.count):
                    client.accept([(one, one)])
                    settled += 1
        client.sync()
    assert granted[0] == 40
    assert 1000 <= sum(granted) <= 1040
    assert len(granted) <= 100, "not a grant for each message"


@pytest.mark.parametrize("take", ["take_blocks", "take", "take_one"])
def test_forgotten_credit_of_a_limit_is_granted_again(monkeypatch: pytest.MonkeyPatch, take: str) -> None:
    monkeypatch.setattr(subscription_module, "_FORGOTTEN_SECONDS", 0.05)
    stops: list[int] = []

    def script(peer: Peer) -> None:
        sender = Sender(peer, [100] * 3)

        def flow(command: spec.MessageFlow) -> None:
            if stops:  # what was granted before the stop is forgotten
                sender.flow(command)

        peer.hooks[spec.MessageFlow] = flow
        peer.hooks[spec.MessageStop] = lambda _: stops.append(1)
        peer.open()
        peer.serve()

    with FakePeer(script) as server:
        subscription = server.connect().subscribe("q", max_unsettled=2)
        if take == "take_blocks":
            assert received(subscription, 2) > 0
        elif take == "take":
            assert len(subscription.take(2)) in (1, 2)
        else:
            assert subscription.take_one(timeout=10.0) is not None
    assert stops


def test_room_of_one_subscription_is_granted_while_the_program_waits_on_another() -> None:
    granted: dict[str, int] = {"s1": 0, "s2": 0}

    def script(peer: Peer) -> None:
        def flow(command: spec.MessageFlow) -> None:
            if command.unit == spec.MessageCreditUnit.MESSAGE:
                granted[str(command.destination)] += command.value or 0
                if command.destination == "s1" and granted["s1"] == 10:
                    peer.transfer(*[b"b"] * 10)

        peer.hooks[spec.MessageFlow] = flow
        peer.open()
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        first, second = (client.subscribe("q", max_unsettled=10) for _ in range(2))
        messages = taken(first, 10)
        client.accept([(message.transfer_id, message.transfer_id) for message in messages[:3]])
        wait_until(lambda: [*second.take_blocks(0.05), granted["s1"] == 13][-1], "room for the three")
    assert granted == {"s1": 13, "s2": 10}


def test_a_limit_of_unsettled_messages_ends_with_its_subscription() -> None:
    credit: list[str] = []

    def script(peer: Peer) -> None:
        sender = Sender(peer, [100] * 3)
        cancelled: list[int] = []

        def flow(command: spec.MessageFlow) -> None:
            credit.append("late" if cancelled else "early")
            sender.flow(command)

        peer.hooks |= {spec.MessageFlow: flow, spec.MessageCancel: lambda _: cancelled.append(1)}
        peer.open()
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        subscription = client.subscribe("q", max_unsettled=2)
        messages = taken(subscription, 2)
        subscription.cancel()
        client.accept([(message.transfer_id, message.transfer_id) for message in messages])
        assert subscription.take_blocks(0.05) == []
        assert subscription.take_one(timeout=0.05) is None
        assert subscription.take(1, timeout=0.05) == []
        client.service()
        client.sync()
    assert set(credit) == {"early"}


@pytest.mark.timeout(60)
def test_with_a_limit_a_wake_up_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_module, "_FORGOTTEN_SECONDS", 3600.0)
    with FakePeer(sending([])) as server:
        client = server.connect()
        subscription = client.subscribe("q", max_unsettled=5)
        subscription._changed_at = float("-inf")  # the credit has brought nothing for long
        client.wake()
        assert subscription.take_blocks(3600.0) == []


def test_with_a_limit_reading_stays_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_module, "_FORGOTTEN_SECONDS", 0.01)
    with FakePeer(sending([100] * 5)) as server:
        client = server.connect()
        subscription = client.subscribe("q", max_unsettled=5)
        client.pause_reading(True)
        for _ in range(5):
            assert subscription.take_blocks(0.05) == []
        client.pause_reading(False)
        assert received(subscription, 5) > 0
        assert subscription.take_blocks(0.2) == []
