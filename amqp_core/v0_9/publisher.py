"""Publish encoded messages on a channel with confirms: the window, blocked connections, returns, acks and nacks.

The caller passes *runs*: many messages, each the frames of one basic.publish on the channel ``PUBLISHING``, encoded one
after the other. They are written unchanged, in large pieces and without a copy. Confirms (confirm.select, an extension
of RabbitMQ that Broker-J has, too) are a sequence number for each message, from 1; acks may come in any order, for one
or for ``multiple`` messages. A message is safe once it is acked; until then its bytes are held here.

Behaviour of the brokers, and the consequences:

- A message that is mandatory and cannot be routed is returned, then acked (RabbitMQ), or nacked, then returned
  (Broker-J). A return does not say which message it is: see :mod:`amqp_core.v0_9.returned`.
- A nack without a return is a message that no queue has taken: a queue is full and rejects (x-overflow=reject-publish),
  or failed. So a nack counts once the broker has answered a channel.flow, which changes nothing, after it.
- A confirm of Broker-J holds when it is shut down in order, unlike a completion on 0-10: nothing has to prove it.
- That a return precedes its ack is a promise of RabbitMQ. One that came later would be lost with the connection, so
  that the end of a publisher waits for an answer behind the last ack.
- A publish to an exchange that does not exist, or of a message that is too large, closes the channel. What is in flight
  is then in doubt; the connection lives on.
- RabbitMQ blocks a connection that publishes while its memory or disk is low (connection.blocked), after the first
  publish: it reads nothing more, not even the answer to a question, until it has room. It still sends heartbeats.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_right
from typing import TYPE_CHECKING

from amqp_core.errors import (
    CommandFailed,
    ConfirmsMissing,
    ProtocolError,
    PublishingBlocked,
    ReturnedUnexpectedly,
    given,
)
from amqp_core.publishing import PIECE_BYTES, RunPublisher
from amqp_core.sequence_numbers import RangeSet
from amqp_core.transport import monotonic
from amqp_core.v0_9 import spec
from amqp_core.v0_9.channel import ChannelState
from amqp_core.v0_9.driver import PUBLISHING
from amqp_core.v0_9.returned import Returned, find_refused

if TYPE_CHECKING:
    from amqp_core.errors import AmqpError
    from amqp_core.publisher_window import Window
    from amqp_core.transfer_ledger import Transfers
    from amqp_core.v0_9.channel import Channel, Content, Request
    from amqp_core.v0_9.driver import Driver

# A part of this share of the window is sent at once: parts of few messages would cost more than they carry.
_SHARE = 8
_NACKED = "basic.nack: a queue is full and rejects messages, or it failed"
_STOPPED = "channel.flow: a queue is full"

_log = logging.getLogger(__name__)


class Publisher(RunPublisher):
    """Publishes runs of messages on a client's publishing channel; made by :meth:`Client.publisher`. Not thread-safe.

    Only :meth:`send`, :meth:`finish`, :meth:`retire` and :meth:`receive` raise an AmqpError. The channel is opened by
    the first :meth:`send`.

    Args:
        blocked_timeout_s: seconds for which a broker is waited for that has blocked the connection, or stopped the
            channel (channel.flow), or confirms nothing although it has read what is in flight.

    Attributes:
        accept_mode: 0; it has no meaning here.
        sent: count of the messages passed to the transport.
        window: messages, and bytes, that may be sent and not confirmed; a larger message is sent alone.
        rejected: messages that were returned (code 312, no-route) or nacked (code 0).
    """

    accept_mode = 0

    def __init__(self, driver: Driver, *, window: Window, blocked_timeout_s: float = math.inf) -> None:
        super().__init__(driver, window)
        self._driver = driver
        self._blocked_timeout_s = blocked_timeout_s
        self._blocked_since = None if driver.endpoint.blocked is None else monotonic()
        self._moved: tuple[int, int, int] | None = None  # what was confirmed and read when that was looked at last
        self._moved_at = 0.0
        self._stalled_at = math.inf
        self._stopped_until = math.inf
        self._confirming = False
        self._error: AmqpError | None = None
        self._last = 0
        self._confirmed = RangeSet()
        self._count = 0  # of confirmed messages
        self._settled = 0  # of them, that the ledger knows
        self._grown = 0
        self._returned = Returned(self._frames_of)
        self._nacked = RangeSet()  # without the answer to a question behind them
        self._asked: tuple[Request, list[tuple[int, int]]] | None = None  # a question, and what was nacked before it
        self._probe: Request | None = None

    @property
    def max_frame_size(self) -> int:
        """Largest frame that the broker accepts on this connection (connection.tune-ok), in bytes."""
        return self._driver.connection.max_frame_size

    @property
    def in_flight(self) -> int:
        """Number of messages that were sent and are not confirmed (basic.ack, basic.nack), as far as was read.

        It does no I/O, and can be read after the connection has ended.
        """
        if self._nacked:
            self._prove_nacks()
        return self._last - self._count

    @property
    def has_ended(self) -> bool:
        """Whether the broker closed the channel, so that only a new publisher can publish."""
        return self._error is not None or (self._confirming and self._channel.state is not ChannelState.OPEN)

    def finish(self, *, timeout_s: float = math.inf) -> None:
        """Wait until the broker has confirmed every message (basic.ack, basic.nack). Look at ``rejected`` then.

        It does nothing if no message was sent since it returned last.

        Args:
            timeout_s: seconds until a live broker that does not confirm is given up.

        Raises:
            ConnectionLost, ConnectionClosed, CommandFailed, ProtocolError, PublishingBlocked, DeadlineExceeded: as
                :meth:`send` does.
            UsageError: a send was interrupted, so that a part of its run was never sent; or the client was closed.
        """
        if not self._dirty:
            return
        self._check()
        self._check_all_sent()
        deadline = monotonic() + timeout_s
        self._wait(lambda: not self.in_flight, "the confirmation of what is published", deadline)
        self._prove_no_return(deadline)
        self._settle()
        self._ledger.forget(self._next_id())
        self._dirty = False

    def succeeded(self, window: Window | None = None, blocked_timeout_s: float | None = None) -> Publisher:
        """End this publisher, and return the one that takes over: on the same channel if it is open, else on a new one.

        Afterwards :meth:`send` raises UsageError.

        Args:
            window, blocked_timeout_s: of the new one; by default those of this one.

        Raises:
            UsageError: it is not finished, and its channel is open: call :meth:`finish` before.
        """
        following = Publisher(
            self._driver,
            window=window or self.window,
            blocked_timeout_s=self._blocked_timeout_s if blocked_timeout_s is None else blocked_timeout_s,
        )
        if self.has_ended:
            self._retired = True
            self._error = self._error or self._driver.channel_error(PUBLISHING)
            return following
        self.retire()
        if self._confirming:  # sequence numbers go on, too
            following._continue(self._last)
        return following

    def _continue(self, last: int) -> None:
        self._confirming = True
        self._last = self._count = self._settled = self._grown = last
        if last:
            self._confirmed.add(1, last)

    def receive(self, method: spec.Method, content: Content | None) -> None:
        """Process a method of the publishing channel: basic.ack, basic.nack, basic.return.

        Raises:
            ProtocolError: it confirms a message twice, one that was not sent, or does not say which.
            ReturnedUnexpectedly: it returns a message that is not in flight.
        """
        if isinstance(method, spec.BasicAck):
            for low, high in self._answered(method.NAME, method.delivery_tag, multiple=method.multiple):
                self._confirm(low, high)
        elif isinstance(method, spec.BasicNack):
            for low, high in self._answered(method.NAME, method.delivery_tag, multiple=method.multiple):
                self._nacked.add(low, high)
            self._prove_nacks()
        elif isinstance(method, spec.BasicReturn) and content is not None:
            number = self._returned.find(method, content, self._ledger.first_id, self._last)
            if number is None:
                raise ReturnedUnexpectedly(
                    f"basic.return has a message to exchange {method.exchange!r} that is not in flight: "
                    f"{method.reply_code} {given(method.reply_text)}"
                )
            self._ledger.reject(number, number, method.reply_code, method.reply_text)
        else:
            raise ProtocolError(f"{method.NAME} arrived on the channel that publishes")

    def blocked(self, reason: str | None) -> None:
        """The broker blocks the connection now (connection.blocked), or no longer (``None``); the log says so."""
        peer, since = self._driver.transport.peer, self._blocked_since
        if reason is None:
            self._blocked_since = None
            self._moved_at = monotonic()
            if since is not None:
                _log.info("%s accepts messages again, after %.0f s", peer, monotonic() - since)
        elif since is None:
            self._blocked_since = monotonic()
            self.window.stop()
            limit = f" for at most {self._blocked_timeout_s:g} s" if self._blocked_timeout_s < math.inf else ""
            _log.warning(
                "%s has blocked its publishers (%s): %d message(s) are not confirmed; waiting%s until it has memory "
                "and disk again",
                peer,
                given(reason),
                self.in_flight,
                limit,
            )

    @property
    def _channel(self) -> Channel:
        return self._driver.endpoint.channels[PUBLISHING]

    def _answered(self, name: str, tag: int, *, multiple: bool) -> list[tuple[int, int]]:
        """Return the ranges of messages that a confirm confirms; none was confirmed before."""
        if multiple and not tag:  # all that the broker has read, and only it knows how much that is
            raise ProtocolError(f"{name} with delivery tag 0 does not say which of {self._last} messages it confirms")
        if not 1 <= tag <= self._last:
            raise ProtocolError(f"{name} confirms message {tag}; {self._last} were sent")
        low, high = 1 if multiple else tag, tag
        new = RangeSet([(low, high)])
        for known in (self._confirmed, self._nacked):
            for start, end in known.within(low, high):
                new.discard(start, end)
        if not new and not multiple:
            raise ProtocolError(f"{name} confirms message {tag} a second time")
        return new.ranges()

    def _confirm(self, low: int, high: int) -> None:
        self._confirmed.add(low, high)
        self._count += high - low + 1

    def _prove_nacks(self) -> None:
        """Count nacked messages as rejected whose return would have arrived; ask a question behind the others.

        It does no I/O: the next round of the pump writes the question.
        """
        if self._asked is not None:
            question, nacked = self._asked
            if not question.is_done:
                return
            self._asked = None
            if question.answer is not None:
                for low, high in nacked:
                    self._nacked.discard(low, high)
                    self._ledger.reject(low, high, 0, _NACKED)  # but for those that were returned
                    self._confirm(low, high)
        if self._nacked and self._channel.state is ChannelState.OPEN:
            self._asked = self._channel.request(spec.ChannelFlow(active=True)), self._nacked.ranges()

    def _prove_no_return(self, deadline: float) -> None:
        """Ask a question behind the last confirm: a return that follows its ack arrives before the answer, and is an
        error. A broker that blocks the connection does not answer; RabbitMQ does that, and returns before it acks.

        A return that is lost with the connection before that stays unknown: what is confirmed is not sent again.
        """
        self._check()
        deadline = min(deadline, monotonic() + self._driver.call_timeout_s)
        question = self._driver.request(PUBLISHING, spec.ChannelFlow(active=True))
        endpoint = self._driver.endpoint
        self._wait(
            lambda: question.is_done or endpoint.blocked is not None, "the answer behind the last confirm", deadline
        )

    def _check(self) -> None:
        """Raise the error that ended the connection or the channel; open the channel for the first time."""
        refused = self._driver.channel_error(PUBLISHING) if self._confirming else None
        if self._error is None and refused is not None:
            self._error = self._explained(refused)
        # The refusal counts before the end of the connection, which may follow from it: only a loss is retried.
        if self._error is not None:
            raise self._error
        self._driver.check()
        if not self._confirming:
            try:
                self._driver.call(PUBLISHING, spec.ConfirmSelect(), spec.ConfirmSelectOk)
            except CommandFailed as error:
                self._error = error  # it has ended: a later call must not count what was not sent as a part of its own
                raise
            self._confirming = True

    def _explained(self, error: AmqpError) -> AmqpError:
        """The error of the channel with the number of the message that it speaks of, if that is known."""
        if not isinstance(error, CommandFailed) or error.command not in (None, spec.BasicPublish.NAME):
            return error
        numbers = range(max(1, self._ledger.first_id), self._last + 1)
        in_flight = ((n, frames) for n in numbers if (frames := self._frames_of(n)) is not None)
        number = find_refused(error.description, in_flight)
        return type(error)(error.wire_code, number, error.description, error.command, error.remedy)

    def _frames_of(self, number: int) -> memoryview | None:
        return None if number in self._confirmed else self._ledger.frames(number)

    def _heartbeat_s(self) -> float:
        return self._driver.connection.heartbeat_s

    def _next_id(self) -> int:
        return self._last + 1

    def _safe(self) -> RangeSet:
        return self._confirmed

    def _write(self, transfers: Transfers, start: int, stop: int) -> int:
        first = self._last + 1
        self._last += stop - start
        self._entered(transfers, start, stop, first)  # before writing, which may read confirms if the socket fails
        self._driver.write(transfers.frames[transfers.offset(start) : transfers.offset(stop)])
        return first

    def _wait_for_room(self, transfers: Transfers, start: int, deadline: float) -> int:
        while True:
            self._stopped_until = monotonic() + self._blocked_timeout_s
            try:
                self._wait(self._may_publish, "the broker to allow publishing again", deadline)
            finally:
                self._stopped_until = math.inf
            stop = self._room(transfers, start)
            if stop > start:
                return stop
            self._wait(
                lambda: not self._may_publish() or self._room(transfers, start) > start,
                "the confirmation of messages, of which no more may be in flight",
                deadline,
            )

    def _may_publish(self) -> bool:
        """Whether the broker has neither blocked the connection nor stopped the channel (channel.flow)."""
        return self._driver.endpoint.blocked is None and self._channel.active

    def _room(self, transfers: Transfers, start: int) -> int:
        """End of the part that the window allows now, at most one piece; ``start`` if it would be a small one."""
        window, in_flight, count = self.window, self.in_flight, len(transfers)
        room = window.transfers - in_flight
        if room <= 0 or (in_flight and room < min(window.transfers // _SHARE, count - start)):
            return start
        self._settle_most()
        base = transfers.offset(start)
        free = window.nbytes - self._ledger.in_flight.nbytes
        if in_flight and free < min(window.nbytes // _SHARE, transfers.offset(count) - base):
            return start
        stop = bisect_right(transfers.ends, base + min(free, PIECE_BYTES), start, min(count, start + room))
        if stop == start and (not in_flight or transfers.offset(start + 1) - base <= free):
            stop += 1  # larger than a piece, or larger than the window and alone
        return stop

    def _settle_most(self) -> None:
        """Count confirmed messages and free their bytes, unless they are few: that looks at every part in flight."""
        if self._count - self._settled > self.in_flight // _SHARE:
            self._settle()

    def _settle(self) -> None:
        if self._count == self._settled:
            return
        self._settled = self._count
        self._ledger.settle(self._confirmed, self._confirmed)
        self._ledger.forget(self._ledger.first_id or self._next_id())
        if self._count - self._grown >= self.window.transfers // 4:
            self._grown = self._count
            self.window.grow()

    def _ask(self) -> None:
        """Without heartbeats: ask something, to see whether the broker lives; it does not answer while it blocks."""
        if self._heartbeat_s() or (self._probe is not None and not self._probe.is_done):
            return
        self._probe = self._driver.request(PUBLISHING, spec.ChannelFlow(active=True))

    def _give_up_at(self, started: float, deadline: float) -> float:
        if self._blocked_since is not None:
            self._stalled_at = math.inf
            return min(deadline, self._blocked_since + self._blocked_timeout_s)
        self._look_for_progress(started)
        return min(super()._give_up_at(started, deadline), self._stalled_at, self._stopped_until)

    def _look_for_progress(self, started: float) -> None:
        """Find out when a broker counts as stalled that confirms nothing of what is in flight, and reads nothing.

        That it reads shows only while bytes wait to be written: of what is written, heartbeats are a part.
        """
        transport = self._driver.transport
        moved = self._count, self._nacked.count(), transport.sent_bytes if transport.pending_bytes else -1
        if moved != self._moved:
            self._moved, self._moved_at = moved, monotonic()
        unconfirmed = self._last > self._count
        self._stalled_at = max(started, self._moved_at) + self._blocked_timeout_s if unconfirmed else math.inf

    def _give_up(self, what: str) -> None:
        peer, reason = self._driver.transport.peer, self._driver.endpoint.blocked
        if reason is not None and self._blocked_since is not None:
            raise PublishingBlocked(peer, monotonic() - self._blocked_since, reason)
        if monotonic() >= self._stopped_until:  # a new connection would not be stopped before it has filled the window
            raise PublishingBlocked(peer, self._blocked_timeout_s, _STOPPED)
        if monotonic() >= self._stalled_at:
            raise ConfirmsMissing(peer, self._blocked_timeout_s, str(self._last - self._count))
        super()._give_up(what)

    def _warn(self, what: str, seconds: float) -> None:
        if self._stalled_at < math.inf:
            what += (
                " (a queue may have lost the majority of its nodes, or a proxy hide that the broker is low on memory "
                f"or disk; it is given up after {self._blocked_timeout_s:g} s without a confirm)"
            )
        super()._warn(what, seconds)


__all__ = ["Publisher"]
