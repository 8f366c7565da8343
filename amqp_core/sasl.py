"""SASL (RFC 4422): the login of a client, choice of the mechanism, and the steps of each. No I/O, no clock.

A mechanism is driven by three calls: :meth:`Mechanism.initial` returns the initial response (``None``: it has none,
which differs from an empty one), :meth:`Mechanism.respond` answers each challenge, and :meth:`Mechanism.finished` is
called when the broker has accepted the login: it raises if the mechanism requires a proof of the broker (SCRAM) and the
proof is missing.

No mechanism here negotiates a security layer, so data after the login is not wrapped. Error texts contain no secret.
"""

from __future__ import annotations

import base64
import hmac
import secrets
import stringprep
import unicodedata
from typing import TYPE_CHECKING, ClassVar, Protocol

from amqp_core.address import NOT_UTF8, is_utf8
from amqp_core.error_conditions import CoreCondition
from amqp_core.errors import AuthenticationFailed, ProtocolError, UsageError
from amqp_core.scram import attributes, combined, escape, from_base64, keys_of, sign, stored_key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from amqp_core.address import ConnectOptions

#: RFC 5802 section 5.1 and RFC 7677 section 4 ask servers for at least this many iterations; with fewer, an attacker in
#: the broker's place could request a proof from which the password is cheap to guess.
MIN_ITERATIONS = 4096
#: More iterations would let a server keep the client busy; this many take about a second of one core.
MAX_ITERATIONS = 2_000_000


class Login(Protocol):
    """The client's side of a login, for the state machine of a connection, which calls it on its own thread only.

    Every method may raise AuthenticationFailed (the login must not go on) and UsageError (a credential cannot be sent).
    """

    def choose(self, mechanisms: Sequence[str]) -> tuple[str, bytes | None]:
        """Choose a mechanism; return its name and initial response (``None``: the mechanism has none)."""

    def respond(self, challenge: bytes) -> bytes:
        """Answer a challenge of the broker."""

    def succeeded(self) -> None:
        """Raise AuthenticationFailed if the broker has not given the proof that the mechanism requires."""

    def shown(self, text: str) -> str:
        """Return a text of the broker as errors may show it: it may repeat what the login has sent."""


class SaslLogin:
    """A login with the mechanisms of this module. For one connection; not thread-safe. Secrets stay inside."""

    def __init__(self, options: ConnectOptions, *, loopback: bool) -> None:
        self._options = options
        self._loopback = loopback
        self._mechanism: Mechanism | None = None

    def choose(self, mechanisms: Sequence[str]) -> tuple[str, bytes | None]:
        """As :meth:`Login.choose` (0-10 connection.start, connection.start-ok).

        Raises:
            AuthenticationFailed: no mechanism is acceptable to both sides, or the password file cannot be read.
            UsageError: the mechanism cannot send a character of the user name or password.
        """
        self._mechanism = choose(mechanisms, self._options, loopback=self._loopback)
        return self._mechanism.name, self._mechanism.initial()

    def respond(self, challenge: bytes) -> bytes:
        """Answer a challenge (0-10 connection.secure, connection.secure-ok).

        Raises:
            AuthenticationFailed: the challenge is not expected or not valid, or reports an error (SCRAM).
            UsageError: the mechanism cannot send a character of the password.
            ProtocolError: no mechanism was chosen.
        """
        return self._chosen().respond(challenge)

    def succeeded(self) -> None:
        """Check the proof that the mechanism requires of the broker (0-10 connection.tune: the login is accepted).

        Raises:
            AuthenticationFailed: the proof is missing.
            ProtocolError: no mechanism was chosen.
        """
        self._chosen().finished()

    def shown(self, text: str) -> str:
        """As :meth:`Login.shown`."""
        return text if self._mechanism is None else self._mechanism.shown(text)

    def _chosen(self) -> Mechanism:
        if self._mechanism is None:
            raise ProtocolError("the login goes on before a mechanism was chosen")
        return self._mechanism


class Mechanism:
    """One SASL exchange, for one login attempt. Not thread-safe."""

    name: ClassVar[str] = ""

    def initial(self) -> bytes | None:
        """Return the initial response; ``None`` if the mechanism has none, because the broker sends first.

        Raises:
            UsageError: the mechanism cannot send a character of the user name or password (PLAIN).
        """
        return None

    def respond(self, challenge: bytes) -> bytes:
        """Return the response to one challenge.

        Raises:
            AuthenticationFailed: the challenge is not expected or not valid.
            UsageError: the mechanism cannot send a character of the password (SCRAM).
        """
        raise _violated(self.name, f"a challenge of {len(challenge)} bytes arrived where it has none")

    def finished(self) -> None:
        """Check that the broker may accept the login now.

        Raises:
            AuthenticationFailed: the proof that the mechanism requires of the broker is missing.
        """

    def shown(self, text: str) -> str:
        """Return a text of the broker as errors may show it."""
        return text


class Anonymous(Mechanism):
    """RFC 4505, with an empty trace. It has no state: any thread may use it."""

    name: ClassVar[str] = "ANONYMOUS"

    def initial(self) -> bytes:
        """Return an empty response, which is not an absent one."""
        return b""


class External(Mechanism):
    """RFC 4422 appendix A: the identity of the TLS client certificate. It has no state: any thread may use it."""

    name: ClassVar[str] = "EXTERNAL"

    def initial(self) -> bytes:
        """Return an empty authorization identity: use the identity in the certificate."""
        return b""


class _Password(Mechanism):
    def __init__(self, username: str, password: str) -> None:
        for value, what in ((username, "user name"), (password, "password")):
            if not is_utf8(value):
                raise UsageError(CoreCondition.ARGUMENT_INVALID(name=f"The {what}", reason=f"it {NOT_UTF8}"))
        self._username = username
        self._password = password

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._username!r}, <password>)"

    def shown(self, text: str) -> str:
        """Not a text that contains the password, unless that is the user name, too."""
        if self._password and self._password in text and self._password != self._username:
            return "its text is not shown, since the password is in it"
        return text


class Plain(_Password):
    """RFC 4616: sends the password itself, so only over TLS, to a loopback address, or when named explicitly.

    Immutable: any thread may use it.

    Raises:
        UsageError: user name or password is not text in UTF-8.
    """

    name: ClassVar[str] = "PLAIN"

    def initial(self) -> bytes:
        """Return NUL, user name, NUL, password.

        Raises:
            UsageError: user name or password contains a NUL character.
        """
        if "\0" in self._username or "\0" in self._password:
            reason = "with PLAIN neither can have a NUL character"
            raise UsageError(CoreCondition.ARGUMENT_INVALID(name="The user name or password", reason=reason))
        return b"\0" + self._username.encode() + b"\0" + self._password.encode()


class Amqplain(_Password):
    """AMQPLAIN of 0-9-1 brokers: as PLAIN the password itself, in a field table. Immutable: any thread may use it.

    Raises:
        UsageError: user name or password is not text in UTF-8.
    """

    name: ClassVar[str] = "AMQPLAIN"

    def initial(self) -> bytes:
        """Return a field table without its length: LOGIN and PASSWORD as long strings."""
        fields = (("LOGIN", self._username.encode()), ("PASSWORD", self._password.encode()))
        return b"".join(
            bytes((len(name),)) + name.encode() + b"S" + len(value).to_bytes(4) + value for name, value in fields
        )


class CramMd5(_Password):
    """RFC 2195: an HMAC-MD5 of the broker's challenge, with the password as the key. The broker sends first.

    An attacker who reads challenge and answer, or acts as the broker, can try passwords at full speed. So, as PLAIN, it
    is used only over TLS, to a loopback address, or when named explicitly. Else SCRAM could be downgraded to it.

    Not thread-safe.

    Raises:
        UsageError: user name or password is not text in UTF-8.
    """

    name: ClassVar[str] = "CRAM-MD5"

    def __init__(self, username: str, password: str) -> None:
        super().__init__(username, password)
        self._answered = False

    def respond(self, challenge: bytes) -> bytes:
        """Return user name, space, and the digest in hexadecimal.

        Raises:
            AuthenticationFailed: a second challenge arrived.
        """
        if self._answered:
            return super().respond(challenge)
        self._answered = True
        digest = hmac.new(self._password.encode(), challenge, "md5").hexdigest()
        return self._username.encode() + b" " + digest.encode()

    def finished(self) -> None:
        """Refuse a broker that sent no challenge: it has not checked the password.

        Raises:
            AuthenticationFailed: it sent none.
        """
        if not self._answered:
            raise _violated(self.name, "the login was accepted without a challenge, so no password was checked")


class Scram(_Password):
    """RFC 5802 without channel binding: the password is not sent, and the broker proves that it knows it.

    Not thread-safe.

    Args:
        username, password: the login.
        nonce: for tests; by default it is random.

    Raises:
        UsageError: user name or password is not text in UTF-8, or SASL does not allow the user name (RFC 4013).
    """

    hash_name: ClassVar[str] = ""

    def __init__(self, username: str, password: str, nonce: str | None = None) -> None:
        super().__init__(username, password)
        self._nonce = secrets.token_urlsafe(24) if nonce is None else nonce
        self._first_bare = f"n={escape(saslprep(username, 'user name'))},r={self._nonce}"
        self._server_signature: bytes | None = None
        self._verified = False

    def initial(self) -> bytes:
        """Return the client-first-message: no channel binding, no authorization identity."""
        return b"n,," + self._first_bare.encode()

    def respond(self, challenge: bytes) -> bytes:
        """Answer server-first with client-final; check server-final and answer it with an empty message.

        Raises:
            AuthenticationFailed: a challenge is malformed or unexpected, reports an error, continues another nonce or
                asks for too few or too many iterations; or the signature of the server is wrong.
            UsageError: SASL does not allow the password (RFC 4013).
        """
        if self._server_signature is None:
            return self._final(challenge)
        if self._verified:
            return super().respond(challenge)
        self._check_server_final(challenge)
        return b""

    def finished(self) -> None:
        """Refuse a broker that sent no signature: it has not proved that it knows the password.

        Raises:
            AuthenticationFailed: it sent none.
        """
        if not self._verified:
            reason = "the login was accepted without a proof that the server knows the password (no server signature)"
            raise _violated(self.name, reason)

    def _final(self, challenge: bytes) -> bytes:
        fields = _attributes(challenge, self.name)
        if [key for key, _ in zip(fields, range(3), strict=False)] != ["r", "s", "i"]:
            raise _violated(self.name, "the challenge is not 'r=...,s=...,i=...'")
        nonce = fields["r"]
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise _violated(self.name, "the nonce of the server does not continue ours")
        salt = _base64(fields["s"], "salt", self.name)
        digits = fields["i"].isascii() and fields["i"].isdigit() and len(fields["i"]) <= len(str(MAX_ITERATIONS))
        iterations = int(fields["i"]) if digits else -1  # int() raises another error for thousands of digits
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            accepted = f"{MIN_ITERATIONS} to {MAX_ITERATIONS} are accepted"
            raise _violated(self.name, f"it asks for {fields['i'][:20]} iterations, {accepted}")
        password = saslprep(self._password, "password").encode()
        keys = keys_of(self.hash_name, password, salt, iterations)
        without_proof = f"c=biws,r={nonce}"  # biws: "n,," in base64
        message = f"{self._first_bare},{challenge.decode()},{without_proof}".encode()
        signature = sign(self.hash_name, stored_key(self.hash_name, keys.client), message)
        proof = combined(keys.client, signature)
        self._server_signature = sign(self.hash_name, keys.server, message)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def _check_server_final(self, challenge: bytes) -> None:
        assert self._server_signature is not None
        fields = _attributes(challenge, self.name)
        signature = _base64(fields.get("v", ""), "server signature", self.name)
        if not hmac.compare_digest(signature, self._server_signature):
            raise _violated(self.name, "the server signature is wrong, so the server does not know the password")
        self._verified = True


class ScramSha1(Scram):
    """RFC 5802: SCRAM with SHA-1. Not thread-safe."""

    name: ClassVar[str] = "SCRAM-SHA-1"
    hash_name: ClassVar[str] = "sha1"


class ScramSha256(Scram):
    """RFC 7677: SCRAM with SHA-256. Not thread-safe."""

    name: ClassVar[str] = "SCRAM-SHA-256"
    hash_name: ClassVar[str] = "sha256"


_WITH_PASSWORD: dict[str, Callable[[str, str], Mechanism]] = {
    "SCRAM-SHA-256": ScramSha256,
    "SCRAM-SHA-1": ScramSha1,
    "CRAM-MD5": CramMd5,
    "PLAIN": Plain,
    "AMQPLAIN": Amqplain,
}

# Weakness of a mechanism on a connection that an attacker can read or take over.
_WEAK = {
    "PLAIN": "would send the password in clear",
    "AMQPLAIN": "would send the password in clear",
    "CRAM-MD5": "would let a listener, or a false broker, find the password by trying out many",
}


def choose(offered: Sequence[str], options: ConnectOptions, *, loopback: bool) -> Mechanism:
    """Choose the first allowed mechanism that the broker offers and that the given credentials can serve.

    Args:
        offered: names of the mechanisms that the broker offers (0-10 connection.start).
        options: the allowed mechanisms, best first, and the credentials.
        loopback: whether the broker has a loopback address, so that no listener is on the way.

    Raises:
        AuthenticationFailed: there is none; the text has the reason and the remedy for each common one. Or the password
            file cannot be read.
        UsageError: SASL does not allow the user name (SCRAM, RFC 4013), or the login is not text in UTF-8.
    """
    username, password, allowed = options.username, options.read_password(), options.sasl_mechanisms
    reasons: list[str] = []
    for name in allowed:
        if name not in offered:
            continue
        reason = _unusable(
            name,
            login=username is not None and password is not None,
            partial_login=(username is None) != (password is None),
            certificate=options.tls and options.tls_cert_file is not None,
            safe=options.tls or loopback or name in options.in_clear,
        )
        if reason is not None:
            reasons.append(f"{name} {reason}")
        elif name == "EXTERNAL":
            return External()
        elif name == "ANONYMOUS":
            return Anonymous()
        else:
            assert username is not None
            assert password is not None
            return _WITH_PASSWORD[name](username, password)
    if not reasons and not options.tls and "PLAIN" in allowed and username is not None:
        reasons = ["many brokers offer PLAIN only over TLS (amqps://)"]
    text = "".join(f"; {reason}" for reason in reasons)
    raise AuthenticationFailed(
        CoreCondition.NO_SASL_MECHANISM(offered=_names(offered), allowed=_names(allowed), reasons=text)
    )


def _unusable(name: str, *, login: bool, partial_login: bool, certificate: bool, safe: bool) -> str | None:
    """Reason why a mechanism that both sides allow cannot be used: the first rule that applies; ``None`` if it can."""
    given = login or partial_login
    password = name in _WITH_PASSWORD
    rules = (
        (not password and name not in {"EXTERNAL", "ANONYMOUS"}, "is not implemented"),
        (name == "EXTERNAL" and given, "is not used when a user name or password is given (leave them out for it)"),
        (name == "EXTERNAL" and not certificate, "needs TLS (amqps://) and a client certificate"),
        (name == "ANONYMOUS" and given, "is not used when a user name or password is given (leave them out for it)"),
        (name == "ANONYMOUS" and certificate, "is not used when a client certificate is given"),
        (password and not login, "needs a user name and a password"),
        (
            name in _WEAK and not safe,
            f"{_WEAK.get(name, '')}: use TLS (amqps://), or list {name} in the SASL mechanisms",
        ),
    )
    return next((reason for applies, reason in rules if applies), None)


def saslprep(text: str, what: str) -> str:
    """Prepare text by RFC 4013 as a query string (code points unassigned in Unicode 3.2 are allowed).

    Args:
        text: a user name or password.
        what: names it in the error, which does not contain it.

    Raises:
        UsageError: it contains a forbidden character, or mixes directions of writing in a forbidden way.
    """
    if text.isascii() and text.isprintable():
        return text
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char for char in text if not stringprep.in_table_b1(char)
    )
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    for char in prepared:
        if any(prohibited(char) for prohibited in _PROHIBITED):
            reason = "it contains a character that SASL does not allow (RFC 4013), such as a control character"
            raise UsageError(CoreCondition.ARGUMENT_INVALID(name=f"The {what}", reason=reason))
    if any(map(stringprep.in_table_d1, prepared)) and (
        any(map(stringprep.in_table_d2, prepared))
        or not stringprep.in_table_d1(prepared[0])
        or not stringprep.in_table_d1(prepared[-1])
    ):
        reason = "it mixes right-to-left and left-to-right text in a way that SASL does not allow (RFC 4013)"
        raise UsageError(CoreCondition.ARGUMENT_INVALID(name=f"The {what}", reason=reason))
    return prepared


_PROHIBITED: tuple[Callable[[str], bool], ...] = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def _violated(mechanism: str, reason: str) -> AuthenticationFailed:
    return AuthenticationFailed(CoreCondition.BROKER_NOT_PROVED(mechanism=mechanism, reason=reason))


def _names(mechanisms: Sequence[str]) -> str:
    return ", ".join(name[:40] for name in mechanisms[:20]) or "none"


def _attributes(challenge: bytes, mechanism: str) -> dict[str, str]:
    """Parse the ``a=value`` list of a SCRAM message, in order; refuse mandatory extensions and errors."""
    try:
        fields = attributes(challenge)
    except ValueError:
        text = f"the challenge of {len(challenge)} bytes is not a list of attributes"
        raise _violated(mechanism, text) from None
    if "m" in fields:
        raise _violated(mechanism, "the challenge asks for an extension that is not known here")
    if "e" in fields:
        raise AuthenticationFailed(CoreCondition.LOGIN_REFUSED(mechanism=mechanism, reason=fields["e"]))
    return fields


def _base64(text: str, what: str, mechanism: str) -> bytes:
    value = from_base64(text)
    if not value:
        raise _violated(mechanism, f"the {what} is missing or not base64")
    return value
