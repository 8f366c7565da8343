"""Publish encoded transfers on a session: the window, the broker's flow control, rejects and completion.

The caller passes *runs*: many message.transfer assemblies, encoded one after the other. They are written unchanged, in
large pieces and without a copy. A transfer is safe once the broker has completed it (0-10 session.completed); until
then its bytes are held here, so that :meth:`Publisher.unfinished` returns the transfers to be sent again after a loss.

Behaviour of the two brokers, and the consequences:

- qpidd reports completion only on request: an execution.sync is sent every quarter of the window.
- qpidd withholds the completion of transfers that fill a queue above 80 % (producer flow control), and refuses those
  beyond its limit: of the last 20 %, 20 MiB by default, each publisher uses at most MAX_BYTES_WITHHELD.
- Broker-J stops a producer with message.stop on the empty destination, and resumes it with message.flow.
- Broker-J rejects transfers that it cannot route or store (message.reject) if their accept-mode is explicit, and also
  completes them; the reject comes first. Its code and text are the same for both reasons.
- qpidd accepts every transfer whose accept-mode is explicit, even one it has dropped: its accept proves nothing.
- Broker-J accepts no transfer of a publisher: its completions count, and accept-mode explicit is for the rejects only.
  By the specification a completion is no success then: a broker that is not known to reject gets accept-mode none.
- A Broker-J that is shut down cleanly completes transfers which it no longer stores, and closes the connection before
  it reads anything else. So a completion counts only once the broker has answered an execution.sync that was sent after
  the completion was received.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING

from amqp_core.errors import PublisherStopped
from amqp_core.publishing import MAX_BYTES_IN_FLIGHT, MAX_IN_FLIGHT, PIECE_BYTES, RunPublisher
from amqp_core.sequence_numbers import RangeSet, unwrap_ranges
from amqp_core.transfer_ledger import Counted, Rejected, Transfers
from amqp_core.transport import monotonic
from amqp_core.v0_10 import spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.publisher_window import Window
    from amqp_core.v0_10.driver import Driver
    from amqp_core.v0_10.producer_credit import ProducerCredit

MAX_BYTES_WITHHELD = 4 << 20
"""Most bytes in flight to a broker that signals a full queue only by withholding completions."""
# A broker that completes nothing for so long, although it was asked, has stopped the publisher.
_STOPPED_AFTER_S = 1.0


class Publisher(RunPublisher):
    """Publishes runs of transfers on a client's session; made by :meth:`Client.publisher`. Not thread-safe.

    Only :meth:`send`, :meth:`finish`, :meth:`retire` and :meth:`receive` raise an AmqpError.

    Args:
        trusting: a completion counts at once, without the answer to a later execution.sync.
        blocked_timeout_s: seconds for which a broker is waited for that has stopped the publisher (message.stop).

    Attributes:
        accept_mode: accept-mode with which this broker reports most; the transfers must have it.
        sent: count of the transfers passed to the transport.
        window: transfers, and bytes, that may be sent and not completed for certain; a larger transfer is sent alone.
        credit: credit of the broker's flow control; it outlives the publisher.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        accept_mode: int,
        trusting: bool = False,
        window: Window,
        credit: ProducerCredit,
        blocked_timeout_s: float = math.inf,
    ) -> None:
        super().__init__(driver, window)
        self.accept_mode = accept_mode
        self.credit = credit
        self._driver = driver
        self._blocked_timeout_s = blocked_timeout_s
        self._stopped_until = math.inf
        self._trusting = trusting  # a completion counts at once, without the answer to a later sync
        self._syncs: deque[tuple[int, list[tuple[int, int]]]] = deque()  # with the ids completed when each was sent
        self._proven = RangeSet()
        self._proven_by = -1
        self._since_sync = Counted()
        self._seen = 0

    @property
    def max_frame_size(self) -> int:
        """Largest frame that the broker accepts on this connection (connection.tune-ok), in bytes."""
        return self._driver.connection.max_frame_size

    def finish(self, *, timeout_s: float = math.inf) -> None:
        """Wait until the broker has completed every transfer (execution.sync). Look at ``rejected`` then.

        It does nothing if no transfer was sent since it returned last.

        Args:
            timeout_s: seconds until a live broker that does not complete is given up.

        Raises:
            ConnectionLost, ConnectionClosed, SessionDetached, CommandFailed, ProtocolError, DeadlineExceeded: as
                :meth:`send` does.
            RejectedUnexpectedly: the broker rejected a transfer that counted as completed.
            UsageError: a send was interrupted, so that a part of its run was never sent; or the client was closed.
        """
        if not self._dirty:
            return
        self._driver.check()
        self._check_all_sent()
        deadline = monotonic() + timeout_s
        if self._since_sync.transfers:
            self._sync()
        while self.in_flight or self._syncs:
            if self._shall_ask():
                self._sync()
            self._wait(self._is_settled, "the completion of what is published", deadline)
        self._ledger.forget(self._driver.session.next_id)
        self._dirty = False

    def receive(self, command: spec.Command) -> None:
        """Process a command of the broker to a publisher: message.reject and message.release, and flow control.

        That is message.stop, message.flow and message.set-flow-mode; other commands are ignored. Transfers that the
        broker releases (message.release) it has not taken: they count as rejected.

        Raises:
            RejectedUnexpectedly: a reject of a transfer that counted as completed.
            ProtocolError: a range of ids ends before it begins.
            LimitExceeded: the broker limits more exchanges than can be counted (4096).
        """
        if isinstance(command, (spec.MessageReject, spec.MessageRelease)):
            code, text = spec.MessageRejectCode.UNSPECIFIED.value, "message.release: it was not taken"
            if isinstance(command, spec.MessageReject):
                code, text = command.code or 0, command.text or ""
            for low, high in unwrap_ranges(command.transfers or [], self._driver.session.next_id):
                self._ledger.reject(low, high, code, text)
            return
        self.credit.receive(command)
        if isinstance(command, spec.MessageStop):
            self.window.stop()

    def _write(self, transfers: Transfers, start: int, stop: int) -> int:
        low, high = transfers.offset(start), transfers.offset(stop)
        first_id = self._driver.send_ready(transfers.frames[low:high], stop - start)
        part = self._entered(transfers, start, stop, first_id)
        self.credit.spend(transfers, start, stop, first_id)
        self._since_sync.add(part.transfers, part.nbytes)
        return first_id

    def _written(self) -> None:
        if self._sync_is_due():
            self._sync()

    def _next_id(self) -> int:
        return self._driver.session.next_id

    def _heartbeat_s(self) -> float:
        return self._driver.connection.heartbeat_s

    def _wait_for_room(self, transfers: Transfers, start: int, deadline: float) -> int:
        """Wait until transfers from ``start`` on may be sent; return the end of that part."""

        def has_credit() -> bool:
            self._settle()
            return self.credit.room(transfers, start, start + 1) > start

        while True:
            if self._since_sync.transfers and not self._syncs and not has_credit():
                self._sync()  # in window mode its answer brings credit
            self._wait_until_allowed(has_credit, deadline)
            stop = self._room(transfers, start)
            if stop > start:
                return stop
            if self._shall_ask():
                self._sync()
            began = monotonic()
            self._wait(
                lambda: self._room(transfers, start) > start or self._shall_ask() or not has_credit(),
                "the completion of transfers, of which no more may be in flight",
                deadline,
            )
            if monotonic() - began >= _STOPPED_AFTER_S:
                self.window.stop()

    def _wait_until_allowed(self, has_credit: Callable[[], bool], deadline: float) -> None:
        self._stopped_until = monotonic() + self._blocked_timeout_s
        try:
            self._wait(has_credit, "the broker to allow publishing again (message.flow)", deadline)
        finally:
            self._stopped_until = math.inf

    def _give_up_at(self, started: float, deadline: float) -> float:
        given_up_at = super()._give_up_at(started, deadline)
        return given_up_at if self.in_flight else min(given_up_at, self._stopped_until)

    def _give_up(self, what: str) -> None:
        if self.in_flight or monotonic() < self._stopped_until:
            super()._give_up(what)
        raise PublisherStopped(self._driver.transport.peer, self._blocked_timeout_s)

    def _room(self, transfers: Transfers, start: int) -> int:
        """End of the part that window and credit allow now, at most one piece; ``start`` if none."""
        self._settle()
        in_flight, window = self._ledger.in_flight, self.window
        until_sync = max(1, window.transfers // 4 - self._since_sync.transfers)
        # transfers completed, but not for certain, must not stop the flow; they still occupy memory
        awaited = self._ledger.sent.transfers - self._ledger.told
        room = min(window.transfers - awaited, 2 * window.transfers - in_flight.transfers, until_sync)
        if room <= 0:
            return start
        base = transfers.offset(start)
        free = window.nbytes - in_flight.nbytes
        limit = self.credit.room(transfers, start, min(len(transfers), start + room))
        if limit == start:
            return start
        stop = bisect_right(transfers.ends, base + min(free, PIECE_BYTES), start, limit)
        if stop == start and (not in_flight.transfers or transfers.offset(start + 1) - base <= free):
            stop += 1  # larger than a piece, or larger than the window and alone
        return stop

    def _sync_is_due(self) -> bool:
        since, window = self._since_sync, self.window
        return since.transfers >= max(1, window.transfers // 4) or since.nbytes >= window.nbytes // 4

    def _sync(self) -> None:
        """Ask the broker to complete all transfers sent, and to report it."""
        self._since_sync = Counted()
        heard = self._driver.session.completed.ranges()
        self._syncs.append((self._driver.send(spec.ExecutionSync(), sync=True), heard))

    def _settle(self) -> None:
        """Count completed transfers, and free their bytes."""
        session = self._driver.session
        if session.completions == self._seen:
            return
        self._seen = session.completions
        synced, heard = -1, None
        while self._syncs and self._syncs[0][0] in session.completed:
            synced, heard = self._syncs.popleft()
        if heard is not None:
            self._proven, self._proven_by = RangeSet(heard), synced
            self.window.grow()
        self._ledger.settle(session.completed, self._safe() if self._trusting or heard is not None else None)
        self.credit.settle(session.completed)
        if heard is not None:
            session.forget_names(synced + 1)
            # a reject comes before the completion of the sync that follows its transfer; a later one is an error
            self._ledger.forget(synced)

    def _safe(self) -> RangeSet:
        """The ids of commands that are completed for certain."""
        return self._driver.session.completed if self._trusting else self._proven

    def _shall_ask(self) -> bool:
        """Whether the broker has answered every sync, and another one is needed."""
        if self._syncs:
            return False
        if self._since_sync.transfers or self._trusting:
            return self._since_sync.transfers > 0
        # completions received since the latest sync need a proof; without new ones, another sync is useless
        heard = self._driver.session.completed.within(0, self._proven_by - 1)
        return heard != self._proven.ranges()

    def _is_settled(self) -> bool:
        return not (self.in_flight or self._syncs) or self._shall_ask()

    def _ask(self) -> None:
        """Ask for completions; without heartbeats the answer also proves that the broker lives."""
        self._settle()
        if self._syncs:
            self._driver.flush_completed()
        else:
            self._sync()


__all__ = ["MAX_BYTES_IN_FLIGHT", "MAX_IN_FLIGHT", "Counted", "Publisher", "Rejected", "Transfers"]
