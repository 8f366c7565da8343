"""Address and login of a connection: the URL, the connect options, the password file.

A URL is ``amqp://host[:port][,host2[:port2]...][/virtual-host]``, with ``amqps`` for TLS (on port 5671 by default). It
must not contain credentials, since URLs are logged; a URL with credentials is refused, and the error does not quote it.

Without a name of a virtual host (no path, or ``/`` alone) the default one is meant: the broker's with 0-10, ``/`` with
0-9-1, as other clients of RabbitMQ read it; ``%2F`` is the name ``/`` with both.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, fields
from pathlib import Path
from urllib.parse import unquote_to_bytes

from amqp_core.error_conditions import CoreCondition
from amqp_core.errors import AuthenticationFailed, UsageError

DEFAULT_PORT = 5672
DEFAULT_TLS_PORT = 5671
AUTO_PROTOCOL = "auto"
#: Protocols of a connection; ``auto`` starts with 0-10 and follows the broker's answer.
PROTOCOLS: tuple[str, ...] = (AUTO_PROTOCOL, "0-10", "0-9-1", "0-9")
#: SASL mechanisms that are allowed by default, best first.
DEFAULT_MECHANISMS: tuple[str, ...] = (
    "SCRAM-SHA-256", "SCRAM-SHA-1", "CRAM-MD5", "EXTERNAL", "PLAIN", "AMQPLAIN", "ANONYMOUS",
)  # fmt: skip
#: Bounds of ``max_message_bytes``: one frame, and what Arrow and the JVM take as one value, whose size is 31 bits.
MIN_MAX_MESSAGE_BYTES = 64 << 10
MAX_MAX_MESSAGE_BYTES = 2047 << 20
DEFAULT_MAX_MESSAGE_BYTES = 512 << 20
#: Seconds of the longest ``connect_timeout``: the system waits for a socket at most 31 bits of milliseconds.
MAX_CONNECT_TIMEOUT_S = 2_147_483

NOT_UTF8 = (
    "is not text in UTF-8: it holds a byte that could not be decoded when it was read, from the environment as a rule; "
    "write it in UTF-8"
)

_SURROGATE = re.compile("[\ud800-\udfff]")
_HOST_NAME = re.compile(r"[^\s\[\]/?#%\\:]+")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}")
_IPV6_DIGITS = re.compile(r"[0-9A-Fa-f:.]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectOptions:
    """Settings of a connection. Immutable: any thread may use them. ``repr`` shows no secret.

    Args:
        hosts: host names or addresses, with their ports; each is tried once.
        virtual_host: name of the virtual host; empty: the default one, of the broker with 0-10, ``/`` with 0-9-1.
        tls: use TLS, with the certificates of the system, or of ``tls_ca_file``.
        username, password: the login.
        password_file: a file with the password, read for each connection; instead of ``password``.
        sasl_mechanisms: allowed SASL mechanisms, best first.
        tls_ca_file: PEM file with the certificates to trust.
        tls_cert_file, tls_key_file: PEM files of the client certificate and its key, which has no passphrase.
        tls_verify_hostname: whether the certificate must be for the name of the host.
        heartbeat: seconds between heartbeats, 0 (off) to 65535. A client sends them within its calls only: call its
            ``service`` where it rests for longer.
        connect_timeout: seconds for each host, from the resolution of its name to the open session: more than 0, at
            most ``MAX_CONNECT_TIMEOUT_S`` (24 days).
        client_name: shown by brokers in their lists of connections.
        max_frame_size: bytes of the largest frame to agree on; ``None``: the largest that the protocol allows.
        in_clear: mechanisms, out of PLAIN, AMQPLAIN and CRAM-MD5, that may be used without TLS to a host that is not a
            loopback address; only mechanisms that the user named explicitly.
        max_message_bytes: bytes of the largest accepted message, all its frames counted; a larger one ends the
            connection.
        protocol: one of ``PROTOCOLS``, for :func:`amqp_core.protocols.connect`.

    Raises:
        UsageError: a value is outside its limits (``max_frame_size``: when it is used), or a password and a password
            file are given.
    """

    hosts: tuple[tuple[str, int], ...]
    virtual_host: str = ""
    tls: bool = False
    username: str | None = None
    password: str | None = None
    password_file: str | None = None
    sasl_mechanisms: tuple[str, ...] = DEFAULT_MECHANISMS
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_verify_hostname: bool = True
    heartbeat: int = 30
    connect_timeout: float = 10.0
    client_name: str = "amqp_core"
    max_frame_size: int | None = None
    in_clear: tuple[str, ...] = ()
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    protocol: str = AUTO_PROTOCOL

    def __post_init__(self) -> None:
        if not self.hosts:
            raise _not_valid("hosts", "at least one (host, port) is needed")
        if not 0 <= self.heartbeat <= 65535:
            raise _not_valid(f"heartbeat={self.heartbeat}", "0 (off) to 65535 seconds are allowed")
        check_connect_timeout("connect_timeout", self.connect_timeout)
        if self.protocol not in PROTOCOLS:
            raise _not_valid(f"protocol={self.protocol}", f"{', '.join(PROTOCOLS)} are allowed")
        for name in ("username", "password", "virtual_host"):
            value = getattr(self, name)
            if value is not None and not is_utf8(value):
                raise _not_valid(name, f"it {NOT_UTF8}")
        for name in ("password_file", "tls_ca_file", "tls_cert_file", "tls_key_file"):
            if "\0" in (getattr(self, name) or ""):
                raise _not_valid(name, "it contains a NUL character, which no path does")
        if not MIN_MAX_MESSAGE_BYTES <= self.max_message_bytes <= MAX_MAX_MESSAGE_BYTES:
            reason = f"{MIN_MAX_MESSAGE_BYTES} to {MAX_MAX_MESSAGE_BYTES} are allowed"
            raise _not_valid(f"max_message_bytes={self.max_message_bytes}", reason)
        if self.password is not None and self.password_file is not None:
            raise _not_valid("password_file", "a password is given, too")

    def __repr__(self) -> str:
        shown = (
            f"{field.name}={'<redacted>' if field.name == 'password' and value is not None else repr(value)}"
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default
        )
        return f"ConnectOptions({', '.join(shown)})"

    def read_password(self) -> str | None:
        """Return the given password, or read it now from ``password_file``, which may change between connections.

        Returns:
            The password; of a file: its text in UTF-8 without one line end behind it. ``None`` if there is none.

        Raises:
            AuthenticationFailed: the file cannot be read, or is not UTF-8.
        """
        if self.password_file is None:
            return self.password
        try:
            content = Path(self.password_file).read_bytes()
        except (OSError, ValueError) as error:  # a path that cannot be encoded is a ValueError
            reason = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
            text = CoreCondition.PASSWORD_FILE_UNUSABLE(file=self.password_file, reason=reason)
            raise AuthenticationFailed(text) from error
        # not by a UnicodeDecodeError, which contains the bytes of the file
        text = content.decode("utf-8", "surrogateescape")
        if not is_utf8(text):
            reason = "it is not UTF-8 text"
            raise AuthenticationFailed(CoreCondition.PASSWORD_FILE_UNUSABLE(file=self.password_file, reason=reason))
        return without_line_end(text)


def parse_url(url: str) -> tuple[tuple[tuple[str, int], ...], str, bool]:
    """Parse a URL.

    Returns:
        ``(hosts, virtual_host, tls)``. The virtual host is percent-decoded; an absent or empty one is the empty string,
        which means the default one (see :class:`ConnectOptions`).

    Raises:
        UsageError: the URL is malformed, or contains credentials.
    """
    if "@" in url:
        # Any text before an '@' may be a password, wherever it is: quote nothing of the URL.
        raise _invalid_url(
            "it contains credentials (text before '@'), which would be logged; give username and password separately, "
            "and write an '@' in a virtual host as %40"
        )
    if not is_utf8(url):
        raise _invalid_url(f"it {NOT_UTF8}")
    scheme, separator, rest = url.partition("://")
    tls = scheme.lower() == "amqps"
    if "?" in url or "#" in url:
        # Not quoted: the query may contain a password.
        raise _invalid_url("it has a query or fragment ('?' or '#'), but settings are given as options")
    if not separator or scheme.lower() not in {"amqp", "amqps"}:
        # Of the rest nothing is quoted: it may be host:port:user:password.
        other = f", but with {scheme}://" if separator and _SCHEME.fullmatch(scheme) else ""
        raise _invalid_url(f"it does not start with amqp:// or amqps://{other}")
    authority, _, path = rest.partition("/")
    if "/" in path:
        raise _invalid_url(f"{url!r} has more than one '/' after the hosts; write %2F in a virtual host's name")
    hosts = tuple(_host_and_port(part.strip(), url, tls=tls) for part in authority.split(","))
    try:
        virtual_host = unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        raise _invalid_url(f"the virtual host in {url!r} is not UTF-8 after percent-decoding") from None
    if len(virtual_host.encode()) > 255:
        raise _invalid_url(f"the virtual host has {len(virtual_host.encode())} bytes; 255 are allowed")
    return hosts, virtual_host, tls


def check_connect_timeout(name: str, seconds: float) -> None:
    """Refuse a timeout of a connection that the system cannot wait for, such as ``inf`` and ``nan``.

    Raises:
        UsageError: it is outside its limits.
    """
    if not 0 < seconds <= MAX_CONNECT_TIMEOUT_S:
        raise _not_valid(f"{name}={seconds}", f"more than 0 and at most {MAX_CONNECT_TIMEOUT_S} seconds are allowed")


def without_line_end(text: str) -> str:
    """Remove one line end, LF or CR LF, behind a password; a CR alone is part of it."""
    return text.removesuffix("\r\n" if text.endswith("\r\n") else "\n")


def is_utf8(text: str) -> bool:
    """Whether ``text`` contains no surrogate, which Python uses for each byte that it cannot decode.

    ``text.encode()`` would detect one, too, but with a UnicodeEncodeError whose ``repr`` contains the text.
    """
    return _SURROGATE.search(text) is None


def is_loopback(host: str) -> bool:
    """Whether an address (or ``localhost``) is this machine. Pass the connected peer's address if it is known."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def format_address(host: str, port: int) -> str:
    """Return ``host:port`` for messages, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _not_valid(name: str, reason: str) -> UsageError:
    return UsageError(CoreCondition.ARGUMENT_INVALID(name=name, reason=reason))


def _invalid_url(reason: str) -> UsageError:
    return UsageError(CoreCondition.URL_INVALID(reason=reason))


def _host_and_port(text: str, url: str, *, tls: bool) -> tuple[str, int]:
    host, separator, port = _split_port(text, url)
    if not separator:
        return host, DEFAULT_TLS_PORT if tls else DEFAULT_PORT
    number = port.lstrip("0")
    if not re.fullmatch(r"[0-9]{1,5}", number) or int(number) > 65535:
        # The text is not quoted: users also write passwords after a ':'.
        raise _invalid_url(f"the port after host {host!r} is not a number from 1 to 65535")
    return host, int(number)


def _split_port(text: str, url: str) -> tuple[str, str, str]:
    if text.startswith("["):
        address, bracket, rest = text[1:].partition("]")
        address = address.replace("%25", "%")  # RFC 6874: the zone of a link-local address
        try:
            ipaddress.IPv6Address(address)
        except ValueError:
            bracket = ""
        if not bracket or (rest and not rest.startswith(":")):
            raise _invalid_url(f"{text!r} in {url!r} is not an IPv6 address in brackets with a port: [::1]:5672")
        return address, rest[:1], rest[1:]
    if text.count(":") > 1:
        what = repr(text) if _IPV6_DIGITS.fullmatch(text) else "a host"  # else it may be host:port:user:password
        raise _invalid_url(f"{what} has more than one ':'; write an IPv6 address in brackets")
    host, separator, port = text.partition(":")
    if not _HOST_NAME.fullmatch(host):
        raise _invalid_url(f"{url!r} has {repr(host) + ', which is not a host name' if host else 'an empty host name'}")
    return host, separator, port
