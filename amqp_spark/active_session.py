"""The session of Spark that is active in a thread."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def active_session() -> SparkSession | None:
    """The session of this process, if there is one: Spark is not started, and not imported for the question."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession  # noqa: PLC0415

    return SparkSession.getActiveSession()


def activate(spark: SparkSession) -> None:
    """Make a session the active one of this thread: Spark looks data sources up there.

    A session of Spark Connect stays as it is, since it is not one of this process.
    """
    jvm = getattr(spark, "_jvm", None)
    if jvm is not None:
        jvm.SparkSession.setActiveSession(spark._jsparkSession)
