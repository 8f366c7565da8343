"""Where AvailableNow ends after a session was lost with the acceptance of a batch: such messages come again, and are
dropped. Each case has 1,000 messages at first, of which a batch of 14 is in doubt."""

from __future__ import annotations

import pytest

from amqp_spark.datasource.drain_detector import SETTLING_SECONDS, DrainDetector
from tests.support.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def detector(clock: Clock) -> DrainDetector:
    """Of a queue of RabbitMQ, whose first batch was planned before the session was lost."""
    found = DrainDetector("q", selector=False, clock=clock)
    found.settling_s = SETTLING_SECONDS
    assert found.begin(1000, received=0, confirmed=0) == 1000
    return found


def test_messages_that_come_again_have_their_positions_already(detector: DrainDetector) -> None:
    """All of the queue came before the second count, except for what was under way."""
    assert detector.begin(1000, received=14, confirmed=14) == 1000
    detector.dropped(14)
    detector.recounted(0, received=917, under_way=86)
    assert not detector.reached(999)
    assert detector.reached(1000)


def test_messages_that_do_not_come_again_are_not_counted(detector: DrainDetector) -> None:
    assert detector.begin(986, received=14, confirmed=14) == 1000
    detector.recounted(900, received=100)
    assert detector.limit == 1000


def test_a_count_that_is_less_than_what_is_missing_has_those_that_come_again(detector: DrainDetector) -> None:
    """Another consumer has taken 100, or the count is late."""
    assert detector.begin(900, received=14, confirmed=14) == 914
    detector.dropped(14)
    assert detector.target == 900
    detector.recounted(0, received=900)
    assert detector.limit == 900


def test_a_session_that_the_broker_still_keeps_may_have_accepted_them(detector: DrainDetector) -> None:
    assert detector.begin(300, received=14, confirmed=14, lost_for=30.0) == 1000
    detector.dropped(14)
    detector.recounted(None, received=14)
    assert detector.limit == 1000


def test_what_is_published_after_the_second_count_is_not_read_after_a_reconnect(detector: DrainDetector) -> None:
    """Another consumer has taken 400, and 500 more were published while the connection was lost."""
    detector.recounted(986, received=14)
    assert detector.begin(500, received=14, confirmed=14) == 514
    detector.recounted(1500, received=14)
    assert detector.limit == 1000


def test_a_session_that_is_lost_before_the_second_count_leaves_it_to_the_next(detector: DrainDetector) -> None:
    """The count of the start was late."""
    assert detector.begin(900, received=14, confirmed=14) == 914
    detector.recounted(1200, received=14)
    assert detector.limit == 1214


def test_messages_that_are_read_twice_are_not_taken_for_others(detector: DrainDetector) -> None:
    """The batch in doubt cannot be told apart from others, so that the next session takes positions for it."""
    detector.recounted(986, received=14)
    assert detector.begin(1000, received=14, confirmed=14) == 1000
    detector.kept(14)
    assert detector.begin(1000, received=14, confirmed=14) == 1014
    detector.recounted(0, received=1014)
    assert detector.limit == 1014


def test_messages_that_are_read_twice_may_have_been_counted(clock: Clock) -> None:
    """The batch was in doubt when the query began."""
    detector = DrainDetector("q", selector=False, clock=clock)
    detector.settling_s = SETTLING_SECONDS
    assert detector.begin(1000, received=14, confirmed=14) == 1014
    detector.kept(14)
    assert detector.begin(1000, received=14, confirmed=14) == 1014
    detector.recounted(0, received=1014)
    assert detector.limit == 1014
