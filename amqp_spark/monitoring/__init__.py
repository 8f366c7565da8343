"""Watch streaming queries: numbers as DataFrames, for Prometheus, and as a picture (docs/monitoring.md)."""

from __future__ import annotations

from amqp_spark.monitoring.metrics import Metrics
from amqp_spark.monitoring.plot import Picture, show

__all__ = ["Metrics", "Picture", "show"]
