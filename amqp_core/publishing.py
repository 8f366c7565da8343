"""What every publisher does: sends runs of encoded transfers, waits with a deadline, tracks what is in flight.

A protocol adds what the broker allows now, and what it has confirmed: see :class:`RunPublisher`.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from amqp_core.error_conditions import CoreCondition
from amqp_core.errors import PublisherStopped, PublishingBlocked, UsageError
from amqp_core.transfer_ledger import Counted, Ledger, Rejected, Transfers
from amqp_core.transport import SILENCE_S, monotonic

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.publisher_window import Window
    from amqp_core.pump import Pump
    from amqp_core.sequence_numbers import RangeSet

MAX_IN_FLIGHT = 10_000
MAX_BYTES_IN_FLIGHT = 32 << 20
PIECE_BYTES = 1 << 19
"""Bytes written between two reads from the broker."""
# Most pending bytes for a broker that reads slowly, before sending waits for it.
_PENDING_BYTES = 1 << 20
# Transfers of small runs that may be sent between two reads.
_LOOK_EVERY = 32
# Intervals at which a long wait asks the broker for completions, and logs a warning.
_ASK_EVERY_S = 5.0
_WARN_EVERY_S = 60.0

_log = logging.getLogger(__name__)


class RunPublisher(ABC):
    """Base of the publishers. Not thread-safe.

    Only :meth:`send` and the protocol's own methods raise an AmqpError.

    Attributes:
        sent: count of the transfers passed to the transport.
        window: transfers, and bytes, that may be sent and not completed for certain; a larger transfer is sent alone.
    """

    def __init__(self, pump: Pump, window: Window) -> None:
        self.window = window
        self._pump = pump
        self._ledger = Ledger()
        self.sent = self._ledger.sent
        self._unsent: list[tuple[Transfers, int]] = []
        self._since_look = Counted()
        self._dirty = False
        self._retired = False

    @property
    def completed(self) -> Counted:
        """Count of the transfers that the broker has completed for certain, as far as was read.

        It does no I/O, and can be read after the connection has ended.
        """
        self._settle()
        return self._ledger.completed

    @property
    def in_flight(self) -> int:
        """Number of transfers that were sent and are not completed for certain, as far as was read.

        It does no I/O, and can be read after the connection has ended.
        """
        self._settle()
        return self._ledger.in_flight.transfers

    @property
    def in_doubt(self) -> int:
        """Number of transfers that were sent and are neither completed for certain nor rejected, as far as was read.

        It does no I/O, and can be read after the connection has ended.
        """
        self._settle()
        return sum(len(run) for run in self._ledger.unfinished(self._safe(), ()))

    @property
    def rejected(self) -> list[Rejected]:
        """Rejected transfers that :meth:`take_rejected` has not returned yet."""
        return self._ledger.rejected

    def send(self, transfers: Transfers, *, timeout_s: float = math.inf) -> int:
        """Send a run; it is safe once :meth:`finish` has returned.

        Until then :meth:`unfinished` includes what is not completed, also after an error in the middle of the run.

        Waits while the window, the broker's flow control or the socket is full: without limit by default, as long as
        the broker lives. The log has a warning once a minute with the reason of the wait.

        Args:
            transfers: the run; encoded for this publisher, in frames of at most ``max_frame_size`` bytes.
            timeout_s: seconds until a live broker that accepts nothing is given up.

        Returns:
            The id of the first transfer; of the next one, if the run is empty.

        Raises:
            ConnectionLost, ConnectionClosed, SessionDetached, CommandFailed, ProtocolError: the connection or session
                ended, now or before. CommandFailed may concern an earlier transfer: see :meth:`locate`.
            PublisherStopped: the broker has stopped the publisher for longer than its ``blocked_timeout_s``.
            DeadlineExceeded: after ``timeout_s``; or there are no heartbeats and the broker was silent for 60 s.
            DecodeError: a transfer cannot be read, which is tried only if the broker limits single exchanges.
            UsageError: another publisher has replaced this one, or the client was closed.
        """
        if self._retired:
            reason = "another publisher was made for this client, so this one is over"
            raise UsageError(CoreCondition.CALL_NOT_ALLOWED(reason=reason))
        count = len(transfers)
        if not count:
            return self._next_id()
        self._dirty = True
        self._unsent.append((transfers, 0))
        self._check()
        deadline = monotonic() + timeout_s
        first_id, position = -1, 0
        while position < count:
            stop = self._wait_for_room(transfers, position, deadline)
            transfer_id = self._write(transfers, position, stop)
            first_id = transfer_id if first_id < 0 else first_id
            position = stop
            self._check()
            self._written()
            self._look_now_and_then()
            self._wait(self._socket_has_room, "the broker to read what is published", deadline)
        self._unsent.pop()
        return first_id

    def send_one(self, transfer: Transfers, *, timeout_s: float) -> int:
        """As :meth:`send`, for a run of one transfer that does not stay with the publisher if it could not be sent.

        It raises PublishingBlocked or PublisherStopped only if nothing of it was sent: it is forgotten, and others can
        be sent. If the broker has blocked its publishers while it was read, it counts as sent.
        """
        try:
            return self.send(transfer, timeout_s=timeout_s)
        except (PublishingBlocked, PublisherStopped):
            _, sent = self._unsent.pop()
            if not sent:
                raise
            return self._next_id() - 1

    @abstractmethod
    def finish(self, *, timeout_s: float = math.inf) -> None:
        """Wait until the broker has completed every transfer. Look at ``rejected`` then.

        It does nothing if no transfer was sent since it returned last.
        """

    def unfinished(self) -> list[Transfers]:
        """Return transfers of :meth:`send` that are neither completed nor rejected, in order, without copying bytes.

        After a loss they must be sent again elsewhere: the broker may have some of them, but did not confirm. It does
        no I/O, so that it works after the connection has ended.
        """
        self._settle()
        return self._ledger.unfinished(self._safe(), self._unsent)

    def probe(self) -> None:
        """Send one transfer at a time at first: see :meth:`amqp_core.publisher_window.Window.probe`."""
        self.window.probe()

    def locate(self, command_id: int) -> tuple[object, int] | None:
        """Return tag and number of the transfer with that id; ``None`` for any other id.

        Used for the transfer that an error names (:attr:`CommandFailed.command_id`). Transfers completed long ago are
        forgotten.

        Args:
            command_id: an id without limit, as :meth:`send` returns it.

        Returns:
            The tag of its run, and its number in that run.
        """
        return self._ledger.locate(command_id)

    def take_rejected(self) -> list[Rejected]:
        """Return the transfers rejected since the last call, and forget them. No I/O."""
        return self._ledger.take_rejected()

    def retire(self) -> None:
        """End the publisher, since another one takes over.

        Afterwards :meth:`send` raises UsageError.

        Raises:
            UsageError: it is not finished: call :meth:`finish` before.
        """
        if self._dirty:
            reason = f"the publisher in use is not finished, {self.in_flight} transfer(s) are not completed"
            raise UsageError(CoreCondition.CALL_NOT_ALLOWED(reason=reason))
        self._retired = True

    @abstractmethod
    def _heartbeat_s(self) -> float:
        """Seconds between heartbeats, 0: none."""

    @abstractmethod
    def _next_id(self) -> int:
        """Id of the next transfer."""

    @abstractmethod
    def _settle(self) -> None:
        """Count completed transfers, and free their bytes."""

    @abstractmethod
    def _safe(self) -> RangeSet:
        """The ids of transfers that are completed for certain."""

    @abstractmethod
    def _wait_for_room(self, transfers: Transfers, start: int, deadline: float) -> int:
        """Wait until transfers from ``start`` on may be sent; return the end of that part."""

    @abstractmethod
    def _write(self, transfers: Transfers, start: int, stop: int) -> int:
        """Record and write a part of a run; return the id of its first transfer."""

    @abstractmethod
    def _ask(self) -> None:
        """In a long wait: ask for completions; without heartbeats the answer also proves that the broker lives."""

    def _written(self) -> None:  # noqa: B027 - not every protocol has something to do
        """Do what is due after a part was written."""

    def _check(self) -> None:
        """Raise the error that ended the connection, or what publishes on it."""
        self._pump.check()

    def _check_all_sent(self) -> None:
        """Raise UsageError if a send was interrupted."""
        if self._unsent:
            reason = "a run was not sent whole, so there is no end to wait for"
            raise UsageError(CoreCondition.CALL_NOT_ALLOWED(reason=reason))

    def _entered(self, transfers: Transfers, start: int, stop: int, first_id: int) -> Counted:
        """Record a part that is sent; return its count."""
        part = Counted(stop - start, transfers.offset(stop) - transfers.offset(start))
        self._ledger.enter(transfers, start, stop, first_id)
        self._unsent[-1] = (transfers, stop)
        self._since_look.add(part.transfers, part.nbytes)
        return part

    def _look_now_and_then(self) -> None:
        """Read what the broker says between writes: a stop, rejects, completion."""
        if self._since_look.transfers >= _LOOK_EVERY or self._since_look.nbytes >= PIECE_BYTES // 2:
            self._since_look = Counted()
            self._pump.poll()

    def _socket_has_room(self) -> bool:
        return self._pump.transport.pending_bytes <= _PENDING_BYTES

    def _wait(self, ready: Callable[[], bool], what: str, deadline: float) -> None:
        """Do I/O until ``ready`` returns true; ask for completions, warn, and give up when that is due."""
        if ready():
            return
        self._since_look = Counted()
        started = monotonic()
        ask_at, warn_at = started + _ASK_EVERY_S, started + _WARN_EVERY_S
        while not ready():
            now = monotonic()
            if now >= ask_at:
                self._ask()
                ask_at = now + _ASK_EVERY_S
            if now >= warn_at:
                self._warn(what, now - started)
                warn_at = now + _WARN_EVERY_S
            give_up_at = self._give_up_at(started, deadline)
            if now >= give_up_at:
                self._give_up(what)
            self._pump.pump_once(min(ask_at, warn_at, give_up_at))
            self._check()

    def _give_up_at(self, started: float, deadline: float) -> float:
        """Time at which a wait ends: its deadline; without one and without heartbeats, some time of silence."""
        if deadline == math.inf and not self._heartbeat_s():
            return max(started, self._pump.heard_at) + SILENCE_S
        return deadline

    def _give_up(self, what: str) -> None:
        """Raise the error of a wait that took too long."""
        self._pump.give_up(what)

    def _warn(self, what: str, seconds: float) -> None:
        transport, in_flight = self._pump.transport, self._ledger.in_flight
        _log.warning(
            "waiting for %s for %.0f s: %d transfer(s), %d bytes, are not completed by %s; %d bytes are not written",
            what,
            seconds,
            in_flight.transfers,
            in_flight.nbytes,
            transport.peer,
            transport.pending_bytes,
        )
