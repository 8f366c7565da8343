"""One subscription of a session: its credit, and where its messages go (0-10 section message.set-flow-mode)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from amqp_core.broker.v0_10.errors import Code, Failed
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import encode_command

if TYPE_CHECKING:
    from amqp_core.broker.model.entries import Entry
    from amqp_core.broker.model.queues import Consumer
    from amqp_core.broker.v0_10.session import ServerSession

INFINITE: Final = 0xFFFFFFFF


class SessionSubscription:
    """The receiver of a subscription.

    Credit is counted in messages, and in bytes of header and body; at first there is none, and it is a window.
    """

    __slots__ = ("browse", "command", "consumer", "destination", "messages", "nbytes", "no_ack", "session", "window")

    def __init__(self, session: ServerSession, destination: str, *, no_ack: bool, browse: bool) -> None:
        self.session = session
        self.destination = destination
        self.no_ack = no_ack
        """accept-mode none: its messages are settled when they are sent, or when it acquires what it has browsed."""
        self.browse = browse
        self.window = True
        self.messages = 0.0
        self.nbytes = 0.0
        self.consumer: Consumer | None = None
        """Its place at the queue, once it is there."""
        transfer = spec.MessageTransfer(
            destination=destination,
            accept_mode=spec.MessageAcceptMode.NONE if no_ack else spec.MessageAcceptMode.EXPLICIT,
            acquire_mode=spec.MessageAcquireMode.NOT_ACQUIRED if browse else spec.MessageAcquireMode.PRE_ACQUIRED,
        )
        self.command = encode_command(transfer, False)
        """The command of each of its transfers."""

    @property
    def has_credit(self) -> bool:
        """Whether there is credit of both units."""
        return self.messages > 0 and self.nbytes > 0

    @property
    def is_unlimited(self) -> bool:
        """Whether there is credit of both units without an end, to which nothing can be added."""
        return self.messages == self.nbytes == math.inf

    @property
    def may_get_more(self) -> bool:
        """Whether messages may come that wait now, when the client reads or selectors have looked at all of them."""
        if not self.has_credit:
            return False
        return self.session.connection.is_congested or (self.consumer is not None and self.consumer.queue.is_searched)

    def has_room(self, size: int) -> bool:
        """Whether the credit and the connection allow one more."""
        return self.messages > 0 and self.nbytes >= size and self.nbytes > 0 and self.session.can_send

    def deliver(self, entry: Entry) -> None:
        """Send a message (message.transfer)."""
        size = self.session.deliver(self, entry)
        self.messages -= 1
        self.nbytes = max(0.0, self.nbytes - size)

    def cancelled(self) -> None:
        """The queue is gone."""
        self.session.queue_gone(self)

    def ready(self) -> None:
        """Deliver what the credit allows."""
        if self.consumer is not None and self.has_credit:
            self.consumer.queue.ready(self.session.connection.now)

    def flow(self, unit: int | None, value: int | None) -> None:
        """Add credit (message.flow); an absent value is infinite.

        Raises:
            Failed: INVALID_ARGUMENT, there is no such unit.
        """
        more = math.inf if value is None or value == INFINITE else value
        if unit == spec.MessageCreditUnit.MESSAGE:
            self.messages += more
        elif unit == spec.MessageCreditUnit.BYTE:
            self.nbytes += more
        else:
            raise Failed(Code.INVALID_ARGUMENT, f"unit {unit} is neither message nor byte")

    def stop(self) -> None:
        """Take all credit back: what was sent before gives none any more, in window mode either (message.stop)."""
        self.messages = self.nbytes = 0.0
        self.session.forget_window(self)

    def set_mode(self, mode: int | None) -> None:
        """Change the flow mode (message.set-flow-mode).

        Raises:
            Failed: INVALID_ARGUMENT, there is no such mode; PRECONDITION_FAILED, there is credit.
        """
        if mode not in (spec.MessageFlowMode.CREDIT, spec.MessageFlowMode.WINDOW):
            raise Failed(Code.INVALID_ARGUMENT, f"flow-mode {mode} is neither credit nor window")
        if self.messages or self.nbytes:
            text = f"destination '{self.destination}' has credit: stop it before its flow-mode is changed"
            raise Failed(Code.PRECONDITION_FAILED, text)
        self.window = mode == spec.MessageFlowMode.WINDOW

    def completed(self, size: int) -> None:
        """The client has completed a transfer that was sent in window mode: its credit comes back."""
        if self.window:
            self.messages += 1
            self.nbytes += size
