"""What is asked of a broker before rows are sent, and how often."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from amqp_core.address import ConnectOptions
from amqp_spark.sink.routes import Routes, value_at
from tests.spark.sink_fakes import FakeBroker

HERE = ConnectOptions(hosts=(("here", 5672),))


@pytest.fixture
def fake() -> FakeBroker:
    return FakeBroker(qpidd=True)


def routes(fake: FakeBroker, settled: list[int] | None = None) -> Routes:
    log = [] if settled is None else settled
    return Routes(fake.connect(HERE), lambda: log.append(fake.asked.total()))


def texts(*values: str | bytes | None) -> Any:
    return pa.array(values)


def test_each_exchange_is_asked_for_once_and_the_first_row_named(fake: FakeBroker) -> None:
    asking = routes(fake)
    names = texts("other", "", "lost", "gone", "other", "gone")
    assert asking.missing(names, 0, 6) == (2, "lost")
    assert asking.missing(names, 3, 6) == (3, "gone")
    assert asking.missing(names, 4, 5) is None
    assert fake.asked == {"exchange other": 1, "exchange lost": 1, "exchange gone": 1}
    assert asking.missing("gone", 4, 9) == (4, "gone")


def test_no_more_answers_are_kept_than_memory_should_hold(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqp_spark.sink.routes.MOST_KNOWN", 2)
    asking = routes(fake)
    for _ in range(3):
        assert asking.unbound("", texts("q", "a", "b"), 0, 3) == [1, 2]
        assert len(asking._bound) <= 2


@pytest.mark.parametrize("names", [texts("other", None, "other"), texts(b"other", None, b"other")])
def test_null_is_the_default_exchange_which_is_always_there(fake: FakeBroker, names: Any) -> None:
    assert routes(fake).missing(names, 0, 3) is None
    assert routes(fake).missing(texts(None, None), 0, 2) is None
    assert [value_at(names, row) for row in range(3)] == ["other", "", "other"]


def test_keys_of_a_direct_exchange_and_queues_of_the_default_one_are_asked_for(fake: FakeBroker) -> None:
    asking = routes(fake)
    assert asking.unbound("amq.direct", texts("k", "x", None, "k", "x"), 0, 5) == [1, 2, 4]
    assert asking.unbound("amq.direct", texts("k", "x", None, "k", "x"), 2, 4) == [2]
    assert asking.unbound("", "q", 0, 3) == []
    assert asking.unbound("", "nobody", 1, 3) == [1, 2]
    assert asking.unbound(texts("", "amq.direct", "amq.topic"), texts("q", "q", "q"), 0, 3) == [1]
    assert fake.asked == {
        "exchange amq.direct": 1, "bound amq.direct k": 1, "bound amq.direct x": 1, "bound amq.direct ": 1,
        "bound amq.direct q": 1, "queue q": 1, "queue nobody": 1, "exchange amq.topic": 1,
    }  # fmt: skip


def test_an_exchange_that_cannot_be_asked_costs_one_question_however_many_keys(fake: FakeBroker) -> None:
    assert routes(fake).unbound("amq.topic", texts(*map(str, range(1000))), 0, 1000) == []
    assert fake.asked == {"exchange amq.topic": 1}


def test_what_was_sent_is_waited_for_before_each_question(fake: FakeBroker) -> None:
    settled: list[int] = []
    asking = routes(fake, settled)
    for _ in range(2):
        asking.missing("other", 0, 1)
        asking.unbound("other", "k", 0, 1)
    assert settled == [0, 1]
