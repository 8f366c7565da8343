"""Where messages go: exchanges of all types against an independent model (property-based), and single cases."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conformance.model import KINDS, Binding, Model
from tests.conformance.peer_0_9 import Peer09
from tests.support.choice import examples

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.peer import Peer
    from tests.conformance.targets import Target


# Names of an example are short words; the broker gets them with the prefix of the test.
QUEUES = ("q1", "q2", "q3")
PREDECLARED = {"amq.direct": "direct", "amq.fanout": "fanout", "amq.topic": "topic", "amq.match": "headers"}
# A fixture that a test gives to all of its examples is meant so: an example leaves nothing behind.
SHARED_FIXTURE = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


class Published(NamedTuple):
    exchange: str
    key: str
    headers: tuple[tuple[str, object], ...]


class Example(NamedTuple):
    """What is bound, in steps of (binding, whether it is taken back later), and what is published then."""

    bindings: list[tuple[Binding, bool]]
    messages: list[Published]


words = st.sampled_from(("a", "b", "c"))
keys = st.lists(words, min_size=1, max_size=4).map(".".join)
patterns = (
    st.lists(st.one_of(words, st.sampled_from(("*", "#"))), min_size=1, max_size=4)
    .filter(lambda each: each.count("#") <= 2)  # RabbitMQ takes no more: the case topic-three-hashes
    .map(".".join)
)
values: st.SearchStrategy[object] = st.sampled_from(("x", "y", 1, 2, True))
names = st.sampled_from(("h1", "h2", "h3"))
headers = st.dictionaries(names, values, min_size=1, max_size=3).map(lambda each: tuple(sorted(each.items())))
wanted = st.builds(
    lambda mode, fields: (("x-match", mode), *sorted(fields.items())),
    st.sampled_from(("all", "any")),
    st.dictionaries(names, st.one_of(values, st.none()), min_size=1, max_size=3),
)


@st.composite
def examples_of(draw: st.DrawFn, kind: str, source: str, patterns: st.SearchStrategy[str]) -> Example:
    """Up to eight bindings of one exchange, and up to twelve messages to it."""
    bindings = []
    for index in range(draw(st.integers(1, 8))):
        key = draw(patterns if kind == "topic" else keys)
        arguments: tuple[tuple[str, object], ...] = ()
        if kind == "headers":  # in 0-10 a binding is identified by its key
            key, arguments = str(index), draw(wanted)
        bindings.append((Binding(source, draw(st.sampled_from(QUEUES)), key, arguments), draw(st.booleans())))
    given_headers = headers if kind == "headers" else st.just(())
    messages = st.lists(st.builds(Published, st.just(source), keys, given_headers), min_size=1, max_size=12)
    return Example(bindings, draw(messages))


def run(peer: Peer, name: Callable[[str], str], exchanges: dict[str, str], example: Example) -> None:
    """Bind, unbind and publish in one go; compare what is in each queue with the model."""
    full = {word: name(word) for word in QUEUES} | {each: each for each in PREDECLARED} | {"": ""}
    full |= {each: name(each) for each in exchanges if each not in full}
    model = Model(exchanges, set(QUEUES))
    for binding, _ in example.bindings:
        model.bind(binding)
        _bind(peer, full, binding)
    for binding in dict.fromkeys(binding for binding, is_taken_back in example.bindings if is_taken_back):
        model.unbind(binding)
        _unbind(peer, full, binding)
    expected: dict[str, list[bytes]] = {queue: [] for queue in QUEUES}
    for number, message in enumerate(example.messages):
        body = b"%d" % number
        key = full.get(message.key, message.key) if not message.exchange else message.key
        peer.publish(full[message.exchange], key, body, headers=dict(message.headers))
        for queue in model.route(message.exchange, message.key, dict(message.headers)):
            expected[queue].append(body)
    peer.sync()
    found = peer.drain(*(full[queue] for queue in QUEUES))
    for binding in model.bindings:
        _unbind(peer, full, binding)
    assert {queue: found[full[queue]] for queue in QUEUES} == expected


def _bind(peer: Peer, full: dict[str, str], binding: Binding) -> None:
    if binding.to_exchange:
        assert isinstance(peer, Peer09)
        peer.bind_exchange(full[binding.destination], full[binding.source], binding.key)
    else:
        peer.bind(full[binding.destination], full[binding.source], binding.key, dict(binding.arguments))


def _unbind(peer: Peer, full: dict[str, str], binding: Binding) -> None:
    if binding.to_exchange:
        assert isinstance(peer, Peer09)
        peer.unbind_exchange(full[binding.destination], full[binding.source], binding.key)
    else:
        peer.unbind(full[binding.destination], full[binding.source], binding.key, dict(binding.arguments))


def tried(target: Target, count: int) -> settings:
    """Settings of a property: real brokers get the same examples each time, as a test is not to find their errors."""
    is_ours = target.broker == "embedded"
    return settings(max_examples=examples(count), derandomize=not is_ours, suppress_health_check=SHARED_FIXTURE)


def patterns_for(target: Target) -> st.SearchStrategy[str]:
    """Broker-J makes one automaton of all patterns of a queue, which many ``#`` let grow until its memory is full."""
    most = 1 if target.broker == "broker-j" else 2
    return patterns.filter(lambda each: each.count("#") <= most)


def declare_queues(peer: Peer, name: Callable[[str], str]) -> None:
    for queue in QUEUES:
        peer.declare_queue(name(queue))
    peer.sync()


@pytest.mark.parametrize("kind", KINDS)
def test_an_exchange_of_ones_own(peer: Peer, name: Callable[[str], str], target: Target, kind: str) -> None:
    declare_queues(peer, name)
    peer.declare_exchange(name("x"), kind)
    peer.sync()

    @tried(target, 20)
    @given(examples_of(kind, "x", patterns_for(target)))
    def check(example: Example) -> None:
        run(peer, name, {"x": kind}, example)

    check()


@pytest.mark.parametrize("exchange", PREDECLARED)
def test_a_predeclared_exchange(peer: Peer, name: Callable[[str], str], target: Target, exchange: str) -> None:
    declare_queues(peer, name)

    @tried(target, 5)
    @given(examples_of(PREDECLARED[exchange], exchange, patterns_for(target)))
    def check(example: Example) -> None:
        run(peer, name, PREDECLARED, example)

    check()


@st.composite
def chains(draw: st.DrawFn) -> Example:
    """Bindings between three exchanges, in circles too, and from them to queues."""
    bindings = []
    for _ in range(draw(st.integers(2, 8))):
        source = draw(st.sampled_from(tuple(CHAIN)))
        destination = draw(st.sampled_from((*CHAIN, *QUEUES)))
        key = draw(patterns if CHAIN[source] == "topic" else keys)
        bound = Binding(source, destination, key, to_exchange=destination in CHAIN)
        bindings.append((bound, draw(st.booleans())))
    messages = st.lists(st.builds(Published, st.sampled_from(tuple(CHAIN)), keys, st.just(())), min_size=1, max_size=12)
    return Example(bindings, draw(messages))


CHAIN = {"x1": "topic", "x2": "direct", "x3": "fanout"}


def test_exchanges_that_are_bound_to_exchanges(peer_0_9: Peer09, name: Callable[[str], str], target: Target) -> None:
    declare_queues(peer_0_9, name)
    for exchange, kind in CHAIN.items():
        peer_0_9.declare_exchange(name(exchange), kind)
    peer_0_9.sync()

    def bind() -> None:
        peer_0_9.bind_exchange(name("x1"), name("x2"), "unused")
        peer_0_9.sync()

    if not target.serves("bind: exchange to exchange", bind):
        return

    @tried(target, 40)
    @given(chains())
    def check(example: Example) -> None:
        run(peer_0_9, name, CHAIN, example)

    check()


def test_the_default_exchange(peer: Peer, name: Callable[[str], str], target: Target) -> None:
    declare_queues(peer, name)
    messages = st.builds(Published, st.just(""), st.sampled_from((*QUEUES, "q4")), st.just(()))

    @tried(target, 10)
    @given(st.lists(messages, max_size=12))
    def check(messages: list[Published]) -> None:
        run(peer, name, {}, Example([], messages))

    check()
