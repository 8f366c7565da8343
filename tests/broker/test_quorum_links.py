"""Exactly-once from a quorum queue while the node of the reader loses its links to the other nodes, and gets them back.

The queue returns what the reader holds: RabbitMQ 3.10 and 4.0 at once, 4.3 after consumer-disconnected-timeout. Then it
delivers everything again, with new delivery tags, to the same consumer of the same session. An acknowledgement of the
first delivery is ignored, without a word.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from amqp_spark import crashpoints
from tests.broker.source_0_9_support import ExactlyOncePlace, Place, numbers
from tests.spark.driver import bodies
from tests.support.process import wait_until
from tests.support.rabbitmq import OLD, REFERENCE, RabbitMQConfig, let_queues_grow_old
from tests.support.rabbitmq_cluster import RabbitMQCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.spark.driver import Driver
    from tests.support.rabbitmq import RabbitMQNode

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

COUNT = 100
DISCONNECTED_MS = 1000
"""After so long RabbitMQ 4.3 returns what a consumer on a node without a link holds; 60 s by default."""


@pytest.fixture(params=[REFERENCE, pytest.param(OLD, marks=pytest.mark.thorough)], ids=lambda release: release.version)
def cluster(request: pytest.FixtureRequest) -> Iterator[RabbitMQCluster]:
    """Three nodes for one test: with Mnesia, a cluster does not recover from a lost link by itself."""
    with RabbitMQCluster(RabbitMQConfig(release=request.param)) as nodes:
        yield nodes


class Isolated(ExactlyOncePlace):
    """A consumer on the first node of a cluster; the leader of its queue is on the last one."""

    def __init__(self, cluster: RabbitMQCluster, directory: Path) -> None:
        self.near, *self.far = cluster.nodes
        super().__init__(self.near.url("durable"), cluster.username, cluster.password, "quorum")
        self.cluster = cluster
        self.directory = directory
        self.publisher = Place(self.leader.url("durable"), cluster.username, cluster.password, "quorum", self.queue)
        is_new = not cluster.version.startswith("3.")
        arguments: dict[str, Any] = (
            {"x_delivery_limit": -1, "x_consumer_disconnected_timeout": DISCONNECTED_MS} if is_new else {}
        )
        self.publisher.declare(**arguments)
        cluster.wait_for_replicas(self.queue)
        assert cluster.leader_of(self.queue) is self.leader
        let_queues_grow_old()

    @property
    def leader(self) -> RabbitMQNode:
        """The node that has the leader of the queue."""
        return self.far[-1]

    def counts(self) -> tuple[int, int]:
        """Messages that are ready, and messages that consumers hold, as the leader has them."""
        server = f"{{'durable_{self.queue}', '{self.leader.name}'}}"
        found = self.leader.evaluate(
            f"{{ok, {{_, Found}}, _}} = ra:local_query({server}, fun rabbit_fifo:overview/1), "
            "list_to_tuple([maps:get(Key, Found) || Key <- [num_ready_messages, num_checked_out]])"
        )
        ready, held = (int(number) for number in found.strip("{}").split(","))
        return ready, held

    def cut(self) -> None:
        """Cut the links of the reader's node, and wait until the queue has taken everything back."""
        held = self.counts()[1]
        assert held > 0
        others = self._others()
        self.near.evaluate(f"[erlang:set_cookie(Node, none) || Node <- {others}]")
        self.near.evaluate(f"[erlang:disconnect_node(Node) || Node <- {others}]")
        wait_until(lambda: self.counts() == (held, 0), "everything is returned")

    def heal(self) -> None:
        """Restore them, and wait until the queue has delivered everything again."""
        others = self._others()
        self.near.evaluate(f"[erlang:set_cookie(Node, erlang:get_cookie()) || Node <- {others}]")
        self.near.evaluate(f"[net_kernel:connect_node(Node) || Node <- {others}]")
        wait_until(lambda: self.counts()[0] == 0, "everything is delivered again")

    def cut_and_heal(self) -> None:
        """Both."""
        self.cut()
        self.heal()

    def close(self, *others: str) -> None:
        """Stop the readers; the queue ends with the cluster."""
        del others
        self.stop()

    def finish(self, driver: Driver) -> list[bytes]:
        """Trigger until the queue is empty; return all that was handed out."""

        def is_done() -> bool:
            return driver.trigger() is None and self.counts() == (0, 0)

        wait_until(is_done, "everything is read and accepted", 120)
        return [body for batch in driver.batches for body in bodies(batch)]

    def _others(self) -> str:
        return f"[{','.join(repr(node.name) for node in self.far)}]"


@pytest.fixture
def isolated(cluster: RabbitMQCluster, tmp_path: Path) -> Iterator[Isolated]:
    with closing(Isolated(cluster, tmp_path)) as isolated:
        isolated.publisher.publish(numbers(COUNT))
        yield isolated


class Incidents:
    """Actions at crash points, each executed once, on the thread that gets there."""

    def __init__(self) -> None:
        self.actions: dict[str, Callable[[], None]] = {}

    def __call__(self, point: str) -> None:
        action = self.actions.pop(point, None)
        if action is not None:
            action()


@pytest.fixture
def incidents(monkeypatch: pytest.MonkeyPatch) -> Incidents:
    """Actions at the crash points of this process."""
    incidents = Incidents()
    monkeypatch.setattr(crashpoints, "reached", incidents)
    return incidents


@pytest.mark.thorough
def test_messages_wait_in_the_reader_while_its_node_has_no_link(isolated: Isolated) -> None:
    driver = isolated.driver(heartbeat=60, maxMessagesPerTrigger=10)
    driver.rows(10)
    isolated.cut_and_heal()
    assert sorted(isolated.finish(driver)) == numbers(COUNT)


# A batch is all that there is.
WHOLE: dict[str, Any] = {"heartbeat": 60, "minMessagesPerTrigger": COUNT}


@pytest.mark.thorough
def test_the_node_of_the_reader_has_no_link_just_before_an_acknowledgement(
    isolated: Isolated, incidents: Incidents
) -> None:
    incidents.actions[crashpoints.SPOOLED_UNACKED] = isolated.cut_and_heal
    assert sorted(isolated.finish(isolated.driver(**WHOLE))) == numbers(COUNT)
    assert not incidents.actions, "it came there"


def test_the_node_of_the_reader_has_no_link_while_an_acknowledgement_is_sent(
    isolated: Isolated, incidents: Incidents
) -> None:
    incidents.actions[crashpoints.SPOOLED_UNACKED] = isolated.cut
    incidents.actions[crashpoints.ACKED_WITHOUT_BARRIER] = isolated.heal
    assert sorted(isolated.finish(isolated.driver(**WHOLE))) == numbers(COUNT)
    assert not incidents.actions, "it came there"


@pytest.mark.thorough
def test_the_node_of_the_reader_has_no_link_between_acknowledgement_and_barrier(
    isolated: Isolated, incidents: Incidents
) -> None:
    """Half of what the reader holds is acknowledged, and does not come again; the other half is not, and does."""

    def cut_and_heal() -> None:
        wait_until(lambda: isolated.counts() == (0, COUNT // 2), "the queue has the acknowledgement")
        isolated.cut_and_heal()

    incidents.actions[crashpoints.ACKED_WITHOUT_BARRIER] = cut_and_heal
    half: dict[str, Any] = {"heartbeat": 60, "minMessagesPerTrigger": COUNT // 2, "maxMessagesPerTrigger": COUNT // 2}
    assert sorted(isolated.finish(isolated.driver(**half))) == numbers(COUNT)
    assert not incidents.actions, "it came there"
