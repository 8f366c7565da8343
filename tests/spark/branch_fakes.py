"""The in-memory broker of the sink with transaction branches, for the tests of exactly-once without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_core.errors import AmqpError, ConnectionLost, NotFound
from amqp_spark.sink.prepared import PreparedBranch
from amqp_spark.state.xids import xid_text
from tests.spark.sink_fakes import FakeBroker, FakeClient, Script

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.address import ConnectOptions
    from amqp_core.api import Xid


class BranchBroker(FakeBroker):
    """Records what is asked for, in order; fails as it is told to.

    Attributes:
        calls: everything, by a short name.
        fails: errors of the next calls of a name; those of a connection end it.
        prepared: branches by the text of their xid.
        expired: branches that can still be asked for their timeout, and are not prepared.
        rolled_back: what a client has rolled back.
        timers: the seconds that were set, by branch.
        term: what a branch has of which nothing was set.
        markers: those that were published, in or outside of a branch.
        on_timeout: called after a timeout was set.
        most_listed: with more prepared branches dtx.recover costs the connection.
    """

    def __init__(self, *scripts: Script, qpidd: bool = False) -> None:
        super().__init__(*scripts, qpidd=qpidd)
        self.calls: list[str] = []
        self.fails: dict[str, list[AmqpError]] = {}
        self.prepared: dict[str, Xid] = {}
        self.expired: set[str] = set()
        self.rolled_back: list[str] = []
        self.timers: dict[str, list[int]] = {}
        self.term = 3600
        self.markers: list[PreparedBranch] = []
        self.on_timeout: Callable[[], None] = lambda: None
        self.most_listed = 10_000

    def client(self, script: Script, options: ConnectOptions) -> FakeClient:
        return BranchClient(self, script, options)

    def fail(self, name: str) -> None:
        """Note a call; raise what is in store for it."""
        self.calls.append(name)
        if self.fails.get(name):
            raise self.fails[name].pop(0)


class BranchClient(FakeClient):
    """One connection."""

    broker: BranchBroker

    def __init__(self, broker: BranchBroker, script: Script, options: ConnectOptions) -> None:
        super().__init__(broker, script, options)
        self.transactions = BranchTransactions(self)

    def declare_queue(self, queue: str, *, durable: bool) -> None:
        assert durable
        self.call("declare")
        self.broker.queues.add(queue)

    def publish_to_queue(self, queue: str, body: bytes, *, content_type: str) -> None:
        self.call("marker")
        assert queue in self.broker.queues
        assert content_type == "application/json"
        self.broker.markers.append(PreparedBranch.load(body))

    def confirm(self) -> None:
        self.call("confirm")

    def call(self, name: str) -> None:
        self.check()
        try:
            self.broker.fail(name)
        except AmqpError as error:
            if error.retryable or isinstance(error, NotFound):
                self.error = error
            raise


class BranchTransactions:
    """See :class:`amqp_core.v0_10.transactions.Transactions`."""

    def __init__(self, client: BranchClient) -> None:
        self.client = client
        self.open = ""
        self.silence_timeout_s = 0.0

    # --- the session that publishes

    def dtx_select(self) -> None:
        self.client.call("select")

    def start(self, xid: Xid) -> None:
        self.client.call("start")
        self.open = xid_text(xid)

    def end(self, xid: Xid) -> None:
        self.client.call("end")
        assert xid_text(xid) == self.open
        assert self.client.publishers[-1].finished, "the broker has not completed all of it"

    def prepare(self, xid: Xid) -> None:
        self.client.call("prepare")
        self.broker_prepares(xid)

    def broker_prepares(self, xid: Xid) -> None:
        assert xid_text(xid) == self.open
        self.open = ""
        self.client.broker.prepared[xid_text(xid)] = xid

    def abandon(self, xid: Xid, *, ended: bool) -> bool:
        if self.client.error is not None:
            return False
        self.client.broker.calls.append("abandon ended" if ended else "abandon")
        assert xid_text(xid) == self.open
        self.open = ""
        return True

    # --- any session

    def recover(self) -> list[Xid]:
        self.client.call("recover")
        broker = self.client.broker
        if len(broker.prepared) > broker.most_listed:
            self.client.error = ConnectionLost("the peer has closed the connection")
            raise self.client.error
        return list(broker.prepared.values())

    def set_timeout(self, xid: Xid, seconds: int) -> None:
        self.client.call("set_timeout")
        text, broker = xid_text(xid), self.client.broker
        assert text == self.open or text in broker.prepared or text in broker.expired
        broker.timers.setdefault(text, []).append(seconds)
        broker.on_timeout()

    def get_timeout(self, xid: Xid) -> int:
        self.client.call("get_timeout")
        return self.client.broker.timers.get(xid_text(xid), [self.client.broker.term])[-1]

    def rollback_branch(self, xid: Xid) -> None:
        self.client.call("rollback")
        self.client.broker.rolled_back.append(xid_text(xid))
        self.client.broker.prepared.pop(xid_text(xid), None)
