"""The Java virtual machines of the tests: most live for seconds, and many run at once.

For them the compiler that makes the fastest code costs more than it gives, and the collector that has a thread for each
core disturbs the others: without both Spark and the broker need half the CPU to start and for their first minutes.
"""

from __future__ import annotations

import os
from pathlib import Path

SHORT_LIVED = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
SPARK_CONF = Path(__file__).with_name("spark_conf")


def configure_spark() -> None:
    """Have every Spark that is started from now on, by this process or below it, use ``SHORT_LIVED``."""
    os.environ["SPARK_CONF_DIR"] = str(SPARK_CONF)
    os.environ["SPARK_LAUNCHER_OPTS"] = " ".join(SHORT_LIVED)  # of the Java that only says how Spark is to be started
