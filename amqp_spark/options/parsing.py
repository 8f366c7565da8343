"""Declare options; check a dictionary of options and convert the values. All problems are reported at once.

No I/O: a password file is read for each connection.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from amqp_core.address import DEFAULT_MECHANISMS, NOT_UTF8, is_utf8, parse_url
from amqp_core.errors import UsageError
from amqp_spark.options.kinds import Kind, SecretGivenError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

T = TypeVar("T")

_PASSWORD_MECHANISMS = frozenset({"SCRAM-SHA-256", "SCRAM-SHA-1", "CRAM-MD5", "PLAIN"})

#: Keys that Spark itself, or other parts of a query, add to the options of a source or sink.
_SPARK_KEYS = frozenset({"path", "paths", "checkpointlocation", "queryname", "outputmode"})

#: Names known from other connectors and from the protocol for which difflib finds no similar option.
_OTHER_NAMES = {
    "host": "url", "hosts": "url", "port": "url", "vhost": "url", "virtualhost": "url", "server": "url",
    "user": "username", "login": "username", "topic": ("queue", "exchange"), "subscribe": "queue",
    "address": ("queue", "exchange"), "maxoffsetspertrigger": "maxMessagesPerTrigger",
    "minoffsetspertrigger": "minMessagesPerTrigger",
    "guarantee": "deliveryGuarantee", "filter": "selector", "minpartitions": "numPartitions", "cafile": "tls.caFile",
    "verifyhostname": "tls.verifyHostname", "key": "routingKey", "persistent": "deliveryMode",
    "durable": "deliveryMode", "timetolive": "ttl", "expiration": "ttl", "mandatory": "onUnroutable",
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

    Args:
        name: name for users.
        kind: type and allowed values; its values have the type of the field.
        absent: value if the option is absent, or REQUIRED, or DERIVED.
        meaning: its meaning, for docs/options.md.
        shown: the default as documented, unless it is the text of ``absent``.
        secret: the value must not be shown.
    """
    value = None if isinstance(absent, _Default) else absent
    default = shown or ("required" if absent is REQUIRED else _text(absent))
    return field(metadata={"option": Option(name, "", kind, default, value, meaning, secret)})


def options_of(declared: type, base: Sequence[Option] = ()) -> tuple[Option, ...]:
    """The options that a dataclass declares as fields, in their order, without those of its ``base``."""
    known = {each.name for each in base}
    rows = [replace(each.metadata["option"], field=each.name) for each in fields(declared) if each.metadata]
    return tuple(row for row in rows if row.name not in known)


def _text(absent: object) -> str:
    if isinstance(absent, bool):
        return str(absent).lower()
    if isinstance(absent, tuple):
        return " ".join(absent) or "none"
    return "none" if absent is None else f"{absent:g}" if isinstance(absent, float) else str(absent)


class Given:
    """The given options, each checked against a table; ``problems`` collects the errors.

    Args:
        table: the known options.
        others: options of the other side only, so that an error can say so.
        other_side: ``source`` or ``sink``: the side of ``others``.
        options: the dictionary; keys in any case, values as text or Python values.
    """

    def __init__(
        self, table: Sequence[Option], others: Sequence[Option], other_side: str, options: Mapping[str, object]
    ) -> None:
        self.problems: list[str] = []
        self.values: dict[str, object] = {}
        self._table = table
        self._by_key = {option.name.lower(): option for option in table}
        self._others = {option.name.lower() for option in others} - set(self._by_key)
        self._other_side = other_side
        self.texts = self._collect(options)
        for option in table:
            self._take(option)
        self._take_url()
        # naming a mechanism that is weak without TLS allows it
        self.values["in_clear"] = self.values["sasl_mechanisms"] if "saslMechanisms" in self.texts else ()
        self.problems += _login_problems(self.values, self.texts)
        self.problems += _tls_problems(self.values, self.texts)

    def __contains__(self, name: str) -> bool:
        return name in self.texts

    def _collect(self, options: Mapping[str, object]) -> dict[str, str]:
        """Collect the options as text, by canonical name."""
        given: dict[str, str] = {}
        for key, value in options.items():
            lowered = key.lower()
            if value is None or lowered in _SPARK_KEYS or lowered.startswith(("__", "spark.")):
                continue
            option = self._by_key.get(lowered)
            if option is None:
                self.problems.append(f"option {key!r} is not known{self._suggestion(lowered)}")
                continue
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if given.get(option.name, text) != text:
                self.problems.append(
                    f"option {option.name!r} is given twice with different values (keys have no case): give it once"
                )
            given[option.name] = text
        return given

    def _take(self, option: Option) -> None:
        self.values[option.field] = option.absent
        text = self.texts.get(option.name)
        if text is None:
            if option.default == "required":
                self.problems.append(f"option {option.name!r} is required: {option.kind.allowed}")
            return
        if not is_utf8(text):
            self.problems.append(f"option {option.name!r} {NOT_UTF8}")
            return
        try:
            self.values[option.field] = option.kind.parse(text)
        except ValueError as error:
            secret = option.secret or isinstance(error, SecretGivenError)
            shown = "<redacted>" if secret else repr(text[:200])
            self.problems.append(f"option {option.name!r} has the value {shown}; allowed: {error}")

    def _take_url(self) -> None:
        url = self.values["url"]
        self.values.update(hosts=(), virtual_host="", tls=None)
        if isinstance(url, str):
            try:
                self.values["hosts"], self.values["virtual_host"], self.values["tls"] = parse_url(url)
            except UsageError as error:
                self.problems.append(f"option 'url': {error}")

    def _suggestion(self, lowered: str) -> str:
        if lowered in self._others:
            here = "source" if self._other_side == "sink" else "sink"
            return f" to the {here}: it belongs to the {self._other_side}"
        plain = "".join(char for char in lowered if char.isalnum())
        by_plain = {"".join(char for char in key if char.isalnum()): opt.name for key, opt in self._by_key.items()}
        meant = _OTHER_NAMES.get(plain, ())
        known = [name for name in ([meant] if isinstance(meant, str) else meant) if name in by_plain.values()]
        name = by_plain.get(plain) or (known[0] if known else None)
        if name is None:
            near = difflib.get_close_matches(plain, list(by_plain), n=1, cutoff=0.7)
            name = by_plain[near[0]] if near else None
        if name is not None:
            return f": did you mean {name!r}?"
        return f"; known are {', '.join(option.name for option in self._table)}"


def _tls_problems(values: Mapping[str, object], given: Mapping[str, str]) -> list[str]:
    problems = []
    if values["tls"] is False:
        problems = [
            f"option {name!r} is given but the URL is amqp://, which is not TLS: write amqps://, or leave it out"
            for name in ("tls.caFile", "tls.certFile", "tls.keyFile", "tls.verifyHostname")
            if name in given
        ]
    if "tls.keyFile" in given and "tls.certFile" not in given:
        problems.append(
            "option 'tls.keyFile' is given without 'tls.certFile': give the certificate too, or leave it out"
        )
    return problems


def _login_problems(values: Mapping[str, object], given: Mapping[str, str]) -> list[str]:
    problems = []
    has_password = "password" in given or "passwordFile" in given
    if "password" in given and "passwordFile" in given:
        problems.append("options 'password' and 'passwordFile' are both given: give one of them")
    if "username" in given and not has_password:
        problems.append("option 'username' is given without 'password' or 'passwordFile': give one of them")
    if has_password and "username" not in given:
        name = "password" if "password" in given else "passwordFile"
        problems.append(f"option {name!r} is given without 'username': give the login name, too")
    allowed = values["sasl_mechanisms"]
    if "saslMechanisms" in given and isinstance(allowed, tuple) and not problems:
        usable = _PASSWORD_MECHANISMS if has_password else {"EXTERNAL"} if "tls.certFile" in given else {"ANONYMOUS"}
        if usable.isdisjoint(allowed):
            login = "user name and password" if has_password else "neither user name nor client certificate"
            if usable == {"EXTERNAL"}:
                login = "a client certificate"
            problems.append(
                f"option 'saslMechanisms' allows {', '.join(allowed)}, but {login} given: that login needs "
                f"{' or '.join(name for name in DEFAULT_MECHANISMS if name in usable)}"
            )
    return problems
