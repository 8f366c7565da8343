"""The session of a command."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from amqp_spark.cli.spark import session, spark_session

pytestmark = [pytest.mark.spark]

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType


def test_sparks_handler_of_sigint_does_not_stay(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """It calls Java, and may come in the middle of another call."""
    original: Any = SparkSession.Builder.getOrCreate

    def sparks(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    def with_handler(self: SparkSession.Builder) -> SparkSession:
        signal.signal(signal.SIGINT, sparks)
        session: SparkSession = original(self)
        return session

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", with_handler)
    try:
        assert spark_session("test", {}, None) == (spark, False)
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("fails", [True, False])
def test_a_java_that_has_ended_hides_neither_an_error_nor_a_result(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone:
        def stop(self) -> None:
            raise ConnectionRefusedError("Java is gone")

    monkeypatch.setattr("amqp_spark.cli.spark.spark_session", lambda *_, **__: (Gone(), True))
    arguments = argparse.Namespace(conf=[], master=None, verbose=False)
    with pytest.raises(ValueError, match="the reason") if fails else nullcontext(), session("test", arguments):
        if fails:
            raise ValueError("the reason")


@pytest.mark.parametrize(
    "command", [["demo"], ["publish", "--url", "amqp://h", "--routing-key", "q", "--sql", "select 1"]]
)
def test_a_temporary_directory_that_java_cannot_use(command: list[str], tmp_path: Path) -> None:
    place = tmp_path / "größe"
    place.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "amqp_spark", *command],
        env=os.environ | {"LC_ALL": "C", "TMPDIR": str(place)},
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 2, done.stderr
    assert b"Java cannot use the temporary directory" in done.stderr
    assert b"Set LC_ALL=C.UTF-8" in done.stderr
