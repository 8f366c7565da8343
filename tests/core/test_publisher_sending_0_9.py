"""Messages that the publisher of 0-9-1 sends, with scripted peers: unchanged, within its window, on an open channel."""

from __future__ import annotations

import threading

import pytest

from amqp_core.errors import UsageError
from amqp_core.v0_9 import spec
from tests.core.publisher_support_0_9 import reading_until
from tests.support.fakepeer_0_9 import FakePeer, Peer, serve
from tests.support.runs_0_9 import numbered


def test_messages_are_written_unchanged_and_confirmed() -> None:
    def script(peer: Peer) -> None:
        serve(peer)
        seen.extend(peer.messages)
        methods.extend(type(method) for _, method in peer.methods)

    seen, methods = [], []  # type: ignore[var-annotated]
    with FakePeer(script) as server:
        client = server.connect()
        publisher = client.publisher()
        assert publisher.max_frame_size == 131072
        assert publisher.send(numbered(3)) == 1
        assert publisher.send(numbered(2, 3, size=300_000)) == 4
        assert publisher.send(numbered(0)) == 6
        publisher.finish()
        assert publisher.in_flight == 0
        assert publisher.completed == publisher.sent
        assert publisher.sent.transfers == 5
        assert publisher.unfinished() == []
        publisher.finish()
        client.close()
    assert methods[:2] == [spec.ConfirmSelect, spec.BasicPublish]
    assert [message.content.body.partition(b":")[0] for message in seen] == [b"0", b"1", b"2", b"3", b"4"]
    assert len(seen[4].content.body) == 300_002


def test_the_window_holds_messages_back() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        for number in range(10):
            peer.published(10)
            assert len(peer.messages) == 10 * (number + 1)
            peer.ack(10 * (number + 1), multiple=True)
        peer.serve()

    with FakePeer(script) as server:
        publisher = server.connect().publisher(max_in_flight=10)
        publisher.send(numbered(100))
        publisher.finish()
        assert publisher.completed.transfers == 100


def test_the_window_counts_bytes_and_lets_a_larger_message_pass_alone() -> None:
    most = 0

    def script(peer: Peer) -> None:
        nonlocal most
        peer.open()
        for number in range(1, 21):
            peer.published()
            most = max(most, len(peer.messages) - number)
            peer.ack(number)
        peer.serve()

    with FakePeer(script) as server:
        publisher = server.connect().publisher(max_bytes_in_flight=250_000)
        publisher.send(numbered(10, size=100_000))
        publisher.send(numbered(10, 10, size=1_000_000))
        publisher.finish()
        assert publisher.completed.transfers == 20
    assert most <= 1


def test_a_long_life_leaves_nothing_behind() -> None:
    with FakePeer(serve) as server:
        publisher = server.connect().publisher(max_in_flight=20)
        most = 0
        for number in range(200):
            publisher.send(numbered(20, number, tag=number))
            most = max(most, len(publisher._ledger._parts))
        assert most < 60
        assert publisher.locate(4000) == (199, 19)
        publisher.finish()
        assert publisher._ledger._parts == []
        assert publisher._confirmed.ranges() == [(1, 4000)]
        assert publisher.locate(3) is None
        assert publisher.completed.transfers == 4000


def test_a_second_publisher_continues_on_the_channel() -> None:
    with FakePeer(serve) as server:
        client = server.connect()
        first = client.publisher()
        first.send(numbered(5))
        with pytest.raises(UsageError, match="is not finished"):
            client.publisher()
        first.finish()
        second = client.publisher(max_in_flight=3)
        with pytest.raises(UsageError, match="another publisher was made"):
            first.send(numbered(1))
        assert second.send(numbered(7)) == 6
        second.finish()
        assert (second.in_flight, second.sent.transfers, second.completed.transfers) == (0, 7, 7)


def test_a_stopped_channel_is_not_published_on() -> None:
    def script(peer: Peer) -> None:
        peer.acking = True
        peer.open()
        peer.published()
        peer.flow(active=False)
        stopped.set()
        go_on.wait(10)
        seen.append(len(peer.messages))
        peer.flow(active=True)
        peer.serve()

    stopped, go_on = threading.Event(), threading.Event()
    seen: list[int] = []
    with FakePeer(script) as server:
        client = server.connect()
        publisher = client.publisher()
        publisher.send(numbered(1))
        reading_until(client, lambda: not publisher.in_flight, "basic.ack")
        stopped.wait(10)
        reading_until(client, lambda: not publisher._channel.active, "channel.flow")
        threading.Timer(0.05, go_on.set).start()
        publisher.send(numbered(5, 1))
        publisher.finish()
    assert seen == [1]
