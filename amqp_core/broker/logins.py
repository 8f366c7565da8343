"""Who may log in."""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING, Final

from amqp_core.broker.passwords import ClearPassword, ScramKeys, Secret, no_password
from amqp_core.broker.rights import Rights
from amqp_core.broker.users_file import User

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DEFAULT_LOGIN: Final = ("guest", "guest")
ANONYMOUS_USER: Final = "guest"
"""Whom a client without a name is taken for. As on RabbitMQ, it may come from this machine only."""
_FAKE_SALT_BYTES: Final = 16


class Logins:
    """The users. Any thread may use it.

    Args:
        passwords: users with all rights, whose passwords are no secret; by default the default login.
        users: users of a file, instead.
        allow_anonymous: clients of other machines may come without a name, too, and as the user who stands for them.
    """

    def __init__(
        self,
        passwords: Mapping[str, str] | None = None,
        *,
        users: Mapping[str, User] | None = None,
        allow_anonymous: bool = False,
    ) -> None:
        if users is None:
            given = dict([DEFAULT_LOGIN] if passwords is None else passwords)
            users = {name: User(ClearPassword(password)) for name, password in given.items()}
        self._users = dict(users)
        self._allow_anonymous = allow_anonymous
        self._key = secrets.token_bytes(32)
        """Of this process: what is made with it says nothing outside."""
        self._salt_key = _salt_key(self._users.values())
        self._verified: dict[str, bytes] = {}
        self._is_slow = any(user.secret is not None and user.secret.is_slow for user in self._users.values())
        # stands for those who do not exist: to check its password takes as long as any
        self._nobody: Secret = no_password() if self._is_slow else ClearPassword(secrets.token_hex(32))

    def __repr__(self) -> str:
        return f"<{len(self._users)} logins>"

    def __contains__(self, name: str) -> bool:
        return name in self._users

    def match_quickly(self, name: str, password: str) -> bool | None:
        """Whether there is such a login; ``None``: only ``match`` can tell, which takes long.

        A login that was right once is known again by an HMAC, so that clients that connect often cost little.
        """
        user = self._users.get(name)
        proof = self._verified.get(name)
        if proof is not None and hmac.compare_digest(proof, self._proof(name, password)):
            return True
        if self._is_slow:
            return None
        # compared in any case, so that the time does not tell which names there are
        secret = self._nobody if user is None or user.secret is None else user.secret
        return secret.matches(password) and secret is not self._nobody

    def match(self, name: str, password: str) -> bool:
        """Whether there is such a login. With a file of users it takes some 50 ms, whatever the answer is."""
        user = self._users.get(name)
        secret = self._nobody if user is None or user.secret is None else user.secret
        matches = secret.matches(password)
        if secret is self._nobody or not matches:
            return False
        if secret.is_slow:
            self._verified[name] = self._proof(name, password)
        return True

    def scram(self, name: str) -> tuple[ScramKeys, bool]:
        """The SCRAM keys of a user, and True; for an unknown name: keys that match no password, and False."""
        user = self._users.get(name)
        if user is not None and user.secret is not None:
            return user.secret.scram, True
        salt = hmac.digest(self._salt_key, name.encode("utf-8", "replace"), "sha256")[:_FAKE_SALT_BYTES]
        return self._nobody.scram._replace(salt=salt), False

    def may_come_from(self, name: str, *, loopback: bool) -> bool:
        """Whether a user may log in from where the client is."""
        return loopback or name != ANONYMOUS_USER or self._allow_anonymous

    def allows_anonymous(self, *, loopback: bool) -> bool:
        """Whether a client may come without a name."""
        return ANONYMOUS_USER in self._users and (loopback or self._allow_anonymous)

    def rights(self, name: str, virtual_host: str) -> Rights | None:
        """The rights of a user in a virtual host; ``None``: it may not open it."""
        grants = self._users[name].grants
        if grants is None:
            return Rights()
        patterns = grants.of(virtual_host)
        return None if patterns is None else Rights(patterns, name, virtual_host)

    def _proof(self, name: str, password: str) -> bytes:
        text = f"{len(name)}:{name}{password}".encode("utf-8", "replace")
        return hmac.digest(self._key, text, "sha256")


def _salt_key(users: Iterable[User]) -> bytes:
    """For the salts of names that are not there: as those of users, they are the same after a restart."""
    kept = [user.secret.scram.stored_key for user in users if user.secret is not None and user.secret.is_slow]
    if not kept:
        return secrets.token_bytes(32)
    return hmac.digest(b"".join(sorted(kept)), b"salts of unknown names", "sha256")
