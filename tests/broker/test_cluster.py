"""A cluster of three RabbitMQ nodes whose leaders are killed (kill -9) under load: nothing is lost or doubled."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

import pytest

from amqp_spark import crashpoints
from tests.broker.cluster_queries import KINDS, ClusterQuery, Kind
from tests.broker.log_support import Streams
from tests.broker.source_0_9_support import Place, numbers
from tests.broker.stream_support import Stream
from tests.support.process import wait_until
from tests.support.rabbitmq import OLD, REFERENCE, RabbitMQConfig, let_queues_grow_old
from tests.support.rabbitmq_cluster import NODES, RabbitMQCluster

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.rabbitmq import RabbitMQNode

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

KILLS = 30


@pytest.fixture(
    scope="module",
    params=[REFERENCE, pytest.param(OLD, marks=pytest.mark.thorough)],
    ids=lambda release: release.version,
)
def cluster(request: pytest.FixtureRequest) -> Iterator[RabbitMQCluster]:
    """Three nodes for the tests of this module."""
    with RabbitMQCluster(RabbitMQConfig(release=request.param)) as nodes:
        yield nodes


@pytest.fixture(autouse=True)
def _whole(cluster: RabbitMQCluster) -> None:
    cluster.restore()


def check(query: ClusterQuery, found: Counter[bytes]) -> None:
    """Compare what was read with what was confirmed."""
    assert not query.lost(found), "lost"
    if query.kind != "at-least-once":
        assert not query.twice(found), "twice"


def address(node: RabbitMQNode) -> str:
    return f"{node.host}:{node.port}"


@pytest.mark.thorough
@pytest.mark.parametrize("queue_type", ["quorum", "stream"])
def test_each_node_has_a_replica(cluster: RabbitMQCluster, queue_type: str) -> None:
    with closing(Place(cluster.url(), cluster.username, cluster.password, queue_type)) as place:
        place.declare()
        cluster.wait_for_replicas(place.queue)
        assert cluster.members_of(place.queue) == sorted(node.name for node in cluster.nodes)
        assert len(cluster.online(place.queue)) == NODES


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "exactly-once" else pytest.mark.thorough) for kind in KINDS]
)
def test_the_leader_is_killed(cluster: RabbitMQCluster, tmp_path: Path, kind: Kind) -> None:
    """First the node to which the reader and the publisher are connected, and the leader is; then the next one."""
    first = cluster.nodes[0]
    with closing(ClusterQuery(cluster, kind, tmp_path / "query", first)) as query:
        assert cluster.leader_of(query.place.queue) is first, (
            "queues begin on the node to which their client is connected"
        )
        let_queues_grow_old()
        query.start()
        query.flows()
        for _ in range(2):
            leader = cluster.leader_of(query.place.queue)
            cluster.kill9(leader)
            query.flows_without_node()
            cluster.start(leader)
            cluster.wait_for_replicas(query.place.queue)
            query.flows()
        check(query, query.finish())
        assert f", after {address(first)} was lost" in query.log(), "it says where it has gone"


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_the_leader_is_on_another_node_than_the_reader(cluster: RabbitMQCluster, tmp_path: Path, kind: Kind) -> None:
    with closing(ClusterQuery(cluster, kind, tmp_path / "query", cluster.nodes[1], reader=cluster.nodes[2])) as query:
        let_queues_grow_old()
        query.start()
        query.flows()
        leader = cluster.leader_of(query.place.queue)
        assert leader is cluster.nodes[1]
        cluster.kill9(leader)
        query.flows_without_node()
        cluster.start(leader)
        cluster.wait_for_replicas(query.place.queue)
        check(query, query.finish())


@pytest.mark.thorough
@pytest.mark.parametrize("cluster", [REFERENCE], indirect=True, ids=[REFERENCE.version])
def test_a_node_stays_down_while_an_acknowledgement_is_in_doubt(cluster: RabbitMQCluster, tmp_path: Path) -> None:
    """RabbitMQ 4.3 returns after 60 seconds what a consumer on that node held, and counts the consumer until the node
    is back. RabbitMQ 3.10 counts it, too, and releases the lock: there it cannot be told from another consumer."""
    first = cluster.nodes[0]
    with closing(ClusterQuery(cluster, "exactly-once", tmp_path / "query", first)) as query:
        let_queues_grow_old()
        query.start()
        query.flows()
        assert query.reach(crashpoints.SPOOLED_UNACKED, within_s=30.0)
        cluster.kill9(first)
        query.release()
        query.flows()
        wait_until(lambda: "accepted message(s) came again" in query.log(), "the doubt to end", 120)
        query.flows()
        cluster.start(first)
        cluster.wait_for_replicas(query.place.queue)
        check(query, query.finish())


@pytest.mark.thorough
def test_a_stream_is_read_where_it_has_a_replica(cluster: RabbitMQCluster) -> None:
    place = Streams(cluster.url(), cluster.username, cluster.password)
    place.declare(x_initial_cluster_size=1)
    (name,) = cluster.members_of(place.queue)
    other = next(node for node in cluster.nodes if node.name != name)
    place.address = cluster.url(first=other)
    place.publish(numbers(100))
    assert [row[2] for row in place.read()] == numbers(100)
    place.close()


@contextmanager
def lagging(cluster: RabbitMQCluster, log: str, leader: RabbitMQNode) -> Iterator[None]:
    """The leader of a stream sends nothing more to one of its two replicas."""
    senders = "[P || {_, P, _, _} <- supervisor:which_children(osiris_replica_reader_sup), "
    senders += f'string:find(lists:flatten(io_lib:format("~0p", [sys:get_state(P)])), "{log}") =/= nomatch]'
    leader.evaluate(f"sys:suspend(hd(lists:sort({senders})))")
    try:
        yield
    finally:
        leader.evaluate(f"sys:resume(hd(lists:sort({senders})))")


def replica_end(node: RabbitMQNode, log: str) -> str:
    """The last offset that the replica of a stream has on a node."""
    counters = "maps:to_list(osiris_counters:overview())"
    has = f'string:find(lists:flatten(io_lib:format("~0p", [Name])), "{log}") =/= nomatch'
    return node.evaluate(f"[{{maps:get(offset, C)}} || {{{{osiris_replica, Name}}, C}} <- {counters}, {has}]")


@pytest.mark.thorough
@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_replica_that_lags_behind_is_no_other_stream(cluster: RabbitMQCluster, fails: str) -> None:
    """The leader suspended the sender to one replica; the stream goes on with the other one, since two are a majority.
    A query starts again, and its URL names the node first that lags."""
    with closing(Streams(cluster.url(), cluster.username, cluster.password)) as place:
        place.declare()
        leader = cluster.leader_of(place.queue)
        cluster.wait_for_replicas(place.queue)
        place.address = cluster.url(first=leader)
        place.publish(numbers(100))
        driver = place.log_driver()
        driver.rows(100)
        cluster.wait_for_replicas(place.queue)
        with lagging(cluster, place.queue, leader):
            place.publish(numbers(100, 100))
            assert [row[2] for row in driver.trigger_until_rows()] == numbers(100, 100)
            others = [node for node in cluster.nodes if node is not leader]
            behind = next(node for node in others if replica_end(node, place.queue) == "[{99}]")
            place.address = cluster.url(first=behind)
            again = place.log_driver(driver, failOnDataLoss=fails)
            place.publish(numbers(50, 200))
            assert [row[2] for row in again.trigger_until_rows()] == numbers(50, 200)


@pytest.mark.thorough
@pytest.mark.spark
def test_source_and_sink_of_spark_survive_the_death_of_the_leader(
    spark: SparkSession, cluster: RabbitMQCluster, tmp_path: Path
) -> None:
    place = Place(cluster.url(), cluster.username, cluster.password, queue_type="quorum")
    place.declare()
    stream = Stream(spark, place, tmp_path)
    options = {"url": place.address, "username": place.username, "password": place.password}
    wanted: set[bytes] = set()
    failures: list[BaseException] = []

    def write() -> None:
        try:
            for number in range(20):
                bodies = numbers(1000, 1000 * number)
                frame = spark.createDataFrame([(body.decode(),) for body in bodies], "body STRING").coalesce(1)
                frame.write.format("amqp").mode("append").options(**options, routingKey=place.queue).save()
                wanted.update(bodies)
        except BaseException as error:  # noqa: BLE001 - it fails the test
            failures.append(error)

    def goes_on(what: str) -> None:
        written, read = len(wanted), len(stream.rows)
        wait_until(lambda: bool(failures) or (len(wanted) > written and len(stream.rows) > read), what, 60)

    query = stream.start(stream.frame(place.queue, vhost="durable"))
    writer = threading.Thread(target=write)
    try:
        let_queues_grow_old()
        writer.start()
        for _ in range(2):
            goes_on("a write and its rows")
            leader = cluster.leader_of(place.queue)
            cluster.kill9(leader)
            goes_on("a write and its rows without the leader")
            cluster.start(leader)
            cluster.wait_for_replicas(place.queue)
        writer.join(300)
        assert not failures
        assert len(wanted) == 20_000
        wait_until(lambda: wanted <= set(stream.bodies()), "all rows", 60)
        assert query.exception() is None
    finally:
        query.stop()
    place.close()


def many_kills(cluster: RabbitMQCluster, queries: Sequence[ClusterQuery], kills: int) -> None:
    """Kill the leader of each in turn."""
    queues = [query.place.queue for query in queries]
    for query in queries:
        query.start()
    for number in range(kills):
        for query in queries:
            query.flows()
        leader = cluster.leader_of(queues[number % len(queues)])
        for query in queries:
            query.killed += cluster.leader_of(query.place.queue) is leader
        cluster.kill9(leader)
        for query in queries:
            query.flows_without_node()
        cluster.start(leader)
        cluster.wait_for_replicas(*queues)


@pytest.mark.thorough
@pytest.mark.timeout(1200)
def test_many_kills_of_leaders(cluster: RabbitMQCluster, tmp_path: Path) -> None:
    """Three queries at once, one for each guarantee."""
    with ExitStack() as stack:
        queries = [stack.enter_context(closing(ClusterQuery(cluster, kind, tmp_path / kind))) for kind in KINDS]
        let_queues_grow_old()
        many_kills(cluster, queries, KILLS)
        for query in queries:
            found = query.finish()
            print(
                f"{cluster.version} {query.kind}: {KILLS} kills, {query.killed} of its leader; "
                f"{len(query.feed.confirmed)} confirmed, {len(query.feed.in_doubt)} in doubt, "
                f"{query.lost(found).total()} lost, {query.twice(found).total()} twice"
            )
            check(query, found)
