"""Which errors of a stream are tried again, and for how long: a broker that has just started does not know all yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.errors import CommandFailed, NotFound, PreconditionFailed
from amqp_spark.datasource.log import broker as log_broker
from amqp_spark.datasource.log import retries as retries_module
from amqp_spark.datasource.log.broker import LogBroker
from amqp_spark.datasource.log.offsets import LogOffset
from amqp_spark.datasource.log.probe import LogProbe
from amqp_spark.datasource.log.retries import RECOVERY_SECONDS, LogRetries
from amqp_spark.datasource.log.stream_reader import AmqpLogStreamReader
from amqp_spark.errors import LogTooShort
from amqp_spark.options import SourceOptions
from tests.broker.log_support import log_plan
from tests.support.clock import Clock
from tests.support.fake_broker import FakeBroker

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.errors import AmqpError

OPTIONS = SourceOptions.parse({"url": "amqp://one", "queue": "s", "queueType": "stream"})
NO_REPLICA = PreconditionFailed(406, None, "stream queue 's' does not have a running replica on the local node")
OLD_NO_REPLICA = CommandFailed(506, None, "queue 's' in vhost '/' does not have a local replica")
MISSING = NotFound(404, None, "no queue 's' in vhost '/'")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(retries_module, "monotonic", clock)
    return clock


@pytest.mark.parametrize(
    ("error", "known", "again"),
    [(NO_REPLICA, False, True), (OLD_NO_REPLICA, False, True), (MISSING, False, False), (NO_REPLICA, True, True),
     (MISSING, True, True), (LogTooShort("s", 100), False, True)],
)  # fmt: skip
def test_a_log_that_exists_is_tried_again_for_a_while(
    clock: Clock, error: AmqpError, *, known: bool, again: bool
) -> None:
    retries = LogRetries("a task", OPTIONS, known=known)
    assert (retries.pause_after(error) is not None) == again
    clock.now += RECOVERY_SECONDS - 1
    assert (retries.pause_after(error) is not None) == again
    clock.now += 2
    assert retries.pause_after(error) is None


@pytest.mark.parametrize("error", [NO_REPLICA, LogTooShort("s", 100)], ids=["no replica", "lags behind"])
def test_each_other_host_is_tried_at_once(clock: Clock, error: AmqpError) -> None:
    options = SourceOptions.parse({"url": "amqp://one,two,three", "queue": "s", "queueType": "stream"})
    retries = LogRetries("a task", options, known=True)
    assert [retries.pause_after(error) for _ in range(2)] == [0.0, 0.0]
    assert retries.pause_after(error), "all three were tried: a pause"
    clock.now += RECOVERY_SECONDS
    assert retries.pause_after(error) is None


def refusing(monkeypatch: pytest.MonkeyPatch, times: int = 1) -> LogBroker:
    """Its broker does not know the log at the first questions."""
    errors: list[AmqpError] = [MISSING] * times

    def prepare(*_: Any) -> None:
        if errors:
            raise errors.pop()

    monkeypatch.setattr(log_broker, "require_for_option", lambda *_: None)
    monkeypatch.setattr("amqp_spark.datasource.log.broker.consumer_setup.prepare", prepare)
    monkeypatch.setattr("amqp_spark.datasource.log.broker.time.sleep", lambda _seconds: None)
    return LogBroker(OPTIONS, FakeBroker(protocol="0-9-1").connect)


def test_a_log_of_a_checkpoint_may_be_unknown_before_the_first_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = refusing(monkeypatch)
    assert broker.ask(lambda _probe: "answer", known=True) == "answer"
    broker.close()


def test_a_log_that_never_was_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = refusing(monkeypatch)
    with pytest.raises(NotFound):
        broker.ask(lambda _probe: "answer")
    broker.close()


class Listening:
    """In place of a ``LogBroker``: notes whether the logs of a question are known."""

    def __init__(self) -> None:
        self.known: list[bool] = []

    def ask(self, _question: Callable[[Any], Any], *, known: bool) -> dict[str, Any]:
        self.known.append(known)
        return {}


def test_a_query_knows_the_logs_of_its_checkpoint() -> None:
    reader = AmqpLogStreamReader(OPTIONS, log_plan())
    broker = Listening()
    reader.__dict__["_broker"] = broker
    start, end = ({"s": {"offset": offset, "version": 1}} for offset in (5, 9))
    reader.latestOffset({}, reader.getDefaultReadLimit())
    reader.latestOffset(start, reader.getDefaultReadLimit())
    reader.partitions(start, end)
    assert broker.known == [False, True, True], "of the first batch of a query, a later one, and a logged one"


@pytest.mark.parametrize("logged", [False, True], ids=["the next batch", "a logged batch"])
def test_available_now_waits_for_the_logs_of_its_checkpoint(monkeypatch: pytest.MonkeyPatch, *, logged: bool) -> None:
    """Spark asks for the ends first, and tells the checkpoint later."""
    broker = refusing(monkeypatch, times=2)
    ends = {"s": 9}
    monkeypatch.setattr(LogProbe, "find_empty", lambda *_: None)
    monkeypatch.setattr(LogProbe, "end", lambda _probe, log, *, certain: ends[log] if certain else 0)
    monkeypatch.setattr(AmqpLogStreamReader, "_verify", lambda _self, _probe, starts: starts)
    monkeypatch.setattr(AmqpLogStreamReader, "_readable", lambda _self, _probe, starts, _ends: starts)
    monkeypatch.setattr(AmqpLogStreamReader, "_restarted", lambda *_: {})
    monkeypatch.setattr(
        "amqp_spark.datasource.log.stream_reader.marked", lambda _probe, _log, offset: LogOffset(offset)
    )
    reader = AmqpLogStreamReader(OPTIONS, log_plan())
    reader.__dict__["_broker"] = broker
    start, end = ({"s": {"offset": offset, "version": 1}} for offset in (5, 7))
    reader.prepareForTriggerAvailableNow()
    if logged:
        reader.partitions(start, end)
        ends["s"] = 11
        start = end
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) == {"s": {"offset": 9, "version": 1}}
    reader.stop()


def test_available_now_without_a_checkpoint_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = AmqpLogStreamReader(OPTIONS, log_plan())
    reader.__dict__["_broker"] = refusing(monkeypatch, times=2)
    reader.prepareForTriggerAvailableNow()
    with pytest.raises(NotFound):
        reader.latestOffset({}, reader.getDefaultReadLimit())
    reader.stop()
