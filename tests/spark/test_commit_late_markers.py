"""A broker that confirms a commit and pauses before the marker is seen; without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amqp_spark.sink import commit_coordinator
from amqp_spark.sink.markers import MarkerLate
from amqp_spark.state.records import DONE, OPEN, WriterState
from amqp_spark.state.xids import xid_text
from tests.spark.commit_support import WriterBroker, driver
from tests.support.fake_broker import FakeTransactions

if TYPE_CHECKING:
    from amqp_core.api import Xid
    from amqp_spark.sink.prepared_transactions import PreparedBranch


class Pause:
    """The markers of branches that are committed from now on come late.

    Attributes:
        late: those that have not come.
        committed: xids of all branches that were committed.
        waits: so many waits for markers end before they come.
    """

    def __init__(self, fake: WriterBroker, monkeypatch: pytest.MonkeyPatch, *, waits: int) -> None:
        self.late: dict[str, PreparedBranch] = {}
        self.committed: list[str] = []
        self.waits = waits
        self._fake = fake
        commit_branch, recover = FakeTransactions.commit_branch, FakeTransactions.recover

        def commit(transactions: FakeTransactions, xid: Xid) -> None:
            commit_branch(transactions, xid)
            text = xid_text(xid)
            self.committed.append(text)
            self.late[text] = fake.hide(text)

        def recovered(transactions: FakeTransactions) -> list[Xid]:
            self.end()  # it answers, so the pause is over
            return recover(transactions)

        monkeypatch.setattr(FakeTransactions, "commit_branch", commit)
        monkeypatch.setattr(FakeTransactions, "recover", recovered)

    def end(self) -> None:
        """The broker goes on."""
        if self.waits <= len(self._fake.waits):
            self._fake.show(*self.late.values())
            self.late.clear()


@pytest.fixture(autouse=True)
def _fresh_process() -> None:
    commit_coordinator.forget_all()


@pytest.fixture(params=[True, False], ids=["qpidd", "another"])
def fake(request: pytest.FixtureRequest) -> WriterBroker:
    broker = WriterBroker(qpidd=request.param)
    broker.term = 600
    driver(broker).commit([broker.task(0)], 0)
    broker.waits.clear()
    return broker


def opened(fake: WriterBroker) -> PreparedBranch:
    """Batch 1 is decided, its branch prepared, and its driver gone."""
    task = fake.task(1, rows=7, digest="x")
    fake.writer = WriterState("w", "q", 1, OPEN, (task.decided,), {})
    commit_coordinator.forget_all()
    return task


@pytest.mark.parametrize("waits", [1, 2])
def test_a_replay_takes_no_place_of_a_branch_whose_commit_was_confirmed(
    fake: WriterBroker, monkeypatch: pytest.MonkeyPatch, waits: int
) -> None:
    first = opened(fake)
    again = fake.task(1, rows=7, digest="x")
    pause = Pause(fake, monkeypatch, waits=waits)
    assert not driver(fake).commit([again], 1), "it was published before"
    assert pause.committed == [first.xid]
    assert fake.writer.state == DONE
    assert again.xid not in fake.prepared


def test_a_first_commit_waits_for_its_marker(fake: WriterBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    task = fake.task(1, rows=7)
    pause = Pause(fake, monkeypatch, waits=2)
    assert driver(fake).commit([task], 1)
    assert pause.committed == [task.xid]
    assert fake.writer.state == DONE


def test_a_marker_that_never_comes_is_named_and_nothing_takes_its_place(
    fake: WriterBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened(fake)
    again = fake.task(1, rows=7, digest="x")
    pause = Pause(fake, monkeypatch, waits=1000)
    with pytest.raises(MarkerLate, match=f"AMQP_MARKER_LATE.*the commit of {first.xid} comes late to the queue"):
        driver(fake).commit([again], 1)
    assert pause.committed == [first.xid]
    assert fake.writer.state == OPEN
    assert fake.writer.branches == (first.decided,)


def test_a_marker_that_comes_while_a_replay_is_to_take_its_place(
    fake: WriterBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has committed the branch, so that this process has not seen the answer."""
    first = opened(fake)
    again = fake.task(1, rows=7, digest="x")
    pause = Pause(fake, monkeypatch, waits=1)
    pause.late[first.xid] = first
    del fake.prepared[first.xid]
    assert not driver(fake).commit([again], 1)
    assert pause.committed == []
    assert fake.writer.state == DONE
