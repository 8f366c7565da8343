"""The size of messages that wait in logs, estimated from those that were seen."""

from __future__ import annotations

from amqp_spark.datasource.log.sizes import GUESSED_BYTES, RECENT_MESSAGES, MessageSizes


def test_nothing_seen_is_guessed() -> None:
    assert MessageSizes().mean({"a": 5}) == MessageSizes().mean({}) == GUESSED_BYTES


def test_the_mean_follows_a_change_however_many_messages_were_seen_before() -> None:
    sizes = MessageSizes()
    for _ in range(600):
        sizes.saw("a", 1, 20)
    sizes.saw("a", 6000, 6000 * 20)
    assert sizes.mean({"a": 1}) == 20
    for _ in range(RECENT_MESSAGES):
        sizes.saw("a", 1, 300_000)
    assert sizes.mean({"a": 1}) == 300_000
    sizes.saw("a", 6000, 6000 * 20)
    assert sizes.mean({"a": 1}) == 20, "a chunk of many at once"


def test_messages_count_for_their_log_as_many_as_wait_there() -> None:
    sizes = MessageSizes()
    sizes.saw("small", 10, 1000)
    sizes.saw("large", 10, 1_000_000)
    assert sizes.mean({"small": 7, "large": 0}) == 100
    assert sizes.mean({"small": 0, "large": 7}) == 100_000
    assert sizes.mean({"small": 90, "large": 10}) == 10_090


def test_the_mean_is_never_zero() -> None:
    sizes = MessageSizes()
    sizes.saw("a", 10, 0)
    assert sizes.mean({"a": 1}) == 1
