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
        if found is None:  # it may have nothing but offsets of consumers, so this is no error
            _log.warning(
                "stream %r: the broker counts messages and sends none. They are stored offsets of consumers, or "
                "messages in compressed sub-entries, which cannot be read over AMQP 0-9-1.",
                log,
            )
    return 0 if found is None else found.offset


def marked(probe: LogProbe, log: str, offset: int) -> LogOffset:
    """The offset for the checkpoint, with the digest of the message before it."""
    before = probe.entry(log, offset - 1) if offset else None
    if before is None or before.offset != offset - 1:
        return LogOffset(offset)
    return LogOffset(offset, before.digest.hex())


def difference(probe: LogProbe, log: str, mark: LogOffset) -> LogError | None:
    """What shows that the log is not the one that was read up to ``mark``: it has another message before it. ``None``
    if it has the same one, or that is removed.

    A log of equal messages cannot be told from another one of them.

    Raises:
        LogTooShort: the log ends before ``mark``: it is another one, or this node of a cluster lags behind.
    """
    if not mark.offset:
        return None
    before = _sought(probe, log, mark.offset - 1)
    if before is None:
        raise LogTooShort(log, mark.offset)
    if before.offset == mark.offset - 1:
        is_same = agrees(before.digest, mark.digest)
    else:  # removed, unless there are messages before it: the first ones are removed first
        first = None if mark.digest is None else probe.entry(log, FIRST)
        is_same = first is None or first.offset >= mark.offset
    if is_same:
        return None
    return LogError(
        SparkCondition.LOG_REPLACED(
            stream=log,
            offset=mark.offset,
            finding="has another message",
            than=" than the one that was read",
            otherwise="",
        )
    )


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


def start_or_first(probe: LogProbe, log: str, start: LogOffset, *, fail: bool) -> LogOffset:
    """Where to go on in a log that is still the same: at the start, or where the log begins now.

    Raises:
        LogError: messages were removed before they were read; only if ``fail``.
    """
    first = first_of(probe, log, SURE_SECONDS if start.offset else EMPTY_SECONDS)
    if first <= start.offset:
        return start
    report(lost(log, start.offset, first), fail=fail)
    return LogOffset(first)


def lost(log: str, begin: int, end: int) -> LogError:
    """Error: messages were removed before they were read."""
    return LogError(SparkCondition.LOG_DATA_LOST(stream=log, begin=begin, end=end))


def report(loss: LogError, *, fail: bool) -> None:
    """Raise the error, or warn of it: ``fail`` is the option failOnDataLoss."""
    if fail:
        raise loss
    _log.warning("%s", loss)
