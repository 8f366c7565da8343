"""Show one message of an owned batch, write it to a file, and set it aside: it yields no row from then on.

The spool file is not changed. The state message, swapped under the consumer's lock, lists the messages that are left
out: a batch is replayed without the message from that moment on, or as before. The message is stored in the user's
file first, so that a crash at any point loses nothing.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from amqp_core.errors import AmqpError, DecodeError
from amqp_core.printable import printable
from amqp_spark import crashpoints
from amqp_spark.arrow.decode import DEFAULT_CORRUPT_COLUMN, Chunk, ColumnPlan, schema_with
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import StateError
from amqp_spark.options import PERMISSIVE
from amqp_spark.spool.spool import Spool
from amqp_spark.state.queue import StateQueue, loaded, unreadable
from amqp_spark.state.records import ConsumerState
from amqp_spark.transactions.actions import in_use, locked
from amqp_spark.transactions.consumer_status import look_at_consumer
from amqp_spark.transactions.report import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from amqp_core.api import Client
    from amqp_spark.state.names import Names
    from amqp_spark.state.records import OwnedBatch
    from amqp_spark.transactions.consumer_status import ConsumerQueue

_PLACE: Final = re.compile(r"(?:([0-9]{1,20}):)?([0-9]{1,20})")
_SHOWN_CHARACTERS: Final = 200
_SHOWN_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class MessagePosition:
    """A position of an epoch; the epoch may be omitted if only one owned epoch has that position."""

    epoch: int | None
    position: int

    @classmethod
    def parse(cls, text: str) -> MessagePosition:
        """Parse ``[EPOCH:]POSITION``; the text of ValueError describes the format."""
        match = _PLACE.fullmatch(text)
        if match is None:
            raise ValueError("EPOCH:POSITION, as the error of the query has it, or POSITION")
        return cls(None if match[1] is None else int(match[1]), int(match[2]))

    def is_in(self, batch: OwnedBatch) -> bool:
        """Whether a batch contains this position."""
        return self.epoch in {None, batch.epoch} and batch.begin <= self.position < batch.end


@dataclass(frozen=True, slots=True)
class OwnedMessage:
    """A message that is in the spool: its position, its frames, and the protocol that they are of; ``state`` is as it
    was when the message was found."""

    names: Names
    state: ConsumerState
    batch: OwnedBatch
    position: int
    transfer: bytes
    protocol: str

    @property
    def is_set_aside(self) -> bool:
        """Whether the message was already set aside, so that it yields no row."""
        return self.position in self.batch.skipped_positions

    @property
    def text(self) -> str:
        """Identify the message by position, epoch and queue."""
        return f"position {self.position} of epoch {self.batch.epoch}, queue {quoted(self.state.queue)}"

    def columns(self) -> dict[str, Any]:
        """Its values by source column; columns without a value are left out."""
        plan = ColumnPlan.build(schema_with(DEFAULT_CORRUPT_COLUMN), mode=PERMISSIVE, timestamp_unit="auto")
        chunk = Chunk.of(self.transfer, [len(self.transfer)], protocol=self.protocol)
        try:
            (batch,) = plan.batches([chunk], queue=self.state.queue, first_position=self.position)
        except DecodeError as error:
            return {DEFAULT_CORRUPT_COLUMN: str(error)}
        (row,) = batch.to_pylist()
        found = {name: value for name, value in row.items() if value is not None}
        if "application_headers" in found:
            found["application_headers"] = dict(found["application_headers"])  # Arrow has pairs
        return found


def find(
    client: Client, consumer_id: str, queue: str | None, at: MessagePosition, *, spool: str | None
) -> OwnedMessage:
    """Find the message at a position; ``queue`` may be None if the consumer has only one. ``spool``: where the spool is
    as seen from here; ``None``: as the state says. StateError: no owned batch contains it, or the consumer is in
    use."""
    each = _of_queue(look_at_consumer(client, consumer_id, spool=spool), consumer_id, queue)
    state = each.found.state
    if each.found.held:
        raise in_use(f"consumer {quoted(consumer_id)}")
    if state is None:
        raise unreadable(each.names, printable(each.found.problem))
    found = [batch for batch in state.owned if at.is_in(batch)]
    if len(found) != 1:
        owned = ", ".join(f"{batch.epoch}:{batch.begin} to {batch.epoch}:{batch.end - 1}" for batch in state.owned)
        raise StateError(
            SparkCondition.POSITION_NOT_OWNED(
                found="More than one owned batch has" if found else "No owned batch has",
                position=at.position,
                queue=quoted(state.queue),
                owned=owned or "none",
            )
        )
    (batch,) = found
    files = Spool(each.location or state.spool, consumer_id=consumer_id, queue=state.queue)
    files.look()
    spooled = files.read(batch.file, batch.checksum)
    index = at.position - batch.begin
    begin = spooled.ends[index - 1] if index else 0
    transfer = bytes(spooled.frames[begin : spooled.ends[index]])
    return OwnedMessage(each.names, state, batch, at.position, transfer, files.protocol)


def _of_queue(queues: Sequence[ConsumerQueue], consumer_id: str, queue: str | None) -> ConsumerQueue:
    if not queues:
        raise StateError(SparkCondition.STATE_NOT_FOUND(owner=f"consumer {quoted(consumer_id)}"))
    if queue is None and len(queues) == 1:
        return queues[0]
    named = {each.found.state.queue: each for each in queues if each.found.state is not None}
    if queue is not None and queue in named:
        return named[queue]
    if any(each.found.held for each in queues):
        raise in_use(f"consumer {quoted(consumer_id)}")
    problem = "has several queues" if queue is None else f"has no queue {quoted(queue)}"
    owner, names = f"consumer {quoted(consumer_id)}", ", ".join(map(quoted, sorted(named)))
    raise StateError(SparkCondition.CONSUMER_QUEUE_NEEDED(owner=owner, problem=problem, queues=names))


def lines(message: OwnedMessage) -> list[str]:
    """Format a message for a terminal."""
    aside = ", set aside already" if message.is_set_aside else ""
    shown = [f"{message.text}{aside}, in {message.batch.file}"]
    for name, value in message.columns().items():
        if name not in {"queue", "position"}:
            shown.append(f"  {name}: {_summary(value)}")
    return shown


def _summary(value: object) -> str:
    if not isinstance(value, bytes):
        text = printable(str(value))
        return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
    more = "…" if len(value) > _SHOWN_BYTES else ""
    return f"{len(value):,} bytes: {value[:_SHOWN_BYTES]!r}{more}"


def write(message: OwnedMessage, file: Path) -> None:
    """Write a message to a new file (JSON; bytes in base64). When this returns, the file is on the disk. StateError:
    the file exists already, or it cannot be written."""
    content = {
        "consumer_id": message.state.consumer_id,
        "queue": message.state.queue,
        "epoch": message.batch.epoch,
        "position": message.position,
        "columns": message.columns(),
        "protocol": message.protocol,
        "transfer": message.transfer,
    }
    text = json.dumps(content, indent=1, default=_plain, ensure_ascii=False)
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            try:
                out.write(f"{text}\n".encode(errors="backslashreplace"))
                out.flush()
                os.fsync(out.fileno())
            except BaseException:
                file.unlink(missing_ok=True)
                raise
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        crashpoints.reached(crashpoints.EXPORTED)
    except FileExistsError:
        raise StateError(SparkCondition.FILE_NOT_WRITABLE(path=str(file), reason="it exists already")) from None
    except OSError as error:
        why = error.strerror or str(error)
        raise StateError(SparkCondition.FILE_NOT_WRITABLE(path=str(file), reason=why)) from error


def _plain(value: object) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime):
        return value.isoformat()
    raise TypeError(type(value).__name__)


def skip(connect: Callable[[], Client], message: OwnedMessage) -> None:
    """Set a message aside, so that it yields no row any more. It must have been written to a file. StateError: the
    consumer is in use, or its state has changed. AmqpError: the outcome is unknown if its text says so."""
    whose = f"consumer {quoted(message.state.consumer_id)}"
    batch = message.batch
    index = message.position - batch.begin
    after = replace(batch, skipped=tuple(sorted({*batch.skipped, index})))
    with locked(connect, [message.names.lock], whose) as client:
        queue = StateQueue(client, message.names)
        body = queue.take()
        if body is None or loaded(message.names, ConsumerState.load, body) != message.state:
            raise StateError(SparkCondition.STATE_CHANGED(subject=f"The state of {whose}"))
        owned = tuple(after if each == batch else each for each in message.state.owned)
        try:
            queue.swap(
                replace(message.state, owned=owned).dump(), sent=lambda: crashpoints.reached(crashpoints.ASIDE_SENT)
            )
        except StateError:  # nothing was changed
            raise
        except AmqpError as error:
            error.add_note("whether the message was set aside is unknown: --export shows it")
            raise
    crashpoints.reached(crashpoints.ASIDE_COMMITTED)
