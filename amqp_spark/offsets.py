"""Offsets of the source in Spark's checkpoint.

An offset is ``{"<queue>": {"epoch": ..., "position": n, "version": 1}, ...}`` with its keys in this order and queues
sorted, because Spark compares offsets as text. A position counts the messages received from the queue in one epoch;
the epoch identifies one run of the receiver (an integer; text in offsets of earlier versions). The
initial offset has no epoch: it is a constant, since a restarted query may ask for it again.

Version 2 has a key ``protocol`` in addition: that of the connection which received the last message before the
position. Offsets of exactly-once do not have it (their spool has it), nor do the initial offset and offsets of earlier
releases: they are of version 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import OffsetError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

VERSION = 1
"""Of offsets without a protocol."""
NEWEST_VERSION = 2
EXACTLY_ONCE_EPOCHS = 1 << 40
"""Epochs of exactly-once are below this number (seconds since 1970, plus restarts), others above."""

_MAX_POSITION = 2**63 - 1
_KEYS = {1: frozenset({"epoch", "position", "version"}), 2: frozenset({"epoch", "position", "protocol", "version"})}


@dataclass(frozen=True, slots=True)
class QueueOffset:
    """All messages before ``position`` of ``epoch``, a run of the receiver; no epoch means the start, position 0."""

    position: int
    epoch: str | int | None = None
    protocol: str | None = None
    """With which the messages were received, if that is known."""

    @property
    def is_owned(self) -> bool:
        """Whether exactly-once has planned the batch that ends here."""
        return isinstance(self.epoch, int) and self.epoch < EXACTLY_ONCE_EPOCHS


def is_other_protocol(found: str, protocol: str) -> bool:
    """Whether one is AMQP 0-10 and the other one is not: 0-9 and 0-9-1 have the same frames and guarantees."""
    return (found == "0-10") != (protocol == "0-10")


def initial_offsets(queues: Iterable[str]) -> dict[str, QueueOffset]:
    """Return the constant start of every query over these queues."""
    return {queue: QueueOffset(0) for queue in sorted(queues)}


def dump_offsets(offsets: Mapping[str, QueueOffset]) -> dict[str, dict[str, object]]:
    """Return the dictionary that Spark writes as JSON; queues and keys are in canonical order."""
    dumped: dict[str, dict[str, object]] = {}
    for queue in sorted(offsets):
        offset = offsets[queue]
        entry: dict[str, object] = {} if offset.epoch is None else {"epoch": offset.epoch}
        entry["position"] = offset.position
        if offset.protocol is not None:
            entry["protocol"] = offset.protocol
        dumped[queue] = entry | {"version": VERSION if offset.protocol is None else NEWEST_VERSION}
    return dumped


def parse_offsets(value: object, queues: Sequence[str]) -> dict[str, QueueOffset]:
    """Parse the output of :func:`dump_offsets`, which must contain exactly these queues.

    Raises:
        OffsetError: another format, a newer version, or other queues.
    """
    if not isinstance(value, dict):
        raise _invalid("the query", f"it is {_shown(value)}")
    parsed = {str(queue): _parse_entry(str(queue), entry) for queue, entry in value.items()}
    if set(parsed) != set(queues):
        raise OffsetError(SparkCondition.OFFSET_QUEUES_CHANGED(found=_list(parsed), wanted=_list(queues)))
    return {queue: parsed[queue] for queue in sorted(parsed)}


def _parse_entry(queue: str, entry: object) -> QueueOffset:
    where = f"queue {queue!r}"
    if isinstance(entry, dict) and "offset" in entry:
        raise OffsetError(SparkCondition.OFFSET_OF_LOG(queue=queue))
    if not isinstance(entry, dict) or "position" not in entry or "version" not in entry:
        raise _invalid(where, f"it is {_shown(entry)}")
    version, position, epoch = entry["version"], entry["position"], entry.get("epoch")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise _invalid(where, f"it has the version {_shown(version)}, and {NEWEST_VERSION} is known")
    if version > NEWEST_VERSION:
        raise OffsetError(SparkCondition.OFFSET_TOO_NEW(queue=queue, version=version, known=NEWEST_VERSION))
    unknown = sorted(set(entry) - _KEYS[version])
    if unknown:
        raise _invalid(where, f"version {version} has no keys {', '.join(map(str, unknown))}")
    if not isinstance(position, int) or isinstance(position, bool) or not 0 <= position <= _MAX_POSITION:
        raise _invalid(where, f"it has the position {_shown(position)}, which is no integer from 0 to 2^63-1")
    protocol = entry.get("protocol")
    if version == NEWEST_VERSION and (not isinstance(protocol, str) or protocol == ""):
        raise _invalid(where, f"it has the protocol {_shown(protocol)}, which is no text")
    if epoch is None:
        if version == NEWEST_VERSION:
            raise _invalid(where, f"it has no epoch, which version {version} always has")
        if position != 0 or "epoch" in entry:
            raise _invalid(where, f"it has position {position} and no epoch, as only the initial offset, 0, may have")
        return QueueOffset(0)
    if isinstance(epoch, bool) or not isinstance(epoch, (str, int)) or epoch == "":
        raise _invalid(where, f"it has the epoch {_shown(epoch)}, which is neither a text nor an integer")
    return QueueOffset(position, epoch, protocol)


def _invalid(where: str, reason: str) -> OffsetError:
    return OffsetError(SparkCondition.OFFSET_INVALID(where=where, reason=reason))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def _list(queues: Iterable[str]) -> str:
    return ", ".join(repr(queue) for queue in sorted(queues)) or "no queue"
