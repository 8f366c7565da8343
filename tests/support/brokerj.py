"""A real broker: Apache Qpid Broker-J, fetched from Maven Central and run as a child process.

``python -m tests.support.brokerj`` (``make broker``) runs one in the foreground; tests use :class:`BrokerJ`.
It listens on the loopback interface only, and is killed when the process that started it ends.
"""

from __future__ import annotations

import argparse
import atexit
import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from tests.support import jvm
from tests.support.maven import cache_root, cached_directory, fetch_archive
from tests.support.ports import free_port
from tests.support.prerequisites import require_java
from tests.support.process import die_with_us, wait_until
from tests.support.tls import TlsMaterial

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = "9.2.1"
_ARCHIVE = f"apache-qpid-broker-j-{VERSION}-bin.tar.gz"
_SHA256 = "bfbfbcffc6a8ad904f97edc6dcebc688f232b582843b9cb1f240decb8b8a181a"
_CACHE_NAME = f"broker-j-{VERSION}"
_READY = "BRK-1004"
_BIND_FAILED = "PRT-1009"  # the broker's own code of a port that is in use

HOST = "127.0.0.1"

Listener = Literal["login", "anonymous", "plain", "tls", "tls-client-auth"]

# Every listener by its flag: (authentication provider, transport). ``login`` is always there.
_LISTENERS: dict[Listener, tuple[str, str]] = {
    "login": ("login", "TCP"),
    "anonymous": ("anonymous", "TCP"),
    "plain": ("login-in-clear", "TCP"),
    "tls": ("login", "SSL"),
    "tls-client-auth": ("certificate", "SSL"),
}


class BrokerFailed(RuntimeError):
    """The broker did not start; the text holds the end of its log."""


def is_fetched() -> bool:
    """Whether the broker is in the cache."""
    return (cache_root() / _CACHE_NAME).is_dir()


def distribution() -> Path:
    """Return the directory of the unpacked broker (with ``lib``), fetching it on first use."""

    def fill(directory: Path) -> None:
        fetch_archive(f"org.apache.qpid:apache-qpid-broker-j:{VERSION}:tar.gz:bin", _ARCHIVE, _SHA256, directory)

    return cached_directory(_CACHE_NAME, fill) / "qpid-broker" / VERSION


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


class BrokerJ:
    """One Broker-J process and its work directory; a context manager that starts and stops it.

    Virtual hosts: "default" (in memory) and "durable" (BDB). Ports and work directory stay the same over
    :meth:`restart`, so clients can reconnect, and the durable virtual host finds its queues again.
    """

    def __init__(self, config: BrokerConfig | None = None) -> None:
        self.config = config if config is not None else BrokerConfig()
        self.username, self.password = next(iter(self.config.users.items()))
        self.ports: dict[Listener, int] = {}
        self.work_dir: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- addresses ------------------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        """The address that the broker listens on."""
        return HOST

    @property
    def port(self) -> int:
        """The port of the ``login`` listener."""
        return self.ports["login"]

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        if self._process is None:
            raise RuntimeError("the broker is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self._process is not None and self._process.poll() is None

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

    # -- life cycle ----------------------------------------------------------------------------------------

    def start(self, timeout_s: float = 120.0) -> None:
        """Start the broker and wait until it accepts connections.

        Raises:
            PrerequisiteMissing: no Java.
            BrokerFailed: it ended, or was not ready within ``timeout_s`` seconds.
        """
        if self.running:
            raise RuntimeError("the broker is running already")
        first_start = self.work_dir is None
        for attempt in range(3):
            if first_start:
                self._prepare()
            try:
                self._launch(timeout_s)
            except BrokerFailed as error:
                self._remove_work_dir(first_start)
                # Another process may have taken a port between our choice and the bind. A given port stays given.
                if first_start and attempt < 2 and _BIND_FAILED in str(error) and not self.config.port:
                    continue
                raise
            return

    def stop(self, timeout_s: float = 30.0) -> None:
        """Stop the broker cleanly (SIGTERM); the work directory stays for :meth:`start`."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
        self._reap()

    def kill9(self) -> None:
        """Kill the broker with SIGKILL; return when the process is gone and its ports are free."""
        if self._process is not None:
            self._process.kill()
        self._reap()

    def restart(self, *, kill: bool = False, timeout_s: float = 120.0) -> None:
        """Stop (or ``kill``) the broker and start it on the same ports and work directory."""
        if kill:
            self.kill9()
        else:
            self.stop()
        self.start(timeout_s)

    def pause(self) -> None:
        """Freeze the process (SIGSTOP): connections stay open without answers; return when all threads have stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        tasks = Path(f"/proc/{self.pid}/task")
        if tasks.is_dir():  # a busy machine takes a while to stop every thread

            def frozen() -> bool:
                try:
                    states = [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks.iterdir()]
                except OSError:  # a thread has ended meanwhile
                    return False
                return all(state == "T" for state in states)

            wait_until(frozen, "every thread of the broker to stop")

    def resume(self) -> None:
        """Continue a paused broker."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """End the broker and remove its work directory."""
        self.kill9()  # no data is kept, so an orderly stop would only take longer
        self._remove_work_dir(True)

    def wait(self) -> int:
        """Wait until the broker ends by itself; return its exit code."""
        if self._process is None:
            raise RuntimeError("the broker is not running")
        return self._process.wait()

    def log(self, last_bytes: int = 4000) -> str:
        """Return the end of the broker's log since the work directory was made."""
        if self.work_dir is None:
            return ""
        with contextlib.suppress(FileNotFoundError):
            return self._log_path().read_bytes()[-last_bytes:].decode(errors="replace")
        return ""

    # -- internals -----------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        self.work_dir = Path(tempfile.mkdtemp(prefix="amqp-spark-broker-"))
        _live.add(self)
        listeners: tuple[Listener, ...] = ("login", *(n for n in self.config.listeners if n != "login"))
        if self.config.tls is None and any(name.startswith("tls") for name in listeners):
            self.config.tls = TlsMaterial.make(self.work_dir / "tls")
        self.ports = {name: free_port() for name in listeners}
        if self.config.port:
            self.ports["login"] = self.config.port
        text = json.dumps(initial_configuration(self.config, self.ports), indent=1)
        (self.work_dir / "initial-config.json").write_text(text, encoding="utf-8")

    def _launch(self, timeout_s: float) -> None:
        assert self.work_dir is not None
        command = [
            require_java(),
            f"-Xmx{self.config.heap}",
            f"-XX:MaxDirectMemorySize={self.config.direct or self.config.heap}",
            *(() if self.config.long_lived else jvm.SHORT_LIVED),
            "-cp",
            f"{distribution()}/lib/*",
            f"-DQPID_WORK={self.work_dir}",
            "-Dbroker.failStartupWithErroredChild=true",
            "org.apache.qpid.server.Main",
            "-icp",
            str(self.work_dir / "initial-config.json"),
        ]
        with self._log_path().open("ab") as log:
            mark = log.tell()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.work_dir,
                start_new_session=True,  # this process handles Ctrl-C of the terminal
            )
        self._watcher = die_with_us(self._process.pid, self.work_dir)
        process = self._process

        def ready() -> bool:
            said = self._log_path().read_bytes()[mark:].decode(errors="replace")
            if _READY in said:
                return True
            if process.poll() is not None:
                raise BrokerFailed(f"Broker-J ended with exit code {process.returncode}:\n{_essence(said)}")
            return False

        try:
            wait_until(ready, "Broker-J to be ready", timeout_s, poll_s=0.05)
        except TimeoutError as error:
            said = self._log_path().read_bytes()[mark:].decode(errors="replace")
            self.kill9()
            raise BrokerFailed(f"Broker-J was not ready after {timeout_s:g} s:\n{_essence(said)}") from error
        except BaseException:
            self.kill9()
            raise

    def _log_path(self) -> Path:
        assert self.work_dir is not None
        return self.work_dir / "broker.log"

    def _reap(self) -> None:
        for process in (self._process, self._watcher):
            if process is not None:
                process.wait()
        self._process = self._watcher = None

    def _remove_work_dir(self, really: bool) -> None:
        if really and self.work_dir is not None:
            shutil.rmtree(self.work_dir, ignore_errors=True)
            self.work_dir = None
            _live.discard(self)


def _essence(log: str) -> str:
    """Return the end of a log without the frames of stack traces, which hide the causes between them."""
    return "\n".join(line for line in log.splitlines() if not line.startswith("\tat "))[-4000:]


# Brokers with a process or a work directory: those stopped and not closed are removed at exit, too.
_live: set[BrokerJ] = set()


@atexit.register
def _close_all() -> None:
    for broker in list(_live):
        broker.close()


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
    parser = argparse.ArgumentParser(prog="python -m tests.support.brokerj", description="Run Broker-J.")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: a free one)")
    parser.add_argument("--heap", default="1g", help="heap of the JVM, as for -Xmx (default: 1g)")
    options = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    broker = BrokerJ(BrokerConfig(port=options.port, heap=options.heap, listeners=("anonymous",), long_lived=True))
    try:
        with broker:
            print(_banner(broker), flush=True)
            code = broker.wait()
            print(f"Broker-J ended with exit code {code}:\n{broker.log()}", file=sys.stderr)
            return 1
    except KeyboardInterrupt:
        print("stopped", flush=True)
        return 0
    except RuntimeError as error:  # BrokerFailed, PrerequisiteMissing, FetchFailed: their texts suffice
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1


def _banner(broker: BrokerJ) -> str:
    return "\n".join(
        (
            f"Broker-J {VERSION} is ready (AMQP 0-10; Ctrl-C stops it and forgets everything)",
            f"  url        {broker.url()}",
            f"  durable    {broker.url('durable')}",
            f"  anonymous  {broker.url(listener='anonymous')}",
            f"  username   {broker.username}",
            f"  password   {broker.password}",
            "for the benchmarks and the jobs, and for the tests:",
            _exports("AMQP", broker),
            _exports("AMQP_TEST", broker),
        )
    )


def _exports(prefix: str, broker: BrokerJ) -> str:
    given = {"URL": broker.url(), "USERNAME": broker.username, "PASSWORD": broker.password}
    return "  export " + " ".join(f"{prefix}_{name}={value}" for name, value in given.items())


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
