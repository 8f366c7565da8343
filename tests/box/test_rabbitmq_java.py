"""A client that no one here wrote: RabbitMQ's Java client, over 0-9-1, with the features that programs use."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.support.box_process import BoxProcess
from tests.support.java_cases import Outcome, run_cases
from tests.support.peers_0_9 import java_peer

CASES: Final = (
    *("confirms", "returns", "transactions", "get and nack", "recover", "prefetch", "consumer cancel notification"),
    *("priorities of messages", "priorities of consumers", "exchange bindings", "alternate exchange", "dead letters"),
    *("counts", "errors of a channel", "all types of headers", "large and empty bodies", "many channels"),
    *("requests with direct replies", "update-secret", "recovery of connection and topology"),
)


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    """All cases in one virtual machine, against a broker with a store."""
    with BoxProcess() as broker:
        return run_cases(Path(__file__).parent / "java" / "RabbitClient.java", java_peer.jars(), broker)


@pytest.mark.parametrize("name", CASES)
def test_case(outcome: Outcome, name: str) -> None:
    outcome.check(name)


def test_all_cases_are_known(outcome: Outcome) -> None:
    assert sorted(outcome.cases) == sorted(CASES)
