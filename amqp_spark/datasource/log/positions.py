"""Where a query begins and ends in a log, and whether the log is still the one of the checkpoint."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from amqp_spark.datasource.log.offsets import LogOffset
from amqp_spark.datasource.log.probe import EMPTY_SECONDS, FIRST, SURE_SECONDS
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import LogError, LogTooShort
from amqp_spark.options.log_positions import Edge, Since

if TYPE_CHECKING:
    from amqp_core.api import LogEntry
    from amqp_spark.datasource.log.probe import LogProbe
    from amqp_spark.options.log_positions import Position

_log = logging.getLogger(__name__)


def resolve(probe: LogProbe, log: str, wanted: Position, option: str) -> int:
    """The offset of a position that an option gives.

    Raises:
        LogError: it is before the beginning or behind the end.
        DeadlineExceeded: the broker sends no message, although the log has some.
    """
    if wanted is Edge.EARLIEST:
        return first_of(probe, log)
    if wanted is Edge.LATEST:
        return probe.end(log, certain=True)
    if isinstance(wanted, Since):
        return probe.since(log, wanted.seconds)
    assert isinstance(wanted, int)
    first, end = first_of(probe, log), probe.end(log, certain=True)
    if not first <= wanted <= end:
        text = SparkCondition.LOG_OFFSET_OUTSIDE(option=option, wanted=wanted, stream=log, first=first, end=end)
        raise LogError(text)
    return wanted


def first_of(probe: LogProbe, log: str, patience_s: float = EMPTY_SECONDS) -> int:
    """The offset of the first message; 0 if none comes within ``patience_s``, or later from a log that the broker does
    not count as empty."""
    found = probe.entry(log, FIRST, patience_s)
    if found is None and probe.is_filled(log):
        found = probe.entry(log, FIRST, SURE_SECONDS)
    return 0 if found is None else found.offset


def marked(probe: LogProbe, log: str, offset: int) -> LogOffset:
    """The offset for the checkpoint, with the digest of the message before it."""
    before = probe.entry(log, offset - 1) if offset else None
    if before is None or before.offset != offset - 1:
        return LogOffset(offset)
    return LogOffset(offset, before.digest.hex())


def is_same(probe: LogProbe, log: str, mark: LogOffset, *, may_lag: bool = True) -> bool:
    """Whether the log is the one that was read up to ``mark``: it has the message before it, if that is not removed.

    A log of equal messages cannot be told from another one of them. A log that ends before ``mark`` may be another one,
    or this node of a cluster lags behind; if it may not, it is another one.

    Raises:
        LogTooShort: the log ends before ``mark``; only if ``may_lag``.
    """
    if not mark.offset:
        return True
    before = _sought(probe, log, mark.offset - 1)
    if before is None:
        if may_lag:
            raise LogTooShort(log, mark.offset)
        return False
    return before.offset != mark.offset - 1 or agrees(before.digest, mark.digest)


def _sought(probe: LogProbe, log: str, offset: int) -> LogEntry | None:
    """The first message from an offset on, however late it comes; ``None`` if the log ends before it."""
    found = probe.entry(log, offset)
    if found is not None:
        return found
    if probe.end(log, certain=False):  # the broker answers: what it does not send now it does not have
        return probe.entry(log, offset)
    return probe.entry(log, offset, SURE_SECONDS) if probe.is_filled(log) else None


def agrees(found: bytes, noted: str | None) -> bool:
    """Whether a message may be the one whose digest was noted; an older version noted digests of another length."""
    return noted is None or len(noted) != 2 * len(found) or noted == found.hex()


def checked(probe: LogProbe, log: str, start: LogOffset, *, fail_on_data_loss: bool, may_lag: bool = True) -> LogOffset:
    """Where to go on: the start, if the log still has what follows it. ``may_lag``: as for :func:`is_same`.

    Raises:
        LogTooShort: the log ends before ``start``; only if ``may_lag``.
        LogError: messages are gone, or the log was made again; unless ``fail_on_data_loss`` is false.
    """
    same = is_same(probe, log, start, may_lag=may_lag)
    first = first_of(probe, log, SURE_SECONDS if start.offset else EMPTY_SECONDS)
    if not same:
        replaced(log, start.offset, fail=fail_on_data_loss)
        return LogOffset(first)
    if first > start.offset:
        lost(log, start.offset, first, fail=fail_on_data_loss)
        return LogOffset(first)
    return start


def replaced(log: str, offset: int, *, fail: bool) -> None:
    """Report that the log was deleted and made again: warn, or raise LogError."""
    text = SparkCondition.LOG_REPLACED(
        stream=log, offset=offset, finding="has another message", than=" than the one that was read", otherwise=""
    )
    if fail:
        raise LogError(text)
    _log.warning("%s", text)


def lost(log: str, begin: int, end: int, *, fail: bool) -> None:
    """Report that messages were removed before they were read: warn, or raise LogError."""
    text = SparkCondition.LOG_DATA_LOST(stream=log, begin=begin, end=end)
    if fail:
        raise LogError(text)
    _log.warning("%s", text)
