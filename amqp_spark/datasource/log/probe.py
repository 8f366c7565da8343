"""Questions about logs over one connection: where they begin and end, and which message has an offset.

AMQP 0-9-1 has no such questions: a short subscription answers each. The broker sends at once what the log has, and
nothing if the offset is beyond its end.
"""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final

from amqp_core.error_conditions import CoreCondition
from amqp_core.errors import CommandFailed, DeadlineExceeded
from amqp_core.typed_values import Datetime
from amqp_spark.datasource.log.sizes import MessageSizes
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import LogError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from amqp_core.api import Block, Client, LogEntry, Subscription

OFFSET_ARGUMENT: Final = "x-stream-offset"
FIRST: Final = "first"
LAST: Final = "last"
"""The beginning of the last chunk: of the messages that were stored together."""
EMPTY_SECONDS: Final = 2.0
"""A log that sends nothing for so long has nothing from there on."""
SURE_SECONDS: Final = 20.0
"""The same, where it would be an error, so that a slow broker is not taken for an empty log."""
LATE_SECONDS: Final = 0.1
"""How long the end of a log is followed: a replica may be a little behind its leader. It is followed no longer, since
others may write all the time."""
MOST_SECONDS: Final = 5.0
"""The same, while as many messages come as the prefetch allows: the last chunk may have more."""
CHUNK_MESSAGES: Final = 10_000
"""Prefetch while the last chunk is read. RabbitMQ sends a chunk at once, as far as the prefetch allows. A smaller one
would be used up by messages in compressed sub-entries, which RabbitMQ counts and does not send."""
KEPT_BYTES: Final = 4 << 20
"""Most bytes of a chunk that are kept while an answer is waited for, besides what is read at once: only the offset of
its last message is wanted."""


def subscribe(client: Client, log: str, since: str | int, prefetch: int) -> Subscription:
    """Subscribe to a log from an offset, or from ``first`` or ``last`` on.

    Raises:
        LogError: the queue is no log.
        NotFound: it does not exist.
    """
    try:
        return client.subscribe(log, max_unsettled=prefetch, arguments={OFFSET_ARGUMENT: since})
    except CommandFailed as error:
        if OFFSET_ARGUMENT in str(error):
            raise LogError(SparkCondition.LOG_IS_QUEUE(queue=log)) from error
        raise


class LogProbe:
    """Asks about logs; not thread-safe. After an error of its client it is of no use."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._watched: dict[str, tuple[int, Subscription]] = {}
        self._news: dict[str, Sequence[Block]] = {}
        """Messages that have arrived for watched logs. They are settled when the watch ends, lest more arrive."""
        self._silent: dict[str, Subscription] = {}
        """Logs without a message when they were asked for the first one, and the subscriptions that would get it."""
        self._passed: list[tuple[int, int]] = []
        """Numbers of messages that have arrived and were not kept; they are settled with the next ones."""
        self.sizes = MessageSizes()

    def find_empty(self, logs: Iterable[str]) -> None:
        """Wait once, for all logs together, until each has sent its first message or is known to be empty.

        An empty one costs no more time from now on: its subscription says whether a message has come.
        """
        asked = {log: subscribe(self._client, log, FIRST, 1) for log in logs}
        self._client.sync()
        deadline = monotonic() + EMPTY_SECONDS
        for log, subscription in asked.items():
            if self._take(log, subscription, max(0.0, deadline - monotonic())):
                self._end(subscription)
            else:
                self._silent[log] = subscription

    def _is_empty(self, log: str) -> bool:
        """Whether a log was empty, and still is; no answer for others."""
        subscription = self._silent.get(log)
        if subscription is None:
            return False
        self._client.sync()  # the broker sends what there is before it answers
        if not self._take(log, subscription, 0):
            return True
        self._end(self._silent.pop(log))
        return False

    def since(self, log: str, seconds: int) -> int:
        """The offset of the first message of the chunk with which the messages begin that were stored at a time or
        later; the end of the log if there are none.

        Raises:
            DeadlineExceeded: the broker sends no message, although the log has some.
        """
        if self._is_empty(log) and not self.is_filled(log):
            return 0
        subscription = subscribe(self._client, log, Datetime(seconds), 1)
        try:
            self._client.sync()
            if blocks := self._take(log, subscription, EMPTY_SECONDS):
                return self._entry(log, blocks[0], 0).offset
            end = self.end(log, certain=True)
            # A broker that is only slow has sent what it was asked for first by now, since it has sent the end.
            blocks = self._take(log, subscription, 0)
            return self._entry(log, blocks[0], 0).offset if blocks else end
        finally:
            self._end(subscription)

    def entry(self, log: str, since: str | int, patience_s: float = EMPTY_SECONDS) -> LogEntry | None:
        """The first message from an offset on; ``None`` if none comes within ``patience_s``."""
        if patience_s <= EMPTY_SECONDS and self._is_empty(log):
            return None
        subscription = subscribe(self._client, log, since, 1)
        try:
            self._client.sync()
            blocks = self._take(log, subscription, patience_s)
            return self._entry(log, blocks[0], 0) if blocks else None
        finally:
            self._end(subscription)

    def is_filled(self, log: str) -> bool:
        """Whether the broker counts messages in a log."""
        info = self._client.query_queue(log)
        return info is not None and bool(info.message_count)

    def end(self, log: str, *, certain: bool) -> int:
        """The offset behind the last message; ``certain``: of all that were there when this was called, else there may
        be more.

        Raises:
            DeadlineExceeded: the broker sends no message, although the log has some; only if ``certain``.
            LogError: the broker does not send the last one, and sends others; only if ``certain``.
        """
        if self._is_empty(log) and not (certain and self.is_filled(log)):
            return 0
        subscription = subscribe(self._client, log, LAST, CHUNK_MESSAGES)
        subscription.bound(partial(self._keep_last, log, subscription))
        end = 0
        try:
            self._client.sync()  # the broker sends what there is before it answers
            blocks = self._take(log, subscription, EMPTY_SECONDS)
            # The broker counts late, so that a count of none proves nothing.
            if not blocks and certain and (self.entry(log, FIRST) is not None or self.is_filled(log)):
                blocks = self._late_last(log, subscription)
            began, has_all = monotonic(), False
            while blocks:
                end = self._entry(log, blocks[-1], len(blocks[-1].ends) - 1).offset + 1
                left = began + (LATE_SECONDS if has_all else MOST_SECONDS) - monotonic()
                if not certain or left <= 0:
                    break
                self._client.sync()
                passed = sum(last - first + 1 for first, last in self._passed)
                blocks = self._take(log, subscription, min(left, LATE_SECONDS))
                # With prefetch left, the broker has sent all that it had before it answered.
                has_all = passed + sum(len(block.ends) for block in blocks) < CHUNK_MESSAGES
        finally:
            self._end(subscription)
        return end

    def _keep_last(self, log: str, subscription: Subscription, _count: int, nbytes: int, under_way: int) -> bool:
        """Keep none of the messages that wait if they are large, before another one is added to them."""
        if nbytes > KEPT_BYTES and not under_way:
            blocks = subscription.take_arrived()
            self._saw(log, blocks)
            self._passed += _ids(blocks)
        return True

    def _late_last(self, log: str, subscription: Subscription) -> Sequence[Block]:
        """The last messages of a log that has some, from a broker that has not sent them yet."""
        blocks = self._take(log, subscription, SURE_SECONDS)
        if blocks:
            return blocks
        if self.entry(log, FIRST, SURE_SECONDS) is None:
            raise self.unanswered(LAST, log)
        # The broker answers, so that it would have sent the last message by now.
        blocks = self._take(log, subscription, 0)
        if not blocks:
            raise LogError(SparkCondition.LOG_END_HIDDEN(stream=log))
        return blocks

    def unanswered(self, which: str, log: str) -> DeadlineExceeded:
        """Error: the broker does not send the ``first`` or ``last`` message of a log that has some."""
        what = f"it to send the {which} message of stream {log!r}"
        return DeadlineExceeded(CoreCondition.DEADLINE_EXCEEDED(peer=self._client.peer, what=what))

    def has_news(self, log: str, end: int) -> bool:
        """Whether the message with the offset ``end`` has arrived; a subscription waits for it from now on."""
        before = self._watched.get(log)
        if before is None or before[0] != end:
            if before is not None:
                self._end(before[1])
                self._settle(self._news.pop(log, ()))
            self._watched[log] = end, subscribe(self._client, log, end, 1)
            self._client.sync()
        self._hear(log, 0)
        return log in self._news

    def wait_for_news(self, seconds: float) -> None:
        """Wait for a message of a log that is watched, most times not longer than until one of any has arrived."""
        for log in self._watched:
            self._hear(log, seconds)
            return

    def _hear(self, log: str, seconds: float) -> None:
        blocks = self._watched[log][1].take_blocks(seconds)  # raises if the broker has ended the subscription
        if blocks:
            self._news[log] = [*self._news.get(log, ()), *blocks]

    def _take(self, log: str, subscription: Subscription, seconds: float) -> Sequence[Block]:
        """Blocks that have arrived; their messages are settled, which only lets more arrive.

        Raises:
            ResourceDeleted: the broker has ended the subscription, so that nothing more will come.
        """
        blocks = list(subscription.take_blocks(0))
        deadline = monotonic() + seconds
        while not blocks and monotonic() < deadline:
            blocks += subscription.take_blocks(max(0.0, deadline - monotonic()))
            if self._client.under_way_bytes:
                deadline = monotonic() + seconds
        self._saw(log, blocks)
        self._settle(blocks)
        return blocks

    def _saw(self, log: str, blocks: Sequence[Block]) -> None:
        for block in blocks:
            self.sizes.saw(log, len(block.ends), len(block.frames))

    def _end(self, subscription: Subscription) -> None:
        """End a subscription, and settle what has arrived: an ack covers all before it only if nothing is left."""
        subscription.cancel()
        self._settle(subscription.take_arrived())

    def _settle(self, blocks: Sequence[Block]) -> None:
        ranges, self._passed = [*self._passed, *_ids(blocks)], []
        if ranges:
            self._client.accept(ranges)

    def _entry(self, log: str, block: Block, index: int) -> LogEntry:
        found = self._client.log_entry(block, index)
        if found is None:
            raise LogError(SparkCondition.LOG_IS_QUEUE(queue=log))
        return found


def _ids(blocks: Sequence[Block]) -> list[tuple[int, int]]:
    return [(block.first_id, block.first_id + len(block.ends) - 1) for block in blocks]
