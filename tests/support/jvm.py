"""Options of the tests' Java virtual machines: most live for seconds, and many run at once.

For them the optimising compiler costs more than it gains, and a garbage collector with one thread per core disturbs the
others: without both Spark and the broker need half the CPU to start and for their first minutes.
"""

from __future__ import annotations

SHORT_LIVED = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
