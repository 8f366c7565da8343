"""Passwords as the broker keeps them.

In the file of users: a scrypt hash, for mechanisms that send the password, and the keys of SCRAM-SHA-256. SCRAM cannot
use scrypt: its keys come from PBKDF2, and whoever steals the file would try passwords on these. So there are more
iterations than RFC 7677 asks for, as many as a client can do in some 25 ms.

Both are made of the password as RFC 4013 prepares it, which is also what clients with SCRAM do.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from functools import cached_property
from typing import Final, NamedTuple, Protocol

from amqp_core.errors import UsageError
from amqp_core.sasl import MIN_ITERATIONS, saslprep
from amqp_core.scram import keys_of, stored_key

SCRAM_HASH: Final = "sha256"
SCRAM_ITERATIONS: Final = 100_000
SCRYPT_N: Final = 1 << 14
SCRYPT_R: Final = 8
SCRYPT_P: Final = 1
HASH_BYTES: Final = 32
SALT_BYTES: Final = 16
MOST_SCRYPT_BYTES: Final = 1 << 28
"""Memory for one hash that a file may ask for."""


class ScramKeys(NamedTuple):
    """What a server keeps for SCRAM-SHA-256 (RFC 5802 section 3). Immutable: any thread may use it."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


class ScryptHash(NamedTuple):
    """A hash of scrypt (RFC 7914) with its parameters. Immutable: any thread may use it."""

    n: int
    r: int
    p: int
    salt: bytes
    hash: bytes


class Secret(Protocol):
    """The password of a user. Any thread may use it."""

    @property
    def is_slow(self) -> bool:
        """Whether ``matches`` takes long, on purpose."""

    @property
    def scram(self) -> ScramKeys:
        """Its keys of SCRAM."""

    def matches(self, password: str) -> bool:
        """Whether this is the password; the time does not tell how much of it is right."""


class ClearPassword:
    """A password that is no secret, or not kept in a file."""

    is_slow: Final = False

    def __init__(self, password: str) -> None:
        self._password = password

    def __repr__(self) -> str:
        return "ClearPassword(<redacted>)"

    @cached_property
    def scram(self) -> ScramKeys:
        """Its keys of SCRAM."""
        return scram_keys(self._password, iterations=MIN_ITERATIONS)

    def matches(self, password: str) -> bool:
        """Whether this is the password."""
        return hmac.compare_digest(password.encode("utf-8", "replace"), self._password.encode())


class HashedPassword:
    """A password that only its owner knows."""

    is_slow: Final = True

    def __init__(self, scrypt: ScryptHash, scram: ScramKeys) -> None:
        self.scrypt = scrypt
        self.scram = scram

    def __repr__(self) -> str:
        return "HashedPassword(<redacted>)"

    def matches(self, password: str) -> bool:
        """Whether this is the password: some 50 ms, without the lock of the interpreter."""
        kept = self.scrypt
        try:
            prepared = saslprep(password, "password")
        except UsageError:  # it cannot have been given to a user; the time must not tell
            prepared = ""
        found = scrypt_hash(prepared, salt=kept.salt, n=kept.n, r=kept.r, p=kept.p, size=len(kept.hash))
        return hmac.compare_digest(found.hash, kept.hash) and bool(prepared)


def hashed(password: str) -> HashedPassword:
    """Hash a password for the file.

    Raises:
        UsageError: it has a character that SASL does not allow (RFC 4013).
    """
    return HashedPassword(scrypt_hash(saslprep(password, "password")), scram_keys(password))


def no_password() -> HashedPassword:
    """A secret that nobody knows: to check it takes as long as any, so that the time does not tell who exists."""
    salt, random = secrets.token_bytes(SALT_BYTES), secrets.token_bytes(HASH_BYTES)
    scram = ScramKeys(salt, SCRAM_ITERATIONS, random, random)
    return HashedPassword(ScryptHash(SCRYPT_N, SCRYPT_R, SCRYPT_P, salt, random), scram)


def scrypt_hash(
    password: str,
    *,
    salt: bytes | None = None,
    n: int = SCRYPT_N,
    r: int = SCRYPT_R,
    p: int = SCRYPT_P,
    size: int = HASH_BYTES,
) -> ScryptHash:
    """The hash of a prepared password, with a new salt if none is given."""
    salt = secrets.token_bytes(SALT_BYTES) if salt is None else salt
    found = hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, maxmem=2 * MOST_SCRYPT_BYTES, dklen=size)
    return ScryptHash(n, r, p, salt, found)


def scram_keys(password: str, *, iterations: int = SCRAM_ITERATIONS) -> ScramKeys:
    """The keys of a password, with a new salt.

    Raises:
        UsageError: it has a character that SASL does not allow (RFC 4013).
    """
    salt = secrets.token_bytes(SALT_BYTES)
    keys = keys_of(SCRAM_HASH, saslprep(password, "password").encode(), salt, iterations)
    return ScramKeys(salt, iterations, stored_key(SCRAM_HASH, keys.client), keys.server)
