"""Statistics of published messages, of a task or of a batch, and the log lines about batches."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from typing import Final

LOGGER: Final = "amqp_spark.sink"
_log = logging.getLogger(LOGGER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Counts of one task, one batch or one writer; the sum of two covers both. Immutable, hence thread-safe.

    Args:
        messages: messages that the broker has completed, without discarded ones.
        nbytes: bytes of their frames, headers included.
        seconds: from the start of the first task to the end of the last one.
        retries: number of reconnections.
        resent: transfers sent again because the broker had not completed them: possible duplicates.
        discarded: unroutable messages, with ``onUnroutable=discard``.
        started: start of the first task, in seconds since 1970; 0 if there was none.
    """

    messages: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    retries: int = 0
    resent: int = 0
    discarded: int = 0
    started: float = 0.0

    def __add__(self, other: Statistics) -> Statistics:
        if not self.started or not other.started:
            started = max(self.started, other.started)
            seconds = self.seconds + other.seconds
        else:
            started = min(self.started, other.started)
            seconds = max(self.started + self.seconds, other.started + other.seconds) - started
        return Statistics(
            messages=self.messages + other.messages,
            nbytes=self.nbytes + other.nbytes,
            seconds=seconds,
            retries=self.retries + other.retries,
            resent=self.resent + other.resent,
            discarded=self.discarded + other.discarded,
            started=started,
        )

    def __str__(self) -> str:
        size = f"{self.nbytes / 1e6:,.1f} MB" if self.nbytes >= 1e6 else f"{self.nbytes / 1e3:,.1f} kB"
        text = f"{self.messages:,} messages, {size}, {self.seconds:,.1f} s, {self.retries:,} retries"
        if self.resent:
            text += f", {self.resent:,} sent again"
        if self.discarded:
            text += f", {self.discarded:,} discarded as unroutable"
        return text


def log_batch(statistics: Statistics, batch_id: int | None, note: str = "") -> None:
    """Log one line in the driver for a published batch."""
    _be_heard()
    _log.info("%s: %s%s", _name(batch_id), statistics, note)


def log_failure(batch_id: int | None, text: str, *values: object) -> None:
    """Log one line in the driver for a failed batch."""
    _be_heard()
    _log.warning("%s: failed; " + text, _name(batch_id), *values)


def _name(batch_id: int | None) -> str:
    return "batch write" if batch_id is None else f"batch {batch_id}"


def _be_heard() -> None:
    """Send log lines to the driver's stderr in a Python worker of Spark without logging configuration.

    Spark calls ``commit`` in a worker beside the driver. User processes configure their logging themselves.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is None or not spec.name.startswith("pyspark."):
        return
    if not _log.handlers and not _log.isEnabledFor(logging.INFO) and sys.__stderr__ is not None:
        handler = logging.StreamHandler(sys.__stderr__)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        _log.addHandler(handler)
        _log.setLevel(logging.INFO)
        _log.propagate = False  # the handler of last resort would print warnings twice
