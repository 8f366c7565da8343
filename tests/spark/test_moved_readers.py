"""A reader says at level WARNING from where it receives after a loss; where it begins is no warning."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

import pytest

from amqp_core.errors import ConnectionLost
from amqp_spark.datasource.log import broker as log_broker
from amqp_spark.datasource.log.broker import LogBroker
from amqp_spark.datasource.log.range_reader import LogPartition, RangeReader
from amqp_spark.datasource.receiver import Receiver
from amqp_spark.options import SourceOptions
from tests.support.fake_broker import FakeBroker, FakeClient

if TYPE_CHECKING:
    from collections.abc import Iterator

HOSTS = {"url": "amqp://one,two", "queue": "q", "retry.maxDelay": 0.01}
OF_STREAMS = SourceOptions.parse(HOSTS | {"queueType": "stream"})


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeBroker:
    """A broker with two hosts: a client is connected to the first of its options."""
    monkeypatch.setattr(FakeClient, "peer", property(lambda client: "{}:{}".format(*client.options.hosts[0])))
    return FakeBroker(protocol="0-9-1")


def said(caplog: pytest.LogCaptureFixture, text: str) -> list[tuple[str, str]]:
    return [(each.levelname, each.getMessage()) for each in caplog.records if text in each.getMessage()]


def check(lines: list[tuple[str, str]]) -> None:
    (first, begun), (second, moved) = lines
    assert (first, second) == ("INFO", "WARNING")
    assert "from one:5672" in begun
    assert " lost" not in begun
    assert "from two:5672" in moved
    assert moved.endswith(", after one:5672 was lost")


def test_of_a_queue(fake: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    receiver = Receiver(SourceOptions.parse(HOSTS), connector=fake.connect)
    try:
        receiver.start()
        fake.wait(lambda: len(fake.subscriptions) == 1)
        fake.cut()
        fake.wait(lambda: len(fake.subscriptions) == 2)
        fake.wait(lambda: receiver.consumers[0].connected)
    finally:
        receiver.stop()
    check(said(caplog, "receiving from"))


def test_of_the_offsets_of_streams(
    fake: FakeBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(log_broker, "require_for_option", lambda *_: None)
    monkeypatch.setattr("amqp_spark.datasource.log.broker.consumer_setup.prepare", lambda *_: None)
    broker = LogBroker(OF_STREAMS, fake.connect)
    losses = [ConnectionLost("cut")]

    def question(_probe: Any) -> str:
        if losses:
            raise losses.pop()
        return "answer"

    assert broker.ask(question) == "answer"
    broker.close()
    check(said(caplog, "reading offsets from"))


def test_of_a_range_of_a_stream(
    fake: FakeBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    sessions = 0

    def session(reader: Any, _client: Any) -> Iterator[Any]:
        nonlocal sessions
        sessions += 1
        if sessions == 1:
            raise ConnectionLost("cut")
        reader._at = reader._end
        yield from ()

    monkeypatch.setattr(RangeReader, "_session", session)
    reader = RangeReader(LogPartition("q", 5, 9), OF_STREAMS, cast("Any", None), fake.connect)
    assert list(reader.batches()) == []
    [(level, text)] = said(caplog, "reading from offset")
    assert (level, text.endswith("5 at two:5672, after one:5672 was lost")) == ("WARNING", True)
