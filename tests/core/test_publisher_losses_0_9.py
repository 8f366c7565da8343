"""Connections of 0-9-1 that end while messages are in flight: what is not proved is unfinished."""

from __future__ import annotations

import pytest

from amqp_core.errors import ConnectionClosed, ConnectionLost, OutcomeUnknown
from amqp_core.v0_9 import spec
from tests.support.fakepeer_0_9 import FakePeer, Peer
from tests.support.runs_0_9 import numbered, numbers_of


def test_a_cut_leaves_what_is_not_confirmed() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published(6)
        peer.ack(2)
        peer.give_back(peer.messages[2])
        peer.ack(4)

    with FakePeer(script) as server:
        client = server.connect()
        publisher = client.publisher()
        publisher.send(numbered(6))
        with pytest.raises(ConnectionLost):
            publisher.finish()
        assert numbers_of(publisher.unfinished()) == [0, 4, 5]
        assert (publisher.in_doubt, publisher.in_flight) == (3, 4)
        assert [one.index for one in publisher.take_rejected()] == [2]
        with pytest.raises(ConnectionLost):
            publisher.send(numbered(1, 9))
        assert numbers_of(publisher.unfinished()) == [0, 4, 5, 9]
        with pytest.raises(OutcomeUnknown, match=r"4 published message\(s\) were not confirmed"):
            client.confirm()


def test_an_ack_right_before_the_close_counts() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published(2)
        peer.ack(1)
        peer.send(spec.ConnectionClose(reply_code=320, reply_text="CONNECTION_FORCED"), channel=0)
        peer.silent()

    with FakePeer(script) as server:
        publisher = server.connect().publisher()
        publisher.send(numbered(2))
        with pytest.raises(ConnectionClosed, match="320"):
            publisher.finish()
        assert numbers_of(publisher.unfinished()) == [1]


def test_a_nack_that_is_not_proved_leaves_the_message_in_doubt() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published(3)
        peer.ack(1)
        peer.nack(2)
        peer.nack(3)
        assert peer.read_raw(1)  # of the question, which is not answered

    with FakePeer(script) as server:
        publisher = server.connect().publisher()
        publisher.send(numbered(3))
        with pytest.raises(ConnectionLost):
            publisher.finish()
        assert numbers_of(publisher.unfinished()) == [1, 2]
        assert publisher.take_rejected() == []
