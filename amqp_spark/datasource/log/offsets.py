"""Offsets of logs in Spark's checkpoint.

An offset is ``{"<stream>": {"digest": ..., "offset": n, "version": 1}, ...}`` with its keys in this order and streams
sorted, because Spark compares offsets as text. ``offset`` is the first message that is not read yet; ``digest`` is that
of the message before it, as it was read: a stream that was deleted and made again has another one there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import OffsetError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VERSION: Final = 1
_MAX_OFFSET: Final = 2**63 - 1
_KEYS: Final = frozenset({"digest", "offset", "version"})


@dataclass(frozen=True, slots=True)
class LogOffset:
    """All messages before ``offset`` are read. ``digest``: of the message before it, in hexadecimal; ``None`` at the
    start, or where that message is gone."""

    offset: int
    digest: str | None = None


def dump_log_offsets(offsets: Mapping[str, LogOffset]) -> dict[str, dict[str, object]]:
    """Return the dictionary that Spark writes as JSON; streams and keys are in canonical order."""
    dumped: dict[str, dict[str, object]] = {}
    for log in sorted(offsets):
        each = offsets[log]
        entry: dict[str, object] = {} if each.digest is None else {"digest": each.digest}
        dumped[log] = entry | {"offset": each.offset, "version": VERSION}
    return dumped


def parse_log_offsets(value: object, logs: Sequence[str]) -> dict[str, LogOffset]:
    """Parse the output of :func:`dump_log_offsets`. Streams may be absent: they join the query.

    Raises:
        OffsetError: another format (such as offsets of queues), a newer version, or a stream that is not read any more.
    """
    if not isinstance(value, dict):
        raise _invalid("the query", f"it is {str(value)[:120]!r}")
    parsed = {str(log): _parse_entry(str(log), entry) for log, entry in value.items()}
    if not set(parsed) <= set(logs):
        found, wanted = (", ".join(map(repr, sorted(each))) or "no queue" for each in (parsed, logs))
        raise OffsetError(SparkCondition.OFFSET_LOGS_CHANGED(found=found, wanted=wanted))
    return {log: parsed[log] for log in sorted(parsed)}


def _parse_entry(log: str, entry: object) -> LogOffset:
    where = f"stream {log!r}"
    if isinstance(entry, dict) and "position" in entry:
        raise OffsetError(SparkCondition.OFFSET_OF_QUEUE(queue=log))
    if not isinstance(entry, dict) or not {"offset", "version"} <= set(entry) <= _KEYS:
        raise _invalid(where, f"it is {str(entry)[:120]!r}")
    version, offset, digest = entry["version"], entry["offset"], entry.get("digest")
    if isinstance(version, int) and version > VERSION:
        raise OffsetError(SparkCondition.OFFSET_TOO_NEW(queue=log, version=version, known=VERSION))
    if version != VERSION:
        raise _invalid(where, f"it has the version {version!r}, and {VERSION} is known")
    if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= _MAX_OFFSET:
        raise _invalid(where, f"it has the offset {offset!r}, which is no integer from 0 to 2^63-1")
    if digest is not None and not isinstance(digest, str):
        raise _invalid(where, f"it has the digest {digest!r}, which is no text")
    return LogOffset(offset, digest)


def _invalid(where: str, reason: str) -> OffsetError:
    return OffsetError(SparkCondition.OFFSET_INVALID(where=where, reason=reason))
