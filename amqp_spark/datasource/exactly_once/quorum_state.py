"""Exactly-once from a quorum queue of RabbitMQ: the state in the spool, and acknowledgements that may be in doubt.

There is no transaction of acknowledgements and state. A batch is owned as soon as the state in the spool says so; then
it is acknowledged (basic.ack, multiple), and a barrier follows: basic.get of the same queue on the same channel, which
the log of the queue has behind the acknowledgement. Until it returns, the acknowledgement is *in doubt*: if connection,
client or broker die, the messages come again, or not. :mod:`.recognition` finds those that come again; they are dropped
and acknowledged again. The state records the doubt before the acknowledgement is sent, and its end with the next
change: a doubt that has ended and is still recorded finds nothing.

A doubt ends

- with the barrier behind the acknowledgement, also behind the second one;
- not with a barrier that returns late: RabbitMQ 4.3 ignores, without a word, the acknowledgement of messages that it
  has taken back after consumer_timeout. Then the session is replaced, and the doubt remains;
- on a new session, when all that an earlier session was sent has come, and some of the batch has not. This is so when
  (1) the queue says, after our own consumer is there, that there is no other one: the consumer of the earlier session
  is gone, and all that it held is returned. The queue delivers what is returned before anything else. So (2) when a
  barrier after that finds the queue empty, or with a message that was never delivered, everything that was returned
  went to our consumer; and (3) a sync after that brings it here;
- on a new session, when all of the batch has come, and no more can come, since the session has as many messages as it
  may have: the one before held more, or a barrier has returned a message.

If the queue has taken messages back from a session that lives (:mod:`.return_watch`), all batches that this session has
acknowledged are in doubt again, and the session is replaced.

While messages are withheld, no other batch is acknowledged: so every batch is acknowledged by one command, for all that
the session has received up to some message, which the queue applies as a whole. If messages are kept after all, the
session is replaced, so that they come in their order.

The lock is on the connection that acknowledges: :mod:`.state_locks`.
"""

from __future__ import annotations

import logging
import secrets
import time
from array import array
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from amqp_core.blocks import Block
from amqp_core.error_conditions import reason
from amqp_spark import crashpoints
from amqp_spark.arrow.decode import EqualMessages
from amqp_spark.datasource.exactly_once.anchor import Anchor
from amqp_spark.datasource.exactly_once.recognition import Recognition, Verdict
from amqp_spark.datasource.exactly_once.return_watch import HEAD, ReturnWatch
from amqp_spark.datasource.exactly_once.sole_consumer import PATIENCE_SECONDS, SoleConsumer, dying_seconds
from amqp_spark.datasource.exactly_once.state_locks import StateLocks
from amqp_spark.datasource.exactly_once.waiting import meanwhile
from amqp_spark.datasource.receive_buffer import add_range
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import ConsumerStalled, StateError
from amqp_spark.spool.spool import BatchLostError
from amqp_spark.spool.spooled_record import SpooledRecord
from amqp_spark.spool.state_files import StateFiles, StateOutdatedError
from amqp_spark.state.records import ConsumerState, RecordUnreadable
from amqp_spark.timeouts import accept_timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    from amqp_core.api import Block as AnyBlock
    from amqp_core.api import Client, Identity
    from amqp_spark.datasource.exactly_once.recovery import Consumer
    from amqp_spark.datasource.exactly_once.return_watch import Head
    from amqp_spark.spool.spool import Spool
    from amqp_spark.state.names import Names
    from amqp_spark.state.records import OwnedBatch

_log = logging.getLogger(__name__)

SPARE_UNSETTLED: Final = 1000
"""So many messages may be unsettled besides those that are withheld, if they have room."""
MOST_UNSETTLED: Final = 65_535
"""The largest limit of unsettled messages (0-9-1 section basic.qos)."""
LOOK_SECONDS: Final = 0.05
LONGEST_LOOK_SECONDS: Final = 1.0
"""First and longest pause between two looks whether all that was returned has come."""
MOST_IN_VAIN: Final = 5
VAIN_LOOK_SECONDS: Final = 30.0
"""The pause after so many looks that found a message which was returned, and does not come. Each look returns it once
more, and a queue drops a message that was returned too often: RabbitMQ 4 after 20 times."""
TAKEN_BACK_AFTER: Final = 0.75
"""Part of consumer_timeout for which a message is surely still ours: the broker counts from when it has sent it."""
FRESH_LOOKS: Final = 5000
"""Most messages of a session that are compared with those in doubt although they are not marked as redelivered."""
OTHER_BATCHES: Final = 2
"""So many other batches are compared with those in doubt."""
LOOKING_PART: Final = 0.02
"""Part of the time that the search for equal messages may take."""
YOUNG_SECONDS: Final = 3.0
"""Age of a queue before anything rests on it: RabbitMQ 4 may lose what a new quorum queue has confirmed."""


class _Acknowledged(NamedTuple):
    """What this session has acknowledged: the first messages, and whether they had come again."""

    head: Head
    again: bool


class QuorumState:
    """The state of one queue in the spool; see the module. It has the calls of :class:`.StateQueue`, and lives as long
    as the process: :meth:`begin` gives it the next session. On the thread of the consumer."""

    def __init__(
        self, consumer: Consumer, spool: Spool, clock: Callable[[], float], waiting: Callable[[int], AnyBlock | None]
    ) -> None:
        self.body: bytes | None = None
        self._consumer = consumer
        self._names = consumer.names
        self._spool = spool
        self._clock = clock
        self._files = StateFiles(spool, self._names.state)
        self._token = secrets.token_hex(8)
        self._epoch = self._serial = -1
        self._read = False
        self._has_begun = False
        """Whether this process has raised the epoch."""
        self._locks = StateLocks(self._names)
        self._sole = SoleConsumer(consumer, self._locks)
        self._doubts: dict[str, bool] = {}
        """Files of batches in doubt, oldest first; each with whether the batch is acknowledged again."""
        self._recorded: dict[str, bool] = {}
        """The same as the newest file of the state has it."""
        self._recognition = Recognition()
        self._watch = ReturnWatch()
        self._waiting = waiting
        """Gives so many of the first messages of this session that are not owned."""
        self._acknowledged: dict[str, _Acknowledged] = {}
        """Files of batches that this session has acknowledged, oldest first."""
        self._withheld: Head = ()
        """The first messages that were withheld in this session."""
        self._acknowledged_again: Verdict | None = None
        """Carried out; its doubts end if nothing that has come before the barrier shows that this was in vain."""
        self._anchor = Anchor(consumer)
        self._dropped = self._kept = 0
        """Messages that were dropped for good, and kept, since :meth:`take_again`."""
        self.recognised = self.alike = 0
        self.oldest = float("-inf")
        """No message that waits to be owned was received before this time; for the next :meth:`swap`."""
        self._client: Client | None = None
        self._due = self._past = self._last_was_redelivered = False
        self._are_taken_back = False
        """Whether messages that were dropped unread show that the queue has taken some back from this session."""
        self._next_look = self._begun_at = self._last_arrival = 0.0
        self._pause = LOOK_SECONDS
        self._fresh_looks = 0
        self._in_vain = 0
        """Number of looks in a row that found a returned message, while none has come."""
        self._equal: EqualMessages | None = EqualMessages()
        """Until it has found some."""
        self._next_equal, self._withheld_since = float("-inf"), float("inf")
        """When to look for equal ones again; and when the first of the messages arrived that are withheld now: a lost
        session may have held them till then."""

    def begin(self, client: Client) -> None:
        """Use a new session."""
        self._client = client

    # --- the calls of StateQueue

    def lock(self) -> None:
        """See :meth:`.StateQueue.lock`: all locks for a process that begins, any one later."""
        self._locks.take(self._session, begins=not self._has_begun)

    def take(self) -> bytes | None:
        """Read the state; ``None`` if there never was one.

        Raises:
            StateError: another process has written it after this one; or it belongs to another broker.
        """
        found = meanwhile(self._session, self._files.latest)
        if found is None:
            return None
        record = self._loaded(found.content)
        if self._has_begun and record.token != self._token:  # the states of two processes may be equal
            raise self._replaced(found.epoch)
        self._anchor.check(self._session, record.anchor, adopt=self._consumer.adopt and not self._has_begun)
        self._epoch, self._serial, self.body = found.epoch, found.serial, record.state
        if not self._read:
            self._doubts, self._recorded = dict(record.doubts), dict(record.doubts)
            self.recognised, self.alike = record.recognised, record.alike
            self._read = True
        return self.body

    def has(self, names: Names) -> bool:
        """Whether the spool has the state of another queue of the consumer."""
        return meanwhile(self._session, StateFiles(self._spool, names.state).latest) is not None

    def check_newest(self) -> None:
        """See :meth:`.StateStore.check_newest`: a process whose lock no longer counts may have written another one."""
        before = self._files.at
        found = meanwhile(self._session, self._files.latest)
        if found is None or self._files.at == before:
            return
        if self._has_begun:
            raise self._replaced(found.epoch)
        self._read = False  # with the doubts
        raise ConsumerStalled(SparkCondition.CONSUMER_STATE_CHANGED(consumer=self._shown))

    def create(self, body: bytes) -> None:
        """Write the first state."""
        self._read = True
        self._write(body, {})

    def swap(
        self, body: bytes, *, accept: Sequence[tuple[int, int]] = (), sent: Callable[[], None] | None = None
    ) -> None:
        """Replace the state, then acknowledge transfers of this session; the latest owned batch has them.

        ConsumerStalled: the broker may have taken them back before: they are in doubt; the session must be replaced.
        After an error of the connection the state is what :meth:`take` returns, and the acknowledgement is in doubt.
        """
        owned = [batch.file for batch in ConsumerState.load(body).owned]
        doubts = {file: returning for file, returning in self._doubts.items() if file in owned}
        if accept:
            doubts[owned[-1]] = False
        self._doubts = doubts  # before the file is written: it may be there although its writing fails
        self._acknowledged = {file: each for file, each in self._acknowledged.items() if file in owned}
        if accept:
            self._acknowledged[owned[-1]] = _Acknowledged(self._head(), again=False)
        self._write(body, doubts)
        for file in set(self._recognition.files) - set(doubts):
            self._recognition.remove(file)
        if accept:
            crashpoints.reached(crashpoints.SPOOLED_UNACKED)
            count = sum(last - first + 1 for first, last in accept)
            self._session.accept(accept, silence_timeout_s=accept_timeout(count))
        if sent is not None:
            sent()
        if accept:
            crashpoints.reached(crashpoints.ACKED_WITHOUT_BARRIER)
            self._pass_barrier()
            self._check_ours(self.oldest)
            crashpoints.reached(crashpoints.BARRIER_UNNOTED)
            del self._doubts[owned[-1]]

    @property
    def dying_seconds(self) -> float:
        """How long RabbitMQ may take a lost session for a live one, on a node that lives."""
        return dying_seconds(self._consumer)

    @property
    def looks_for_equal(self) -> bool:
        """Whether no equal messages without a message id were found yet."""
        return self._equal is not None

    def look_for_equal(self, parts: Sequence[memoryview], ends: npt.NDArray[np.uint64]) -> None:
        """Warn once of equal messages without a message id. On the thread that plans batches, with each owned one; a
        batch is passed over if looking would take more than a small part of the time."""
        begun = time.monotonic()
        if self._equal is None or begun < self._next_equal:
            return
        found = self._equal.are_in(parts, ends)
        ended = time.monotonic()
        self._next_equal = ended + (ended - begun) / LOOKING_PART
        if found:
            self._equal = None
            _log.warning(
                "%s: there are equal messages without a message_id: if one of them comes again after a crash, it "
                "cannot be recognised, and is read twice; let the publishers set a unique message_id",
                self._shown,
            )  # fmt: skip

    # --- doubts

    def note(self) -> None:
        """Record the doubts that have ended, if the state does not say so yet."""
        if self.body is not None and self._recorded != self._doubts:
            self._write(self.body, self._doubts)

    @property
    def in_doubt(self) -> bool:
        """Whether the acknowledgement of a batch may have been lost with an earlier session."""
        return bool(self._recognition.files)

    @property
    def withheld(self) -> int:
        """Number of messages that are withheld: while there are any, nothing else may be acknowledged."""
        return self._recognition.withheld

    def is_in_doubt(self, file: str) -> bool:
        """Whether a batch must stay owned, since its messages may come again."""
        return file in self._doubts

    def most_unsettled(self, most: int | None) -> int | None:
        """The limit of unsettled messages for a session that may have to withhold all messages in doubt."""
        if most is None or not self.in_doubt:
            return most
        return max(most, min(MOST_UNSETTLED, self._recognition.count + min(SPARE_UNSETTLED, most)))

    def enter(self) -> None:
        """Prepare to recognise messages, once the state was taken on a new session."""
        assert self.body is not None
        self._has_begun = True
        self._locks.release_spares(self._session)
        batches = {batch.file: batch for batch in ConsumerState.load(self.body).owned}
        self._doubts = {file: returning for file, returning in self._doubts.items() if file in batches}
        for file in [file for file in self._doubts if file not in self._recognition.files]:
            batch = batches[file]
            try:
                found = meanwhile(self._session, partial(self._identities, batch.file, batch.checksum))
            except BatchLostError as error:  # adoptState=true gives it up
                _log.warning("%s: it is not known which messages of file %r come again: %s", self._shown, file, error)
                del self._doubts[file]
                continue
            self._recognition.add(file, found, returning=self._doubts[file])
        self._look_at_owned(batches)
        self._recognition.restart()
        self._due = self._past = self._last_was_redelivered = self._are_taken_back = False
        self._watch.restart()
        self._acknowledged, self._withheld, self._acknowledged_again = {}, (), None
        self._begun_at = self._last_arrival = self._clock()
        self._sole.restart(self._begun_at)
        self._withheld_since = float("inf")
        self._next_look, self._pause, self._fresh_looks = self._begun_at, LOOK_SECONDS, 0
        self._in_vain = 0
        if self._doubts:
            _log.info(
                "%s: whether %d message(s) are acknowledged is in doubt; those that come again are recognised",
                self._shown, self._recognition.count,
            )  # fmt: skip

    def sift(self, blocks: Sequence[AnyBlock]) -> list[AnyBlock]:
        """Return blocks without the messages that may be in doubt.

        Raises:
            ConsumerStalled: the queue has taken messages back: the session must be replaced.
        """
        kept: list[AnyBlock] = []
        for block in blocks:
            flagged = self._session.redelivered(block)
            found = self._session.identities(block, flagged)
            if found and self._watch.shows(found, self._heads()):
                self._doubt_again()
            if not self.in_doubt:
                kept.append(block)
                continue
            marked = zip(flagged, found, strict=True)
            taken = [pair for pair in marked if self._recognition.withholds(pair[1], block.first_id + pair[0])]
            withheld = [index for index, _ in taken]
            if withheld and self._withheld_since == float("inf"):
                self._withheld_since = self._clock()
            self._withheld = (*self._withheld, *(each for _, each in taken[:HEAD]))[:HEAD]
            self._look_at_fresh(block, flagged)
            self._last_was_redelivered = bool(flagged) and flagged[-1] == len(block.ends) - 1
            kept += without(block, withheld) if withheld else [block]
        self._last_arrival = self._clock()
        if self._in_vain:
            self._in_vain, self._next_look = 0, self._last_arrival
        return kept

    def overlooked(self, block: AnyBlock) -> None:
        """Look at what came before an answer and is dropped, since there was no room: it is not sifted."""
        found = self._session.identities(block, self._session.redelivered(block))
        if found and self._watch.shows(found, self._heads()):
            self._are_taken_back = True
            # At once: the session may end for another reason, such as the lack of room, before :meth:`resolve`.
            self._doubts = self._doubted()

    def take_again(self) -> tuple[int, int]:
        """Numbers of messages that were dropped for good since the last call, and of those that were kept."""
        again, self._dropped, self._kept = (self._dropped, self._kept), 0, 0
        return again

    def resolve(self) -> None:
        """Decide on messages in doubt as far as possible.

        Raises:
            ConsumerStalled: some are kept, or the queue has taken messages back: the session must be replaced.
        """
        if self._are_taken_back:
            self._doubt_again()
        self._end_again()
        if not self.in_doubt:
            return
        self._past = self._past or self._due
        if not self.withheld:
            self._withheld_since = float("inf")
        patient = self._clock() < self._withheld_since + PATIENCE_SECONDS
        crowded = self.withheld > 0 and (not patient or self.withheld >= MOST_UNSETTLED)
        # After so many looks a returned message has not come to the only consumer, so its session is full.
        verdict = self._recognition.decide(past=self._past or crowded, full=self._in_vain >= MOST_IN_VAIN)
        if verdict.ended:
            self._carry_out(verdict)
        else:
            self._look()

    # --- inside

    @property
    def _session(self) -> Client:
        assert self._client is not None
        return self._client

    @property
    def _shown(self) -> str:
        return self._consumer.shown

    def _write(self, body: bytes, doubts: dict[str, bool]) -> None:
        epoch = ConsumerState.load(body).epoch
        begins = epoch != self._epoch
        if begins:
            self._anchor.declare(self._session)
        record = SpooledRecord(
            state=body,
            doubts=doubts,
            recognised=self.recognised,
            alike=self.alike,
            token=self._token,
            anchor=self._anchor.name,
        )
        content = record.dump()
        if begins:
            # The answer proves that the lock was held when the state was read, however long this process was suspended.
            self._session.sync()
            try:
                begun = meanwhile(self._session, lambda: self._files.begin(epoch, content))
            except StateOutdatedError:
                self.check_newest()
                raise
            if not begun:
                raise self._replaced(epoch)
            self._epoch, self._serial = epoch, 0
        # Also behind the first file: the second one decides where a file cannot be created exclusively.
        latest = meanwhile(self._session, lambda: self._files.write(epoch, self._serial + 1, content))
        if latest > epoch:
            raise self._replaced(latest)
        self._serial += 1
        self.body, self._recorded = body, dict(doubts)

    def _loaded(self, content: bytes) -> SpooledRecord:
        """Parse a file, and the state in it."""
        try:
            record = SpooledRecord.load(content)
            ConsumerState.load(record.state)
        except RecordUnreadable as error:
            names, spool = self._names, self._spool.location.shown
            raise StateError(
                SparkCondition.STATE_FILE_UNREADABLE(
                    state=names.state, owner=names.owner, spool=spool, reason=reason(error)
                )
            ) from error
        return record

    def _replaced(self, epoch: int) -> StateError:
        return StateError(SparkCondition.CONSUMER_REPLACED(consumer=self._shown, found=epoch, ours=self._epoch))

    def _identities(self, file: str, checksum: str) -> list[Identity | None]:
        spooled = self._spool.read(file, checksum)
        ends = array("I", spooled.ends)
        return self._session.identities(Block(bytes(spooled.frames), ends, 1))

    def _look(self) -> None:
        """Look whether everything that was returned has come; see the module."""
        now = self._clock()
        if now < self._next_look or (self._last_was_redelivered and now < self._last_arrival + self._pause):
            return
        self._next_look = now + self._pause
        self._pause = min(LONGEST_LOOK_SECONDS, 2 * self._pause)
        if not self._sole.is_known(self._session, now):
            return
        ready = self._session.pass_barrier(self._consumer.queue)
        if ready is not None and ready.redelivered:
            self._in_vain += 1
            if self._in_vain >= MOST_IN_VAIN:
                self._next_look = now + VAIN_LOOK_SECONDS
            return
        self._session.sync()
        self._due = True  # what has come with the answer is sifted before the next decision

    def _pass_barrier(self) -> None:
        """Wait until the queue has logged the acknowledgement of a batch; see the module.

        Raises:
            ConsumerStalled: the queue has taken messages back, so that it may have ignored the acknowledgement.
        """
        ready = self._session.pass_barrier(self._consumer.queue)
        met = ready is not None and ready.redelivered and self._watch.shows([ready.identity], self._heads())
        if met or self._are_taken_back:
            self._doubt_again()

    def _head(self) -> Head:
        """The first messages that are not owned, which are the first of the next batch."""
        block = self._waiting(HEAD)
        return () if block is None else self._session.identities(block)

    def _heads(self) -> list[Head]:
        return [*(each.head for each in self._acknowledged.values()), self._withheld, self._head()]

    def _doubted(self) -> dict[str, bool]:
        """The files in doubt, and those of all batches that this session has acknowledged."""
        return {file: each.again for file, each in self._acknowledged.items()} | self._doubts

    def _doubt_again(self) -> NoReturn:
        """Doubt all that this session has acknowledged, since messages were taken back from it, and end it."""
        assert self.body is not None
        owned = [batch.file for batch in ConsumerState.load(self.body).owned]
        known = self._doubted()
        self._doubts = {file: known[file] for file in owned if file in known}
        self.note()
        raise ConsumerStalled(SparkCondition.MESSAGES_TAKEN_BACK(queue=self._consumer.queue))

    def _check_ours(self, oldest: float) -> None:
        """Check that no acknowledged message, received at ``oldest`` or later, was taken back before."""
        age = self._clock() - oldest
        if age > TAKEN_BACK_AFTER * self._consumer.consumer_timeout:
            queue, seconds = self._consumer.queue, f"{age:.0f}"
            raise ConsumerStalled(SparkCondition.MESSAGES_HELD_LONG(queue=queue, seconds=seconds))

    def _carry_out(self, verdict: Verdict) -> None:
        self._end(file for file in verdict.ended if file not in verdict.again)
        if verdict.drop:
            assert self.body is not None
            self._recognition.mark_returning(verdict.again)
            self._doubts |= dict.fromkeys(verdict.again, True)
            self.recognised += len(verdict.drop)
            self._write(self.body, self._doubts)
            self._acknowledged |= dict.fromkeys(verdict.again, _Acknowledged(self._withheld, again=True))
            crashpoints.reached(crashpoints.RECOGNISED_UNACKED)
            self._session.accept(_ranges(verdict.drop), silence_timeout_s=accept_timeout(len(verdict.drop)))
            crashpoints.reached(crashpoints.REACKED_WITHOUT_BARRIER)
            self._pass_barrier()
            self._check_ours(self._begun_at)  # withheld messages are as old as the session, at most
            _log.info("%s: %d accepted message(s) came again, and are dropped", self._shown, len(verdict.drop))
            self._acknowledged_again = verdict
        if verdict.keep:
            self._end_again()  # else the next session would keep the same messages, and be replaced again
            self.alike += len(verdict.keep)
            self._kept += len(verdict.keep)
            queue = self._consumer.queue
            raise ConsumerStalled(SparkCondition.MESSAGES_ALIKE(queue=queue, count=len(verdict.keep)))

    def _end_again(self) -> None:
        """End the doubt of batches that are acknowledged again."""
        verdict, self._acknowledged_again = self._acknowledged_again, None
        if verdict is not None:
            self._dropped += len(verdict.drop)
            self._end(verdict.again)

    def _end(self, files: Iterable[str]) -> None:
        """End the doubt of batches."""
        for file in files:
            self._recognition.remove(file)
            del self._doubts[file]

    def _look_at_owned(self, batches: Mapping[str, OwnedBatch]) -> None:
        """Learn from the latest other batches whether messages in doubt have equals."""
        others = [batch for file, batch in batches.items() if file not in self._doubts]
        if not self.in_doubt or not self._recognition.has_unnamed:
            return
        for batch in others[-OTHER_BATCHES:]:
            try:
                found = meanwhile(self._session, partial(self._identities, batch.file, batch.checksum))
            except BatchLostError:
                continue
            for each in found:
                self._recognition.arrived(each)

    def _look_at_fresh(self, block: AnyBlock, flagged: Sequence[int]) -> None:
        """Learn from messages that were not delivered before whether messages in doubt have equals."""
        if not self._recognition.has_unnamed or self._fresh_looks >= FRESH_LOOKS or len(flagged) == len(block.ends):
            return
        known = set(flagged)
        fresh = [index for index in range(len(block.ends)) if index not in known][: FRESH_LOOKS - self._fresh_looks]
        self._fresh_looks += len(fresh)
        for each in self._session.identities(block, fresh):
            self._recognition.arrived(each)


def without(block: AnyBlock, indices: Sequence[int]) -> list[AnyBlock]:
    """The block without some transfers, as one block for each run that is left."""
    assert isinstance(block, Block)
    kept: list[AnyBlock] = []
    begin = 0
    for index in (*indices, len(block.ends)):
        if begin < index:
            start = block.ends[begin - 1] if begin else 0
            kept.append(block.part(begin, index, start, block.ends[index - 1]))
        begin = index + 1
    return kept


def _ranges(ids: Iterable[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for each in sorted(ids):
        add_range(ranges, each, each)
    return ranges
