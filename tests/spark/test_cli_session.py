"""The session of a command."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from amqp_spark.cli.spark import spark_session

pytestmark = [pytest.mark.spark]

if TYPE_CHECKING:
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
