"""Where messages of the sink go: through every exchange type, to exactly the queues that the specification says.

The rules are written down here once more (0-10 section 2.3.3 to 2.3.7: exchange types direct, fanout, topic, headers,
and the default exchange), so that broker and sink are held against them and not against each other.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PythonException

from amqp_spark.sink import AmqpBatchSink
from tests.broker.sink_support import login, write
from tests.broker.stream_support import depth
from tests.support.capabilities import needs
from tests.support.taking import take

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from amqp_core.v0_10.client import Client
    from tests.support.capabilities import Capabilities
    from tests.support.fixtures import Broker, Connect

pytestmark = [pytest.mark.spark, pytest.mark.broker]

Headers = dict[str, str]

KEYS = ["", "a", "a.b", "a.b.c", "b", "b.a", "a.b.c.d", "stock.usd.nyse", "stock.eur", "A.b", "a..b", "ä.ö"]
HEADERS: list[Headers | None] = [None, {}, {"k": "1"}, {"k": "1", "l": "x"}, {"k": "2", "l": "x"}, {"l": "y", "z": ""}]


def topic_matches(pattern: list[str], words: list[str]) -> bool:
    """``*`` stands for one word, ``#`` for any number of words."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(topic_matches(pattern[1:], words[skip:]) for skip in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and topic_matches(pattern[1:], words[1:])


def headers_match(arguments: dict[str, Any], headers: Headers | None) -> bool:
    """By x-match all or any of the other arguments have to be there with the same value."""
    wanted = {key: value for key, value in arguments.items() if key != "x-match"}
    matches = [(headers or {}).get(key) == value for key, value in wanted.items()]
    return all(matches) if arguments["x-match"] == "all" else any(matches)


@dataclass
class Topology:
    """Exchanges of every type, and queues with their bindings."""

    client: Client
    names: Iterator[str]
    exchanges: dict[str, str] = field(default_factory=dict)
    """Name by type."""
    bindings: list[tuple[str, str, str, dict[str, Any]]] = field(default_factory=list)
    """Queue, type of the exchange, binding key, arguments."""

    def __post_init__(self) -> None:
        for kind in ("direct", "topic", "fanout", "headers"):
            self.exchanges[kind] = next(self.names)
            self.client.declare_exchange(self.exchanges[kind], kind)
        self.exchanges["default"] = ""

    def queue(self, kind: str, *keys: str, **arguments: Any) -> str:
        """A new queue bound with every key."""
        name = next(self.names)
        self.client.declare_queue(name)
        arguments = {key.replace("_", "-"): value for key, value in arguments.items()}
        for key in keys:
            self.client.bind(name, self.exchanges[kind], key, arguments)
            self.bindings.append((name, kind, key, arguments))
        if kind == "default":  # every queue is bound to it by its name
            self.bindings.append((name, kind, name, {}))
        return name

    def routed(self, kind: str, key: str, headers: Headers | None) -> set[str]:
        """The queues that get a message: one copy each, however many bindings match."""
        return {
            queue
            for queue, bound, pattern, arguments in self.bindings
            if bound == kind and matches(kind, pattern, arguments, key, headers)
        }


def matches(kind: str, pattern: str, arguments: dict[str, Any], key: str, headers: Headers | None) -> bool:
    match kind:
        case "fanout":
            return True
        case "topic":
            return topic_matches(pattern.split("."), key.split("."))
        case "headers":
            return headers_match(arguments, headers)
        case _:
            return key == pattern


@pytest.fixture
def topology(connect: Connect, fresh_names: Iterator[str]) -> Topology:
    made = Topology(connect(heartbeat=0), fresh_names)
    made.queue("direct", "a")
    made.queue("direct", "a", "b", "a.b")
    made.queue("direct", "ä.ö", "")
    made.queue("topic", "a.b")
    made.queue("topic", "a.*")
    made.queue("topic", "a.#")
    made.queue("topic", "*.b.*", "#.c")
    made.queue("topic", "*.*", "stock.#.nyse", "stock.usd.*")
    made.queue("fanout", "")
    made.queue("fanout", "x", "y")
    made.queue("headers", "1", x_match="all", k="1", l="x")
    made.queue("headers", "2", x_match="any", k="2", l="y")
    made.queue("headers", "3", x_match="all", z="")
    made.queue("default")
    made.queue("default")
    return made


@dataclass(frozen=True)
class Sent:
    """A message and where it goes."""

    kind: str
    key: str
    headers: Headers | None
    queues: frozenset[str]


def messages(topology: Topology, kinds: list[str]) -> list[Sent]:
    """Every routing key with every set of headers, to each of the exchanges."""
    own = [name for name, kind, _, _ in topology.bindings if kind == "default"]
    return [
        Sent(kind, key, headers, frozenset(topology.routed(kind, key, headers)))
        for kind in kinds
        for key in [*KEYS, *(own if kind == "default" else [])]
        for headers in HEADERS
    ]


def frame_of(spark: SparkSession, topology: Topology, sent: list[Sent]) -> DataFrame:
    """Rows whose body is the number of the message."""
    rows = [(str(n), topology.exchanges[m.kind], m.key, m.headers) for n, m in enumerate(sent)]
    schema = "body STRING, exchange STRING, routing_key STRING, application_headers MAP<STRING, STRING>"
    return spark.createDataFrame(rows, schema)


def check_queues(topology: Topology, sent: list[Sent]) -> None:
    """Every queue holds exactly its messages."""
    for queue in {queue for queue, *_ in topology.bindings}:
        count = depth(topology.client, queue)
        subscription = topology.client.subscribe(queue)
        subscription.grant(count)
        found = Counter(int(message.body) for message in take(subscription, count))
        assert found == Counter(n for n, message in enumerate(sent) if queue in message.queues), queue


@pytest.mark.parametrize("kind", ["direct", "topic", "fanout", "headers", "default"])
def test_an_exchange_routes_as_its_type_says(
    kind: str, spark: SparkSession, broker: Broker, topology: Topology, capabilities: Capabilities
) -> None:
    sent = messages(topology, [kind])
    sink = AmqpBatchSink(**login(broker, exchange=topology.exchanges[kind], onUnroutable="discard"))  # type: ignore[arg-type]
    sink(frame_of(spark, topology, sent), 0)
    assert sink.last.messages + sink.last.discarded == len(sent)
    if capabilities.rejects_unroutable:  # others drop some of them unseen
        assert sink.last.messages == sum(bool(message.queues) for message in sent) > 0
    check_queues(topology, sent)


def test_the_column_names_the_exchange_of_each_row(
    spark: SparkSession, broker: Broker, topology: Topology, capabilities: Capabilities
) -> None:
    sent = messages(topology, ["direct", "topic", "fanout", "headers", "default"])
    frame = frame_of(spark, topology, sent).selectExpr(
        "body", f"IF(exchange = '{topology.exchanges['topic']}', NULL, exchange) AS EXCHANGE", "routing_key",
        "application_headers",
    ).repartition(3)  # fmt: skip
    options = login(broker, exchange=topology.exchanges["topic"], exchangeFromColumn=True, onUnroutable="discard")
    sink = AmqpBatchSink(**options)  # type: ignore[arg-type]
    sink(frame, 0)
    if capabilities.rejects_unroutable:
        assert sink.last.discarded == sum(not message.queues for message in sent)
    check_queues(topology, sent)


def test_without_the_option_the_column_is_ignored(spark: SparkSession, broker: Broker, topology: Topology) -> None:
    rows = spark.createDataFrame([("0", "no such exchange")], "body STRING, exchange STRING")
    write(rows, login(broker, exchange=topology.exchanges["fanout"]))
    check_queues(topology, [Sent("fanout", "", None, frozenset(topology.routed("fanout", "", None)))])


@pytest.mark.parametrize(
    "kind",
    [
        "direct",
        pytest.param("topic", marks=needs("rejects_unroutable")),  # such an exchange cannot be asked
        pytest.param("headers", marks=needs("rejects_unroutable")),
        "default",
    ],
)
def test_what_cannot_be_routed_fails_the_task_and_is_named(
    kind: str, spark: SparkSession, broker: Broker, topology: Topology, capabilities: Capabilities
) -> None:
    good = next(m for m in messages(topology, [kind]) if m.queues)
    bad = Sent(kind, "unbound", {"k": "none"}, frozenset())
    assert not topology.routed(kind, bad.key, bad.headers)
    frame = frame_of(spark, topology, [good, bad, good, bad]).coalesce(1)
    name = topology.exchanges[kind]
    with pytest.raises(PythonException) as failed:
        write(frame, login(broker, exchange=name))
    text = str(failed.value)
    count = "2 message(s), the first is " if capabilities.rejects_unroutable else ""  # else none is sent
    assert "errors.Unroutable: [AMQP_" in text
    assert f"Cannot publish {count}row 1 of partition 0 for exchange '{name}'" in text
    assert "with routing key 'unbound'" in text
    assert "onUnroutable=discard to drop" in text


@needs("rejects_unroutable")
def test_nothing_bound_at_all_is_unroutable(
    spark: SparkSession, broker: Broker, connect: Connect, fresh_names: Iterator[str]
) -> None:
    name = next(fresh_names)
    connect(heartbeat=0).declare_exchange(name, "fanout")
    frame = spark.range(0, 1000, 1, 2).selectExpr("CAST(id AS STRING) AS body")
    with pytest.raises(
        PythonException, match=rf"500 message\(s\), the first is row 0 of partition . for exchange '{name}'"
    ):
        write(frame, login(broker, exchange=name))
    sink = AmqpBatchSink(**login(broker, exchange=name, onUnroutable="discard"))  # type: ignore[arg-type]
    sink(frame, 1)
    assert (sink.last.messages, sink.last.discarded) == (0, 1000)


@needs("alternate_exchange")
@pytest.mark.parametrize(
    "on_unroutable", [pytest.param("fail", marks=needs("rejects_unroutable")), "discard"]
)  # a sink that has to ask what is bound cannot see the alternate exchange
def test_an_alternate_exchange_gets_what_its_exchange_cannot_route(
    on_unroutable: str,
    spark: SparkSession,
    broker: Broker,
    connect: Connect,
    fresh_names: Iterator[str],
    capabilities: Capabilities,
) -> None:
    client = connect(heartbeat=0)
    first, alternate, bound, rest = (next(fresh_names) for _ in range(4))
    for queue in (bound, rest):
        client.declare_queue(queue)
    client.declare_exchange(alternate, "fanout")
    client.declare_exchange(first, "direct", alternate_exchange=alternate)
    client.bind(bound, first, "known")
    client.bind(rest, alternate, "")
    frame = spark.createDataFrame([("a", "known"), ("b", "unknown"), ("c", "known")], "body STRING, routing_key STRING")
    sink = AmqpBatchSink(**login(broker, exchange=first, onUnroutable=on_unroutable))  # type: ignore[arg-type]
    sink(frame, 0)
    if capabilities.rejects_unroutable:
        assert (sink.last.messages, sink.last.discarded) == (3, 0)
    assert {queue: bodies_of(client, queue) for queue in (bound, rest)} == {bound: [b"a", b"c"], rest: [b"b"]}
    client.delete_exchange(first)  # the alternate exchange of another one cannot be deleted


def bodies_of(client: Client, queue: str) -> list[bytes]:
    count = depth(client, queue)
    subscription = client.subscribe(queue)
    subscription.grant(count)
    return sorted(message.body for message in take(subscription, count))


@needs("rejects_unroutable")
def test_the_column_discard_unroutable_lets_the_broker_drop_a_message(
    spark: SparkSession, broker: Broker, queue: str, connect: Connect
) -> None:
    schema = "body STRING, routing_key STRING, discard_unroutable BOOLEAN"
    rows = [("a", "no-queue-of-this-name", True), ("b", queue, True), ("c", queue, False), ("d", queue, None)]
    write(spark.createDataFrame(rows, schema), login(broker))
    assert bodies_of(connect(heartbeat=0), queue) == [b"b", b"c", b"d"]
    with pytest.raises(PythonException, match="'no-queue-of-this-name'"):
        write(spark.createDataFrame([("a", "no-queue-of-this-name", None)], schema), login(broker))
