"""Options of the connection, which source and sink share."""

from __future__ import annotations

from dataclasses import dataclass, fields

from amqp_core.address import (
    AUTO_PROTOCOL,
    DEFAULT_MAX_MESSAGE_BYTES,
    DEFAULT_MECHANISMS,
    MAX_MAX_MESSAGE_BYTES,
    MIN_MAX_MESSAGE_BYTES,
    PROTOCOLS,
    ConnectOptions,
)
from amqp_spark.options import kinds
from amqp_spark.options.parsing import REQUIRED, option, options_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Checked options of the connection; base of those of source and sink.

    Sizes in bytes, times in seconds. ``repr`` shows no secret; pickles whole.
    """

    # fmt: off
    url: str = option(
        "url", kinds.text("amqp://host[:port][,host2...]/virtual-host, or amqps:// for TLS"), REQUIRED,
        "Address of the broker. `amqps://` means TLS. Several hosts are tried in order; after a loss, the lost one "
        "comes last. Without a virtual host the "
        "default one is used: the broker's with 0-10, `/` with 0-9-1 (`%2F` is its name in a path). Credentials in it "
        "are refused, since URLs are logged: give them as `username` and `password`.",
    )
    protocol: str = option(
        "protocol", kinds.choice(*PROTOCOLS), AUTO_PROTOCOL,
        "The protocol. `auto` starts with 0-10 and takes 0-9-1 where the broker answers so, as RabbitMQ does; what a "
        "host speaks is remembered in the process, and logged once.",
    )
    username: str | None = option(
        "username", kinds.text(), None,
        "Login name. Without one, the login is EXTERNAL when a client certificate is given, else ANONYMOUS.",
    )
    password: str | None = option(
        "password", kinds.secret(), None,
        "Password of `username`. Redacted in plans by Spark (`spark.redaction.regex` must match it, as the "
        "default does), in logs by this connector.",
        secret=True,
    )
    password_file: str | None = option(
        "passwordFile", kinds.path("path of a file"), None,
        "File that holds the password, on the driver; for a batch read, a query with `queueType=stream`, and writing "
        "on the executors, too. Read at every connection, so that it can be changed. One line end (LF or CR LF) behind "
        "it is not part of it.",
    )
    sasl_mechanisms: tuple[str, ...] = option(
        "saslMechanisms", kinds.words(DEFAULT_MECHANISMS), DEFAULT_MECHANISMS,
        "Allowed login mechanisms, best first. PLAIN, AMQPLAIN and CRAM-MD5 without TLS are used only to a loopback "
        "address, or when they are named here: a listener learns the password from the first two, and can try out "
        "many with CRAM-MD5.",
    )
    tls_ca_file: str | None = option(
        "tls.caFile", kinds.path("path of a PEM file"), None,
        "Certificates of the authorities to trust, instead of the system's.",
        shown="the system's",
    )
    tls_cert_file: str | None = option(
        "tls.certFile", kinds.path("path of a PEM file"), None,
        "Client certificate, with its chain (and its key, unless `tls.keyFile` has it).",
    )
    tls_key_file: str | None = option(
        "tls.keyFile", kinds.path("path of a PEM file"), None,
        "Private key of the client certificate.",
    )
    tls_verify_hostname: bool = option(
        "tls.verifyHostname", kinds.boolean(), True,
        "Whether the broker's certificate must be for the host that was connected to. The chain is always "
        "verified.",
    )
    heartbeat: int = option(
        "heartbeat", kinds.integer(0, 65535), 30,
        "Seconds between heartbeats; a broker that is silent for two of them is lost (while it works on "
        "transactions of exactly-once: for five minutes at least). 0 turns them off.",
    )
    connect_timeout: float = option(
        "connectTimeout", kinds.seconds(0.1, 3600), 10.0,
        "Seconds that a connection may take, login included, for each host.",
    )
    max_message_bytes: int = option(
        "maxMessageBytes", kinds.size(MIN_MAX_MESSAGE_BYTES, MAX_MAX_MESSAGE_BYTES), DEFAULT_MAX_MESSAGE_BYTES,
        "The largest message that is taken from the broker, counted with all its frames. A larger one ends the "
        "query, since it stays at the head of its queue: raise this, or remove the message.",
        shown="512m",
    )
    retry_max_attempts: int = option(
        "retry.maxAttempts", kinds.integer(0, 1_000_000), 10,
        "How many times in a row a lost connection is made again (each time through the host list) before the "
        "query, or the task that writes, fails. 0: not at all. Of a source one over which a subscription worked "
        "counts anew.",
    )
    retry_max_delay: float = option(
        "retry.maxDelay", kinds.seconds(0, 86400), 30.0,
        "Longest pause in seconds between two attempts; pauses double, with jitter. Less than 0.1 counts as 0.1.",
    )
    # fmt: on
    hosts: tuple[tuple[str, int], ...]
    virtual_host: str
    tls: bool
    in_clear: tuple[str, ...]
    """Mechanisms that are weak without TLS and that `saslMechanisms` allows by name."""

    @property
    def client_name(self) -> str:
        """Client name sent to the broker."""
        return "amqp_spark"

    def connect_options(self) -> ConnectOptions:
        """Connection options for the client of ``amqp_core``."""
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
            max_message_bytes=self.max_message_bytes,
            client_name=self.client_name,
            in_clear=self.in_clear,
            protocol=self.protocol,
        )

    def __repr__(self) -> str:
        shown = (
            f"{field.name}={'<redacted>' if field.name == 'password' and self.password is not None else repr(value)}"
            for field in fields(self)
            if (value := getattr(self, field.name)) is not None
        )
        return f"{type(self).__name__}({', '.join(shown)})"


CONNECTION = options_of(ConnectionSettings, "connection")
