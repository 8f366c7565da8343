"""Deadlines, heartbeats and patience: how long a client waits for a peer that says nothing."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

import pytest

from amqp_core.errors import (
    ConnectionLost,
    DeadlineExceeded,
)
from amqp_core.v0_10 import spec
from amqp_core.v0_10.messages import messages_of
from tests.support.fakepeer import FakePeer, Peer
from tests.support.taking import again, bodies, receiving

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.v0_10.client import Client
    from amqp_core.v0_10.subscription import Subscription


def test_a_call_that_is_never_answered_has_a_deadline() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.silent()

    with FakePeer(script) as server:
        client = server.connect(call_timeout_s=0.3)
        with pytest.raises(DeadlineExceeded, match=r"waited for the answer to queue\.query"):
            client.query_queue("q")
        with pytest.raises(DeadlineExceeded):
            client.sync()
        client.close()
        with pytest.raises(DeadlineExceeded):
            client.sync()


def test_a_silent_peer_is_noticed_after_two_heartbeats() -> None:
    def script(peer: Peer) -> None:
        peer.subscribed()
        peer.transfer(b"before")
        peer.silent()

    with FakePeer(script, heartbeat=1) as server:
        client = server.connect(heartbeat=1)
        subscription = receiving(client)
        assert bodies(subscription, 1) == [b"before"]
        with pytest.raises(ConnectionLost, match="silent for two heartbeat intervals"):
            again(lambda: subscription.take_blocks(10.0))


def test_without_heartbeats_a_peer_that_leaves_a_stop_unanswered_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqp_core.v0_10.awaited_stop.SILENCE_S", 0.5)

    def script(peer: Peer) -> None:
        peer.subscribed()
        peer.transfer(b"before")
        peer.silent()  # a proxy that has lost its broker takes everything

    with FakePeer(script) as server:
        subscription = receiving(server.connect())
        assert bodies(subscription, 1) == [b"before"]
        subscription.renew(5)
        with pytest.raises(DeadlineExceeded, match=r"waited for the answer to message\.stop"):
            again(lambda: subscription.take_blocks(0.2))


def test_a_peer_that_sends_heartbeats_and_leaves_stops_unanswered_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqp_core.v0_10.awaited_stop.SILENCE_S", 1.5)

    def script(peer: Peer) -> None:
        peer.subscribed()
        peer.transfer(b"before")
        peer.completing = False  # the session is stuck
        with contextlib.suppress(ConnectionError):
            while peer.ended is None:
                peer.control(spec.ConnectionHeartbeat())
                peer.hears(0.2)

    with FakePeer(script, heartbeat=1) as server:
        subscription = receiving(server.connect(heartbeat=1))
        assert bodies(subscription, 1) == [b"before"]

        def renew_and_take() -> None:
            subscription.renew(5)  # a consumer that renews its credit all the time waits no longer for that
            subscription.take_blocks(0.2)

        with pytest.raises(DeadlineExceeded, match=r"waited for the answer to message\.stop"):
            again(renew_and_take)


def test_a_stop_is_answered_behind_transfers_however_long_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqp_core.v0_10.awaited_stop.SILENCE_S", 0.5)

    due = threading.Semaphore(0)

    def script(peer: Peer) -> None:
        def transfers_first(_stop: spec.Command) -> None:
            for _ in range(8):
                assert due.acquire(timeout=15)
                peer.transfer(b"under way")

        peer.hooks[spec.MessageStop] = transfers_first
        peer.subscribed()
        peer.serve()

    with FakePeer(script) as server:
        subscription = receiving(server.connect())
        subscription.renew(5)
        for _ in range(8):  # together longer than a silent broker may take
            assert not subscription.take_blocks(0.2)
            due.release()
            assert bodies(subscription, 1) == [b"under way"]


def test_stops_that_are_answered_after_the_next_one_was_sent_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqp_core.v0_10.awaited_stop.SILENCE_S", 1.0)

    def script(peer: Peer) -> None:
        peer.subscribed()
        peer.completing = False
        due: list[tuple[float, int]] = []
        with contextlib.suppress(ConnectionError):
            while peer.ended is None:
                known = len(peer.commands)
                peer.hears(0.05)
                stops = [each for each, command in peer.commands[known:] if isinstance(command, spec.MessageStop)]
                due += [(time.monotonic() + 0.4, each) for each in stops]
                while due and due[0][0] <= time.monotonic():
                    peer.control(spec.SessionCompleted(commands=[(0, due.pop(0)[1])]))

    with FakePeer(script) as server:
        client = server.connect()
        subscription = receiving(client)
        until = time.monotonic() + 3.0
        while time.monotonic() < until:
            subscription.renew(5)
            subscription.take_blocks(0.2)
        client.close()


def message_of_short_waits(subscription: Subscription) -> bytes:
    """The body of the next message; a stop can be found overdue between any two of the waits."""
    deadline = time.monotonic() + 10
    while not (blocks := subscription.take_blocks(0.1)):
        assert time.monotonic() < deadline
    (message,) = messages_of(blocks[0])
    return message.body


def stopped_behind_an_accept(client: Client, silence_timeout_s: float = 0.0) -> Subscription:
    """A subscription that has sent message.stop behind the accept of its first message."""
    subscription = receiving(client)
    assert bodies(subscription, 1) == [b"before"]
    client.accept([(0, 0)], silence_timeout_s=silence_timeout_s)
    subscription.renew(5)
    return subscription


def test_a_stop_behind_accepts_that_took_long_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqp_core.v0_10.awaited_stop.SILENCE_S", 0.5)
    stored, stopped = threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        peer.subscribed()
        peer.transfer(b"before")
        peer.completing = False  # its thread stores
        accept, _ = peer.expect(spec.MessageAccept)
        stop, _ = peer.expect(spec.MessageStop)
        assert stored.wait(15)
        peer.control(spec.SessionCompleted(commands=[(0, accept)]))
        assert stopped.wait(15)
        peer.control(spec.SessionCompleted(commands=[(0, stop)]))
        peer.transfer(b"late")
        peer.silent()

    with FakePeer(script) as server:
        subscription = stopped_behind_an_accept(server.connect(), silence_timeout_s=30.0)
        for _ in range(8):  # the silence that was announced
            assert not subscription.take_blocks(0.1)
        stored.set()
        for _ in range(3):  # more rounds without data
            assert not subscription.take_blocks(0.1)
        stopped.set()
        assert message_of_short_waits(subscription) == b"late"


def test_a_stop_may_be_unanswered_for_two_long_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqp_core.v0_10.awaited_stop.SILENCE_S", 0.2)

    stored = threading.Event()

    def script(peer: Peer) -> None:
        peer.hooks[spec.MessageAccept] = lambda _: stored.wait(15)  # which needs no announcement
        peer.subscribed()
        peer.transfer(b"before")
        peer.expect(spec.MessageStop)
        peer.transfer(b"late")
        peer.serve()

    with FakePeer(script, heartbeat=1) as server:
        subscription = stopped_behind_an_accept(server.connect(heartbeat=1))
        for _ in range(10):
            assert not subscription.take_blocks(0.1)
        stored.set()
        assert message_of_short_waits(subscription) == b"late"


def test_without_heartbeats_silence_is_no_loss_while_nothing_is_asked_or_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqp_core.v0_10.awaited_stop.SILENCE_S", 0.2)
    answer, answered = threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        peer.subscribed()
        peer.expect(spec.MessageStop)
        answer.wait(15)
        peer.transfer(b"late")
        answered.set()
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        subscription = receiving(client)
        assert not subscription.take_blocks(0.5)
        client.pause_reading(True)
        subscription.renew(5)
        assert not subscription.take_blocks(0.5)
        answer.set()
        assert answered.wait(15)  # it waits in the socket, and the broker was silent for longer than it may be
        client.pause_reading(False)
        assert bodies(subscription, 1) == [b"late"]


def test_without_heartbeats_a_broker_that_stores_accepts_may_be_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqp_core.v0_10.awaited_stop.SILENCE_S", 0.2)
    stored = threading.Event()

    def script(peer: Peer) -> None:
        peer.hooks[spec.MessageAccept] = lambda _: stored.wait(15)
        peer.subscribed()
        peer.transfer(b"before")
        peer.expect(spec.MessageStop)
        peer.transfer(b"late")
        peer.serve()

    with FakePeer(script) as server:
        subscription = stopped_behind_an_accept(server.connect(), silence_timeout_s=30.0)
        for _ in range(4):
            assert not subscription.take_blocks(0.2)
        stored.set()
        assert bodies(subscription, 1) == [b"late"]


def _busy_with_commit(busy: threading.Event) -> Callable[[Peer], None]:
    """A broker whose thread of the connection does nothing else while it commits, as Broker-J."""

    def script(peer: Peer) -> None:
        peer.hooks[spec.TxCommit] = lambda _: busy.wait(15)
        peer.open()
        peer.serve()

    return script


def test_a_broker_that_commits_may_be_silent_as_long_as_patience_lasts() -> None:
    busy = threading.Event()
    with FakePeer(_busy_with_commit(busy), heartbeat=1) as server:
        client = server.connect(heartbeat=1)
        client.transactions.select()
        ordinary, client._driver.call_timeout_s = client._driver.call_timeout_s, 1.0
        endpoint = client._driver.endpoint
        tick, ticks = endpoint.tick, []

        def ticking(now: float, *, reading: bool = True) -> tuple[float | None, bool]:
            found = tick(now, reading=reading)
            ticks.append(found[1])
            if sum(ticks) == 3:
                busy.set()  # it has been silent for too long three times
            return found

        endpoint.tick = ticking
        client.transactions.silence_timeout_s = 60.0
        client.transactions.commit()
        assert sum(ticks) >= 3
        assert len(ticks) < 50, "the client waits, and does not poll without a pause"
        endpoint.tick = tick
        client._driver.call_timeout_s = ordinary
        client.sync()
        client.close()


def test_patience_is_for_what_commits_and_has_an_end() -> None:
    busy = threading.Event()
    with FakePeer(_busy_with_commit(busy), heartbeat=1) as server:
        client = server.connect(heartbeat=1)
        client.transactions.select()
        client.transactions.silence_timeout_s = 0.5
        with pytest.raises(ConnectionLost, match="silent for two heartbeat intervals"):
            client.transactions.commit()
        busy.set()


def test_heartbeats_that_waited_in_the_socket_count() -> None:
    go_on, sent = threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        peer.open()
        peer.expect(spec.ExecutionSync)
        go_on.wait(10)
        for _ in range(5):
            peer.control(spec.ConnectionHeartbeat())
        sent.set()
        peer.serve()

    with FakePeer(script, heartbeat=1) as server:
        client = server.connect(heartbeat=1)
        client.sync()
        driver = client._driver
        driver._next_tick = 0.0
        driver._round(0.0, reading=False)  # from here on nothing has been received
        go_on.set()
        assert sent.wait(10)
        heartbeat = driver.connection._heartbeat
        last = heartbeat._last_tick
        assert last is not None
        heartbeat._last_tick = heartbeat._last_received = last - 100.0  # we were away for so long
        driver._next_tick = 0.0
        client.sync()


def test_heartbeats_go_out_while_reading_is_paused() -> None:
    def script(peer: Peer) -> None:
        peer.subscribed()
        peer.transfer(b"1", b"2")
        seen = len(peer.connection.data_to_send())
        assert seen == 0
        peer.sock.settimeout(10)
        data = b""
        while data.count(b"\x01\x0a\0\0") < 2:
            part = peer.sock.recv(1000)
            assert part, "closed"
            data += part
        peer.serve()

    with FakePeer(script, heartbeat=1) as server:
        client = server.connect(heartbeat=1)
        subscription = receiving(client)
        client.pause_reading(True)
        assert subscription.take_blocks(2.6) == []
        client.pause_reading(False)
        assert bodies(subscription, 2) == [b"1", b"2"]
        client.sync()


def test_a_broker_may_be_silent_while_it_stores_accepts_and_no_longer() -> None:
    """Broker-J removes durable messages by the thread that sends its heartbeats."""
    goes_on = threading.Event()

    def script(peer: Peer) -> None:
        peer.hooks[spec.MessageAccept] = lambda _: goes_on.wait(10)  # no heartbeat, no completion
        peer.open()
        peer.serve()

    with FakePeer(script, heartbeat=1) as server:
        client = server.connect(heartbeat=1)
        subscription = client.subscribe("q")
        client.accept([(0, 299_999)], silence_timeout_s=60.0)
        until = time.monotonic() + 3.0  # longer than two heartbeats
        while time.monotonic() < until:
            subscription.take_blocks(0.1)
        goes_on.set()
        with pytest.raises(ConnectionLost, match="silent for two heartbeat intervals"):
            again(lambda: subscription.take_blocks(0.5))


def test_an_answer_behind_a_large_message_on_a_slow_link_is_waited_for() -> None:
    """Octets flow all the time: no call may give up on them."""

    def script(peer: Peer) -> None:
        peer.open()
        whole = peer.raw

        def slow(data: bytes) -> None:
            for at in range(0, len(data), 100_000):
                time.sleep(0.1 if len(data) > 100_000 else 0)
                whole(data[at : at + 100_000])

        def transfer(_: object) -> None:
            peer.raw = slow  # type: ignore[method-assign] # the link of this peer
            peer.transfer(b"x" * 3_000_000)

        peer.hooks[spec.MessageFlush] = transfer  # a flush is complete when all that there is credit for is sent
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect(call_timeout_s=2.0)
        subscription = client.subscribe("q")
        subscription.renew(1)
        subscription.probe()
        assert [block.count for block in subscription.take_blocks(0)] == [1]
