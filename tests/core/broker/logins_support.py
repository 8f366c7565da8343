"""Logins without sockets: a client's mechanism joined to the server role."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from amqp_core.broker.login import Caller, Check, ServerLogin
from amqp_core.broker.logins import Logins
from amqp_core.broker.passwords import HashedPassword, hashed
from amqp_core.broker.rights import Grants, Patterns
from amqp_core.broker.users_file import User
from amqp_core.broker.v0_9.login import PASSWORDS

if TYPE_CHECKING:
    from amqp_core.sasl import Mechanism


@cache
def secret(password: str) -> HashedPassword:
    """A hashed password; made once, as it takes long."""
    return hashed(password)


def logins(*, allow_anonymous: bool = False, **passwords: str | None) -> Logins:
    """Logins as of a file, whose users may do everything; ``None``: without a password."""
    users = {
        name: User(None if password is None else secret(password), Grants(Patterns()))
        for name, password in passwords.items()
    }
    return Logins(users=users, allow_anonymous=allow_anonymous)


def log_in(known: Logins, mechanism: Mechanism, caller: Caller = Caller()) -> str:  # noqa: B008 - it is immutable
    """Carry the exchange of a mechanism to its end; return the name of the login."""
    server = ServerLogin(known, caller, PASSWORDS)
    response = mechanism.initial()
    while (answer := server.respond(mechanism.name, response)) is not None:
        if isinstance(answer, Check):
            server.checked(answer.run())
            break
        response = mechanism.respond(answer)
    mechanism.finished()
    return server.username
