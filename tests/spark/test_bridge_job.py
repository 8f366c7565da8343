"""The command line of jobs/bridge.py: without a broker and without Spark."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StructType

from amqp_core.errors import ConnectionLost
from amqp_spark import cli
from amqp_spark.arrow.encode import FrameFormat, MessagePlan, TaskId
from amqp_spark.cli.running import Stopped
from amqp_spark.options import CONNECTION, SINK, SOURCE, SinkOptions
from tests.spark.job_support import SECRET, help_of, without_spark

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from amqp_core.address import ConnectOptions


@pytest.fixture
def bridge(monkeypatch: pytest.MonkeyPatch) -> Any:
    return without_spark("bridge", monkeypatch)


GOOD = ["--from-url", "amqp://here/v", "--to-url", "amqp://there/v", "--queue", "q", "--checkpoint", "ck"]


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (GOOD[:-2], ["--checkpoint"]),
        (
            ["--checkpoint", "ck"],
            ["from: [AMQP_OPTION_REQUIRED] Option 'url'", "Option 'queue'", "to: [AMQP_OPTION_REQUIRED] Option 'url'"],
        ),
        (
            [*GOOD, "--from-option", "mode=x", "--to-option", "ttl=x"],
            ["from: [AMQP_OPTION_INVALID] Option 'mode'", "to: [AMQP_OPTION_INVALID] Option 'ttl'"],
        ),
        ([*GOOD, "--from-option", "queue=p"], ["--from-option queue=", "repeats another argument", "AMQP_FROM_"]),
        ([*GOOD, "--to-option", "url=p"], ["--to-option url=", "repeats another argument", "AMQP_TO_"]),
        ([*GOOD, "--from-username", "u"], ["from: [AMQP_OPTION_INCOMPLETE] Option 'username' is given without"]),
        ([*GOOD, "--to-username", "u", "--to-password-file", "/no/such"], ["'/no/such' cannot be read"]),
        ([*GOOD, "--from-username", "u", "--from-password-file", "/no/such"], ["'/no/such' cannot be read"]),
        ([*GOOD, "--from-option", f"password={SECRET}"], ["--from-password-file", "AMQP_FROM_PASSWORD"]),
        ([*GOOD, "--to-option", f"password={SECRET}"], ["--to-password-file", "AMQP_TO_PASSWORD"]),
        ([*GOOD, "--without", "userid"], ["--without userid", "user_id"]),
        ([*GOOD, "--without", "body"], ["--without body"]),
        ([*GOOD, "--headers", "a INT"], ["--headers has no effect"]),
    ],
)
def test_a_wrong_command_line_ends_with_2_before_spark_starts(
    bridge: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], texts: list[str]
) -> None:
    assert bridge.main(arguments) == 2
    shown = capsys.readouterr()
    for text in texts:
        assert text in shown.err
    assert SECRET not in shown.err + shown.out


def test_a_key_is_fixed_or_computed(bridge: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        bridge.main([*GOOD, "--routing-key", "a", "--routing-key-expr", "b"])
    assert caught.value.code == 2


def test_help_lists_the_options_of_both_sides(bridge: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shown = help_of(bridge, capsys)
    assert "exit codes: 0 done" in shown
    for option in (*CONNECTION, *SOURCE, *SINK):
        assert (f"  {option.name} " in shown) is not option.secret


def test_each_side_has_its_own_login(bridge: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {
        "AMQP_URL": "amqp://nowhere/v", "AMQP_PASSWORD": "not used",
        "AMQP_FROM_URL": "amqp://here/v", "AMQP_FROM_USERNAME": "a", "AMQP_FROM_PASSWORD": SECRET,
        "AMQP_TO_URL": "amqp://there/v", "AMQP_TO_USERNAME": "b", "AMQP_TO_PASSWORD": "not this",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    file = tmp_path / "password"
    arguments = bridge.parser().parse_args(["--queue", "q", "--to-password-file", str(file), "--exchange", "e"])
    source, sink = bridge.both_options(arguments)
    assert source == {"url": "amqp://here/v", "username": "a", "password": SECRET, "queue": "q"}
    assert sink == {"url": "amqp://there/v", "username": "b", "passwordFile": str(file), "exchange": "e"}


def test_only_what_is_used_is_read(bridge: Any) -> None:
    def columns(*more: str, **options: str) -> set[str]:
        sink = SinkOptions.parse({"url": "amqp://there/v", **options})
        ddl = bridge.schema_to_read(bridge.parser().parse_args([*GOOD, *more]), sink)
        return {name for name in cli.exact_types() if f"{name} {cli.exact_types()[name]}" in ddl}

    needed = set(cli.exact_types()) - {"queue", "position", "redelivered", "exchange"}
    assert columns() == needed
    assert columns("--without", "user_id") == needed - {"user_id"}
    assert columns(exchangeFromColumn="true") == needed | {"exchange"}
    assert columns("--filter", "true", "--without", "user_id") == set(cli.exact_types())


HERE, THERE = {"url": "amqp://here/v", "queue": "q"}, {"url": "amqp://there/v"}


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [("0-10", "0-10", None), ("0-9", "0-9-1", None), ("0-9-1", "0-10", "0-10"), ("0-10", "0-9", "0-9")],
)
def test_the_options_say_the_protocols_without_a_connection(
    bridge: Any, capsys: pytest.CaptureFixture[str], before: str, after: str, found: str | None
) -> None:
    sides = bridge.check_both(HERE | {"protocol": before}, THERE | {"protocol": after})
    with cli.Signals() as signals:
        assert bridge.other_protocol(*sides, signals) == found
    shown = capsys.readouterr().err
    assert shown.startswith("bridge: from AMQP ") is (found is not None)
    assert ("(--to-option onUnsupported=drop)" in shown) is (found is not None)


def test_what_is_listed_is_what_the_sink_lacks(bridge: Any) -> None:
    plan = MessagePlan.build(StructType().add("body", "binary"), SinkOptions.parse(THERE | {"exchange": "e"}))
    for protocol in ("0-10", "0-9-1"):
        encoder = plan.encoder(FrameFormat(protocol=protocol, max_frame_size=65_535), TaskId("q", 0, 0))
        assert [name for name in encoder._lacks if name not in bridge.LOST[protocol == "0-10"]] == []


class Client:
    """A connection that shows its protocol."""

    protocol = "0-9-1"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None: ...


def test_a_broker_that_is_away_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Exception | Client] = [ConnectionLost("away"), ConnectionLost("away"), Client()]
    asked = []

    def connect(options: ConnectOptions) -> Client:
        asked.append(options.hosts)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("amqp_spark.cli.protocol.connect", connect)
    sink = SinkOptions.parse(THERE | {"retry.maxDelay": "0.01"})
    with cli.Signals() as signals:
        assert cli.protocol_of(sink, signals) == "0-9-1"
        assert asked == [(("there", 5672),)] * 3
        answers += [ConnectionLost("away"), Client()]
        with pytest.raises(ConnectionLost):
            cli.protocol_of(SinkOptions.parse(THERE | {"retry.maxAttempts": "0"}), signals)
        signals.received = signal.SIGTERM
        answers[:] = [ConnectionLost("away"), Client()]
        with pytest.raises(Stopped):
            cli.protocol_of(SinkOptions.parse(THERE), signals)
        assert len(answers) == 2, "it was not asked"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("silent", [True, False], ids=["the broker is silent", "the broker answers"])
def test_a_signal_while_a_broker_is_asked_is_obeyed_at_once(
    number: int, monkeypatch: pytest.MonkeyPatch, *, silent: bool
) -> None:
    obeyed = threading.Event()

    def connect(_: ConnectOptions) -> Client:
        os.kill(os.getpid(), number)
        if silent:
            obeyed.wait(20)
        return Client()

    monkeypatch.setattr("amqp_spark.cli.protocol.connect", connect)
    with cli.Signals() as signals:
        with pytest.raises(Stopped):
            cli.protocol_of(SinkOptions.parse(THERE), signals)
        assert signals.exit_code == 128 + number
    obeyed.set()


def test_a_signal_between_two_attempts_to_ask_a_broker_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(_: ConnectOptions) -> Client:
        raise ConnectionLost("away")

    def pause_after(*_: object) -> float:
        os.kill(os.getpid(), signal.SIGTERM)
        return 3600.0

    monkeypatch.setattr("amqp_spark.cli.protocol.connect", connect)
    monkeypatch.setattr("amqp_spark.cli.protocol.RetryPolicy.pause_after", pause_after)
    with cli.Signals() as signals, pytest.raises(ConnectionLost):
        cli.protocol_of(SinkOptions.parse(THERE), signals)


@pytest.mark.spark
def test_the_exact_schema_has_every_column_of_the_source(spark: SparkSession) -> None:
    from amqp_spark.arrow.decode import DEFAULT_SCHEMA, schema_problems  # noqa: PLC0415 - Spark, for this test only

    assert spark is not None  # DDL is parsed by the JVM
    exact = cli.schema_of(cli.exact_ddl())
    assert exact.names == DEFAULT_SCHEMA.names
    assert schema_problems(exact) == []
