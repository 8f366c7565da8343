"""Where messages go, by each exchange type, and compared with a model that was written on its own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_core.broker.model.errors import Refusal
from amqp_core.broker.model.routing import TopicMatcher
from tests.core.broker.model_support import ME, Host, message, refused

if TYPE_CHECKING:
    from collections.abc import Mapping


def routed(host: Host, key: str, exchange: str, headers: Mapping[str, object] | None = None) -> list[str]:
    return sorted(queue.name for queue in host.route(message(key=key, exchange=exchange, headers=headers)))


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        ("*.stock.#", "usd.stock", True),
        ("*.stock.#", "eur.stock.db", True),
        ("*.stock.#", "stock.nasdaq", False),
        ("#", "", True),
        ("#", "a.b", True),
        ("*", "", False),
        ("*", "a", True),
        ("*", "a.b", False),
        ("", "", True),
        ("", "a", False),
        ("a.*", "a.", True),
        ("a.#", "a", True),
        ("#.a", "a", True),
        ("#.a", "a.a.a", True),
        ("#.a.#", "b.a.c.d", True),
        ("#.#", "", True),
        ("a.#.b", "a.b", True),
        ("a.#.b", "a.x.y.b", True),
        ("a.#.b", "a", False),
        ("*.#", "", False),
        ("#.*", "a.b", True),
        ("a.b", "a.B", False),
        ("a.*", "a.#", True),
        ("a.b", "a.*", False),
    ],
)
def test_topic_patterns(pattern: str, key: str, *, expected: bool) -> None:
    host = Host()
    host.make()
    host.bind_queue("q", "amq.topic", pattern, owner=ME)
    assert routed(host, key, "amq.topic") == ["q"] * expected
    host.unbind_queue("q", "amq.topic", pattern, owner=ME)
    assert routed(host, key, "amq.topic") == []


def test_patterns_that_are_unbound_leave_nothing_behind() -> None:
    matcher: TopicMatcher[int] = TopicMatcher()
    for target, pattern in enumerate(("a.b.c", "a.b", "a.*.#")):
        matcher.add(target, pattern, {})
    matcher.remove(0, "a.b.c", {})
    assert sorted(matcher.matches(message(key="a.b"))) == [1, 2]
    matcher.remove(2, "a.*.#", {})
    matcher.remove(1, "a.b", {})
    assert matcher._root.children == {}


def test_no_pattern_takes_for_ever() -> None:
    host = Host()
    host.make()
    for count in range(1, 120):
        host.bind_queue("q", "amq.topic", "#.a." * count + "z", owner=ME)
    begin = time.perf_counter()
    assert routed(host, ".".join("a" * 127), "amq.topic") == []
    assert time.perf_counter() - begin < 5


@pytest.mark.parametrize(
    ("arguments", "headers", "expected"),
    [
        ({}, {}, True),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 2}, True),
        ({"a": 1, "b": "x"}, {"a": 1}, False),
        ({"x-match": "any", "a": 1, "b": "x"}, {"a": 2, "b": "x"}, True),
        ({"x-match": "any", "a": 1, "b": "x"}, {"a": 2}, False),
        ({"a": None}, {"a": "whatever"}, True),
        ({"a": None}, {}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": 1.0}, True),
        ({"x-a": 1}, {}, True),
        ({"x-match": "all-with-x", "x-a": 1}, {}, False),
        ({"x-match": "all-with-x", "x-a": 1}, {"x-a": 1}, True),
        ({"x-match": "any", "x-a": 1}, {"x-a": 1}, False),
        ({"x-match": "any-with-x", "x-a": 1}, {"x-a": 1}, True),
        ({"x-match": "any-with-x", "x-a": 1, "b": 2}, {"b": 2}, True),
    ],
)
def test_headers(arguments: dict[str, object], headers: dict[str, object], *, expected: bool) -> None:
    host = Host()
    host.make()
    host.bind_queue("q", "amq.match", "no matter", owner=ME, arguments=arguments)
    assert routed(host, "k", "amq.match", headers) == ["q"] * expected


@pytest.mark.parametrize("word", ["some", 1, None, "ALL"])
def test_an_unknown_x_match_is_refused(word: object) -> None:
    host = Host()
    host.make()
    with refused(Refusal.PRECONDITION_FAILED, "x-match", "all, any, all-with-x or any-with-x"):
        host.bind_queue("q", "amq.match", "", owner=ME, arguments={"x-match": word})
    assert not host.exchanges["amq.match"].bindings
    host.bind_queue("q", "amq.fanout", "", owner=ME, arguments={"x-match": word})


def test_a_queue_gets_a_message_once() -> None:
    host = Host()
    host.make()
    host.declare_exchange("e", "topic")
    for key in ("a.*", "#", "a.b"):
        host.bind_queue("q", "e", key, owner=ME)
    host.bind_exchange("amq.fanout", "e", "#")
    host.bind_exchange("e", "amq.fanout", "")
    host.bind_queue("q", "amq.fanout", "", owner=ME)
    assert host.send("1", "a.b", "e") == (1, False)


def test_the_alternate_exchange_gets_what_matches_nothing() -> None:
    host = Host()
    host.make("a")
    host.make("b")
    host.declare_exchange("first", "direct", alternate="second")
    host.declare_exchange("second", "direct", arguments={"alternate-exchange": "third"})
    assert routed(host, "k", "first") == []
    host.declare_exchange("third", "fanout", alternate="first")
    assert routed(host, "k", "first") == []
    host.bind_queue("b", "third", "", owner=ME)
    assert routed(host, "k", "first") == ["b"]
    host.bind_queue("a", "first", "k", owner=ME)
    assert routed(host, "k", "first") == ["a"]
    assert routed(host, "other", "first") == ["b"]
    host.delete_exchange("third")
    assert routed(host, "other", "first") == []


def test_an_alternate_exchange_may_be_declared_later() -> None:
    host = Host()
    host.make("a")
    host.bind_queue("a", "amq.fanout", "", owner=ME)
    host.declare_exchange("e", "direct", alternate="later")
    assert routed(host, "k", "e") == []
    host.declare_exchange("later", "direct", alternate="amq.fanout")
    assert routed(host, "k", "e") == ["a"]


def test_the_alternate_exchange_may_be_the_default_one() -> None:
    host = Host()
    host.make("a")
    host.declare_exchange("e", "direct", alternate="")
    assert routed(host, "a", "e") == ["a"]


def test_keys_that_never_come_again_do_not_stay() -> None:
    host = Host()
    host.make()
    host.bind_queue("q", "amq.topic", "#", owner=ME)
    for number in range(50_000):
        host.route(message(key=str(number), exchange="amq.topic"))
    assert sum(map(len, host._topology._routes.values())) <= 20_000


# The model: sets of tuples and functions that look at all of them.

KINDS = ("direct", "fanout", "topic", "headers")
EXCHANGES = ("e0", "e1", "e2", "e3")
QUEUES = ("q0", "q1", "q2")
words = st.sampled_from(["a", "b", "", "*", "#"])
keys = st.lists(words, max_size=4).map(".".join)
header_names = st.sampled_from(["h", "i", "x-j"])
values = st.sampled_from([0, 1, True, "t", 1.5, None])
tables = st.dictionaries(header_names, values, max_size=3)
modes = st.sampled_from([{}, *({"x-match": word} for word in ("all", "any", "all-with-x", "any-with-x"))])
binding = st.tuples(
    st.sampled_from(EXCHANGES),
    st.sampled_from(EXCHANGES + QUEUES),
    keys,
    st.builds(lambda mode, table: {**mode, **table}, modes, tables),
)


def topic_matches(pattern: list[str], key: list[str]) -> bool:
    if not pattern:
        return not key
    if pattern[0] == "#":
        return any(topic_matches(pattern[1:], key[start:]) for start in range(len(key) + 1))
    return bool(key) and pattern[0] in ("*", key[0]) and topic_matches(pattern[1:], key[1:])


def headers_match(arguments: Mapping[str, object], headers: Mapping[str, object]) -> bool:
    mode = str(arguments.get("x-match", "all"))
    results = []
    for name in set(arguments) - {"x-match"}:
        if name.startswith("x-") and not mode.endswith("with-x"):
            continue
        value = arguments[name]
        if value is None:
            results.append(name in headers)
        else:
            same_kind = (type(value) is bool) == (type(headers.get(name)) is bool)
            results.append(headers.get(name) == value and same_kind)
    return False not in results if mode.startswith("all") else True in results


def split(key: str) -> list[str]:
    return key.split(".") if key != "" else []


def matches(kind: str, pattern: str, arguments: Mapping[str, object], key: str, headers: Mapping[str, object]) -> bool:
    if kind == "direct":
        return pattern == key
    if kind == "topic":
        # In a key * and # are words like others, in a pattern they are not.
        return topic_matches(split(pattern), [f"={word}" if word in ("*", "#") else word for word in split(key)])
    return kind == "fanout" or headers_match(arguments, headers)


def model_route(
    topology: Mapping[str, tuple[str, str | None]],
    bindings: list[tuple[str, str, str, dict[str, object]]],
    start: str,
    key: str,
    headers: Mapping[str, object],
) -> set[str]:
    reached = {start}
    while True:
        found = set(reached)
        for name in reached & set(topology):
            kind, alternate = topology[name]
            here = {
                to
                for source, to, pattern, args in bindings
                if source == name and matches(kind, pattern, args, key, headers)
            }
            found |= here or ({alternate} if alternate in topology else set())  # type: ignore[arg-type]
        if found == reached:
            return reached - set(topology)
        reached = found


@given(st.data())
def test_routing_is_that_of_the_model(data: st.DataObject) -> None:
    topology: dict[str, tuple[str, str | None]] = {
        name: (
            data.draw(st.sampled_from(KINDS)),
            data.draw(st.one_of(st.none(), st.sampled_from((*EXCHANGES, "none")))),
        )
        for name in EXCHANGES
    }
    host = Host()
    for name, (kind, alternate) in topology.items():
        host.declare_exchange(name, kind, alternate=alternate)
    for name in QUEUES:
        host.make(name)
    bound: list[Any] = []
    for _ in range(data.draw(st.integers(1, 12))):
        if bound and data.draw(st.integers(0, 3)) == 0:
            change(host, bound.pop(data.draw(st.integers(0, len(bound) - 1))), bind=False)
        else:
            new = data.draw(binding)
            change(host, new, bind=True)
            if not any(repr(new) == repr(old) or same(new, old) for old in bound):
                bound.append(new)
        key, headers, start = data.draw(keys), data.draw(tables), data.draw(st.sampled_from(EXCHANGES))
        for _ in range(2):  # the second time from memory
            assert set(routed(host, key, start, headers)) == model_route(topology, bound, start, key, headers)


def same(one: Any, other: Any) -> bool:
    """Whether two bindings are one: equal arguments, whose values also have equal types."""

    def typed(arguments: Mapping[str, object]) -> set[tuple[str, type, object]]:
        return {(name, type(value), value) for name, value in arguments.items()}

    return bool(one[:3] == other[:3]) and typed(one[3]) == typed(other[3])


def change(host: Host, what: Any, *, bind: bool) -> None:
    source, destination, key, arguments = what
    if destination in QUEUES:
        (host.bind_queue if bind else host.unbind_queue)(destination, source, key, owner=ME, arguments=arguments)
    else:
        (host.bind_exchange if bind else host.unbind_exchange)(destination, source, key, arguments=arguments)
