"""The brokers of the conformance suite, and clients of them that are closed after the test."""

from __future__ import annotations

import itertools
import re
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from amqp_core.address import parse_url
from tests.conformance.peer import Closed, Declared, Peer
from tests.conformance.peer_0_9 import Peer09
from tests.conformance.peer_0_10 import Peer010
from tests.conformance.targets import TARGETS, Address, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from amqp_core.broker import Broker


class Connect(Protocol):
    """Connects clients of either protocol."""

    def __call__(self, **options: Any) -> Any: ...


def _parameters(targets: Sequence[Target]) -> list[Any]:
    real = [pytest.mark.broker]
    return [pytest.param(each, id=str(each), marks=() if each.broker == "embedded" else real) for each in targets]


@pytest.fixture
def target(request: pytest.FixtureRequest) -> Target:
    """Each broker with each of its protocols."""
    found: Target = request.param
    if found.broker == "rabbitmq":
        version: str = request.getfixturevalue("rabbitmq").version
        return replace(found, version=tuple(int(part) for part in re.findall(r"\d+", version)))
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test runs on every target; one that takes ``peer_0_10`` or ``connect_0_9`` on those of the protocol."""
    if "target" not in metafunc.fixturenames:
        return
    chosen = list(TARGETS)
    for suffix, protocol in (("0_10", "0-10"), ("0_9", "0-9-1")):
        if {f"peer_{suffix}", f"connect_{suffix}"} & set(metafunc.fixturenames):
            chosen = [each for each in chosen if each.protocol == protocol]
    metafunc.parametrize("target", _parameters(chosen), indirect=True)


@pytest.fixture
def address(target: Target, request: pytest.FixtureRequest) -> Address:
    """Where the broker of the test listens. The embedded one gives each test a virtual host of its own."""
    if target.broker == "embedded":
        broker: Broker = request.getfixturevalue("amqp_broker")
        return Address(broker.port, broker.add_virtual_host())
    if target.broker == "broker-j":
        brokerj = request.getfixturevalue("brokerj_0_9")
        return Address(brokerj.ports["plain"], "default", brokerj.username, brokerj.password)
    node = request.getfixturevalue("rabbitmq")
    (_, port), *_ = parse_url(node.url())[0]
    return Address(port, "default", node.username, node.password)


@pytest.fixture
def name() -> Callable[[str], str]:
    """Makes names that no other test has: always the same one of the same word."""
    prefix = uuid.uuid4().hex[:12]
    return lambda word: f"conformance-{prefix}-{word}"


@pytest.fixture
def connect(target: Target, address: Address) -> Iterator[Connect]:
    """Connects clients; what they have declared is deleted after the test."""
    declared = Declared()
    made: list[Peer] = []

    def make(**options: Any) -> Peer:
        kind = Peer010 if target.protocol == "0-10" else Peer09
        made.append(kind(address, declared, **options))
        return made[-1]

    yield make
    for each in made:
        each.drop()
    if target.broker != "embedded":
        _delete(make, declared)


@pytest.fixture
def connect_0_10(connect: Connect) -> Connect:
    """Connects clients of 0-10."""
    return connect


@pytest.fixture
def connect_0_9(connect: Connect) -> Connect:
    """Connects clients of 0-9-1."""
    return connect


@pytest.fixture
def peer(connect: Connect) -> Peer:
    """A client."""
    made: Peer = connect()
    return made


@pytest.fixture
def peer_0_10(connect: Connect) -> Peer010:
    """A client of 0-10; the test runs on brokers that speak it."""
    made: Peer010 = connect()
    return made


@pytest.fixture
def peer_0_9(connect: Connect) -> Peer09:
    """A client of 0-9-1; the test runs on brokers that speak it."""
    made: Peer09 = connect()
    return made


def _delete(connect: Callable[[], Peer], declared: Declared) -> None:
    """Delete queues and exchanges; those that are gone already do not matter."""
    if not declared.queues and not declared.exchanges:
        return
    declared.exchanges.discard("")
    peer = connect()
    deletions = itertools.chain(
        [("queue", each) for each in sorted(declared.queues)],
        [("exchange", each) for each in sorted(declared.exchanges)],
    )
    for kind, each in deletions:
        (peer.delete_queue if kind == "queue" else peer.delete_exchange)(each)
        try:
            peer.sync()
        except Closed as closed:
            if closed.scope == "connection":
                peer.drop()
                peer = connect()
            else:
                peer.after_error()
    peer.drop()
