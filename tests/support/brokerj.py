"""A real broker: Apache Qpid Broker-J, fetched from Maven Central and run as a child process.

``python -m tests.support.brokerj`` (``make broker``) runs one in the foreground; tests use :class:`BrokerJ`.
It listens on the loopback interface only, and is killed when the process that started it ends.
"""

from __future__ import annotations

import base64
import json
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from tests.support import jvm
from tests.support.broker_process import (
    HOST,
    BrokerFailed,
    BrokerProcess,
    exports,
    foreground_parser,
    run_in_foreground,
)
from tests.support.maven import cache_root, cached_directory, fetch_archive
from tests.support.ports import free_port
from tests.support.prerequisites import require_java
from tests.support.tls import TlsMaterial

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["HOST", "VERSION", "BrokerConfig", "BrokerFailed", "BrokerJ", "Listener", "distribution", "is_fetched"]

VERSION = "9.2.1"
_ARCHIVE = f"apache-qpid-broker-j-{VERSION}-bin.tar.gz"
_SHA256 = "bfbfbcffc6a8ad904f97edc6dcebc688f232b582843b9cb1f240decb8b8a181a"
_CACHE_NAME = f"broker-j-{VERSION}"

Listener = Literal["login", "anonymous", "plain", "tls", "tls-client-auth"]

# Every listener by its flag: (authentication provider, transport). ``login`` is always there.
_LISTENERS: dict[Listener, tuple[str, str]] = {
    "login": ("login", "TCP"),
    "anonymous": ("anonymous", "TCP"),
    "plain": ("login-in-clear", "TCP"),
    "tls": ("login", "SSL"),
    "tls-client-auth": ("certificate", "SSL"),
}


def is_fetched() -> bool:
    """Whether the broker is in the cache."""
    return (cache_root() / _CACHE_NAME).is_dir()


def distribution() -> Path:
    """Return the directory of the unpacked broker (with ``lib``), fetching it on first use."""

    def fill(directory: Path) -> None:
        fetch_archive(f"org.apache.qpid:apache-qpid-broker-j:{VERSION}:tar.gz:bin", _ARCHIVE, _SHA256, directory)

    return cached_directory(_CACHE_NAME, fill) / "qpid-broker" / VERSION


def class_archive() -> Path:
    """The archive of the broker's classes, which :mod:`tests.support.quick_broker` makes."""
    return cache_root() / f"{_CACHE_NAME}-classes" / "classes.jsa"


def _shared_classes() -> tuple[str, ...]:
    return (f"-XX:SharedArchiveFile={class_archive()}", "-Xlog:disable") if class_archive().exists() else ()


@dataclass(kw_only=True)
class BrokerConfig:
    """Settings of a :class:`BrokerJ`.

    Args:
        heap: of the JVM, as for ``-Xmx``. With ``1g`` the broker holds about one million messages of 256 bytes, with
            ``3g`` two million.
        direct: memory for message bodies, beside the heap; empty for the size of the heap.
        listeners: ports besides ``login``. ``login`` offers SCRAM and CRAM-MD5, ``anonymous`` ANONYMOUS, ``plain``
            adds PLAIN in clear, ``tls`` has a server certificate, ``tls-client-auth`` asks the client for one too
            (EXTERNAL).
        port: of the ``login`` listener; 0 for a free one. Other listeners always get free ports.
        durable: whether there is a second virtual host "durable", with a BDB store.
        users: names and passwords; the first is the default of :class:`BrokerJ`.
        protocols: of the ports; ``AMQP_0_9_1`` and others can be added.
        context: broker settings by name, like ``{"qpid.port.heartbeatDelay": "1"}``.
        tls: key material to use; made if a TLS listener is requested without it.
        acl: rules of the broker's access control, like ``ACL DENY trader PUBLISH EXCHANGE name="amq.topic"``; the
            first match decides, and actions without a matching rule are allowed.
        long_lived: whether the JVM is tuned for full speed, for runs of minutes. Without it the broker is ready in
            half the time, for half the CPU.
        java_options: for the JVM, besides these.
    """

    heap: str = "1g"
    direct: str = ""
    listeners: tuple[Listener, ...] = ()
    port: int = 0
    durable: bool = True
    users: Mapping[str, str] = field(default_factory=lambda: {"guest": "guest", "trader": "tr4der!=,x"}, repr=False)
    protocols: tuple[str, ...] = ("AMQP_0_10",)
    context: Mapping[str, str] = field(default_factory=dict)
    tls: TlsMaterial | None = None
    acl: tuple[str, ...] = ()
    long_lived: bool = False
    java_options: tuple[str, ...] = ()


class BrokerJ(BrokerProcess):
    """One Broker-J process and its work directory.

    Virtual hosts: "default" (in memory) and "durable" (BDB), which finds its queues again after :meth:`restart`.
    """

    title: ClassVar[str] = "Broker-J"
    ready: ClassVar[str] = "BRK-1004"
    bind_failed: ClassVar[str] = "PRT-1009"

    def __init__(self, config: BrokerConfig | None = None) -> None:
        super().__init__()
        self.config = config if config is not None else BrokerConfig()
        self.username, self.password = next(iter(self.config.users.items()))
        self.ports: dict[Listener, int] = {}

    @property
    def port(self) -> int:
        """The port of the ``login`` listener."""
        return self.ports["login"]

    @property
    def tls(self) -> TlsMaterial:
        """Certificates of the TLS listeners and for clients."""
        if self.config.tls is None:
            raise RuntimeError("this broker has no TLS listener")
        return self.config.tls

    def url(self, vhost: str = "default", listener: Listener = "login") -> str:
        """Return the URL of a virtual host on one of the listeners, without credentials."""
        scheme = "amqps" if listener.startswith("tls") else "amqp"
        return f"{scheme}://{HOST}:{self.ports[listener]}/{vhost}"

    # -- internals -----------------------------------------------------------------------------------------

    def _prepare(self, work_dir: Path) -> None:
        listeners: tuple[Listener, ...] = ("login", *(n for n in self.config.listeners if n != "login"))
        if self.config.tls is None and any(name.startswith("tls") for name in listeners):
            self.config.tls = TlsMaterial.make(work_dir / "tls")
        self.ports = {name: free_port() for name in listeners}
        if self.config.port:
            self.ports["login"] = self.config.port
        text = json.dumps(initial_configuration(self.config, self.ports), indent=1)
        (work_dir / "initial-config.json").write_text(text, encoding="utf-8")

    def _command(self, work_dir: Path) -> list[str]:
        return [
            require_java(),
            f"-Xmx{self.config.heap}",
            f"-XX:MaxDirectMemorySize={self.config.direct or self.config.heap}",
            *(() if self.config.long_lived else (*jvm.SHORT_LIVED, *_shared_classes())),
            *self.config.java_options,
            "-cp",
            f"{distribution()}/lib/*",
            f"-DQPID_WORK={work_dir}",
            "-Dbroker.failStartupWithErroredChild=true",
            "org.apache.qpid.server.Main",
            "-icp",
            str(work_dir / "initial-config.json"),
        ]

    def _port_is_given(self) -> bool:
        return self.config.port != 0


def initial_configuration(config: BrokerConfig, ports: Mapping[Listener, int]) -> dict[str, object]:
    """Return the content of ``initial-config.json``, which the broker copies into an empty work directory."""
    used = {_LISTENERS[name][0] for name in ports}
    users = [{"name": name, "type": "managed", "password": secret} for name, secret in config.users.items()]
    providers: dict[str, dict[str, object]] = {
        "login": {"type": "Plain", "users": users},
        "login-in-clear": {"type": "Plain", "users": users, "secureOnlyMechanisms": "[]"},
        "anonymous": {"type": "Anonymous"},
        "certificate": {"type": "External"},
    }
    nodes: list[dict[str, object]] = [_virtual_host("default", node="JSON", host="Memory")]
    nodes[0]["defaultVirtualHostNode"] = "true"
    if config.durable:
        nodes.append(_virtual_host("durable", node="BDB", host="BDB"))
    root: dict[str, object] = {
        "name": "amqp-spark-test",
        "modelVersion": "9.1",
        "context": dict(config.context),
        "brokerloggers": [_CONSOLE_LOGGER],
        "authenticationproviders": [{"name": name, **providers[name]} for name in sorted(used)],
        "ports": [_port(name, port, config) for name, port in ports.items()],
        "virtualhostnodes": nodes,
    }
    if config.acl:
        rules = "\n".join((*config.acl, "ACL ALLOW ALL ALL"))
        path = "data:text/plain;base64," + base64.b64encode(rules.encode()).decode()
        root["accesscontrolproviders"] = [{"name": "rules", "type": "AclFile", "path": path}]
    if config.tls is not None:
        server, ca = config.tls.server, config.tls.ca_file
        root["keystores"] = [
            {
                "name": "server",
                "type": "NonJavaKeyStore",
                "certificateUrl": str(server.cert_file),
                "privateKeyUrl": str(server.key_file),
            }
        ]
        root["truststores"] = [{"name": "clients", "type": "NonJavaTrustStore", "certificatesUrl": str(ca)}]
    return root


_CONSOLE_LOGGER = {
    "name": "console",
    "type": "Console",
    "brokerloginclusionrules": [{"name": "warnings", "type": "NameAndLevel", "level": "WARN", "loggerName": "ROOT"}],
}


def _virtual_host(name: str, *, node: str, host: str) -> dict[str, object]:
    return {"name": name, "type": node, "virtualHostInitialConfiguration": json.dumps({"type": host})}


def _port(name: Listener, number: int, config: BrokerConfig) -> dict[str, object]:
    provider, transport = _LISTENERS[name]
    port: dict[str, object] = {
        "name": name,
        "type": "AMQP",
        "port": str(number),
        "bindingAddress": HOST,
        "authenticationProvider": provider,
        "protocols": list(config.protocols),
        "transports": [transport],
        # Without these an empty virtual-host name in connection.open is refused.
        "virtualhostaliases": [{"name": kind, "type": kind} for kind in ("nameAlias", "defaultAlias", "hostnameAlias")],
    }
    if transport == "SSL":
        port |= {"keyStore": "server", "trustStores": ["clients"]}
    if name == "tls-client-auth":
        port["needClientAuth"] = "true"
    return port


# -- make broker -------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Run a broker in the foreground until it ends or a signal comes; return the exit code."""
    parser = foreground_parser("tests.support.brokerj", "Broker-J")
    parser.add_argument("--heap", default="1g", help="heap of the JVM, as for -Xmx (default: 1g)")
    options = parser.parse_args(arguments)
    broker = BrokerJ(BrokerConfig(port=options.port, heap=options.heap, listeners=("anonymous",), long_lived=True))
    return run_in_foreground(broker, lambda: _banner(broker), parser.prog)


def _banner(broker: BrokerJ) -> str:
    login = (broker.url(), broker.username, broker.password)
    return "\n".join(
        (
            f"Broker-J {VERSION} is ready (AMQP 0-10; Ctrl-C stops it and forgets everything)",
            f"  url        {broker.url()}",
            f"  durable    {broker.url('durable')}",
            f"  anonymous  {broker.url(listener='anonymous')}",
            f"  username   {broker.username}",
            f"  password   {broker.password}",
            "for the benchmarks and the jobs, and for the tests:",
            exports("AMQP", *login),
            exports("AMQP_TEST", *login),
        )
    )


if __name__ == "__main__":
    sys.exit(main())
