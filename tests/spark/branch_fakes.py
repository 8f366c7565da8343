"""An in-memory broker that takes transaction branches, for the tests of exactly-once in the sink without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amqp_core.errors import AmqpError, NotFound
from amqp_spark.sink.prepared import Prepared
from amqp_spark.state.xids import xid_text
from tests.spark.sink_fakes import FakeBroker, FakeClient, Script

if TYPE_CHECKING:
    from amqp_core.address import ConnectOptions
    from amqp_core.v0_10.messages import Message
    from amqp_core.v0_10.spec import Xid


class BranchBroker(FakeBroker):
    """Records what is asked for, in order; fails as it is told to."""

    def __init__(self, *scripts: Script, qpidd: bool = False) -> None:
        super().__init__(*scripts, qpidd=qpidd)
        self.calls: list[str] = []
        self.fails: dict[str, list[AmqpError]] = {}
        """Errors of the next calls of a name; those of a connection end it."""
        self.prepared: list[Xid] = []
        self.rolled_back: list[str] = []
        self.timeouts: list[int] = []
        self.markers: list[Prepared] = []

    def connect(self, options: ConnectOptions) -> Any:
        if self.refuse:
            raise self.refuse.pop(0)
        client = BranchClient(self, self.scripts.pop(0) if self.scripts else Script(), options)
        self.clients.append(client)
        return client


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

    def publish(self, message: Message) -> None:
        self.call("marker")
        assert message.delivery.routing_key in self.broker.queues
        assert message.delivery.delivery_mode == 2
        self.broker.markers.append(Prepared.load(message.body))

    def confirm(self) -> None:
        self.call("confirm")

    def call(self, name: str) -> None:
        self.check()
        self.broker.calls.append(name)
        if self.broker.fails.get(name):
            error = self.broker.fails[name].pop(0)
            if error.retryable or isinstance(error, NotFound):
                self.error = error
            raise error


class BranchTransactions:
    """See :class:`amqp_core.v0_10.transactions.Transactions`."""

    def __init__(self, client: BranchClient) -> None:
        self.client = client
        self.open = ""
        self.patience_s = 0.0

    def dtx_select(self) -> None:
        self.client.call("select")

    def start(self, xid: Xid) -> None:
        self.client.call("start")
        self.open = xid_text(xid)

    def set_timeout(self, xid: Xid, seconds: int) -> None:
        self.client.call("set_timeout")
        assert xid_text(xid) == self.open
        self.client.broker.timeouts.append(seconds)

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
        self.client.broker.prepared.append(xid)

    def rollback_branch(self, xid: Xid) -> None:
        self.client.call("rollback")
        self.client.broker.rolled_back.append(xid_text(xid))

    def abandon(self, xid: Xid, *, ended: bool) -> bool:
        if self.client.error is not None:
            return False
        self.client.broker.calls.append("abandon ended" if ended else "abandon")
        assert xid_text(xid) == self.open
        self.open = ""
        return True
