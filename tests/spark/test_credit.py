"""Credit from the free part of the budget, and turns of queues whose messages exceed their share."""

from __future__ import annotations

from amqp_spark.datasource.credit import FIRST_CREDIT, HEADER_BYTES, MAX_CREDIT, UNDER_WAY_BYTES, CreditWindow
from amqp_spark.datasource.receive_buffer import LOOK_SECONDS, Turns

MIB = 1 << 20


def test_credit_begins_with_little_whatever_is_free() -> None:
    assert CreditWindow().wanted(1 << 40) == FIRST_CREDIT


def test_credit_doubles_when_all_of_it_has_come() -> None:
    window = CreditWindow()
    seen = []
    for _ in range(12):
        want = window.wanted(1 << 40)
        seen.append(want)
        window.arrived(want, 300)
    assert seen == [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, MAX_CREDIT, MAX_CREDIT]


def test_credit_follows_the_largest_recent_message() -> None:
    window = CreditWindow()
    for _ in range(20):
        window.arrived(MAX_CREDIT, 200)
    assert window.wanted(128 * MIB) == MAX_CREDIT
    window.arrived(1, MIB)
    assert window.wanted(8 * MIB) == 8
    assert window.wanted(MIB - 1) == 0


def test_credit_that_does_not_fit_any_more_is_too_much() -> None:
    window = CreditWindow()
    for _ in range(20):
        window.arrived(MAX_CREDIT, 300)
    assert not window.is_too_much(MAX_CREDIT, 1e9, 0), "5 MB under way are less than what sockets hold"
    window.arrived(1, MIB)
    assert window.is_too_much(MAX_CREDIT, 17 * MIB, 8 * MIB)
    assert not window.is_too_much(MAX_CREDIT, 16 * MIB, 8 * MIB), "the bytes are bounded"
    assert window.is_too_much(UNDER_WAY_BYTES // MIB + 9, float("inf"), 8 * MIB)


def test_a_restart_begins_with_little_and_knows_the_sizes() -> None:
    window = CreditWindow()
    for _ in range(20):
        window.arrived(MAX_CREDIT, MIB)
    window.restart()
    assert window.wanted(1 << 40) == FIRST_CREDIT
    assert window.wanted(2 * MIB) == 2


def test_turns_go_round() -> None:
    turns = Turns(lambda: 0.0)
    assert turns.take("a") == "a"
    assert turns.take("b") == "a"
    assert turns.take("c") == "a"
    assert turns.is_contended()
    assert turns.leave("a") == "b"
    assert turns.take("a") == "b", "at the end of the line again"
    assert turns.leave("c") is None, "it was not its turn"
    assert not turns.waits("c")
    assert turns.waits("b")
    assert turns.leave("b") == "a"
    assert turns.leave("a") is None
    assert turns.leave("a") is None
    assert not turns.is_contended()


def test_headers_have_room_after_many_small_messages() -> None:
    """A broker that counts only bodies would send as many large headers as there is credit for messages."""
    window = CreditWindow()
    for _ in range(100):
        window.arrived(1000, 400)
    assert window.wanted(8_000_000) * HEADER_BYTES <= 8_000_000 + (16 << 20)
    assert window.wanted(128 << 20) == MAX_CREDIT


def test_a_queue_that_needs_a_turn_comes_before_those_that_only_look() -> None:
    turns = Turns(lambda: 0.0)
    for queue in "abc":
        turns.take(queue, idle=True)
    assert turns.take("d") == "a", "whose turn it is keeps it"
    assert turns.take("e") == "a"
    assert [turns.leave(queue) for queue in "adbe"] == ["d", "b", "e", "c"], "none had looked yet"
    turns.take("f", idle=True)
    for queue in "gh":
        turns.take(queue)
    assert [turns.leave(queue) for queue in "cgh"] == ["g", "h", "f"], "one has looked just now"


def test_queues_that_need_turns_again_and_again_keep_none_from_its_own() -> None:
    now = [0.0]
    turns = Turns(lambda: now[0])
    for queue in "ab":
        turns.take(queue)
    for queue in "cde":
        turns.take(queue, idle=True)
    had = ""
    while now[0] < 6 * LOOK_SECONDS:
        first = turns.take("a")
        had += first
        now[0] += 0.1
        turns.leave(first)
        turns.take(first, idle=first in "cde")
    assert set(had) == set("abcde")
    assert had.count("a") + had.count("b") > 20
