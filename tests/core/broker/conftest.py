"""A broker without sockets for AMQP 0-10, and clients of it; some modules have their own."""

from __future__ import annotations

import pytest

from amqp_core.v0_10 import spec
from tests.core.broker.peer_0_10 import Peer, World


@pytest.fixture
def world() -> World:
    """A broker with the virtual hosts ``/`` and ``other``."""
    return World()


@pytest.fixture
def peer(world: World) -> Peer:
    """A client with the queue ``q``."""
    peer = world.connect()
    peer.attach()
    peer.call(spec.QueueDeclare(queue="q"))
    return peer


@pytest.fixture
def other(world: World, peer: Peer) -> Peer:
    """Another client, after the first."""
    other = world.connect()
    other.attach(name=b"other")
    return other
