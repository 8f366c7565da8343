"""One connection of a client, whichever protocol it speaks: bytes in, calls of the model, bytes out. No I/O."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from amqp_core.address import DEFAULT_MAX_MESSAGE_BYTES
from amqp_core.api import EMBEDDED_PRODUCT
from amqp_core.broker.brake import Brake
from amqp_core.broker.login import Caller, Check, ServerLogin
from amqp_core.broker.rights import Rights
from amqp_core.errors import AmqpError, AuthenticationFailed, ConnectionClosed
from amqp_core.printable import printable
from amqp_core.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from amqp_core.broker.login_checks import LoginChecks
    from amqp_core.broker.logins import Logins
    from amqp_core.broker.model.virtual_host import VirtualHost

SERVER_PROPERTIES: Final = {"product": EMBEDDED_PRODUCT, "version": __version__, "platform": "Python"}
"""Server properties in connection.start of both protocols. Some clients need the version."""
HEARTBEAT_S: Final = 60
MOST_PENDING_BYTES: Final = 1 << 20
"""Bytes for a client that are not written yet, above which it gets no more messages."""
HERE: Final = Caller()
"""A client on this machine, without a certificate."""
_OTHERS: Final = 1 << 20
"""Bytes in parts beside the largest message: overhead, and methods and commands that are none."""
_NORMAL: Final = (200, 0)
"""Reply codes of a connection that ends as it should, in both protocols; py-amqp sends 0."""

_log = logging.getLogger(__name__)


class Adapter(ABC):
    """One connection of a client. Not thread-safe.

    Args:
        hosts: virtual hosts by name.
        logins: who may log in.
        clock: the time of the model, in seconds since 1970.
        wake: called when there is something to write that no call of this connection has caused.
        peer: name of the client for the log.
        max_message_bytes: the largest message that a client may publish.
        passwords: SASL mechanisms of the protocol that send name and password, and how to read their responses.
        caller: what is known of the client before its login.
        checks: where passwords are checked that take long; ``None``: here, at once.

    Attributes:
        username: name of the login; empty before it.
        rights: what the login may do in the virtual host that it has opened.
        is_over: whether the connection can be dropped when all is written.
        paused: whether the socket takes no more bytes at present; the server sets it.
        is_read: whether the socket is read at present; the server sets it.
    """

    def __init__(
        self,
        *,
        hosts: Mapping[str, VirtualHost],
        logins: Logins,
        clock: Callable[[], float],
        wake: Callable[[], None],
        peer: str = "",
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        passwords: Mapping[str, Callable[[bytes], tuple[str, str]]],
        caller: Caller = HERE,
        checks: LoginChecks | None = None,
    ) -> None:
        self.peer = peer
        self.max_message_bytes = max_message_bytes
        self.username = ""
        self.rights = Rights()
        self.is_over = False
        self.paused = False
        self.is_read = True
        self._brake: Brake[Any] = Brake()
        self._hosts = hosts
        self._logins = logins
        self._login = ServerLogin(logins, caller, passwords)
        self._checks = checks
        self._clock = clock
        self._wake = wake
        self._host: VirtualHost | None = None
        self._pending = 0
        self._answers = 0
        self._starved = False
        self._gives_no_more = False

    @property
    def virtual_host(self) -> VirtualHost:
        """The virtual host of an open connection."""
        assert self._host is not None
        return self._host

    @property
    def now(self) -> float:
        """The time of the model, in seconds since 1970."""
        return self._clock()

    @property
    def is_open(self) -> bool:
        """Whether the client has opened a virtual host."""
        return self._host is not None

    @property
    def is_congested(self) -> bool:
        """Whether the client gets no more messages until it has read what was sent, or at all."""
        if self.paused or self._pending > MOST_PENDING_BYTES or self._gives_no_more:
            self._starved = True
            return True
        return False

    @property
    @abstractmethod
    def is_closing(self) -> bool:
        """Whether the client has to answer connection.close."""

    @property
    def is_stalled(self) -> bool:
        """Whether nothing more is to be read at present."""
        return self._brake.is_on and not self.is_closing

    @property
    def is_restrained(self) -> bool:
        """Whether the client publishes what there is no room for: ``relieve`` is to be called at times."""
        return self._brake.is_stopped or self._has_restraints()

    @property
    @abstractmethod
    def unfinished_bytes(self) -> int:
        """Bytes of messages that have not arrived whole."""

    def relieve(self) -> None:
        """Let the publishers of the client go on if there is room again.

        A connection that is not read although it holds messages is read a little at a time, for its acks may be what
        others wait for. If it publishes on, and far above the limit, it ends, and gives back what it holds.
        """
        if self.is_closing or self.is_over:
            return
        over = self._relieve()
        if not self._has_restraints():
            self._brake.release_for_publisher()
        elif self._brake.is_on and self._holds_messages():
            if over is not None:
                self._give_up(f"the client publishes and consumes on one connection, which is blocked ({over})")
                return
            self._brake.sip()
        self._go_on()

    @abstractmethod
    def receive(self, data: bytes) -> None:
        """Process received bytes."""

    @abstractmethod
    def take_bytes(self) -> bytes:
        """Return what is to be written now, and forget it."""

    def written(self) -> None:
        """The socket takes more: go on with what waited for it."""
        if self.paused:
            return
        if self._starved:
            self._starved = False
            self._resume()
        self._brake.release_for_answers()
        self._go_on()

    def tick(self, now: float) -> float | None:
        """Send a heartbeat if one is due; return the time of the next call. A client that is silent is given up."""
        following, silent = self._beat(now)
        if silent:
            _log.warning("%s: the client is silent for two heartbeats; its connection ends", self.peer)
            self.lost()
        return following

    @abstractmethod
    def lost(self) -> None:
        """The connection is gone: return what it held."""

    def give_no_more(self) -> None:
        """Deliver nothing more: the connection ends.

        This comes before any of its consumers is cancelled. Otherwise another consumer of the connection becomes the
        single active consumer, and takes messages that the client does not read.
        """
        self._gives_no_more = True

    @abstractmethod
    def stop_consuming(self) -> None:
        """Cancel all consumers for good; what they hold stays held.

        Before any of them returns what it holds: another one, which is about to end, would get it, and each time it
        would count as delivered once more.
        """

    @abstractmethod
    def shut_down(self) -> None:
        """Tell the client that the broker stops."""

    def _go_on(self) -> None:
        """Process events that wait, unless they still have to."""
        if self._brake.has_waiting and not self._brake.is_on:
            self._process([])
            self._wake()

    def _most_unfinished(self) -> float:
        """Bytes of messages that may have arrived in part, on all channels together."""
        memory = math.inf if self._host is None else self._host.memory.limit
        return min(self.max_message_bytes, memory) + _OTHERS

    def _answered(self, nbytes: int) -> None:
        """Note an answer that the client has asked for: it has to read before it gets many."""
        self._answers += nbytes
        if self._answers > MOST_PENDING_BYTES:
            self._brake.pull_for_answers()

    @abstractmethod
    def _process(self, events: list[Any]) -> None:
        """Process the events that wait, and these."""

    @abstractmethod
    def _has_restraints(self) -> bool:
        """Whether the publishers of the client have to wait."""

    @abstractmethod
    def _relieve(self) -> str | None:
        """Tell the publishers of the client if they may go on; the reason if there is far too little room."""

    @abstractmethod
    def _holds_messages(self) -> bool:
        """Whether the client has messages that it has not settled."""

    @abstractmethod
    def _give_up(self, text: str) -> None:
        """Close the connection, since the client takes up too much."""

    @abstractmethod
    def _resume(self) -> None:
        """Go on with deliveries that waited for the socket."""

    @abstractmethod
    def _beat(self, now: float) -> tuple[float | None, bool]:
        """Send a heartbeat if one is due; return when to look again, and whether the client is silent."""

    @abstractmethod
    def _login_checked(self, error: AuthenticationFailed | None) -> None:
        """Go on with a login that was checked meanwhile."""

    def _log_in(self, mechanism: str, response: bytes | None) -> bytes | Check | None:
        """Answer a response of SASL: with a challenge, ``None`` for a login, a check if ``_login_checked`` will follow.

        Raises:
            AuthenticationFailed: the login is refused.
        """
        login = self._login
        answer = login.respond(mechanism, response)
        if not isinstance(answer, Check):
            self.username = login.username
            return answer
        if self._checks is None:
            login.checked(answer.run())
            self.username = login.username
            return None
        # a client that is gone by then costs nothing
        self._checks.run(lambda: not self.is_over and answer.run(), self._checked)
        return answer

    def _checked(self, matches: bool) -> None:  # noqa: FBT001 - the result of a check
        if self.is_over:
            return
        error: AuthenticationFailed | None = None
        try:
            self._login.checked(matches)
            self.username = self._login.username
        except AuthenticationFailed as failed:
            error = failed
        self._login_checked(error)
        self._wake()

    def _forbids(self, virtual_host: str) -> str | None:
        """Why the login cannot open a virtual host; ``None``: it can."""
        if virtual_host not in self._hosts:
            reason = (
                f"vhost {virtual_host!r:.80} not found: leave the path out of the URL, which means '/', or start the "
                "broker with --virtual-host and this name"
            )
        elif self._logins.rights(self.username, virtual_host) is None:
            reason = f"access to vhost '{virtual_host}' refused for user '{self.username}'"
        else:
            return None
        _log.warning("%s: a connection is refused: %s", self.peer, printable(reason))
        return reason

    def _opened(self, virtual_host: str) -> None:
        rights = self._logins.rights(self.username, virtual_host)
        assert rights is not None
        self.rights = rights
        self._host = self._hosts[virtual_host]
        _log.info("%s: %s is connected to %r", self.peer, self.username, virtual_host)

    def _ended(self, error: AmqpError | None) -> None:
        if error is not None and not (isinstance(error, ConnectionClosed) and error.reply_code in _NORMAL):
            _log.warning("%s: the connection ends: %s", self.peer, printable(str(error)))
        self.lost()
