"""Exactly-once from a quorum queue while the node of the reader loses its links to the other nodes, and gets them back.

The queue returns what the reader holds: RabbitMQ 3.10 and 4.0 at once, 4.3 after consumer-disconnected-timeout. Then it
delivers everything again, with new delivery tags, to the same consumer of the same session. An acknowledgement of the
first delivery is ignored, without a word.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.errors import ConnectionLost
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


class LinkedPlace(ExactlyOncePlace):
    """A consumer of a quorum queue, and the link between its node and the leader of the queue."""

    def __init__(self, near: RabbitMQNode, leader: RabbitMQNode, directory: Path, *, is_new: bool = True) -> None:
        super().__init__(near.url("durable"), near.username, near.password, "quorum")
        self.leader = leader
        self.directory = directory
        self.publisher = Place(leader.url("durable"), near.username, near.password, "quorum", self.queue)
        arguments: dict[str, Any] = (
            {"x_delivery_limit": -1, "x_consumer_disconnected_timeout": DISCONNECTED_MS} if is_new else {}
        )
        self.publisher.declare(**arguments)

    def counts(self) -> tuple[int, int]:
        """Messages that are ready, and messages that consumers hold, as the leader has them."""
        found = self.leader.evaluate(
            f"{{ok, {{_, Found}}, _}} = ra:local_query({self.server}, fun rabbit_fifo:overview/1), "
            "list_to_tuple([maps:get(Key, Found) || Key <- [num_ready_messages, num_checked_out]])"
        )
        ready, held = (int(number) for number in found.strip("{}").split(","))
        return ready, held

    def cut(self) -> None:
        """Cut the link when everything is delivered, and wait until the queue has taken all of it back.

        How much that is, is not known before: an acknowledgement of an earlier batch may be on its way.
        """
        wait_until(lambda: self.counts()[0] == 0, "everything is delivered")
        self.lose_link()

        def is_returned() -> bool:
            ready, held = self.counts()
            return held == 0 and ready > 0

        wait_until(is_returned, "everything is returned")

    def heal(self) -> None:
        """Restore it, and wait until the queue has delivered everything again."""
        self.get_link()
        wait_until(lambda: self.counts()[0] == 0, "everything is delivered again")

    def cut_and_heal(self) -> None:
        """Both."""
        self.cut()
        self.heal()

    def finish(self, driver: Driver) -> list[bytes]:
        """Trigger until the queue is empty; return all that was handed out."""

        def is_done() -> bool:
            return driver.trigger() is None and self.counts() == (0, 0)

        wait_until(is_done, "everything is read and accepted", 120)
        return [body for batch in driver.batches for body in bodies(batch)]

    @property
    def server(self) -> str:
        """The name of the leader of the queue inside its node."""
        return f"{{'durable_{self.queue}', '{self.leader.name}'}}"

    @abstractmethod
    def lose_link(self) -> None:
        """Cut the link."""

    @abstractmethod
    def get_link(self) -> None:
        """Restore the link."""


class Alone(LinkedPlace):
    """On one node: the test sends the queue the commands that it gets when a link breaks, and when it is restored."""

    def __init__(self, node: RabbitMQNode, directory: Path) -> None:
        super().__init__(node, node, directory)
        let_queues_grow_old()

    def lose_link(self) -> None:
        self.leader.evaluate(
            f"[ra:process_command({self.server}, {{down, Pid, noconnection}}) || Pid <- rabbit_channel:list_local()]"
        )

    def get_link(self) -> None:
        self.leader.evaluate(f"ra:process_command({self.server}, {{nodeup, node()}})")


class Isolated(LinkedPlace):
    """In a cluster: the consumer is on the first node, and the leader of its queue on the last one."""

    def __init__(self, cluster: RabbitMQCluster, directory: Path) -> None:
        self.near, *self.far = cluster.nodes
        super().__init__(self.near, self.far[-1], directory, is_new=not cluster.version.startswith("3."))
        cluster.wait_for_replicas(self.queue)
        assert cluster.leader_of(self.queue) is self.leader
        let_queues_grow_old()

    def lose_link(self) -> None:
        others = self._others()
        self.near.evaluate(f"[erlang:set_cookie(Node, none) || Node <- {others}]")
        self.near.evaluate(f"[erlang:disconnect_node(Node) || Node <- {others}]")

    def get_link(self) -> None:
        others = self._others()
        self.near.evaluate(f"[erlang:set_cookie(Node, erlang:get_cookie()) || Node <- {others}]")
        self.near.evaluate(f"[net_kernel:connect_node(Node) || Node <- {others}]")

    def close(self, *others: str) -> None:
        """Stop the readers; the queue ends with the cluster."""
        del others
        self.stop()

    def _others(self) -> str:
        return f"[{','.join(repr(node.name) for node in self.far)}]"


@pytest.fixture(
    params=[
        None,
        *(pytest.param(release, marks=pytest.mark.thorough) for release in (REFERENCE, OLD)),
    ],
    ids=lambda release: "one node" if release is None else f"cluster of {release.version}",
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LinkedPlace]:
    """With a hundred messages. A cluster is for one test: with Mnesia it does not recover from a lost link."""
    with ExitStack() as stack:
        place: LinkedPlace
        if request.param is None:
            place = Alone(request.getfixturevalue("rabbitmq"), tmp_path)
        else:
            cluster = stack.enter_context(RabbitMQCluster(RabbitMQConfig(release=request.param)))
            place = Isolated(cluster, tmp_path)
        stack.enter_context(closing(place))
        place.publisher.publish(numbers(COUNT))
        yield place


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


def test_messages_wait_in_the_reader_while_its_node_has_no_link(place: LinkedPlace) -> None:
    driver = place.driver(heartbeat=60, maxMessagesPerTrigger=10)
    driver.rows(10)
    place.cut_and_heal()
    assert sorted(place.finish(driver)) == numbers(COUNT)


# A batch is all that there is.
WHOLE: dict[str, Any] = {"heartbeat": 60, "minMessagesPerTrigger": COUNT}


def test_the_node_of_the_reader_has_no_link_just_before_an_acknowledgement(
    place: LinkedPlace, incidents: Incidents
) -> None:
    incidents.actions[crashpoints.SPOOLED_UNACKED] = place.cut_and_heal
    assert sorted(place.finish(place.driver(**WHOLE))) == numbers(COUNT)
    assert not incidents.actions, "it came there"


def test_the_node_of_the_reader_has_no_link_while_an_acknowledgement_is_sent(
    place: LinkedPlace, incidents: Incidents
) -> None:
    incidents.actions[crashpoints.SPOOLED_UNACKED] = place.cut
    incidents.actions[crashpoints.ACKED_WITHOUT_BARRIER] = place.heal
    assert sorted(place.finish(place.driver(**WHOLE))) == numbers(COUNT)
    assert not incidents.actions, "it came there"


def test_the_node_of_the_reader_has_no_link_between_acknowledgement_and_barrier(
    place: LinkedPlace, incidents: Incidents
) -> None:
    """Half of what the reader holds is acknowledged, and does not come again; the other half is not, and does."""

    def cut_and_heal() -> None:
        wait_until(lambda: place.counts() == (0, COUNT // 2), "the queue has the acknowledgement")
        place.cut_and_heal()

    incidents.actions[crashpoints.ACKED_WITHOUT_BARRIER] = cut_and_heal
    half: dict[str, Any] = {"heartbeat": 60, "minMessagesPerTrigger": COUNT // 2, "maxMessagesPerTrigger": COUNT // 2}
    assert sorted(place.finish(place.driver(**half))) == numbers(COUNT)
    assert not incidents.actions, "it came there"


def lose_connection(_: LinkedPlace) -> None:
    raise ConnectionLost("the connection was cut")


@pytest.mark.parametrize("first", [lose_connection, LinkedPlace.cut_and_heal])
@pytest.mark.parametrize(
    "point",
    [crashpoints.RECOGNISED_UNACKED, pytest.param(crashpoints.REACKED_WITHOUT_BARRIER, marks=pytest.mark.thorough)],
)
def test_the_node_of_the_reader_has_no_link_while_messages_are_acknowledged_again(
    place: LinkedPlace, incidents: Incidents, point: str, first: Callable[[LinkedPlace], None]
) -> None:
    """All messages of a batch in doubt have come again, and are withheld."""
    incidents.actions[crashpoints.SPOOLED_UNACKED] = partial(first, place)
    incidents.actions[point] = place.cut_and_heal
    assert sorted(place.finish(place.driver(**WHOLE))) == numbers(COUNT)
    assert not incidents.actions, "it came there"


def test_messages_that_a_barrier_has_met_were_not_taken_back(
    place: LinkedPlace, caplog: pytest.LogCaptureFixture
) -> None:
    """Each barrier returns the first message that is ready: it comes again, to this reader or to the next one."""
    sent = [number + bytes(8000) for number in numbers(600)]
    place.publisher.publish(sent)
    small: dict[str, Any] = {
        "heartbeat": 60,
        "maxMessagesPerTrigger": 10,
        "maxBytesPerTrigger": "128k",
        "bufferBytes": "384k",
    }
    found: list[bytes] = []
    driver: Driver | None = None
    for _ in range(3):
        driver = place.driver(driver, **small)
        for _ in range(8):
            driver.rows(10)
        place.stop()
        found += [body for batch in driver.batches for body in bodies(batch)]
    found += place.finish(place.driver(driver, **small))
    assert sorted(found) == sorted([*numbers(COUNT), *sent])
    assert not [each.message for each in caplog.records if "taken messages back" in each.getMessage()]
