"""What the ledger of a publisher remembers of transfers that it has forgotten."""

from __future__ import annotations

import pytest

from amqp_core import transfer_ledger
from amqp_core.errors import RejectedUnexpectedly
from amqp_core.sequence_numbers import RangeSet
from amqp_core.transfer_ledger import Ledger, Transfers


def test_only_the_latest_rejects_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a task that discards unroutable messages would hold a range of ids for each."""
    monkeypatch.setattr(transfer_ledger, "_REMEMBERED", 100)
    ledger, completed = Ledger(), RangeSet()
    for first in range(1, 1001, 10):
        ledger.enter(Transfers(bytes(10), list(range(1, 11))), 0, 10, first)
        ledger.reject(first + 4, first + 4, 1, "unroutable")
        completed.add(first, first + 9)
        ledger.settle(completed, completed)
        ledger.forget(first + 10)
    assert len(ledger.take_rejected()) == 100
    assert len(ledger._rejected_there.ranges()) == 10
    ledger.reject(995, 995, 1, "a repeated one is ignored")
    assert ledger.take_rejected() == []
    for old in (5, 996):
        with pytest.raises(RejectedUnexpectedly, match="it counted as delivered"):
            ledger.reject(old, old, 1, "unroutable")
