"""At-least-once: accept messages after Spark has committed their batch.

At-most-once has the same policy: there the broker forgets each message as it transfers it (accept-mode none), so that
nothing is left to accept.

Spark signals a commit to a source with its next call, and makes no further call when the query is stopped. The
checkpoint records it, too: ``commits/<batch>`` exists when the batch is committed, and ``offsets/<batch>`` has the end
offsets of its sources, one per line.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import posixpath
import random
import threading
import time
from typing import TYPE_CHECKING, Final

from pyarrow import ArrowException, fs

from amqp_spark.datasource.micro_batch_stream import key
from amqp_spark.datasource.partitions import Range
from amqp_spark.datasource.receiver import Receiver
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import OffsetError
from amqp_spark.offsets import QueueOffset, parse_offsets
from amqp_spark.options.kinds import shown_location

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqp_spark.connect import Connector
    from amqp_spark.datasource.receive_buffer import QueueBuffer
    from amqp_spark.options import SourceOptions

_log = logging.getLogger(__name__)

READ_SECONDS: Final = 5.0
"""Longest that a file system which does not answer delays the stop of a query."""


def new_epoch() -> int:
    """A number unique to this run: milliseconds since 1970 and 20 random bits, so that later runs have greater ones."""
    return time.time_ns() // 1_000_000 << 20 | random.SystemRandom().getrandbits(20)


class AtLeastOncePolicy:
    """See :class:`.DeliveryPolicy`. Planned batches are in the receive buffer, under positions of this run's epoch."""

    unconfirmed = "the broker did not confirm the last accept in time: it may send those messages again"

    def __init__(self, options: SourceOptions, connector: Connector) -> None:
        self.receiver = Receiver(options, connector)
        self.plan, self.sync = self.receiver.plan, self.receiver.sync
        self._options = options
        self._epoch = new_epoch()

    def expect(self, offsets: Mapping[str, QueueOffset]) -> None:
        """See :class:`.DeliveryPolicy`: offsets of exactly-once are refused, and the protocol must be the same."""
        _refuse_owned(offsets)
        self.receiver.expect({queue: each.protocol for queue, each in offsets.items() if each.protocol is not None})

    def committed(self, offsets: Mapping[str, QueueOffset]) -> None:
        """Accept everything up to these offsets."""
        self.receiver.accept(self._ours(offsets))

    def uncommitted(self, offsets: Mapping[str, QueueOffset]) -> dict[str, QueueOffset]:
        """See :class:`.DeliveryPolicy`."""
        ours = self._ours(offsets)
        return {
            queue: QueueOffset(position, self._epoch, self.receiver.protocol_before(queue, position))
            for queue, position in self.receiver.planned().items()
            if position > ours.get(queue, 0)
        }

    def most_messages(self, max_messages: int | None) -> int | None:
        """See :class:`.DeliveryPolicy`: only the option bounds a batch."""
        return max_messages

    def ranges(self, starts: Mapping[str, QueueOffset], ends: Mapping[str, QueueOffset]) -> list[Range]:
        """The ranges of a batch. A range of an earlier epoch is empty: the broker sends it again."""
        _refuse_owned(ends)
        held = self.receiver.held
        with held.changed:
            return [
                Range(queue, self._epoch, held.buffers[queue].begin_of(offset.position), offset.position)
                for queue, offset in ends.items()
                if offset.epoch == self._epoch and offset != starts[queue]
            ]

    def buffer_of(self, queue: str, epoch: int, _end: int) -> QueueBuffer:
        """See :class:`.DeliveryPolicy`."""
        if epoch != self._epoch or queue not in self.receiver.held.buffers:
            reason = f"its epoch is {epoch}, that of the reader {self._epoch}"
            raise OffsetError(SparkCondition.BATCH_NOT_HELD(queue=queue, reason=reason))
        return self.receiver.held.buffers[queue]

    def epoch_of(self, _queue: str) -> int:
        """The epoch of this run."""
        return self._epoch

    def metrics_of(self, _queue: str) -> dict[str, object]:
        """Nothing: there are no transactions, and there is no spool."""
        return {}

    def assure(self) -> None:
        """Ranges may always be served: if this session is gone, their messages come again in another batch."""

    def asked(self) -> None:
        """Nothing is planned between two calls."""

    def answered(self, *, batch: bool) -> None:
        """Nothing is planned between two calls."""

    def stop(self, uncommitted: set[str]) -> None:
        """Accept the last batch if the checkpoint records its commit: Spark makes no further call when it stops."""
        location = self._options.query_checkpoint
        for end in last_committed(location) if location is not None and uncommitted else ():
            # Epochs are unique per run: no other query's log contains an end that this run has offered.
            # Another process may receive other queues of the query.
            part = {queue: each for queue, each in end.items() if queue in self._options.queues}
            with contextlib.suppress(OffsetError):
                offsets = parse_offsets(part, self._options.queues)
                if key(offsets) in uncommitted:
                    self.committed(offsets)
        self.receiver.stop()

    def _ours(self, offsets: Mapping[str, QueueOffset]) -> dict[str, int]:
        """The positions of this epoch. Messages of an earlier epoch are on the broker, or were accepted."""
        _refuse_owned(offsets)
        planned = self.receiver.planned()
        ours = {queue: offset.position for queue, offset in offsets.items() if offset.epoch == self._epoch}
        for queue, position in ours.items():
            if position > planned[queue]:
                reason = f"Spark is at position {position} of this run, which has planned up to {planned[queue]}"
                raise OffsetError(SparkCondition.BATCH_NOT_HELD(queue=queue, reason=reason))
        return ours


def _refuse_owned(offsets: Mapping[str, QueueOffset]) -> None:
    """Refuse offsets of exactly-once: their messages are in the spool, and the broker does not send them again."""
    for queue, offset in offsets.items():
        if offset.is_owned:
            raise OffsetError(SparkCondition.CHECKPOINT_OF_EXACTLY_ONCE(queue=queue))


def last_committed(location: str) -> list[dict[str, object]]:
    """End offsets of the sources in the last committed batch; none, with a warning, if the log cannot be read."""
    found: list[dict[str, object]] = []
    problems = [f"no answer within {READ_SECONDS:.0f} s"]

    def read() -> None:
        try:
            found.extend(_read_commit_log(location))
            problems.clear()
        except (OSError, ArrowException, NotImplementedError) as error:
            number = getattr(error, "errno", None)
            problems[:] = [os.strerror(number) if number else type(error).__name__]
        except _UnknownVersionError as error:
            problems[:] = [str(error)]

    reading = threading.Thread(target=read, name="amqp-commit-log", daemon=True)
    reading.start()
    reading.join(READ_SECONDS)
    for problem in problems[:]:
        _log.warning(
            "the commit log in %s (option queryCheckpoint) cannot be read: %s. The broker sends the last batch again, "
            "although it may be committed; queryCheckpoint must be the checkpointLocation of the query",
            shown_location(location), problem,
        )  # fmt: skip
        return []
    return found


class _UnknownVersionError(Exception):
    """Spark writes its offset log in another way."""


def _read_commit_log(location: str) -> list[dict[str, object]]:
    local = location.startswith("/")
    files, root = (fs.LocalFileSystem(), location) if local else fs.FileSystem.from_uri(location)
    commits = files.get_file_info(fs.FileSelector(posixpath.join(root, "commits")))
    batches = {int(each.base_name): each for each in commits if each.is_file and each.base_name.isdecimal()}
    if not batches:
        return []
    newest = max(batches)
    path = posixpath.join(root, "offsets", str(newest))
    logged = files.get_file_info(path)
    written, committed = logged.mtime_ns, batches[newest].mtime_ns
    # A commit that is older than the offsets is left over from a partly deleted checkpoint.
    if not logged.is_file or written is None or committed is None or committed < written:
        return []
    with files.open_input_stream(path) as stream:
        lines = stream.read().decode(errors="replace").splitlines()
    version = lines[0] if lines else ""
    if version not in {"v1", "v2"}:
        raise _UnknownVersionError(
            f"version {version!r:.20} of the offset log is not known to this version of amqp_spark"
        )
    # Behind the version and metadata there is a line per source; of version 2 its name and a colon precede the offset.
    ends = (line.partition(":")[2] if version == "v2" else line for line in lines[2:])
    return [end for line in ends if isinstance(end := _parsed(line), dict)]


def _parsed(line: str) -> object:
    try:
        return json.loads(line)
    except ValueError:  # "-": this source has no offset
        return None
