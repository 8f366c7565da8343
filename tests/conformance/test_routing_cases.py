"""Where messages go: single cases, and those in which brokers differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.peer import answered, outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.conformance.peer import Peer
    from tests.conformance.peer_0_9 import Peer09
    from tests.conformance.targets import Target


def bound(
    peer: Peer, exchange: str, kind: str, bindings: Sequence[tuple[str, str, Mapping[str, object] | None]]
) -> None:
    """Declare an exchange, and queues that are bound to it with (queue, key, arguments)."""
    peer.declare_exchange(exchange, kind)
    for queue, key, arguments in bindings:
        peer.declare_queue(queue)
        peer.bind(queue, exchange, key, arguments)
    peer.sync()


def getters(peer: Peer, queues: Sequence[str]) -> list[str]:
    """The queues that have a message; they are empty then. One that has several is named as often."""
    found = peer.drain(*dict.fromkeys(queues))
    return sorted(queue for queue in found for _ in found[queue])


def test_a_queue_gets_a_message_once(peer: Peer, name: Callable[[str], str]) -> None:
    queue, exchange = name("q"), name("x")
    bound(
        peer, exchange, "topic", [(queue, "a.b", None), (queue, "a.*", None), (queue, "#", None), (queue, "a.b", None)]
    )
    peer.publish(exchange, "a.b", b"")
    assert getters(peer, [queue]) == [queue]
    peer.unbind(queue, exchange, "a.b")
    peer.unbind(queue, exchange, "#")
    peer.publish(exchange, "a.b", b"")
    peer.publish(exchange, "b", b"")
    assert getters(peer, [queue]) == [queue]


TOPICS = {
    "": ["", "#", "#.#"],
    "a..b": ["#", "#.#", "a.#.b", "a.*.b"],
    ".": ["#", "#.#", "*.*"],
    "*": ["#", "#.#", "*"],
    "#": ["#", "#.#", "*"],
}
"""Patterns that match a key: an empty one has no words, and words may be empty. In a key ``*`` is a word as others."""


@pytest.mark.parametrize("key", TOPICS, ids=["empty key", "empty word", "two empty words", "star", "hash"])
def test_topics(peer: Peer, name: Callable[[str], str], target: Target, key: str) -> None:
    patterns = ["", "#", "*", "#.#", "a.#.b", "a.*.b", "a.b", "*.*"]
    queues = {name(f"q{index}"): pattern for index, pattern in enumerate(patterns)}
    bound(peer, name("x"), "topic", [(queue, pattern, None) for queue, pattern in queues.items()])
    peer.publish(name("x"), key, b"")
    found = sorted(queues[queue] for queue in getters(peer, list(queues)))
    assert found == target.expects(f"topic: key {key!r}", sorted(TOPICS[key]))


HEADERS: dict[str, tuple[dict[str, object], dict[str, object], bool]] = {
    "all, no field": ({"x-match": "all"}, {}, True),
    "any, no field": ({"x-match": "any"}, {}, False),
    "all, no field, message with headers": ({"x-match": "all"}, {"h": 1}, True),
    "any, no field, message with headers": ({"x-match": "any"}, {"h": 1}, False),
    "all, a field that is not there": ({"x-match": "all", "h": 1, "g": 1}, {"h": 1}, False),
    "any, a field that is not there": ({"x-match": "any", "h": 1, "g": 1}, {"h": 1}, True),
    "all, a field without value": ({"x-match": "all", "h": None}, {"h": 1}, True),
    "all, no value in the message": ({"x-match": "all", "h": 1}, {"h": None}, False),
    "all, integers of two sizes": ({"x-match": "all", "h": 5}, {"h": 1 << 40 | 5}, False),
    "all, true and 1": ({"x-match": "all", "h": True}, {"h": 1}, False),
    "all, 1 and '1'": ({"x-match": "all", "h": 1}, {"h": "1"}, False),
    "all, an empty text": ({"x-match": "all", "h": ""}, {"h": 1}, False),
    "all, a name that begins with x-": ({"x-match": "all", "x-h": 1, "h": 1}, {"h": 1}, True),
    "any, a name that begins with x-": ({"x-match": "any", "x-h": 1}, {"x-h": 1}, False),
    "all-with-x, one of two is there": ({"x-match": "all-with-x", "x-h": 1, "h": 1}, {"h": 1}, False),
    "all-with-x, both are there": ({"x-match": "all-with-x", "x-h": 1, "h": 1}, {"x-h": 1, "h": 1}, True),
    "any-with-x, a name that begins with x-": ({"x-match": "any-with-x", "x-h": 1}, {"x-h": 1}, True),
}


@pytest.mark.parametrize("case", HEADERS)
def test_headers(peer: Peer, name: Callable[[str], str], target: Target, case: str) -> None:
    arguments, headers, specified = HEADERS[case]
    bound(peer, name("x"), "headers", [(name("q"), "k", arguments)])
    peer.publish(name("x"), "", b"", headers=headers)
    assert bool(getters(peer, [name("q")])) == target.expects(f"headers: {case}", specified)


def test_headers_with_one_key_and_two_sets_of_arguments(peer: Peer, name: Callable[[str], str], target: Target) -> None:
    queue, exchange = name("q"), name("x")
    bound(peer, exchange, "headers", [(queue, "k", {"x-match": "all", "h": value}) for value in (1, 2)])
    for value in (1, 2):
        peer.publish(exchange, "", b"%d" % value, headers={"h": value})
    # 0-10: queue, exchange and key are a binding, which stays as it is. 0-9-1: arguments are part of it.
    specified = [b"1"] if target.protocol == "0-10" else [b"1", b"2"]
    assert peer.bodies(queue) == target.expects("headers: two bindings with one key", specified)


def test_headers_without_x_match(peer: Peer, name: Callable[[str], str], target: Target) -> None:
    queue, exchange = name("q"), name("x")
    peer.declare_exchange(exchange, "headers")
    peer.declare_queue(queue)

    def routed() -> list[bytes]:
        peer.bind(queue, exchange, "k", {"h": 1, "g": 1})
        for number, headers in enumerate(({"h": 1, "g": 1}, {"h": 1}, {"g": 2})):
            peer.publish(exchange, "", b"%d" % number, headers=headers)
        peer.sync()
        return peer.bodies(queue)

    assert answered(routed) == target.expects("headers: no x-match", [b"0"])


def alternate_served(peer: Peer, target: Target, exchange: str, alternate: str) -> bool:
    """Declare an exchange with an alternate one, if that can be done."""

    def declare() -> None:
        peer.declare_exchange(exchange, "direct", alternate=alternate)
        peer.sync()

    return target.serves("declare: alternate-exchange", declare)


def test_an_alternate_exchange(peer: Peer, name: Callable[[str], str], target: Target) -> None:
    """What an exchange cannot route goes to its alternate exchange, with its own key."""
    bound(peer, name("rest"), "topic", [(name("all"), "#", None), (name("none"), "never", None)])
    if not alternate_served(peer, target, name("x"), name("rest")):
        return
    peer.declare_queue(name("q"))
    peer.bind(name("q"), name("x"), "k")
    for key in ("k", "other"):
        peer.publish(name("x"), key, key.encode(), mandatory=True)
    assert {fate.word for fate in peer.fates()} == {"taken"}
    assert peer.drain(name("q"), name("all"), name("none")) == {
        name("q"): [b"k"],
        name("all"): [b"other"],
        name("none"): [],
    }


def test_a_chain_of_alternate_exchanges(peer: Peer, name: Callable[[str], str], target: Target) -> None:
    peer.declare_exchange(name("last"), "fanout")
    if not alternate_served(peer, target, name("middle"), name("last")):
        return
    peer.declare_exchange(name("first"), "direct", alternate=name("middle"))
    peer.declare_queue(name("q"))
    peer.publish(name("first"), "k", b"lost")
    peer.sync()
    peer.bind(name("q"), name("last"))
    peer.publish(name("first"), "k", b"found")
    peer.sync()
    assert peer.bodies(name("q")) == [b"found"]
    for each in ("first", "middle", "last"):
        peer.delete_exchange(name(each))
    peer.sync()


def test_deleting_a_queue_takes_its_bindings(peer: Peer, name: Callable[[str], str]) -> None:
    bound(peer, name("x"), "fanout", [(name("q"), "", None)])
    peer.delete_queue(name("q"))
    peer.declare_queue(name("q"))
    peer.publish(name("x"), "", b"")
    peer.sync()
    assert peer.bodies(name("q")) == []


def test_deleting_an_exchange_takes_its_bindings(peer: Peer, name: Callable[[str], str]) -> None:
    bound(peer, name("x"), "fanout", [(name("q"), "", None)])
    peer.delete_exchange(name("x"))
    peer.declare_exchange(name("x"), "fanout")
    peer.publish(name("x"), "", b"")
    peer.sync()
    assert peer.bodies(name("q")) == []


def test_an_auto_delete_exchange_goes_with_its_last_binding(
    peer: Peer, name: Callable[[str], str], target: Target
) -> None:
    peer.declare_exchange(name("x"), "direct", auto_delete=True)
    peer.declare_queue(name("q"))
    for key in ("a", "b"):
        peer.bind(name("q"), name("x"), key)
    peer.unbind(name("q"), name("x"), "a")
    peer.declare_exchange(name("x"), "direct", passive=True)
    peer.sync()
    peer.unbind(name("q"), name("x"), "b")
    peer.sync()
    peer.declare_exchange(name("x"), "direct", passive=True)
    assert outcome(peer.sync) == ("session" if target.protocol == "0-10" else "channel", 404)
    peer.after_error()


def test_an_internal_exchange(peer_0_9: Peer09, name: Callable[[str], str], target: Target) -> None:
    """One that only other exchanges may publish to (the flag of RabbitMQ, reserved in 0-9-1)."""
    peer_0_9.declare_exchange(name("x"), "fanout", internal=True)
    peer_0_9.sync()

    def publish() -> None:
        peer_0_9.publish(name("x"), "", b"")
        peer_0_9.sync()

    assert outcome(publish) == target.expects("publish to an internal exchange", ("channel", 403))
