"""A writer's decisions on a fake broker: tasks that have prepared, the state, the markers, and the coordinator."""

from __future__ import annotations

from collections import deque

from amqp_spark.options import SinkOptions
from amqp_spark.sink.commit_coordinator import CommitCoordinator
from amqp_spark.sink.connections import Connections
from amqp_spark.sink.prepared_transactions import PreparedBranch
from amqp_spark.state.names import WRITER, Names, query_key
from amqp_spark.state.records import WriterState
from amqp_spark.state.xids import Run, new_branch, xid_text
from tests.support.fake_broker import FakeBroker

NAMES = Names(WRITER, "w")


class WriterBroker(FakeBroker):
    """A fake broker as the driver of the writer ``w`` sees it."""

    def task(
        self,
        batch: int,
        partition: int = 0,
        *,
        query_id: str = "q",
        rows: int = 1,
        digest: str = "d",
        writer: str = "w",
        run: Run | None = None,
    ) -> PreparedBranch:
        """A task that has prepared its branch."""
        xid = new_branch(writer, query_id, batch, partition, 0, run=run)
        task = PreparedBranch(query_id, batch, partition, xid_text(xid), rows, digest)
        queue = Names(WRITER, writer).markers
        self.prepared[task.xid] = xid
        self.begun[task.xid] = [(queue, task.dump())]
        self.queues.setdefault(queue, deque())
        return task

    @property
    def writer(self) -> WriterState:
        """The state."""
        return WriterState.load(self.states[NAMES.state])

    @writer.setter
    def writer(self, state: WriterState) -> None:
        self.put_state(NAMES.state, state.dump())
        self.bindings.add((NAMES.state, "amq.direct", NAMES.begun))

    @property
    def visible(self) -> dict[str, PreparedBranch]:
        """Markers of committed branches that were not accepted."""
        found = [PreparedBranch.load(message.body) for message in self.messages(NAMES.markers)]
        return {marker.xid: marker for marker in found}

    def show(self, *markers: PreparedBranch) -> None:
        """Put markers into their queue, as the commit of their branches does."""
        self.publish(NAMES.markers, *(marker.dump() for marker in markers))

    def hide(self, xid: str) -> PreparedBranch:
        """Take a marker away that was published last."""
        marker = PreparedBranch.load(self.queues[NAMES.markers].pop().body)
        assert marker.xid == xid
        return marker

    @property
    def marks(self) -> set[str]:
        """Query ids whose mark is at the state queue."""
        prefix = query_key("").rpartition(".")[0]
        bound = {key for queue, _, key in self.bindings if queue == NAMES.state and key.startswith(prefix)}
        return {key for key in bound if key.count(".") == prefix.count(".") + 1}  # without those of one queue only

    def mark_elsewhere(self, key: str) -> None:
        """Bind another state queue with a key."""
        self.bindings.add(("another", "amq.direct", key))


def driver(
    fake: FakeBroker, waits: list[float] | None = None, *, alone: bool = False, **options: object
) -> CommitCoordinator:
    """The objects with which a process decides."""
    given: dict[str, object] = {"url": "amqp://b", "deliveryGuarantee": "exactly-once", "transactionalId": "w"}
    waits = [] if waits is None else waits
    parsed = SinkOptions.parse(given | {"retry.maxAttempts": 2} | options)
    return CommitCoordinator(parsed, alone=alone, connections=Connections(fake.connect), sleep=waits.append)
