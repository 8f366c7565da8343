"""Names of queues that exactly-once uses; the others belong to the test."""

from __future__ import annotations

from typing import Final

OURS: Final = "amqp-spark."
MARKERS: Final = "amqp-spark.markers."
STATE: Final = "amqp-spark.state."
