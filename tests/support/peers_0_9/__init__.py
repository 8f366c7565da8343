"""Clients of AMQP 0-9-1 that share no code with this project: pika, aio-pika and the Java client of RabbitMQ.

Each publishes and consumes whole lists of :class:`PeerMessage`, so that a test of interoperability compares two lists::

    for peer in PEERS:
        peer.publish(place, messages)
        assert peer.consume(place, queue, len(messages)) == [peer.reading_of(message) for message in messages]
"""

from __future__ import annotations

from tests.support.peers_0_9.aio_pika_peer import AioPikaPeer
from tests.support.peers_0_9.java_peer import JavaPeer
from tests.support.peers_0_9.messages import Peer, PeerFailed, PeerMessage, Place
from tests.support.peers_0_9.pika_peer import PikaPeer

__all__ = ["PEERS", "AioPikaPeer", "JavaPeer", "Peer", "PeerFailed", "PeerMessage", "PikaPeer", "Place"]

PEERS: tuple[Peer, ...] = (PikaPeer(), AioPikaPeer(), JavaPeer())
