"""Messages that cannot be decoded among others: each is an error in its turn, and every id can be settled."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from amqp_core.errors import ConnectionLost, DecodeError, UndecodableMessage
from amqp_core.v0_10 import spec
from tests.support import wire
from tests.support.fakepeer import FakePeer, Peer
from tests.support.taking import again, receiving

if TYPE_CHECKING:
    from amqp_core.v0_10.subscription import Subscription

GOOD = wire.delivery(routing_key=wire.str8(b"k"))
# A struct that says it is longer than it is; a map that ends too early; an odd command; a segment too many.
BAD = {
    "header cut short": wire.transfer(b"\x00\x00\x00\x09" + GOOD[4:], b"bad", destination=b"s1"),
    "headers cut short": wire.transfer(
        wire.message(application_headers=b"\x00\x00\x00\xff\x00\x00\x00\x01"), b"bad", destination=b"s1"
    ),
    "unknown packing flags": wire.assembly(bytes.fromhex("0401 0100 ffff 02 7331 0000"), GOOD, b"bad"),
    "two bodies": wire.segment(wire.COMMAND, wire.transfer_command(b"s1"), first=True, last=False)
    + wire.segment(wire.BODY, b"bad", first=False, last=False)
    + wire.segment(wire.BODY, b"bad", first=False, last=True),
}


def good(body: bytes) -> bytes:
    return wire.transfer(GOOD, body, destination=b"s1")


def take_all(subscription: Subscription, each: int, count: int) -> list[bytes | int]:
    """Bodies, and the command id of each message that cannot be decoded, in order."""
    found: list[bytes | int] = []
    while len(found) < count:
        try:
            messages = subscription.take(each)
            assert messages
            found += [message.body for message in messages]
        except UndecodableMessage as error:
            found.append(error.command_id)
    return found


@pytest.mark.parametrize("how", BAD)
@pytest.mark.parametrize("each", [1, 2, 100])
def test_the_others_of_a_batch_are_returned_and_every_id_can_be_settled(how: str, each: int) -> None:
    accepted: list[tuple[int, int]] = []

    def script(peer: Peer) -> None:
        peer.subscribed()
        peer.raw(good(b"0") + good(b"1") + BAD[how] + good(b"3") + BAD[how] + BAD[how] + good(b"6"))
        peer.session.next_id += 7
        accepted.extend(peer.expect(spec.MessageAccept)[1].transfers or [])
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        subscription = receiving(client)
        assert take_all(subscription, each, 7) == [b"0", b"1", 2, b"3", 4, 5, b"6"]
        client.accept([(0, 6)], sync=True)
        client.close()
    assert accepted == [(0, 6)]


def test_one_at_a_time_too() -> None:
    def script(peer: Peer) -> None:
        peer.subscribed()
        peer.raw(BAD["unknown packing flags"] + good(b"1") + BAD["two bodies"])
        peer.session.next_id += 3
        peer.serve()

    with FakePeer(script) as server:
        subscription = receiving(server.connect())
        with pytest.raises(UndecodableMessage, match=r"id 0 cannot be decoded: message\.transfer: "):
            subscription.take_one(timeout=10.0)
        message = subscription.take_one(timeout=10.0)
        assert message is not None
        assert (message.body, message.command_id) == (b"1", 1)
        with pytest.raises(UndecodableMessage, match="id 2 cannot be decoded: a segment of type 3 follows"):
            subscription.take_one(timeout=10.0)


def test_what_came_before_the_end_of_the_connection_is_returned_first() -> None:
    def script(peer: Peer) -> None:
        peer.subscribed()
        peer.transfer(b"0", b"1")

    with FakePeer(script) as server:
        subscription = receiving(server.connect(), credit=2)
        found: list[bytes] = []
        with pytest.raises(ConnectionLost):
            again(lambda: found.extend(message.body for message in subscription.take(100)))
        assert found == [b"0", b"1"]


def test_the_error_says_what_it_is_and_pickles() -> None:
    error = pickle.loads(pickle.dumps(UndecodableMessage(7, "why")))
    assert isinstance(error, UndecodableMessage)
    assert isinstance(error, DecodeError)
    assert (error.command_id, error.reason, error.retryable) == (7, "why", False)
    assert "The message with id 7 cannot be decoded: why." in str(error)
