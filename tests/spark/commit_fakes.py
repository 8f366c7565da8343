"""The in-memory broker of the sink for decisions: state, marks and markers besides the branches of tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amqp_core.address import ConnectOptions
from amqp_core.errors import NotFound, ResourceLocked
from amqp_spark.options import SinkOptions
from amqp_spark.sink.commit_coordinator import CommitCoordinator
from amqp_spark.sink.connections import Connections
from amqp_spark.sink.prepared import PreparedBranch
from amqp_spark.state.names import WRITER, Names
from amqp_spark.state.queue import StateQueue
from amqp_spark.state.records import WriterState
from amqp_spark.state.xids import Run, new_branch, xid_text
from tests.spark.branch_fakes import BranchBroker, BranchClient, BranchTransactions
from tests.spark.sink_fakes import Script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from amqp_core.api import Xid


class FakeBroker(BranchBroker):
    """What drivers see of it: a state, marks, markers in place of tasks that have run; for every connection the same.

    Attributes:
        elsewhere: marks of other state queues.
        holds: what the branches hold.
        visible: markers of committed branches.
        locked: so many times the lock is refused.
        waits: for markers, in seconds.
    """

    def __init__(self, *, qpidd: bool = False) -> None:
        super().__init__(qpidd=qpidd)
        self.state: bytes | None = None
        self.kept = False
        self.marks: set[str] = set()
        self.elsewhere: set[str] = set()
        self.holds: dict[str, PreparedBranch] = {}
        self.visible: dict[str, PreparedBranch] = {}
        self.locked = 0
        self.connections = 0
        self.waits: list[float] = []
        self.on_wait: Callable[[], None] = lambda: None

    def connect(self, options: ConnectOptions) -> Any:
        self.connections += 1
        self.fail("connect")
        return super().connect(options)

    def client(self, script: Script, options: ConnectOptions) -> FakeClient:
        return FakeClient(self, script, options)

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
        self.prepared[task.xid] = xid
        self.holds[task.xid] = task
        return task

    @property
    def writer(self) -> WriterState:
        assert self.state is not None
        return WriterState.load(self.state)


class FakeClient(BranchClient):
    """One connection."""

    broker: FakeBroker

    def __init__(self, broker: FakeBroker, script: Script | None = None, options: ConnectOptions | None = None) -> None:
        super().__init__(broker, script or Script(), options or ConnectOptions(hosts=(("b", 5672),)))
        self.transactions = FakeTransactions(self)


class FakeTransactions(BranchTransactions):
    """Those of a driver."""

    client: FakeClient

    def commit_branch(self, xid: Xid) -> None:
        text, broker = xid_text(xid), self.client.broker
        self.client.call("commit")
        assert self.silence_timeout_s >= broker.holds[text].rows / 1000, "it may be silent meanwhile"
        broker.visible[text] = broker.holds[text]
        del broker.prepared[text]

    def rollback_branch(self, xid: Xid) -> None:
        text, broker = xid_text(xid), self.client.broker
        if text not in broker.prepared:
            broker.fails.setdefault("rollback", []).append(NotFound(404, 0, "no such branch"))
        super().rollback_branch(xid)
        assert self.silence_timeout_s >= broker.holds[text].rows / 1000, "it may be silent meanwhile"


class FakeQueue(StateQueue):
    """See :class:`amqp_spark.state.queue.StateQueue`."""

    def __init__(self, client: Any, names: Names) -> None:
        self.names = names
        self.broker: FakeBroker = client.broker

    def lock(self) -> None:
        if self.broker.locked:
            self.broker.locked -= 1
            raise ResourceLocked(405, 0, "locked")
        self.broker.fail("lock")

    def unlock(self) -> None:
        self.broker.fail("unlock")

    def take(self, *, timeout: float = 10.0) -> bytes | None:
        del timeout
        return self.broker.state

    def create(self, body: bytes) -> None:
        assert self.broker.state is None
        self.broker.state = body

    def swap(
        self, body: bytes, *, accept: Sequence[tuple[int, int]] = (), sent: Callable[[], None] | None = None
    ) -> None:
        state = WriterState.load(body)
        self.broker.fail(f"swap {state.state}")
        if sent is not None:
            sent()
        self.broker.state = body
        for low, high in accept:
            for at in range(low, high + 1):
                del self.broker.visible[list(self.broker.holds)[at]]

    def mark(self, key: str) -> None:
        self.broker.marks.add(key)

    def unmark(self, key: str) -> None:
        self.broker.marks.remove(key)

    def marked(self, key: str) -> bool:
        return key in self.broker.marks

    def marked_anywhere(self, key: str) -> bool:
        return key in self.broker.marks | self.broker.elsewhere


class FakeMarkers:
    """See :class:`amqp_spark.sink.markers.Markers`; a marker's command id is the place of its branch among all."""

    def __init__(self, client: FakeClient, names: Names) -> None:
        assert names == Names(WRITER, "w")
        self.broker = client.broker
        self.found: dict[str, PreparedBranch] = {}

    def exist(self) -> bool:
        return True

    def are_kept(self) -> bool:
        return self.broker.kept

    def keep(self) -> None:
        self.broker.kept = True

    def look(self) -> None:
        self.found = dict(self.broker.visible)

    def wait_for(self, xids: Iterable[str], timeout: float) -> None:
        self.broker.calls.append("wait")
        self.broker.waits.append(timeout)
        self.broker.on_wait()
        self.look()

    def ranges(self, xids: Iterable[str]) -> list[tuple[int, int]]:
        ids = [list(self.broker.holds).index(xid) for xid in xids]
        return [(at, at) for at in ids]

    def accepted(self, xids: Iterable[str]) -> None:
        for xid in xids:
            del self.found[xid]

    def close(self) -> None:
        self.broker.fail("close")


def driver(
    fake: FakeBroker, waits: list[float] | None = None, *, alone: bool = False, **options: object
) -> CommitCoordinator:
    """What a process decides with."""
    given: dict[str, object] = {"url": "amqp://b", "deliveryGuarantee": "exactly-once", "transactionalId": "w"}
    waits = [] if waits is None else waits
    parsed = SinkOptions.parse(given | {"retry.maxAttempts": 2} | options)
    return CommitCoordinator(parsed, alone=alone, connections=Connections(fake.connect), sleep=waits.append)
