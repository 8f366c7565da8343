"""The login of one connection: SASL (RFC 4422) of the server role, for all protocols. No I/O.

The mechanisms differ from client to client: EXTERNAL needs a certificate, ANONYMOUS a client on this machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from amqp_core.broker.logins import ANONYMOUS_USER
from amqp_core.broker.sasl_errors import refused
from amqp_core.broker.scram import SCRAM_SHA_256, ServerScram

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from amqp_core.broker.logins import Logins

EXTERNAL: Final = "EXTERNAL"
ANONYMOUS: Final = "ANONYMOUS"


class Caller(NamedTuple):
    """What is known of a client before it logs in. Immutable: any thread may use it.

    Args:
        loopback: whether it is on this machine.
        certificate_name: the common name in its certificate, which has been verified.
    """

    loopback: bool = True
    certificate_name: str | None = None


class Check(NamedTuple):
    """A password that takes long to check: pass what ``run`` returns, in any thread, to ``ServerLogin.checked``."""

    run: Callable[[], bool]


def plain(response: bytes) -> tuple[str, str]:
    """Name and password in a response of PLAIN (RFC 4616).

    Raises:
        AuthenticationFailed: it is not of that form.
    """
    parts = response.decode("utf-8", "replace").split("\0")
    if len(parts) != 3:
        raise refused("PLAIN", "the response is not of the form of RFC 4616")
    return parts[1], parts[2]


class ServerLogin:
    """One login. Not thread-safe.

    Args:
        logins: who may log in.
        caller: what is known of the client.
        passwords: mechanisms that send name and password, and how to read their responses.

    Attributes:
        mechanisms: what is offered to the client.
        username: who has logged in; empty before.
    """

    def __init__(
        self, logins: Logins, caller: Caller, passwords: Mapping[str, Callable[[bytes], tuple[str, str]]]
    ) -> None:
        anonymous = logins.allows_anonymous(loopback=caller.loopback)
        self.mechanisms = (
            SCRAM_SHA_256,
            *passwords,
            *([EXTERNAL] if caller.certificate_name is not None else []),
            *([ANONYMOUS] if anonymous else []),
        )
        self.username = ""
        self._logins = logins
        self._caller = caller
        self._passwords = passwords
        self._mechanism = ""
        self._claimed = ""
        self._asked = False
        self._scram: ServerScram | None = None

    def respond(self, mechanism: str, response: bytes | None) -> bytes | Check | None:
        """Answer a response of the client: with a challenge, or ``None`` when it has logged in.

        Args:
            mechanism: the client's choice.
            response: ``None``: there is none, which differs from an empty one.

        Raises:
            AuthenticationFailed: the login is refused.
        """
        if mechanism not in self.mechanisms:
            raise refused(mechanism, f"offered are {', '.join(self.mechanisms)}")
        self._mechanism = mechanism
        if self._scram is not None and self._scram.is_proved:  # it answers to server-final
            if response:
                raise refused(mechanism, "the answer to server-final is not empty")
            self._accept(self._scram.username)
            return None
        if not response and not self._asked and (response is None or mechanism == SCRAM_SHA_256):
            self._asked = True
            return b""  # RFC 4422: an empty challenge asks for the initial response
        return self._step(response or b"")

    def checked(self, matches: bool) -> None:  # noqa: FBT001 - the result of Check.run
        """The password was checked.

        Raises:
            AuthenticationFailed: it is wrong, or the user may not come from there.
        """
        if not matches:
            raise refused(self._mechanism, "name or password is wrong")
        self._accept(self._claimed)

    def _step(self, response: bytes) -> bytes | Check | None:
        if self._mechanism == SCRAM_SHA_256:
            if self._scram is None:
                self._scram = ServerScram(self._logins)
            return self._scram.respond(response)
        if self._mechanism == EXTERNAL:
            self._external(response)
            return None
        if self._mechanism == ANONYMOUS:
            self._accept(ANONYMOUS_USER)
            return None
        name, password = self._passwords[self._mechanism](response)
        self._claimed = name
        logins = self._logins
        matches = logins.match_quickly(name, password)
        if matches is None:
            return Check(lambda: logins.match(name, password))
        self.checked(matches)
        return None

    def _external(self, response: bytes) -> None:
        name = self._caller.certificate_name
        assert name is not None
        if response and response != name.encode():
            raise refused(EXTERNAL, "it asks to act as another user")
        if name not in self._logins:
            raise refused(EXTERNAL, f"there is no user {name!r}, which the client certificate names")
        self._accept(name)

    def _accept(self, name: str) -> None:
        if not self._logins.may_come_from(name, loopback=self._caller.loopback):
            raise refused(self._mechanism, f"user {name!r} may log in from this machine only")
        self.username = name
