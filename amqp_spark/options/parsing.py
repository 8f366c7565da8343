"""Declare options; check a dictionary of options and convert the values. All problems are reported at once.

No I/O: a password file is read for each connection.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from amqp_core.address import DEFAULT_MECHANISMS, is_utf8, parse_url
from amqp_core.errors import UsageError
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import OptionError
from amqp_spark.options.kinds import Kind, SecretGivenError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

T = TypeVar("T")

AT_LEAST_ONCE = "at-least-once"
EXACTLY_ONCE = "exactly-once"
AT_MOST_ONCE = "at-most-once"
STREAM = "stream"
"""``queueType`` of streams of RabbitMQ."""

_PASSWORD_MECHANISMS = {"SCRAM-SHA-256", "SCRAM-SHA-1", "CRAM-MD5", "PLAIN", "AMQPLAIN"}

#: Keys that Spark itself, or other parts of a query, add to the options of a source or sink.
_SPARK_KEYS = frozenset({"path", "paths", "checkpointlocation", "queryname", "outputmode"})

#: Prefix of the options of CREATE TABLE, among other properties of the table.
_OF_TABLE = "option."

#: Names known from other connectors and from the protocol for which difflib finds no similar option.
_OTHER_NAMES = {
    "host": "url", "hosts": "url", "port": "url", "vhost": "url", "virtualhost": "url", "server": "url",
    "user": "username", "login": "username", "topic": ("queue", "exchange"), "subscribe": "queue",
    "address": ("queue", "exchange"), "maxoffsetspertrigger": "maxMessagesPerTrigger",
    "minoffsetspertrigger": "minMessagesPerTrigger",
    "guarantee": "deliveryGuarantee", "filter": "selector", "minpartitions": "numPartitions", "cafile": "tls.caFile",
    "verifyhostname": "tls.verifyHostname", "key": "routingKey", "persistent": "deliveryMode",
    "durable": "deliveryMode", "timetolive": "ttl", "expiration": "ttl", "mandatory": "onUnroutable",
    "prefetch": "bufferBytes", "prefetchcount": "bufferBytes", "qos": "bufferBytes", "xpriority": "consumerPriority",
}  # fmt: skip


class _Default(Enum):
    REQUIRED = "required"
    DERIVED = "derived"


REQUIRED: Final = _Default.REQUIRED
"""The option must be given."""
DERIVED: Final = _Default.DERIVED
"""The default is derived from other options, after all are parsed."""


@dataclass(frozen=True, slots=True)
class Option:
    """A declared option. ``default`` is the default as documented, ``absent`` the value if the option is absent."""

    name: str
    field: str
    kind: Kind[Any]
    default: str
    absent: object
    meaning: str
    secret: bool = False


@overload
def option(
    name: str, kind: Kind[T], absent: T | _Default, meaning: str, *, shown: str = ..., secret: bool = ...
) -> T: ...
@overload
def option(
    name: str, kind: Kind[T], absent: None, meaning: str, *, shown: str = ..., secret: bool = ...
) -> T | None: ...
def option(name: str, kind: Kind[T], absent: object, meaning: str, *, shown: str = "", secret: bool = False) -> Any:
    """Declare an option as a field of a dataclass: parsing, documents and ``--help`` follow from this.

    ``absent``: the value if the option is absent, or REQUIRED, or DERIVED; ``meaning``: for docs/options.md; ``shown``:
    the default as documented, unless it is the text of ``absent``; ``secret``: the value must not be shown.
    """
    value = None if isinstance(absent, _Default) else absent
    default = shown or ("required" if absent is REQUIRED else _text(absent))
    return field(metadata={"option": Option(name, "", kind, default, value, meaning, secret)})


_SIDES: Final[dict[str, frozenset[str]]] = {}
"""Names in lower case of the options that each side declares."""


def options_of(declared: type, side: str, base: Sequence[Option] = ()) -> tuple[Option, ...]:
    """The options that a dataclass declares for a side as fields, in their order, without those of its ``base``."""
    known = {each.name for each in base}
    rows = [replace(each.metadata["option"], field=each.name) for each in fields(declared) if each.metadata]
    own = tuple(row for row in rows if row.name not in known)
    _SIDES[side] = frozenset(row.name.lower() for row in own)
    return own


def _text(absent: object) -> str:
    if isinstance(absent, bool):
        return str(absent).lower()
    if isinstance(absent, tuple):
        return " ".join(absent) or "none"
    return "none" if absent is None else f"{absent:g}" if isinstance(absent, float) else str(absent)


def is_sparks(key: str) -> bool:
    """Whether a key, in lower case, is one that Spark itself or another part of a query adds to the options."""
    return key in _SPARK_KEYS or key.startswith(("__", "spark."))


class Given:
    """The given options (keys in any case, values as text or Python values), each checked against a table for a
    ``side``: ``source``, ``sink`` or ``connection``; ``problems`` collects the errors.

    Raises:
        OptionError: they are the properties of a table of Spark's catalog.
    """

    def __init__(self, table: Sequence[Option], side: str, options: Mapping[str, object]) -> None:
        if any(key.lower().startswith(_OF_TABLE) for key in options):
            raise OptionError([SparkCondition.TABLE_KEEPS_NO_OPTIONS()])
        self.problems: list[str] = []
        self.values: dict[str, object] = {}
        self._table = table
        self._by_key = {option.name.lower(): option for option in table}
        self._side = side
        self.texts = self._collect(options)
        for option in table:
            self._take(option)
        self._take_url()
        # naming a mechanism that is weak without TLS allows it
        self.values["in_clear"] = self.values["sasl_mechanisms"] if "saslMechanisms" in self.texts else ()
        self._check_login()
        self._check_tls()

    def __contains__(self, name: str) -> bool:
        return name in self.texts

    def _collect(self, options: Mapping[str, object]) -> dict[str, str]:
        """Collect the options as text, by canonical name."""
        given: dict[str, str] = {}
        for key, value in options.items():
            lowered = key.lower()
            if value is None or is_sparks(lowered):
                continue
            option = self._by_key.get(lowered)
            if option is None:
                self.problems.append(
                    SparkCondition.OPTION_UNKNOWN(option=key, side=self._side, remedy=self._suggestion(lowered))
                )
                continue
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if given.get(option.name, text) != text:
                self.problems.append(SparkCondition.OPTION_DUPLICATE(option=option.name))
            given[option.name] = text
        return given

    def _take(self, option: Option) -> None:
        self.values[option.field] = option.absent
        text = self.texts.get(option.name)
        if text is None:
            if option.default == "required":
                self.require(option.name, option.kind.allowed)
            return
        if not is_utf8(text):
            self.refuse(option.name, "<redacted>", "text with a valid encoding in UTF-8")
            return
        try:
            self.values[option.field] = option.kind.parse(text)
        except ValueError as error:
            secret = option.secret or isinstance(error, SecretGivenError)
            shown = "<redacted>" if secret else repr(text[:200])
            self.refuse(option.name, shown, str(error))

    def require(self, name: str, allowed: str, reason: str = "") -> None:
        """Add the problem that an option is required."""
        self.problems.append(SparkCondition.OPTION_REQUIRED(option=name, reason=reason, allowed=allowed))

    def refuse(self, name: str, value: object, allowed: str, reason: str = "") -> None:
        """Add the problem that an option has a value that is not allowed; ``value``: as shown."""
        self.problems.append(SparkCondition.OPTION_INVALID(option=name, value=value, reason=reason, allowed=allowed))

    def refuse_unused(self, setting: str, remedy: str, *names: str) -> None:
        """Add a problem for each of these options that is given: it has no effect with a setting."""
        self.problems += [
            SparkCondition.OPTION_WITHOUT_EFFECT(option=name, setting=setting, remedy=remedy)
            for name in names
            if name in self
        ]

    def refuse_no_heartbeat(self) -> None:
        """Add a problem if heartbeats are off, which exactly-once does not allow."""
        if self.values["heartbeat"] == 0:  # the broker could not tell a suspended client from its successor
            self.refuse("heartbeat", 0, "an integer from 1 to 65535", f" with deliveryGuarantee={EXACTLY_ONCE}")

    def _take_url(self) -> None:
        url = self.values["url"]
        self.values.update(hosts=(), virtual_host="", tls=None)
        if isinstance(url, str):
            try:
                self.values["hosts"], self.values["virtual_host"], self.values["tls"] = parse_url(url)
            except UsageError as error:
                self.problems.append(str(error))

    def _suggestion(self, lowered: str) -> str:
        for side, names in _SIDES.items():
            if lowered in names:
                return f"Remove it, since it belongs to the {side}"
        plain = "".join(char for char in lowered if char.isalnum())
        by_plain = {"".join(char for char in key if char.isalnum()): opt.name for key, opt in self._by_key.items()}
        meant = _OTHER_NAMES.get(plain, ())
        known = [name for name in ([meant] if isinstance(meant, str) else meant) if name in by_plain.values()]
        name = by_plain.get(plain) or (known[0] if known else None)
        if name is None:
            near = difflib.get_close_matches(plain, list(by_plain), n=1, cutoff=0.7)
            name = by_plain[near[0]] if near else None
        if name is not None:
            return f"Use {name!r} instead"
        return f"Known options are {', '.join(option.name for option in self._table)}"

    def _check_tls(self) -> None:
        if self.values["tls"] is False:
            names = ("tls.caFile", "tls.certFile", "tls.keyFile", "tls.verifyHostname")
            self.refuse_unused("an amqp:// URL, which is not TLS", "write amqps://", *names)
        if "tls.keyFile" in self and "tls.certFile" not in self:
            self._miss("tls.keyFile", "'tls.certFile'")

    def _check_login(self) -> None:
        before = len(self.problems)
        has_password = "password" in self or "passwordFile" in self
        if "password" in self and "passwordFile" in self:
            self.problems.append(SparkCondition.OPTION_CONFLICT(first="password", second="passwordFile"))
        if "username" in self and not has_password:
            self._miss("username", "'password' or 'passwordFile'")
        if has_password and "username" not in self:
            self._miss("password" if "password" in self else "passwordFile", "'username'")
        allowed = self.values["sasl_mechanisms"]
        if "saslMechanisms" not in self or not isinstance(allowed, tuple) or len(self.problems) > before:
            return
        usable, login = {"ANONYMOUS"}, "neither user name nor client certificate"
        if has_password:
            usable, login = _PASSWORD_MECHANISMS, "user name and password"
        elif "tls.certFile" in self:
            usable, login = {"EXTERNAL"}, "a client certificate"
        if usable.isdisjoint(allowed):
            names = " or ".join(name for name in DEFAULT_MECHANISMS if name in usable)
            self.refuse("saslMechanisms", " ".join(allowed), f"a list with {names}", f" for a login with {login}")

    def _miss(self, name: str, missing: str) -> None:
        self.problems.append(SparkCondition.OPTION_INCOMPLETE(option=name, missing=missing))
