"""SCRAM (RFC 5802): what client and server compute and parse alike. No I/O, no state.

``hash_name`` is that of the mechanism, such as ``sha256``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import NamedTuple


class Keys(NamedTuple):
    """What a password becomes, with a salt and a number of iterations (RFC 5802 section 3)."""

    client: bytes
    server: bytes


def keys_of(hash_name: str, password: bytes, salt: bytes, iterations: int) -> Keys:
    """ClientKey and ServerKey of a prepared password (RFC 4013). It takes long: that is its purpose."""
    salted = hashlib.pbkdf2_hmac(hash_name, password, salt, iterations)
    return Keys(sign(hash_name, salted, b"Client Key"), sign(hash_name, salted, b"Server Key"))


def stored_key(hash_name: str, client_key: bytes) -> bytes:
    """StoredKey: what a server keeps of the client's key."""
    return hashlib.new(hash_name, client_key).digest()


def sign(hash_name: str, key: bytes, message: bytes) -> bytes:
    """HMAC of a message: a signature of the client or server if the key is StoredKey or ServerKey."""
    return hmac.digest(key, message, hash_name)


def combined(one: bytes, other: bytes) -> bytes:
    """Exclusive or: ClientKey and ClientSignature give ClientProof, and ClientProof and ClientSignature ClientKey."""
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def escape(name: str) -> str:
    """A user name as an attribute (RFC 5802 section 5.1, saslname)."""
    return name.replace("=", "=3D").replace(",", "=2C")


def attributes(message: bytes) -> dict[str, str]:
    """The ``a=value`` list of a message, in order.

    Raises:
        ValueError: it is not one, or names an attribute twice.
    """
    found: dict[str, str] = {}
    for part in message.decode().split(","):
        key, separator, value = part.partition("=")
        if len(key) != 1 or not separator or key in found:
            raise ValueError("not a list of attributes")
        found[key] = value
    return found


def from_base64(text: str) -> bytes:
    """Decode a value in base64; nothing if it is not that."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
