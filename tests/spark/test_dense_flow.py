"""Messages of a dense flow gather; others are taken at once."""

from __future__ import annotations

from amqp_spark.datasource.dense_flow import DENSE_SECONDS, FEW_BYTES, GATHER_SECONDS, DenseFlow


def test_the_first_message_and_one_after_a_pause_are_followed_by_a_read_at_once() -> None:
    now = 0.0
    flow = DenseFlow(lambda: now)
    assert flow.pause_after(100) == 0
    now = DENSE_SECONDS
    assert flow.pause_after(100) == 0
    now = 60.0
    assert flow.pause_after(100) == 0


def test_messages_one_after_the_other_gather() -> None:
    now = 0.0
    flow = DenseFlow(lambda: now)
    flow.pause_after(100)
    for _ in range(3):
        now += GATHER_SECONDS + 0.001
        assert flow.pause_after(100) == GATHER_SECONDS


def test_a_round_that_brought_much_is_followed_by_a_read_at_once() -> None:
    flow = DenseFlow(lambda: 0.0)
    assert flow.pause_after(100) == 0
    assert flow.pause_after(FEW_BYTES - 1) == GATHER_SECONDS
    assert flow.pause_after(FEW_BYTES) == 0


def test_a_wait_leaves_the_flow_dense() -> None:
    assert GATHER_SECONDS < DENSE_SECONDS
