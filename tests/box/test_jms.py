"""A client that no one here wrote: Apache Qpid's JMS client, over 0-10, with the features that programs use."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.support import javapeer
from tests.support.box_process import BoxProcess
from tests.support.java_cases import Outcome, run_cases

CASES: Final = (
    *("queue by address", "queue by binding URL", "topic by address", "topic by binding URL", "address with bindings"),
    *("address that must exist", "transactions", "client-ack and recover", "dups-ok and no-ack", "listener", "browser"),
    *("temporary queue and reply-to", "temporary topic", "durable subscription", "priorities", "time to live"),
    *("selectors", "selectors of headers", "selectors of topics"),
    *("exclusive subscription", "large messages and prefetch", "synchronous sends to a full queue"),
    *("unroutable messages", "many sessions"),
    *("XA", "failover", "XA, with the broker restarted"),
)


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    """All cases in one virtual machine, against a broker with a store."""
    with BoxProcess() as broker:
        return run_cases(Path(__file__).parent / "java" / "JmsClient.java", javapeer.jars(), broker)


@pytest.mark.parametrize("name", CASES)
def test_case(outcome: Outcome, name: str) -> None:
    outcome.check(name)


def test_all_cases_are_known(outcome: Outcome) -> None:
    assert sorted(outcome.cases) == sorted(CASES)
