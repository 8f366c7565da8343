"""The Java virtual machines of the tests: most live for seconds, and many run at once.

For them the compiler that makes the fastest code costs more than it gives, and the collector that has a thread for each
core disturbs the others: without both Spark and the broker need half the CPU to start and for their first minutes.
"""

from __future__ import annotations

SHORT_LIVED = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
