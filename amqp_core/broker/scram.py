"""SCRAM-SHA-256 of the server role (RFC 5802, RFC 7677), without channel binding, for all protocols."""

from __future__ import annotations

import base64
import hmac
import re
import secrets
from typing import TYPE_CHECKING, Final

from amqp_core.broker.passwords import SCRAM_HASH
from amqp_core.broker.sasl_errors import refused
from amqp_core.scram import attributes, combined, from_base64, sign, stored_key

if TYPE_CHECKING:
    from amqp_core.broker.logins import Logins
    from amqp_core.broker.passwords import ScramKeys
    from amqp_core.errors import AuthenticationFailed

SCRAM_SHA_256: Final = "SCRAM-SHA-256"
# A name as an attribute: "=" only in these two.
_ESCAPE: Final = re.compile("=2C|=3D")
_NONCE: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]+")


class ServerScram:
    """One exchange. Not thread-safe.

    Args:
        nonce: for tests; by default it is random.

    Attributes:
        username: who logs in; proved when ``is_proved``.
        is_proved: whether the client has proved that it knows the password.
    """

    def __init__(self, logins: Logins, nonce: str | None = None) -> None:
        self.username = ""
        self.is_proved = False
        self._logins = logins
        self._nonce = secrets.token_urlsafe(24) if nonce is None else nonce
        self._header = b""
        self._first_bare = ""
        self._keys: ScramKeys | None = None
        self._exists = False
        self._server_first = ""

    def respond(self, message: bytes) -> bytes:
        """Answer client-first with server-first, and client-final with server-final.

        Raises:
            AuthenticationFailed: a message is malformed, or the proof is wrong.
        """
        return self._final(message) if self._server_first else self._first(message)

    def _first(self, message: bytes) -> bytes:
        try:
            text = message.decode()
        except UnicodeDecodeError:
            text = ""
        binding, _, rest = text.partition(",")
        identity, separator, bare = rest.partition(",")
        # y: the client would bind to the channel, but has seen that no mechanism with binding is offered
        if not separator or binding not in ("n", "y"):
            raise _malformed("client-first does not begin with n,, or y,,")
        fields = _fields(bare, "client-first")
        if list(fields)[:2] != ["n", "r"] or not _NONCE.fullmatch(fields["r"]):
            raise _malformed("client-first is not n=...,r=...")
        self.username = _unescape(fields["n"])
        if identity and identity != f"a={fields['n']}":
            raise refused(SCRAM_SHA_256, "it asks to act as another user")
        self._keys, self._exists = self._logins.scram(self.username)
        self._header = f"{binding},{identity},".encode()
        self._first_bare = bare
        self._nonce = fields["r"] + self._nonce
        salt = base64.b64encode(self._keys.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={self._keys.iterations}"
        return self._server_first.encode()

    def _final(self, message: bytes) -> bytes:
        keys = self._keys
        assert keys is not None
        without_proof, _, proof = message.decode("utf-8", "replace").rpartition(",p=")
        fields = _fields(without_proof, "client-final")
        if list(fields)[:2] != ["c", "r"]:
            raise _malformed("client-final is not c=...,r=...,p=...")
        if from_base64(fields["c"]) != self._header or fields["r"] != self._nonce:
            raise refused(SCRAM_SHA_256, "client-final belongs to another exchange")
        given = from_base64(proof)
        signed = f"{self._first_bare},{self._server_first},{without_proof}".encode()
        signature = sign(SCRAM_HASH, keys.stored_key, signed)
        proved = len(given) == len(signature) and hmac.compare_digest(
            stored_key(SCRAM_HASH, combined(given, signature)), keys.stored_key
        )
        if not (proved and self._exists):
            raise refused(SCRAM_SHA_256, "name or password is wrong")
        self.is_proved = True
        return b"v=" + base64.b64encode(sign(SCRAM_HASH, keys.server_key, signed))


def _fields(text: str, what: str) -> dict[str, str]:
    try:
        fields = attributes(text.encode())
    except ValueError:
        raise _malformed(f"{what} is not a list of attributes") from None
    if "m" in fields:
        raise _malformed(f"{what} asks for an extension that is not known here")
    return fields


def _unescape(name: str) -> str:
    if "=" in _ESCAPE.sub("", name) or not name:
        raise _malformed("the user name is not escaped as RFC 5802 has it")
    return name.replace("=2C", ",").replace("=3D", "=")


def _malformed(reason: str) -> AuthenticationFailed:
    return refused(SCRAM_SHA_256, reason)
