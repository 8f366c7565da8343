"""Transactions and branches of the fake broker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from amqp_core.errors import ConnectionLost, NotFound
from amqp_spark.sink.prepared_transactions import PreparedBranch
from amqp_spark.state.xids import xid_text
from tests.support.fake_broker.names import OURS, STATE

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.api import Xid
    from tests.support.fake_broker.client import FakeClient


class FakeTransactions:
    """See :class:`amqp_core.api.Transactions`."""

    def __init__(self, client: FakeClient) -> None:
        self.client = client
        self.broker = client.broker
        self.silence_timeout_s = 0.0
        self.is_local = False
        self.accepts: list[int] = []
        self.published: list[tuple[str, bytes]] = []
        self.open = ""
        """Text of the xid of the branch that the session publishes in."""

    # --- local

    def select(self) -> None:
        self.client.command("tx.select")
        self.is_local = True

    def commit(self, sent: Callable[[], None] | None = None, *, silence_timeout_s: float | None = None) -> None:
        with self.broker.changed:
            bodies = [json.loads(body) for queue, body in self.published if queue.startswith(STATE)]
            self.client.call(" ".join(["swap", *(body["state"] for body in bodies if "state" in body)]))
            if sent is not None:
                sent()
            outcome = self.broker.commit_outcomes.pop(0) if self.broker.commit_outcomes else None
            if outcome is None or outcome.commits:
                self.apply()
            if outcome is not None:
                self.client.end(outcome.error)
                raise outcome.error

    def apply(self) -> None:
        """Accepts and messages take effect."""
        for each in self.accepts:
            queue, message = self.client.held.pop(each)  # a KeyError: this session does not hold it
            if not queue.startswith(OURS):
                self.broker.accepted.append(message.body)
        for queue, body in self.published:
            self.broker.publish(queue, body)
        self.accepts, self.published = [], []
        self.broker.changed.notify_all()

    # --- distributed, on the session that publishes

    def dtx_select(self) -> None:
        self.client.call("select")

    def start(self, xid: Xid) -> None:
        self.broker.begun[xid_text(xid)] = []  # even if the answer is lost
        self.broker.open_branches.add(xid_text(xid))
        self.client.call("start")
        self.open = xid_text(xid)

    def end(self, xid: Xid, *, fail: bool = False) -> None:
        assert not fail
        self.client.call("end")
        assert xid_text(xid) == self.open
        assert self.client.publishers[-1].finished, "the broker has not completed all of it"

    def prepare(self, xid: Xid) -> None:
        self.client.call("prepare")
        self.broker_prepares(xid)

    def broker_prepares(self, xid: Xid) -> None:
        self._leave(xid)
        self.broker.prepared[xid_text(xid)] = xid

    def abandon(self, xid: Xid, *, ended: bool) -> bool:
        if self.client.error is not None:
            return False
        self.broker.calls.append("abandon ended" if ended else "abandon")
        self._leave(xid)
        return True

    def _leave(self, xid: Xid) -> None:
        assert xid_text(xid) == self.open
        self.broker.open_branches.remove(self.open)
        self.open = ""

    # --- distributed, on any session

    def recover(self) -> list[Xid]:
        self.client.call("recover")
        if len(self.broker.prepared) > self.broker.most_listed:
            self.client.end(ConnectionLost("the peer has closed the connection"))
            self.client.check()
        return list(self.broker.prepared.values())

    def set_timeout(self, xid: Xid, seconds: int) -> None:
        self.client.call("set_timeout")
        text = xid_text(xid)
        assert text == self.open or text in self.broker.prepared or text in self.broker.expired
        self.broker.timers.setdefault(text, []).append(seconds)
        self.broker.on_timeout()

    def get_timeout(self, xid: Xid) -> int:
        self.client.call("get_timeout")
        return self.broker.timers.get(xid_text(xid), [self.broker.term])[-1]

    def commit_branch(self, xid: Xid) -> None:
        self.client.call("commit")
        text = xid_text(xid)
        self._may_be_silent(text)
        del self.broker.prepared[text]
        for queue, body in self.broker.begun[text]:
            self.broker.publish(queue, body)

    def rollback_branch(self, xid: Xid) -> None:
        self.client.call("rollback")
        text = xid_text(xid)
        if text not in self.broker.prepared and text not in self.broker.open_branches:
            self.client.end(NotFound(404, 0, "no such branch"))
            self.client.check()
        self._may_be_silent(text)
        self.broker.prepared.pop(text, None)
        self.broker.open_branches.discard(text)
        self.broker.rolled_back.append(text)

    def _may_be_silent(self, text: str) -> None:
        rows = [PreparedBranch.load(body).rows for _, body in self.broker.begun[text]]
        assert self.silence_timeout_s >= sum(rows) / 1000, "the broker may be silent meanwhile"
