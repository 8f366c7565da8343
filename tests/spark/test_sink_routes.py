"""Queries before rows are sent and after that: which, how often, and the effect of the answers."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from amqp_core.address import ConnectOptions
from amqp_core.errors import ConnectionLost
from amqp_spark.sink.routes import AGAIN_SECONDS, Gone, Routes, value_at
from tests.support.fake_broker import FakeBroker

HERE = ConnectOptions(hosts=(("here", 5672),))


class Asking(Routes):
    """Routes of one task, with a clock of their own."""

    def __init__(self, fake: FakeBroker, *, transaction: bool = False) -> None:
        self.now = 0.0
        self.settled: list[int] = []
        self.fake = fake
        super().__init__(transaction=transaction, clock=lambda: self.now)
        self.connect()

    def connect(self) -> None:
        self.connected(self.fake.connect(HERE), lambda: self.settled.append(self.fake.asked.total()))

    def send(self, exchange: Any, key: Any, count: int, first_row: int = 0) -> list[int]:
        """Treat a run as the sink does: find its unbound rows, when it is noted as sent."""
        assert self.missing(exchange, 0, count) is None
        unbound = self.unbound(exchange, key, 0, count)
        self.sent(first_row)
        return unbound

    def later(self) -> list[Gone]:
        self.now += AGAIN_SECONDS
        self.look_again()
        self.look_again()
        return self.take_gone()

    def at_the_end(self) -> list[Gone]:
        self.verify()
        return self.take_gone()


@pytest.fixture
def fake() -> FakeBroker:
    return FakeBroker(qpidd=True)


@pytest.fixture
def routes(fake: FakeBroker) -> Asking:
    return Asking(fake)


def texts(*values: str | bytes | None) -> Any:
    return pa.array(values)


# ------------------------------------------------------------------------------------------------- before rows are sent
def test_each_exchange_is_asked_for_once_and_the_first_row_named(fake: FakeBroker, routes: Asking) -> None:
    names = texts("other", "", "lost", "gone", "other", "gone")
    assert routes.missing(names, 0, 6) == (2, "lost")
    assert routes.missing(names, 3, 6) == (3, "gone")
    assert routes.missing(names, 4, 5) is None
    assert fake.asked == {"exchange other": 1, "exchange lost": 1, "exchange gone": 1}
    assert routes.missing("gone", 4, 9) == (4, "gone")


@pytest.mark.parametrize("names", [texts("other", None, "other"), texts(b"other", None, b"other")])
def test_null_is_the_default_exchange_which_is_always_there(routes: Asking, names: Any) -> None:
    assert routes.missing(names, 0, 3) is None
    assert routes.missing(texts(None, None), 0, 2) is None
    assert [value_at(names, row) for row in range(3)] == ["other", "", "other"]


def test_keys_of_a_direct_exchange_and_queues_of_the_default_one_are_asked_for(
    fake: FakeBroker, routes: Asking
) -> None:
    assert routes.unbound("amq.direct", texts("k", "x", None, "k", "x"), 0, 5) == [1, 2, 4]
    assert routes.unbound("amq.direct", texts("k", "x", None, "k", "x"), 2, 4) == [2]
    assert routes.unbound("", "q", 0, 3) == []
    assert routes.unbound("", "unbound", 1, 3) == [1, 2]
    assert routes.unbound(texts("", "amq.direct", "amq.topic"), texts("q", "q", "q"), 0, 3) == [1]
    assert fake.asked == {
        "exchange amq.direct": 1, "bound amq.direct k": 1, "bound amq.direct x": 1, "bound amq.direct q": 1,
        "queue q": 1, "queue unbound": 1, "exchange amq.topic": 1,
    }  # fmt: skip


@pytest.mark.parametrize("exchange", ["amq.direct", "", texts("amq.direct", "", None)])
@pytest.mark.parametrize("key", ["", texts("", None, b"")])
def test_an_empty_key_is_unroutable_and_never_asked_for(
    fake: FakeBroker, routes: Asking, exchange: Any, key: Any
) -> None:
    """qpidd takes the question for "is anything bound?", and says yes."""
    assert routes.send(exchange, key, 3) == [0, 1, 2]
    assert [asked for asked in fake.asked if not asked.startswith("exchange")] == []


@pytest.mark.parametrize("exchange", ["amq.topic", texts("amq.topic", "amq.topic", "amq.topic")])
def test_an_empty_key_is_a_key_like_others_for_an_exchange_of_another_type(routes: Asking, exchange: Any) -> None:
    assert routes.send(exchange, texts("", None, "x"), 3) == []


def test_a_broker_that_rejects_is_asked_for_exchanges_only(fake: FakeBroker) -> None:
    fake.qpidd = False
    routes = Asking(fake)
    assert routes.send("amq.direct", texts("k", "x", "", None), 4) == []
    assert routes.send("", "unbound", 2) == []
    assert fake.asked == {"exchange amq.direct": 1}
    assert routes.at_the_end() == []
    assert fake.asked == {"exchange amq.direct": 2}


def test_a_broker_that_returns_is_asked_for_exchanges_only() -> None:
    fake = FakeBroker(protocol="0-9-1")
    routes = Asking(fake)
    assert routes.send(texts("other", "", "amq.topic"), texts("", None, "x"), 3) == []
    assert routes.later() == []
    assert fake.asked == {"exchange other": 2, "exchange amq.topic": 2}
    del fake.exchanges["other"]
    routes.connect()
    assert routes.at_the_end() == [Gone("other", None, 0, 0)]


def test_in_a_transaction_a_broker_that_rejects_is_asked_for_bindings_as_well(fake: FakeBroker) -> None:
    """It rejects when it takes a transfer; no other check notices what is deleted later."""
    fake.qpidd = False
    routes = Asking(fake, transaction=True)
    assert routes.send("amq.direct", texts("k", "x", "", None), 4) == [], "it says itself what it cannot route"
    fake.bindings.clear()
    (gone,) = routes.at_the_end()
    assert (gone.exchange, gone.routing_key, gone.rows) == ("amq.direct", "k", 1)
    assert fake.asked == {"exchange amq.direct": 2, "bound amq.direct k": 2, "bound amq.direct x": 1}


def test_an_exchange_that_cannot_be_asked_costs_one_question_however_many_keys(
    fake: FakeBroker, routes: Asking
) -> None:
    assert routes.send("amq.topic", texts(*map(str, range(1000))), 1000) == []
    assert fake.asked == {"exchange amq.topic": 1}


def test_many_questions_share_a_round_trip_and_wait_once_for_what_was_sent(fake: FakeBroker, routes: Asking) -> None:
    keys = texts(*map(str, range(2500)))
    fake.bindings |= {("q", "amq.direct", str(number)) for number in range(2500)}
    assert routes.send("amq.direct", keys, 2500) == []
    assert (fake.rounds, routes.settled) == (1 + 3, [0, 1])
    assert routes.send("amq.direct", keys, 2500) == []
    assert fake.rounds == 1 + 3, "known"


# --------------------------------------------------------------------------------------------------------------- again
@pytest.mark.parametrize("when", ["later", "at_the_end"])
def test_what_is_gone_is_named_with_what_rests_on_it(fake: FakeBroker, routes: Asking, when: str) -> None:
    fake.bindings |= {("q", "amq.direct", "l")}
    routes.send("amq.direct", texts("k", "l", "l"), 3)
    routes.send("amq.direct", texts("k", "l", "l"), 3, first_row=100)
    routes.send("", "q", 10, first_row=200)
    fake.bindings -= {("q", "amq.direct", "l")}
    fake.queues.clear()
    assert sorted(getattr(routes, when)()) == [Gone("", "q", 10, 200), Gone("amq.direct", "l", 4, 1)]
    assert routes.at_the_end() == [], "said once"
    assert routes.send("amq.direct", texts("k", "l"), 2) == [1], "from now on it is not there"


@pytest.mark.parametrize("kind", [None, "topic"])
@pytest.mark.parametrize("qpidd", [False, True])
def test_an_exchange_that_is_gone_or_another_one_is_named(fake: FakeBroker, qpidd: bool, kind: str | None) -> None:
    fake.qpidd = qpidd
    routes = Asking(fake)
    routes.send("other", "k", 5)
    del fake.exchanges["other"]
    if kind is not None:
        fake.exchanges["other"] = kind
    gone = routes.at_the_end()
    assert gone[0] == Gone("other", None, 5, 0)
    assert routes.missing("other", 0, 1) == (0, "other")


def test_a_deleted_exchange_has_no_bindings(fake: FakeBroker, routes: Asking) -> None:
    """qpidd then says that the exchange is not found, and nothing against the key."""
    routes.send("other", "k", 5)
    del fake.exchanges["other"]
    assert Gone("other", "k", 5, 0) in routes.at_the_end()


def test_only_what_was_sent_since_it_was_last_seen_is_in_doubt(fake: FakeBroker, routes: Asking) -> None:
    routes.send("amq.direct", "k", 10)
    assert routes.later() == []
    routes.send("amq.direct", "k", 3, first_row=10)
    fake.bindings.clear()
    assert routes.later() == [Gone("amq.direct", "k", 3, 10)]


def test_what_is_sent_after_a_question_is_not_covered_by_its_answer(fake: FakeBroker, routes: Asking) -> None:
    fake.arrives = False
    routes.send("amq.direct", "k", 10)
    routes.now = AGAIN_SECONDS
    routes.look_again()
    assert fake.asked["bound amq.direct k"] == 2
    routes.send("amq.direct", "k", 4, first_row=10)
    routes.look_again()
    assert fake.asked["bound amq.direct k"] == 2, "it has not been answered"
    fake.arrives = True
    routes.look_again()
    fake.bindings.clear()
    assert routes.at_the_end() == [Gone("amq.direct", "k", 4, 10)]


def test_in_a_transaction_all_messages_rest_on_what_is_there_at_the_end(fake: FakeBroker) -> None:
    """They reach the queue when it is committed, however often it was seen before."""
    fake.bindings.add(("q", "amq.direct", "k"))
    routes = Asking(fake, transaction=True)
    routes.send("amq.direct", "k", 5, 10)
    assert routes.later() == []
    fake.bindings.clear()
    assert routes.at_the_end() == [Gone("amq.direct", "k", 5, 10)]


def test_an_answer_that_is_under_way_at_the_end_is_taken_first(fake: FakeBroker, routes: Asking) -> None:
    fake.arrives = False
    routes.send("amq.direct", "k", 10)
    routes.now = AGAIN_SECONDS
    routes.look_again()
    settled = len(routes.settled)
    assert routes.at_the_end() == []
    assert fake.asked["bound amq.direct k"] == 3
    assert len(routes.settled) == settled + 2, "no answer is waited for before the broker has done what was sent"


def test_asking_again_does_not_wait_and_is_not_done_more_often(fake: FakeBroker, routes: Asking) -> None:
    routes.send("amq.direct", "k", 10)
    settled = len(routes.settled)
    for routes.now in (0.0, AGAIN_SECONDS / 2):
        routes.look_again()
        assert fake.asked["bound amq.direct k"] == 1
    assert routes.later() == []
    routes.look_again()
    assert fake.asked["bound amq.direct k"] == 2
    assert len(routes.settled) == settled
    routes.verify()
    assert len(routes.settled) == settled + 1


def test_of_very_many_targets_each_gets_its_turn(
    fake: FakeBroker, routes: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amqp_spark.sink.routes.ASKED_TOGETHER", 2)
    fake.bindings |= {("q", "amq.direct", key) for key in "abcde"}
    routes.send("amq.direct", texts(*"abcde"), 5)
    for _ in range(3):
        routes.later()
    assert {fake.asked[f"bound amq.direct {key}"] for key in "abcde"} | {fake.asked["exchange amq.direct"]} == {2}


def test_no_more_answers_are_kept_than_memory_should_hold_and_none_is_forgotten_unproven(
    fake: FakeBroker, routes: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amqp_spark.sink.routes.MOST_KNOWN", 4)
    fake.bindings |= {("q", "amq.direct", key) for key in "abcdefgh"}
    routes.send("amq.direct", texts(*"abc"), 3)
    routes.send("amq.direct", texts(*"cde"), 3, first_row=3)
    assert {fake.asked[f"bound amq.direct {key}"] for key in "ab"} == {2}, "asked again before they were forgotten"
    assert len(routes._known) <= 4
    fake.bindings.clear()
    routes.unbound("amq.direct", texts(*"fgh"), 0, 3)
    assert sorted((gone.routing_key, gone.rows, gone.first) for gone in routes.take_gone()) == [
        ("c", 1, 3), ("d", 1, 4), ("e", 1, 5)
    ]  # fmt: skip


def test_in_a_transaction_nothing_is_forgotten(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its messages reach their queues at the commit: what was bound before that proves nothing."""
    monkeypatch.setattr("amqp_spark.sink.routes.MOST_KNOWN", 4)
    routes = Asking(fake, transaction=True)
    fake.bindings |= {("q", "amq.direct", key) for key in "abcdefgh"}
    for first, keys in enumerate(("abc", "def", "gh")):
        routes.send("amq.direct", texts(*keys), len(keys), first_row=3 * first)
    fake.bindings.discard(("q", "amq.direct", "a"))
    assert routes.at_the_end() == [Gone("amq.direct", "a", 1, 0)]


def test_on_another_connection_all_is_asked_for_before_it_counts(fake: FakeBroker, routes: Asking) -> None:
    routes.send("amq.direct", "k", 10)
    fake.bindings.clear()
    routes.connect()
    routes.look_again()
    assert routes.take_gone() == [Gone("amq.direct", "k", 10, 0)]
    assert routes.unbound("amq.direct", "k", 0, 2) == [0, 1]


def test_what_a_lost_connection_was_asked_is_asked_again(fake: FakeBroker, routes: Asking) -> None:
    routes.send("amq.direct", "k", 10)
    routes.now = AGAIN_SECONDS
    routes.look_again()
    fake.clients[-1].error = ConnectionLost("cut")
    with pytest.raises(ConnectionLost):
        routes.verify()
    routes.connect()
    fake.bindings.clear()
    assert routes.at_the_end() == [Gone("amq.direct", "k", 10, 0)]
