"""Queues of which every consumer browses, whatever it asks for: what is accepted is not removed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from amqp_core.v0_10.spec import QueueQueryResult
from amqp_spark.datasource import consumer_setup
from amqp_spark.errors import UnsupportedModeError

ARGUMENTS: list[dict[str, object]] = [
    {"qpid.browse-only": True},
    {"qpid.browse-only": 1},
    {"qpid.ensure_nondestructive_consumers": "true"},
]


def prepared(arguments: dict[str, object] | None, **options: Any) -> None:
    found = QueueQueryResult("q", arguments=arguments, message_count=1, subscriber_count=0)
    capabilities = SimpleNamespace(compares_declarations=False)
    client: Any = SimpleNamespace(query_queue=lambda _: found, capabilities=capabilities)
    asked: Any = SimpleNamespace(declare="never", bind=(), **options)
    assert consumer_setup.prepare(client, "q", asked) is found


@pytest.fixture(autouse=True)
def capable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_setup, "_check_capabilities", lambda *_: None)


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_exactly_once_refuses_a_queue_that_keeps_what_is_accepted(arguments: dict[str, object]) -> None:
    (argument,) = arguments
    with pytest.raises(UnsupportedModeError, match=rf"AMQP_QUEUE_KEEPS_MESSAGES.*'q' was declared with {argument}, so"):
        prepared(arguments, exactly_once=True)


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_other_guarantees_warn_of_it(arguments: dict[str, object], caplog: pytest.LogCaptureFixture) -> None:
    prepared(arguments, exactly_once=False)
    assert "reads all messages again after each start and each lost connection" in caplog.text


@pytest.mark.parametrize("arguments", [None, {}, {"qpid.browse-only": False}, {"qpid.browse-only": "0", "x": 1}])
def test_other_queues_are_read(arguments: dict[str, object] | None, caplog: pytest.LogCaptureFixture) -> None:
    prepared(arguments, exactly_once=True)
    assert not caplog.records
