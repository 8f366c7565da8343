"""How long the publisher waits for scripted peers, and how it ends: given up, interrupted, cut off, discarded."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

import pytest

from amqp_core import publishing as publisher_module
from amqp_core.errors import ConnectionLost, DeadlineExceeded, UsageError
from amqp_core.v0_10 import spec
from amqp_core.v0_10.messages import Message
from tests.core.publisher_support import Receiver, completed
from tests.support.fakepeer import FakePeer, Peer, serve
from tests.support.machines import HEARTBEAT
from tests.support.process import wait_until
from tests.support.runs import numbered, numbers_of
from tests.support.taking import again

if TYPE_CHECKING:
    from collections.abc import Callable


def impatient(monkeypatch: pytest.MonkeyPatch, *, ask: float = 0.02, warn: float = 60.0, silence: float = 60.0) -> None:
    monkeypatch.setattr(publisher_module, "_ASK_EVERY_S", ask)
    monkeypatch.setattr(publisher_module, "_WARN_EVERY_S", warn)
    monkeypatch.setattr(publisher_module, "SILENCE_S", silence)


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
    assert "waiting for the completion of transfers, of which no more may be in flight" in texts
    assert any("4 transfer(s)" in record.getMessage() for record in caplog.records)


def test_a_silent_broker_without_heartbeats_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch, silence=0.2)

    def script(peer: Peer) -> None:
        peer.completing = False
        peer.open()
        peer.silent()

    with FakePeer(script, script) as server:
        publisher = server.connect().publisher(max_in_flight=4)
        with pytest.raises(DeadlineExceeded, match=r"the completion of transfers, of which"):
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


def waits_for_completion(meanwhile: Callable[[Peer], None], *, heartbeat: int) -> None:
    """A publisher finishes once the peer completes, after what it does ``meanwhile``."""
    waited = threading.Event()

    def script(peer: Peer) -> None:
        peer.completing = False
        peer.open()
        peer.expect(spec.ExecutionSync)
        meanwhile(peer)
        waited.set()
        peer.control(completed((0, peer.session.received_next - 1)))
        peer.completing = True
        peer.serve()

    with FakePeer(script, heartbeat=heartbeat) as server:
        publisher = server.connect(heartbeat=heartbeat).publisher()
        publisher.send(numbered(3))
        publisher.finish()
        assert waited.is_set()


def test_a_broker_that_sends_heartbeats_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch, ask=60.0, silence=0.1)

    def meanwhile(peer: Peer) -> None:
        assert not peer.hears(1.0)

    waits_for_completion(meanwhile, heartbeat=30)


def test_heartbeats_go_out_while_completion_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch, ask=60.0)

    def meanwhile(peer: Peer) -> None:
        for _ in range(2):
            peer.raw(HEARTBEAT)
            assert peer.hears(10.0), "no heartbeat came"

    waits_for_completion(meanwhile, heartbeat=2)


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


# ------------------------------------------------------------------------------------------------------------- endings
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


# ----------------------------------------------------------------------------------------- a client that is not in use
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
    monkeypatch.setattr("amqp_core.pump._CLOSE_TIMEOUT_S", 0.2)
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
