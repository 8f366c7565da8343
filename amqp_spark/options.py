"""The options of the source: declared in one table, from which parsing, documentation and ``--help`` follow.

:meth:`SourceOptions.parse` reports everything that is wrong at once. It does no I/O: a password file is read where the
connection is made, each time.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, cast

from amqp_core.address import ConnectOptions, parse_url
from amqp_core.errors import UsageError
from amqp_core.sasl import DEFAULT_MECHANISMS
from amqp_spark import option_types as kinds
from amqp_spark.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqp_spark.option_types import Kind


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table. ``default`` is what the documentation shows, ``absent`` the value when it is not given."""

    name: str
    field: str
    kind: Kind
    default: str
    absent: object
    meaning: str
    group: str = "source"
    secret: bool = False


AT_LEAST_ONCE = "at-least-once"
EXACTLY_ONCE = "exactly-once"
AT_MOST_ONCE = "at-most-once"
FAILFAST = "FAILFAST"
REJECT = "REJECT"
PERMISSIVE = "PERMISSIVE"

_DEFAULT_MAX_BYTES = 64 << 20
_PASSWORD_MECHANISMS = frozenset({"SCRAM-SHA-256", "SCRAM-SHA-1", "CRAM-MD5", "PLAIN"})

#: The one table.
OPTIONS: tuple[Option, ...] = (
    Option(
        "url", "url", kinds.text("amqp://host[:port][,host2...]/virtual-host, or amqps:// for TLS"), "required", None,
        "Where the broker is. `amqps://` means TLS. Several hosts are tried in order. Without a virtual host the "
        "broker's default one is used. Credentials in it are refused, since URLs are logged.",
        group="connection",
    ),
    Option(
        "username", "username", kinds.text(), "none", None,
        "Login name. Without one, the login is EXTERNAL when a client certificate is given, else ANONYMOUS.",
        group="connection",
    ),
    Option(
        "password", "password", kinds.secret(), "none", None,
        "Password of `username`. Redacted in plans by Spark (`spark.redaction.regex` must match it, as the "
        "default does), in logs by this connector.",
        group="connection", secret=True,
    ),
    Option(
        "passwordFile", "password_file", kinds.text("path of a file"), "none", None,
        "File that holds the password, on the driver (for a batch read on the executors too); read at every "
        "connection, so that it can be changed. One newline at its end is not part of it.",
        group="connection",
    ),
    Option(
        "saslMechanisms", "sasl_mechanisms", kinds.words(DEFAULT_MECHANISMS), " ".join(DEFAULT_MECHANISMS),
        DEFAULT_MECHANISMS,
        "Allowed login mechanisms, best first. PLAIN without TLS is used only to a loopback address, or when it is "
        "named here.",
        group="connection",
    ),
    Option(
        "tls.caFile", "tls_ca_file", kinds.text("path of a PEM file"), "the system's", None,
        "Certificates of the authorities to trust, instead of the system's.",
        group="connection",
    ),
    Option(
        "tls.certFile", "tls_cert_file", kinds.text("path of a PEM file"), "none", None,
        "Client certificate, with its chain (and its key, unless `tls.keyFile` has it).",
        group="connection",
    ),
    Option(
        "tls.keyFile", "tls_key_file", kinds.text("path of a PEM file"), "none", None,
        "Private key of the client certificate.",
        group="connection",
    ),
    Option(
        "tls.verifyHostname", "tls_verify_hostname", kinds.boolean(), "true", True,
        "Whether the broker's certificate must be for the host that was connected to. The chain is always verified.",
        group="connection",
    ),
    Option(
        "heartbeat", "heartbeat", kinds.integer(0, 65535), "30", 30,
        "Seconds between heartbeats; a broker that is silent for two of them is lost. 0 turns them off.",
        group="connection",
    ),
    Option(
        "connectTimeout", "connect_timeout", kinds.seconds(0.1, 3600), "10", 10.0,
        "Seconds that a connection may take, login included, for each host.",
        group="connection",
    ),
    Option(
        "retry.maxAttempts", "retry_max_attempts", kinds.integer(0, 1_000_000), "10", 10,
        "How many times in a row a lost connection is made again (each time through the host list) before the query "
        "fails. 0: not at all.",
        group="connection",
    ),
    Option(
        "retry.maxDelay", "retry_max_delay", kinds.seconds(0, 86400), "30", 30.0,
        "Longest pause in seconds between two attempts; pauses double, with jitter.",
        group="connection",
    ),
    Option(
        "queue", "queues", kinds.queue_names(), "required", None,
        "The queue to read, or a comma list of queues.",
    ),
    Option(
        "consumerId", "consumer_id", kinds.text(), "none", None,
        "Identity of this consumer across restarts and drivers. Required for exactly-once.",
    ),
    Option(
        "exclusive", "exclusive", kinds.boolean(), "false", False,
        "Subscribe exclusively: a second consumer of the queue is refused. Otherwise a queue that already has "
        "consumers is a warning, because each consumer gets a part of the messages.",
    ),
    Option(
        "deliveryGuarantee", "delivery_guarantee", kinds.choice(AT_LEAST_ONCE, EXACTLY_ONCE, AT_MOST_ONCE),
        AT_LEAST_ONCE, AT_LEAST_ONCE,
        "`at-least-once`: accepted after Spark logged the batch, redelivered after a crash. `at-most-once`: accepted "
        "on transfer. `exactly-once` is not available yet and refused.",
    ),
    Option(
        "spoolLocation", "spool_location", kinds.text("URI of a directory"), "none", None,
        "Directory for planned batches; for exactly-once only, where it is required.",
    ),
    Option(
        "maxMessagesPerTrigger", "max_messages_per_trigger", kinds.integer(1, 2**31 - 1), "no limit", None,
        "Most messages of one micro-batch, over all queues.",
    ),
    Option(
        "maxBytesPerTrigger", "max_bytes_per_trigger", kinds.size(), "64m, or bufferBytes if that is less", None,
        "Most bytes of one micro-batch, counted as received (frames included), over all queues. One larger message "
        "passes alone.",
    ),
    Option(
        "bufferBytes", "buffer_bytes", kinds.size(), "2 x maxBytesPerTrigger", None,
        "Most bytes that the receiver holds, received and not accepted yet. Other consumers do not see these "
        "messages. One larger message passes alone.",
    ),
    Option(
        "numPartitions", "num_partitions", kinds.integer(1, 10_000), "2", 2,
        "Most partitions of one micro-batch and queue.",
    ),
    Option(
        "bind", "bind", kinds.bindings(), "none", (),
        "Bindings to make at start, for every queue of `queue`.",
    ),
    Option(
        "declare", "declare", kinds.choice("never", "ifMissing"), "never", "never",
        "`ifMissing` declares a queue that does not exist, durable. `never`: a missing queue is an error.",
    ),
    Option(
        "selector", "selector", kinds.text(), "none", None,
        "JMS message selector that the broker applies; the source sees matching messages only.",
    ),
    Option(
        "mode", "mode", kinds.choice(FAILFAST, REJECT, PERMISSIVE), FAILFAST, FAILFAST,
        "What happens to a message that does not fit the schema: `FAILFAST` stops the query, `REJECT` rejects the "
        "message (the queue's alternate exchange gets it), `PERMISSIVE` makes the column NULL.",
    ),
    Option(
        "timestampUnit", "timestamp_unit", kinds.choice("auto", "s", "ms"), "auto", "auto",
        "Unit of the wire's `timestamp` and `expiration`: seconds, milliseconds, or `auto` by magnitude, since "
        "clients disagree.",
    ),
    Option(
        "transfer", "transfer", kinds.choice("auto", "inline", "pull"), "auto", "auto",
        "How a batch's bytes reach the executors: inside the partitions, pulled from the reader over a socket, or "
        "`auto` by size (and inline where Spark encrypts its own transport).",
    ),
    Option(
        "transferHost", "transfer_host", kinds.text("host name or address"), "driver host", None,
        "What executors connect to for pulling.",
    ),
    Option(
        "transferPort", "transfer_port", kinds.integer(0, 65535), "0 (any free port)", 0,
        "Port on the driver for pulling; 0 takes a free one.",
    ),
)  # fmt: skip

_BY_KEY = {option.name.lower(): option for option in OPTIONS}

#: Keys that Spark itself, or other parts of a query, leave in the options of a source.
_SPARK_KEYS = frozenset({"path", "paths", "checkpointlocation", "queryname", "outputmode"})

#: What people write, from other connectors and from the wire, where difflib finds no near name.
_OTHER_NAMES = {
    "host": "url", "hosts": "url", "port": "url", "vhost": "url", "virtualhost": "url", "server": "url",
    "user": "username", "login": "username", "topic": "queue", "subscribe": "queue", "address": "queue",
    "maxoffsetspertrigger": "maxMessagesPerTrigger", "guarantee": "deliveryGuarantee", "filter": "selector",
    "minpartitions": "numPartitions", "cafile": "tls.caFile", "verifyhostname": "tls.verifyHostname",
}  # fmt: skip

_SINK_KEYS = frozenset(
    {"exchange", "routingkey", "deliverymode", "ttl", "priority", "contenttype", "transactionalid", "onunroutable",
     "maxinflight", "stampheaders", "exchangefromcolumn", "batchid"}
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Checked options of one source. Sizes in bytes, times in seconds. ``repr`` shows no secret; pickles whole.

    Build it with :meth:`parse`. What goes to executors goes through :meth:`for_executors`.
    """

    url: str
    hosts: tuple[tuple[str, int], ...]
    virtual_host: str
    tls: bool
    username: str | None
    password: str | None
    password_file: str | None
    sasl_mechanisms: tuple[str, ...]
    plain_in_clear: bool
    tls_ca_file: str | None
    tls_cert_file: str | None
    tls_key_file: str | None
    tls_verify_hostname: bool
    heartbeat: int
    connect_timeout: float
    retry_max_attempts: int
    retry_max_delay: float
    queues: tuple[str, ...]
    consumer_id: str | None
    exclusive: bool
    delivery_guarantee: str
    spool_location: str | None
    max_messages_per_trigger: int | None
    max_bytes_per_trigger: int
    buffer_bytes: int
    num_partitions: int
    bind: tuple[tuple[str, str], ...]
    declare: str
    selector: str | None
    mode: str
    timestamp_unit: str
    transfer: str
    transfer_host: str | None
    transfer_port: int

    @classmethod
    def parse(cls, options: Mapping[str, object]) -> SourceOptions:
        """Check a dictionary of options (keys in any case; values as text, or Python values).

        Raises OptionError that lists every problem.
        """
        given, problems = _collect(options)
        values: dict[str, object] = {}
        for option in OPTIONS:
            values[option.field] = option.absent
            text = given.get(option.name)
            if text is None:
                if option.default == "required":
                    problems.append(f"option {option.name!r} is required: {option.kind.allowed}")
                continue
            try:
                values[option.field] = option.kind.parse(text)
            except ValueError as error:
                shown = "<redacted>" if option.secret else repr(text[:200])
                problems.append(f"option {option.name!r} has the value {shown}; allowed: {error}")
        _take_url(values, problems)
        values["plain_in_clear"] = "saslMechanisms" in given and "PLAIN" in given["saslMechanisms"].upper()
        _set_sizes(values, problems)
        problems.extend(_contradictions(values, given))
        if problems:
            raise OptionError(problems)
        return cls(**cast("dict[str, Any]", values))

    def connect_options(self) -> ConnectOptions:
        """What the core's client needs to connect."""
        return ConnectOptions(
            hosts=self.hosts,
            virtual_host=self.virtual_host,
            tls=self.tls,
            username=self.username,
            password=self.password,
            password_file=self.password_file,
            sasl_mechanisms=self.sasl_mechanisms,
            tls_ca_file=self.tls_ca_file,
            tls_cert_file=self.tls_cert_file,
            tls_key_file=self.tls_key_file,
            tls_verify_hostname=self.tls_verify_hostname,
            heartbeat=self.heartbeat,
            connect_timeout=self.connect_timeout,
            client_name="amqp_spark" if self.consumer_id is None else f"amqp_spark {self.consumer_id}",
            plain_in_clear=self.plain_in_clear,
        )

    def for_executors(self) -> SourceOptions:
        """A copy without credentials: what is pickled for executors, which never connect to the broker."""
        return replace(self, username=None, password=None, password_file=None, tls_key_file=None)

    def __repr__(self) -> str:
        shown = (
            f"{field.name}={'<redacted>' if field.name == 'password' and self.password is not None else repr(value)}"
            for field in fields(self)
            if (value := getattr(self, field.name)) is not None
        )
        return f"SourceOptions({', '.join(shown)})"


def _collect(options: Mapping[str, object]) -> tuple[dict[str, str], list[str]]:
    """Options by canonical name as text, and what is wrong with the keys."""
    given: dict[str, str] = {}
    problems: list[str] = []
    for key, value in options.items():
        lowered = key.lower()
        if value is None or lowered in _SPARK_KEYS or lowered.startswith(("__", "spark.")):
            continue
        option = _BY_KEY.get(lowered)
        if option is None:
            problems.append(f"option {key!r} is not known{_suggestion(lowered)}")
            continue
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if given.get(option.name, text) != text:
            problems.append(
                f"option {option.name!r} is given twice with different values (keys have no case): give it once"
            )
        given[option.name] = text
    return given, problems


def _suggestion(lowered: str) -> str:
    if lowered in _SINK_KEYS:
        return " to the source: it belongs to the sink"
    plain = "".join(char for char in lowered if char.isalnum())
    by_plain = {"".join(char for char in key if char.isalnum()): option.name for key, option in _BY_KEY.items()}
    name = by_plain.get(plain) or _OTHER_NAMES.get(plain)
    if name is None:
        near = difflib.get_close_matches(plain, list(by_plain), n=1, cutoff=0.7)
        name = by_plain[near[0]] if near else None
    if name is not None:
        return f": did you mean {name!r}?"
    return f"; known are {', '.join(option.name for option in OPTIONS)}"


def _take_url(values: dict[str, object], problems: list[str]) -> None:
    url = values["url"]
    values.update(hosts=(), virtual_host="", tls=None)
    if isinstance(url, str):
        try:
            values["hosts"], values["virtual_host"], values["tls"] = parse_url(url)
        except UsageError as error:
            problems.append(f"option 'url': {error}")


def _set_sizes(values: dict[str, object], problems: list[str]) -> None:
    batch, held = values["max_bytes_per_trigger"], values["buffer_bytes"]
    if batch is None:
        batch = min(_DEFAULT_MAX_BYTES, held) if isinstance(held, int) else _DEFAULT_MAX_BYTES
    assert isinstance(batch, int)
    if isinstance(held, int) and held < batch:
        problems.append(
            f"option 'bufferBytes' is {held} and 'maxBytesPerTrigger' {batch}: the buffer must hold at least one batch "
            f"(allowed: {batch} or more)"
        )
    values["max_bytes_per_trigger"] = batch
    values["buffer_bytes"] = 2 * batch if held is None else held


def _contradictions(values: dict[str, object], given: Mapping[str, str]) -> list[str]:
    """Options that are fine alone and not together."""
    problems = [*_login_problems(values, given), *_guarantee_problems(values)]
    if values["tls"] is False:
        problems.extend(
            f"option {name!r} is given but the URL is amqp://, which is not TLS: write amqps://, or leave it out"
            for name in ("tls.caFile", "tls.certFile", "tls.keyFile", "tls.verifyHostname")
            if name in given
        )
    if "tls.keyFile" in given and "tls.certFile" not in given:
        problems.append(
            "option 'tls.keyFile' is given without 'tls.certFile': give the certificate too, or leave it out"
        )
    return problems


def _login_problems(values: dict[str, object], given: Mapping[str, str]) -> list[str]:
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


def _guarantee_problems(values: dict[str, object]) -> list[str]:
    guarantee, mode = values["delivery_guarantee"], values["mode"]
    problems = []
    if guarantee == EXACTLY_ONCE:
        problems.append(
            "option 'deliveryGuarantee' has the value 'exactly-once', which is not available yet; "
            f"allowed now: {AT_LEAST_ONCE}, {AT_MOST_ONCE}"
        )
        problems.extend(
            f"option {name!r} is required by deliveryGuarantee=exactly-once"
            for name, field in (("consumerId", "consumer_id"), ("spoolLocation", "spool_location"))
            if values[field] is None
        )
        if values["heartbeat"] == 0:
            problems.append("option 'heartbeat' is 0 (off), which deliveryGuarantee=exactly-once does not allow")
    elif values["spool_location"] is not None:
        problems.append(f"option 'spoolLocation' has no use with deliveryGuarantee={guarantee}: leave it out")
    if mode == REJECT and guarantee != AT_LEAST_ONCE:
        problems.append(
            f"option 'mode' is REJECT, which is not possible with deliveryGuarantee={guarantee} (the message is "
            f"accepted before its rows are decoded); allowed: {FAILFAST}, {PERMISSIVE}"
        )
    return problems
