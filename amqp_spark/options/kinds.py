"""Conversion of an option's text to a value: one :class:`Kind` per type, with a description of the allowed values.

``Kind.parse`` raises ValueError with the *allowed* text only; the caller adds the option's name and value.
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")

_SIZE = re.compile(r"([0-9]{1,15})\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

_DURATION = re.compile(r"([0-9]{1,12})\s*(ms|s|m|min|h|d|)", re.IGNORECASE)
_MOST_DAYS = 36_500
"""Of a duration: a hundred years, which brokers and the system's timers can take in milliseconds."""
_UNITS = {"ms": 0.001, "": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

#: str8 of the wire: names of queues and exchanges, binding keys (0-10 section 3.3.6).
MAX_NAME_BYTES = 255
MAX_IDENTITY_BYTES = 200

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://?")
_CREDENTIALS = re.compile(
    r"(^|&)(access_key|secret_key|session_token|account_key|sas_token|sig|client_secret|password|token)=", re.IGNORECASE
)
_NAMES_BEFORE_AT = frozenset({"abfs", "abfss", "wasb", "wasbs", "hdfs", "viewfs"})
"""Schemes of URIs whose text before the ``@`` is a container or a user; a secret comes behind a colon only."""

_INSTEAD = {
    "s3a": "s3://bucket/directory", "s3n": "s3://bucket/directory",
    "wasb": "abfs://container@account.dfs.core.windows.net/directory",
    "wasbs": "abfss://container@account.dfs.core.windows.net/directory",
    "dbfs": "the path where it is mounted, such as /dbfs/directory",
}  # fmt: skip
"""Schemes that Spark knows and Arrow, which opens the location, does not; and what to write instead."""


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """A type of option: its name in the documentation, the allowed values, and its parser."""

    name: str
    allowed: str
    parse: Callable[[str], T]


def _checked(name: str, allowed: str, fits: Callable[[str], bool]) -> Kind[str]:
    def parse(value: str) -> str:
        if not fits(value):
            raise ValueError(allowed)
        return value

    return Kind(name, allowed, parse)


def text(allowed: str = "not empty") -> Kind[str]:
    """Any non-empty text; spaces are kept."""
    return _checked("text", allowed, bool)


def host() -> Kind[str]:
    """A host name or address; not resolved. The brackets of an IPv6 address, if there are any, are removed."""
    allowed = "host name or address"

    def parse(value: str) -> str:
        if "[" in value or "]" in value:
            return _ipv6_in_brackets(value, allowed)
        try:
            value.encode("idna")
        except UnicodeError:  # an empty label, or one of more than 63 characters
            raise ValueError(allowed) from None
        if not value or "\0" in value:
            raise ValueError(allowed)
        return value

    return Kind("text", allowed, parse)


def _ipv6_in_brackets(value: str, allowed: str) -> str:
    address = value.removeprefix("[").removesuffix("]")
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        raise ValueError(allowed) from None
    if value != f"[{address}]":
        raise ValueError(allowed)
    return address


def path(allowed: str) -> Kind[str]:
    """A path of a file."""
    return _checked("text", allowed, lambda value: bool(value) and "\0" not in value)


def identity() -> Kind[str]:
    """A name that stays the same over restarts; appears in logs and, hashed, in names on the broker."""
    allowed = f"1 to {MAX_IDENTITY_BYTES} bytes of UTF-8, no control characters, no blanks at its ends"

    def fits(value: str) -> bool:
        size = len(value.encode(errors="replace"))
        return 0 < size <= MAX_IDENTITY_BYTES and value == value.strip() and value.isprintable()

    return _checked("text", allowed, fits)


def directory_uri() -> Kind[str]:
    """An absolute path, or a URI without credentials: Spark shows it in plans."""
    allowed = "an absolute path, or a URI of a directory such as file:///data/spool or s3://bucket/spool"

    def parse(value: str) -> str:
        scheme = _SCHEME.match(value)
        if "\0" in value or (scheme is None and not value.startswith("/")):
            raise ValueError(allowed)
        place, _, query = value.partition("?")
        name = "" if scheme is None else scheme[0].partition(":")[0].lower()
        if scheme is not None and (_has_login(name, place[scheme.end() :]) or _CREDENTIALS.search(query)):
            raise SecretGivenError(
                f"{allowed}; credentials in it would be logged: give them to the driver as its file system expects "
                "them (environment, instance role)"
            )
        if name in _INSTEAD:
            raise ValueError(f"{allowed}; Arrow, which opens it, does not know {name}: write {_INSTEAD[name]}")
        return value.rstrip("/") if not query and value.strip("/") else value

    return Kind("path or URI", allowed, parse)


def _has_login(scheme: str, rest: str) -> bool:
    """Whether the text after the scheme begins with a login that may be a secret."""
    authority, _, behind = rest.partition("/")
    if ":" in authority and "@" in behind:  # a secret with an unencoded slash
        return True
    login, at, _ = authority.rpartition("@")
    return bool(at) and not _is_name_only(scheme, login)


def _is_name_only(scheme: str, login: str) -> bool:
    return scheme.lower() in _NAMES_BEFORE_AT and ":" not in login


def shown_location(place: str) -> str:
    """Return the place, an absolute path or a URI, without secrets: without the query and the login of a URI. The
    container of ``abfs:`` and the user of ``hdfs:`` stay, if no secret follows them."""
    if place.startswith("/"):
        return place
    scheme, separator, rest = place.partition("?")[0].partition("://")
    if not separator:
        return scheme
    authority, slash, path = rest.partition("/")
    if ":" in authority and "@" in path:  # a secret with an unencoded slash
        return f"{scheme}{separator}{rest.rpartition('@')[2]}"
    login, at, server = authority.rpartition("@")
    if at and _is_name_only(scheme, login):
        server = authority
    return f"{scheme}{separator}{server}{slash}{path}"


class SecretGivenError(ValueError):
    """The value contains a secret and must not be shown; the text describes the allowed values."""


def secret() -> Kind[str]:
    """Any text, including the empty one."""
    return Kind("text", "any text", str)


def boolean() -> Kind[bool]:
    """``true`` or ``false``."""
    allowed = "true or false"

    def parse(value: str) -> bool:
        lowered = value.strip().lower()
        if lowered not in {"true", "false"}:
            raise ValueError(allowed)
        return lowered == "true"

    return Kind("boolean", allowed, parse)


def integer(low: int, high: int) -> Kind[int]:
    """A decimal integer between two bounds, both included."""
    allowed = f"an integer from {low} to {high}"

    def parse(value: str) -> int:
        stripped = value.strip()
        if not re.fullmatch(r"-?[0-9]{1,20}", stripped) or not low <= int(stripped) <= high:
            raise ValueError(allowed)
        return int(stripped)

    return Kind("integer", allowed, parse)


def seconds(low: float, high: float) -> Kind[float]:
    """A number of seconds, fractions allowed, between two bounds, both included."""
    allowed = f"a number of seconds from {low:g} to {high:g}"

    def parse(value: str) -> float:
        try:
            number = float(value)
        except ValueError:
            raise ValueError(allowed) from None
        if not math.isfinite(number) or not low <= number <= high:
            raise ValueError(allowed)
        return number

    return Kind("seconds", allowed, parse)


def duration(least: str = "1ms") -> Kind[float]:
    """A duration as in Spark's settings: a whole number and a unit, default milliseconds. Parsed to seconds.

    Args:
        least: the shortest one, 1 of a unit.
    """
    least_s = _UNITS[least.removeprefix("1")]
    allowed = (
        f"a time from {least} to {_MOST_DAYS}d: a whole number with the unit ms, s, m (or min), h or d; without one ms "
        "(90s, 15m)"
    )

    def parse(value: str) -> float:
        match = _DURATION.fullmatch(value.strip())
        number = int(match[1]) if match else 0
        if match is None or number > _MOST_DAYS * _UNITS["d"] / _UNITS[match[2].lower()]:
            raise ValueError(allowed)
        if (seconds := number * _UNITS[match[2].lower()]) < least_s:
            raise ValueError(allowed)
        return seconds

    return Kind("duration", allowed, parse)


def size(low: int = 1, high: int | None = None) -> Kind[int]:
    """A number of bytes, with a binary suffix: ``64m`` is 64 MiB; the bounds are included."""
    bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
    allowed = f"a size in bytes {bounds}, with or without the suffix k, m, g or t (64m, 1g)"
    most = _FACTORS["t"] * 1024 if high is None else high

    def parse(value: str) -> int:
        match = _SIZE.fullmatch(value.strip())
        number = int(match[1]) * _FACTORS[match[2].lower()] if match else -1
        if not low <= number <= most:
            raise ValueError(allowed)
        return number

    return Kind("size", allowed, parse)


def choice(*values: str) -> Kind[str]:
    """One of a few words, case-insensitive; parsed to the canonical spelling."""
    allowed = ", ".join(values)
    canonical = {value.lower(): value for value in values}

    def parse(value: str) -> str:
        found = canonical.get(value.strip().lower())
        if found is None:
            raise ValueError(allowed)
        return found

    return Kind("word", allowed, parse)


def number_of(*values: str) -> Kind[int]:
    """One of a few words; parsed to its number, from 1."""
    words = choice(*values)
    return Kind(words.name, words.allowed, lambda value: values.index(words.parse(value)) + 1)


def words(values: Sequence[str]) -> Kind[tuple[str, ...]]:
    """Distinct words of a list, in order of preference, separated by commas or spaces."""
    allowed = f"one or more different names, best first, out of {', '.join(values)}"

    def parse(value: str) -> tuple[str, ...]:
        names = tuple(name.upper() for name in re.split(r"[\s,]+", value.strip()) if name)
        if not names or len(set(names)) != len(names) or not set(names) <= set(values):
            raise ValueError(allowed)
        return names

    return Kind("names", allowed, parse)


def queue_names() -> Kind[tuple[str, ...]]:
    """A comma list of queue names."""
    allowed = f"one queue name, or several different ones separated by commas, each of 1 to {MAX_NAME_BYTES} bytes"

    def parse(value: str) -> tuple[str, ...]:
        names = tuple(name.strip() for name in value.split(","))
        if len(set(names)) != len(names) or not all(map(_is_name, names)):
            raise ValueError(allowed)
        return names

    return Kind("names", allowed, parse)


def exchange_name() -> Kind[str]:
    """The name of an exchange; the empty name is the default exchange."""
    allowed = f"the name of an exchange, of at most {MAX_NAME_BYTES} bytes, or nothing for the default exchange"
    return _checked("name", allowed, lambda value: not value or _is_name(value))


def short_text() -> Kind[str]:
    """Text sent as str8; may be empty."""
    allowed = f"text of at most {MAX_NAME_BYTES} bytes in UTF-8"

    def parse(value: str) -> str:
        try:
            size = len(value.encode())
        except UnicodeEncodeError:  # a lone surrogate has no UTF-8 encoding
            raise ValueError(allowed) from None
        if size > MAX_NAME_BYTES:
            raise ValueError(allowed)
        return value

    return Kind("text", allowed, parse)


def bindings() -> Kind[tuple[tuple[str, str], ...]]:
    """``exchange/binding-key[;exchange/binding-key...]``; the first ``/`` ends the exchange, the key may be empty."""
    allowed = "exchange/binding-key, or several of them separated by ';' (the key may be empty: amq.fanout/)"

    def parse(value: str) -> tuple[tuple[str, str], ...]:
        pairs: list[tuple[str, str]] = []
        for part in value.split(";"):
            exchange, separator, key = part.strip().partition("/")
            if not separator or not _is_name(exchange) or len(key.encode()) > MAX_NAME_BYTES:
                raise ValueError(allowed)
            pairs.append((exchange, key))
        return tuple(dict.fromkeys(pairs))

    return Kind("bindings", allowed, parse)


def arguments() -> Kind[tuple[tuple[str, object], ...]]:
    """Arguments by name: a JSON object, or ``name=value[;name=value...]``, where whole numbers, true and false have
    their type."""
    allowed = "name=value, or several of them separated by ';', or a JSON object; names of 1 to 255 bytes, no null"

    def parse(value: str) -> tuple[tuple[str, object], ...]:
        text = value.strip()
        try:
            found = json.loads(text) if text.startswith("{") else dict(map(_argument, text.split(";")))
            if all(_is_name(name) for name in found) and _is_argument(found):
                return tuple(found.items())
        except (ValueError, RecursionError):  # the latter: nested as deep as no broker takes it
            raise ValueError(allowed) from None
        raise ValueError(allowed)

    return Kind("arguments", allowed, parse)


def _argument(text: str) -> tuple[str, object]:
    name, separator, value = (part.strip() for part in text.partition("="))
    if not separator:
        raise ValueError(text)
    if re.fullmatch(r"-?[0-9]{1,19}", value):
        return name, int(value)
    return name, {"true": True, "false": False}.get(value.lower(), value)


def _is_argument(value: object) -> bool:
    """Whether a value of JSON can be an argument."""
    if isinstance(value, dict):
        return all(map(_is_argument, value.values()))
    if isinstance(value, list):
        return all(map(_is_argument, value))
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return value is not None


def _is_name(name: str) -> bool:
    return 1 <= len(name.encode("utf-8", "surrogatepass")) <= MAX_NAME_BYTES and name.isprintable()
