"""When a connection is made again, and after which pause."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from amqp_core.errors import AuthenticationFailed, ConnectionLost, NotFound, ResourceLocked
from amqp_spark import retry
from amqp_spark.datasource.consumer_setup import Retries
from amqp_spark.options import SourceOptions
from amqp_spark.retry import FIRST_DELAY_SECONDS, SHORTEST_DELAY_SECONDS, RetryPolicy, pause_before
from tests.support.clock import Clock

if TYPE_CHECKING:
    import pytest

LOST = ConnectionLost("cut")


def policy(most: int = 3) -> RetryPolicy:
    return RetryPolicy("queue 'q'", most, 1.0, logging.getLogger("test"))


def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses without jitter."""
    monkeypatch.setattr(retry, "pause_before", lambda attempt, longest: min(longest, 0.2 * 2 ** (attempt - 1)))


def test_pauses_double_up_to_the_longest_and_jitter() -> None:
    for attempt in range(1, 40):
        most = min(5.0, FIRST_DELAY_SECONDS * 2 ** (attempt - 1))
        assert most / 2 <= pause_before(attempt, 5.0) <= most


def test_attempts_that_only_a_time_bounds_do_not_spin_without_a_longest_pause() -> None:
    """``retry.maxDelay=0``: a connection that works each time is made again without end, a held queue for a time."""
    options = SourceOptions.parse({"url": "amqp://localhost", "queue": "q", "retry.maxDelay": 0})
    retries = Retries("q", options, Clock())
    retries.subscribed()
    state: dict[str, bool] = {"worked": False, "lasted": False}
    held = ResourceLocked(405, None, "in use", "queue.declare")
    gone = NotFound(404, None, "no queue", "queue.declare")
    pauses = [
        retries.pause_after(held, dying_s=90, **state),
        retries.pause_after(gone, dying_s=90, restarts=True, **state),
        retries.pause_after(LOST, dying_s=90, worked=True, lasted=True),
        pause_before(40, 0),
    ]
    assert min(each or 0 for each in pauses) >= SHORTEST_DELAY_SECONDS / 2


def test_so_many_failures_in_a_row_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    exact(monkeypatch)
    retries = policy(3)
    assert [retries.pause_after(LOST) for _ in range(4)] == [0.2, 0.4, 0.8, None]
    assert retries.failures == 4


def test_no_failure_is_allowed_where_none_shall_be() -> None:
    assert policy(0).pause_after(LOST) is None


def test_a_connection_that_worked_begins_a_new_row(monkeypatch: pytest.MonkeyPatch) -> None:
    exact(monkeypatch)
    retries = policy(2)
    assert [retries.pause_after(LOST), retries.pause_after(LOST)] == [0.2, 0.4]
    assert retries.pause_after(LOST, worked=True) == 0.2
    assert [retries.pause_after(LOST), retries.pause_after(LOST)] == [0.4, None]


def test_one_that_worked_but_not_for_long_leaves_the_pauses_growing(monkeypatch: pytest.MonkeyPatch) -> None:
    exact(monkeypatch)
    retries = policy(2)
    found = [retries.pause_after(LOST, worked=True, lasted=False) for _ in range(5)]
    assert found == [0.2, 0.4, 0.8, 1.0, 1.0]
    assert retries.failures == 1


def test_a_kept_connection_that_broke_unused_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    exact(monkeypatch)
    retries = policy(1)
    assert retries.pause_after(LOST, counts=False) == 0.0
    assert retries.pause_after(LOST) == 0.2
    assert retries.pause_after(LOST, counts=False) == 0.0
    assert retries.pause_after(LOST) is None


def test_an_error_that_another_attempt_cannot_mend_ends_it_at_once() -> None:
    assert policy().pause_after(AuthenticationFailed("no")) is None


def test_each_attempt_is_announced(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        policy(4).pause_after(LOST, note="; 3 transfers are sent and not completed")
    assert caplog.messages[0].startswith("queue 'q': cut; attempt 1 of 4 to connect again follows in 0.")
    assert caplog.messages[0].endswith(" s; 3 transfers are sent and not completed")
