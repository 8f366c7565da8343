"""The file of users: JSON that people can read; passwords only as hashes. Written whole, or not at all."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import secrets
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from amqp_core.broker.error_conditions import BrokerCondition
from amqp_core.broker.errors import UnusableFile
from amqp_core.broker.passwords import MOST_SCRYPT_BYTES, HashedPassword, ScramKeys, ScryptHash, Secret
from amqp_core.broker.rights import Grants, Patterns, Right
from amqp_core.sasl import MAX_ITERATIONS, MIN_ITERATIONS
from amqp_core.scram import from_base64

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VERSION: Final = 1
_SHA256_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class User:
    """One user. Immutable: any thread may use it.

    Args:
        secret: ``None``: it has no password, and logs in with a certificate.
        grants: ``None``: it may do everything.
    """

    secret: Secret | None
    grants: Grants | None = field(default=None)


class _Damaged(Exception):
    """What is wrong in the file; never a value of it."""


def load(path: str | Path, *, missing_ok: bool = False) -> dict[str, User]:
    """The users of a file, by name.

    Args:
        missing_ok: a file that is not there has no users.

    Raises:
        UnusableFile: it cannot be read, or is no file of users.
    """
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError as error:
        if missing_ok:
            return {}
        raise UnusableFile(BrokerCondition.USERS_UNREADABLE(path=path, reason=error.strerror)) from error
    except (OSError, ValueError) as error:  # a path that cannot be encoded is a ValueError
        reason = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
        raise UnusableFile(BrokerCondition.USERS_UNREADABLE(path=path, reason=reason)) from error
    try:
        return _users(content)
    except _Damaged as damaged:
        raise UnusableFile(BrokerCondition.USERS_DAMAGED(path=path, reason=damaged)) from None


@contextlib.contextmanager
def changing(path: str | Path, *, missing_ok: bool = False) -> Iterator[dict[str, User]]:
    """The users of a file, to be changed: they are saved at the end, if no error came.

    Another process that changes files of this directory waits until then (the lock is on the directory, since the file
    is replaced; Windows has none).

    Raises:
        UnusableFile: as :func:`load` and :func:`save`.
    """
    with contextlib.ExitStack() as stack:
        if sys.platform != "win32":
            with contextlib.suppress(OSError, ValueError):  # load says what is wrong; some file systems have no locks
                descriptor = os.open(Path(path).parent, os.O_RDONLY)
                stack.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        users = load(path, missing_ok=missing_ok)
        yield users
        save(path, users)


def save(path: str | Path, users: Mapping[str, User]) -> None:
    """Write all users, in place of what was there. Nobody but the owner may read the file.

    Raises:
        UnusableFile: it cannot be written; it is as it was then.
    """
    written = {"version": VERSION, "users": {name: _written(user) for name, user in users.items()}}
    content = json.dumps(written, indent=2, ensure_ascii=False).encode() + b"\n"
    path = Path(path)
    try:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            _sync(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
        raise UnusableFile(BrokerCondition.USERS_NOT_WRITABLE(path=path, reason=reason)) from error


def _sync(directory: Path) -> None:
    """Let what was renamed in a directory be on the disk: else a user who was removed could come back after a crash."""
    if sys.platform == "win32":
        return
    with contextlib.suppress(OSError):  # some file systems cannot, and a directory may be for writing only
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# --- writing


def _written(user: User) -> dict[str, object]:
    grants, secret = user.grants, user.secret
    assert grants is not None
    found: dict[str, object] = {}
    if grants.everywhere is not None:
        found["rights"] = _written_patterns(grants.everywhere)
    if grants.by_host:
        found["virtual_hosts"] = {name: _written_patterns(each) for name, each in grants.by_host.items()}
    if secret is not None:
        assert isinstance(secret, HashedPassword)
        scrypt, scram = secret.scrypt, secret.scram
        found["scrypt"] = {
            "n": scrypt.n, "r": scrypt.r, "p": scrypt.p, "salt": _text(scrypt.salt), "hash": _text(scrypt.hash),
        }  # fmt: skip
        found["scram-sha-256"] = {
            "iterations": scram.iterations, "salt": _text(scram.salt), "stored-key": _text(scram.stored_key),
            "server-key": _text(scram.server_key),
        }  # fmt: skip
    return found


def _written_patterns(patterns: Patterns) -> dict[str, str]:
    return {right.value: getattr(patterns, right.value) for right in Right}


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


# --- reading


def _users(content: bytes) -> dict[str, User]:
    try:
        found = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise _Damaged("it is not JSON") from error
    found = _object(found, "it")
    version = found.get("version")
    if version != VERSION:
        raise _Damaged(f"its version is not {VERSION}")
    return {name: _user(name, each) for name, each in _object(found.get("users"), "users").items()}


def _user(name: str, value: object) -> User:
    what = f"user {name!r:.100}"
    found = _object(value, what)
    hosts = _object(found.get("virtual_hosts", {}), f"virtual_hosts of {what}")
    grants = Grants(
        _patterns(found["rights"], f"rights of {what}") if "rights" in found else None,
        {host: _patterns(each, f"virtual host {host!r:.100} of {what}") for host, each in hosts.items()},
    )
    if "scrypt" not in found and "scram-sha-256" not in found:
        return User(None, grants)
    scrypt = _scrypt(found.get("scrypt"), f"scrypt of {what}")
    return User(HashedPassword(scrypt, _scram(found.get("scram-sha-256"), f"scram-sha-256 of {what}")), grants)


def _patterns(value: object, what: str) -> Patterns:
    found = _object(value, what)
    patterns = {right.value: found.get(right.value) for right in Right}
    if not all(isinstance(each, str) for each in patterns.values()):
        raise _Damaged(f"{what} lack one of configure, write and read, as text")
    try:
        return Patterns(**{name: str(each) for name, each in patterns.items()})
    except re.error as error:
        raise _Damaged(f"{what} have a pattern that is no regular expression ({error})") from error


def _scrypt(value: object, what: str) -> ScryptHash:
    found = _object(value, what)
    n, r, p = (_number(found.get(name), f"{name} of {what}", 1, 1 << 24) for name in ("n", "r", "p"))
    if n < 2 or n & (n - 1) or 128 * n * r > MOST_SCRYPT_BYTES or p > 16:
        raise _Damaged(f"{what} has parameters that are not possible")
    salt = _bytes(found.get("salt"), f"salt of {what}", 8)
    return ScryptHash(n, r, p, salt, _bytes(found.get("hash"), f"hash of {what}", 16))


def _scram(value: object, what: str) -> ScramKeys:
    found = _object(value, what)
    iterations = _number(found.get("iterations"), f"iterations of {what}", MIN_ITERATIONS, MAX_ITERATIONS)
    keys = [_bytes(found.get(name), f"{name} of {what}", _SHA256_BYTES) for name in ("stored-key", "server-key")]
    return ScramKeys(_bytes(found.get("salt"), f"salt of {what}", 8), iterations, keys[0], keys[1])


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Damaged(f"{what} is no object")
    return value


def _number(value: object, what: str, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise _Damaged(f"{what} is no number from {least} to {most}")
    return value


def _bytes(value: object, what: str, least: int) -> bytes:
    found = from_base64(value) if isinstance(value, str) else b""
    if not least <= len(found) <= 1024:
        raise _Damaged(f"{what} is not base64 of at least {least} bytes")
    return found
