"""A real broker: one RabbitMQ node on free ports, run as a child process (where it comes from: ``rabbitmq_install``).

``python -m tests.support.rabbitmq`` (``make broker BROKER=rabbitmq``) runs one in the foreground; tests use
:class:`RabbitMQNode`, which has the interface of ``BrokerJ``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal
from urllib.parse import quote

from tests.support import rabbitmq_install
from tests.support.broker_process import (
    HOST,
    BrokerFailed,
    BrokerProcess,
    exports,
    foreground_parser,
    run_in_foreground,
)
from tests.support.port_mapper import PortMapper
from tests.support.ports import free_port
from tests.support.process import wait_until
from tests.support.rabbitmq_install import OLD, REFERENCE, Installation, RabbitMQMissing, Release
from tests.support.tls import TlsMaterial

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = [
    "OLD",
    "REFERENCE",
    "BrokerFailed",
    "RabbitMQConfig",
    "RabbitMQMissing",
    "RabbitMQNode",
    "Release",
    "Rights",
]

Listener = Literal["login", "tls"]

_CTL_TIMEOUT_S = 120


@dataclass(frozen=True)
class Rights:
    """What a user may do in every virtual host: patterns of names, as RabbitMQ defines them."""

    configure: str = ".*"
    write: str = ".*"
    read: str = ".*"


@dataclass(kw_only=True)
class RabbitMQConfig:
    """Settings of a :class:`RabbitMQNode`.

    Args:
        release: of the server.
        listeners: ports besides ``login``. ``tls`` has a server certificate, and takes the certificate of a client as
            a login, too (EXTERNAL, as the user ``client``).
        port: of the ``login`` listener; 0 for a free one. Other listeners always get free ports.
        users: names and passwords; the first is the default of :class:`RabbitMQNode`.
        rights: of users that may not do everything, by name.
        vhosts: names of the virtual hosts.
        heartbeat_s: that the node proposes, in seconds.
        consumer_timeout_ms: after which an unacknowledged delivery is taken back; None for RabbitMQ's own default.
        settings: further lines of ``rabbitmq.conf`` by name, like ``{"channel_max": "10"}``.
        plugins: names of the plugins to enable.
        tls: key material to use; made if the TLS listener is requested without it.
        schedulers: threads that run Erlang.
    """

    release: Release = REFERENCE
    listeners: tuple[Listener, ...] = ()
    port: int = 0
    users: Mapping[str, str] = field(default_factory=lambda: {"guest": "guest", "trader": "tr4der!=,x"}, repr=False)
    rights: Mapping[str, Rights] = field(default_factory=dict)
    vhosts: tuple[str, ...] = ("/", "default", "durable", "with/slash")
    heartbeat_s: int = 60
    consumer_timeout_ms: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()
    tls: TlsMaterial | None = None
    schedulers: int = 2


def let_queues_grow_old() -> None:
    """Wait until a node may be killed: RabbitMQ 4 loses what a queue has confirmed that is some seconds young."""
    time.sleep(4.0)  # the age of a queue can only be waited for


class RabbitMQNode(BrokerProcess):
    """One RabbitMQ node and its work directory.

    Durable queues of every virtual host keep their messages over :meth:`restart`. ``mapper``: of a cluster, which the
    caller ends.
    """

    title: ClassVar[str] = "RabbitMQ"
    ready: ClassVar[str] = "Server startup complete"
    bind_failed: ClassVar[str] = "eaddrinuse"

    def __init__(self, config: RabbitMQConfig | None = None, mapper: PortMapper | None = None) -> None:
        super().__init__()
        self.config = config if config is not None else RabbitMQConfig()
        self.username, self.password = next(iter(self.config.users.items()))
        self.ports: dict[Listener, int] = {}
        self._installation: Installation | None = None
        self._mapper = mapper or PortMapper()
        self._has_own_mapper = mapper is None
        self._erlang_port = 0

    # -- addresses -----------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The port of the ``login`` listener."""
        return self.ports["login"]

    @property
    def epmd_port(self) -> int:
        """The port of Erlang's port mapper, which speaks no AMQP."""
        return self._mapper.port

    @property
    def name(self) -> str:
        """The name of the node in Erlang, and in a cluster."""
        return f"rabbit{self._erlang_port}@localhost"

    @property
    def tls(self) -> TlsMaterial:
        """Certificates of the TLS listener and for clients."""
        if self.config.tls is None:
            raise RuntimeError("this broker has no TLS listener")
        return self.config.tls

    @property
    def version(self) -> str:
        """The version of the server, such as ``4.3.6``."""
        return self._installed.version

    def url(self, vhost: str = "default", listener: Listener = "login") -> str:
        """Return the URL of a virtual host on one of the listeners, without credentials."""
        scheme = "amqps" if listener == "tls" else "amqp"
        return f"{scheme}://{HOST}:{self.ports[listener]}/{quote(vhost, safe='')}"

    # -- administration ------------------------------------------------------------------------------------

    def ctl(self, *arguments: str) -> str:
        """Run ``rabbitmqctl`` (one or two seconds); return what it prints.

        Raises:
            RuntimeError: it failed; the text holds what it printed.
        """
        assert self.work_dir is not None
        return self._run(str(self._installed.home / "sbin" / "rabbitmqctl"), "-n", self.name, "-q", *arguments)

    def evaluate(self, expressions: str) -> str:
        """Evaluate Erlang expressions inside the node (hundredths of a second); return the value of the last, as text.

        Raises:
            RuntimeError: they failed; the text says why.
        """
        program = self._installed.program("erl_call")
        if program is None:  # an Erlang installed without its interface for C
            return self.ctl("eval", f"{expressions}.").strip()
        at = f"localhost:{self._erlang_port}"
        # To the broker each call is another node. By default all have one name, and a busy broker refuses a node that
        # comes before it has noticed the end of the last.
        name = f"call{secrets.token_hex(6)}"
        command = (program, "-address", at, "-h", name, "-c", self._mapper.cookie, "-e")
        # One line with its value as the last tuple: erl_call says {ok, Value} or what went wrong.
        answer = self._run(*command, stdin=f"{expressions}.\n").strip()
        if not answer.startswith("{ok, "):
            raise RuntimeError(f"{expressions}: {answer}")
        return answer.removeprefix("{ok, ").removesuffix("}")

    def set_memory_alarm(self, on: bool) -> None:
        """Raise the memory alarm, which blocks connections that publish, or clear it; return when it is so."""
        fraction = "0.0000001" if on else "0.6"
        self.evaluate(f"vm_memory_monitor:set_vm_memory_high_watermark({fraction})")
        wait_until(
            lambda: (self.evaluate("rabbit_alarm:get_local_alarms()") != "[]") == on,
            f"the memory alarm to be {'raised' if on else 'cleared'}",
        )

    def set_rights(self, user: str, vhost: str, rights: Rights) -> None:
        """Replace what a user may do in one virtual host."""
        patterns = ", ".join(binary(text) for text in (rights.configure, rights.write, rights.read))
        self.evaluate(
            f"rabbit_auth_backend_internal:set_permissions({binary(user)}, {binary(vhost)}, {patterns}, <<>>)"
        )

    def limit_user(self, user: str, **most: int) -> None:
        """Set the most connections and channels (``max_connections``, ``max_channels``) of a user; none: no limits."""
        limits = json.dumps({name.replace("_", "-"): number for name, number in most.items()})
        call, value = ("set_user_limits", limits) if most else ("clear_user_limits", "all")
        self.evaluate(f"ok = rabbit_auth_backend_internal:{call}({binary(user)}, {binary(value)}, <<>>)")

    def set_policy(self, name: str, pattern: str, definition: Mapping[str, object], *, vhost: str = "default") -> None:
        """Set a policy for the queues of a virtual host whose names match ``pattern``."""
        text = binary(json.dumps(definition))
        where = f"{binary(vhost)}, {binary(name)}, {binary(pattern)}"
        self.evaluate(f'ok = rabbit_policy:parse_set({where}, {text}, 0, <<"queues">>, <<>>)')

    def clear_policy(self, name: str, *, vhost: str = "default") -> None:
        """Remove a policy of a virtual host."""
        self.evaluate(f"ok = rabbit_policy:delete({binary(vhost)}, {binary(name)}, <<>>)")

    # -- internals -----------------------------------------------------------------------------------------

    @property
    def _installed(self) -> Installation:
        if self._installation is None:
            self._installation = rabbitmq_install.find(self.config.release)
        return self._installation

    def _run(self, *command: str, stdin: str = "") -> str:
        assert self.work_dir is not None
        done = subprocess.run(
            command,
            env=self._environment(self.work_dir),
            cwd=self.work_dir,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=_CTL_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def _port_is_given(self) -> bool:
        return self.config.port != 0

    def _prepare(self, work_dir: Path) -> None:
        if self.config.tls is None and "tls" in self.config.listeners:
            self.config.tls = TlsMaterial.make(work_dir / "tls")
        listeners: tuple[Listener, ...] = ("login", *self.config.listeners)
        self.ports = {name: free_port() for name in dict.fromkeys(listeners)}
        if self.config.port:
            self.ports["login"] = self.config.port
        self._erlang_port = free_port()
        if not self._mapper.running:
            self._mapper.port = free_port()
        plugins = {*self.config.plugins, *(["rabbitmq_auth_mechanism_ssl"] if self.config.tls else [])}
        _write(work_dir / "enabled_plugins", f"[{','.join(sorted(plugins))}].\n")
        _write(work_dir / "rabbitmq-env.conf", "")
        _write(work_dir / "definitions.json", json.dumps(definitions(self.config)))
        _write(work_dir / ".erlang.cookie", self._mapper.cookie)
        (work_dir / ".erlang.cookie").chmod(0o400)
        _write(work_dir / "rabbitmq.conf", self._settings(f"load_definitions = {work_dir}/definitions.json"))

    def _settings(self, *more: str) -> str:
        config = self.config
        lines = [
            f"listeners.tcp.1 = {HOST}:{self.ports['login']}",
            f"heartbeat = {config.heartbeat_s}",
            "log.console = true",
            "log.console.level = info",
            "log.file = false",
            "disk_free_limit.absolute = 50MB",
            "vm_memory_high_watermark.relative = 0.6",
            "loopback_users = none",
            *more,
        ]
        if config.consumer_timeout_ms is not None:
            lines.append(f"consumer_timeout = {config.consumer_timeout_ms}")
        if config.tls is not None:
            lines += [
                f"listeners.ssl.1 = {HOST}:{self.ports['tls']}",
                f"ssl_options.cacertfile = {config.tls.ca_file}",
                f"ssl_options.certfile = {config.tls.server.cert_file}",
                f"ssl_options.keyfile = {config.tls.server.key_file}",
                "ssl_options.verify = verify_peer",
                "ssl_options.fail_if_no_peer_cert = false",
                "ssl_cert_login_from = common_name",
                *(f"auth_mechanisms.{n} = {name}" for n, name in enumerate(("PLAIN", "AMQPLAIN", "EXTERNAL"), 1)),
            ]
        lines += [f"{name} = {value}" for name, value in config.settings.items()]
        return "\n".join((*lines, ""))

    def _command(self, work_dir: Path) -> list[str]:
        del work_dir
        return [str(self._installed.home / "sbin" / "rabbitmq-server")]

    def _environment(self, work_dir: Path) -> Mapping[str, str]:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RABBITMQ_", "ERL_")) and name != "NOTIFY_SOCKET"
        }
        # The node takes its name at once, so that it starts no Erlang of its own to look for epmd. It does not spin
        # while it waits: tests run beside it.
        arguments = (
            f"-sname {self.name} -start_epmd false +S {self.config.schedulers}:{self.config.schedulers} +A 1 "
            "+sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1} "
            f"-kernel inet_dist_listen_min {self._erlang_port} -kernel inet_dist_listen_max {self._erlang_port}"
        )
        return inherited | {
            "PATH": self._installed.path,
            "HOME": str(work_dir),
            "LANG": "C.UTF-8",
            "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the server: kill -9 is real
            "ERL_EPMD_PORT": str(self._mapper.port),
            "ERL_EPMD_ADDRESS": HOST,
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_USE_LONGNAME": "false",
            "RABBITMQ_DIST_PORT": str(self._erlang_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": arguments,
            "RABBITMQ_CONF_ENV_FILE": f"{work_dir}/rabbitmq-env.conf",
            "RABBITMQ_CONFIG_FILE": f"{work_dir}/rabbitmq.conf",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{work_dir}/advanced.config",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{work_dir}/enabled_plugins",
            "RABBITMQ_PLUGINS_DIR": str(self._installed.home / "plugins"),
            "RABBITMQ_PLUGINS_EXPAND_DIR": f"{work_dir}/expanded",
            "RABBITMQ_MNESIA_BASE": f"{work_dir}/data",
            "RABBITMQ_FEATURE_FLAGS_FILE": f"{work_dir}/feature_flags",
            "RABBITMQ_GENERATED_CONFIG_DIR": f"{work_dir}/generated",
            "RABBITMQ_LOG_BASE": f"{work_dir}/log",
        }

    def _launch(self, timeout_s: float) -> None:
        assert self.work_dir is not None
        if not self._mapper.running:
            self._start_mapper(self.work_dir)
        super()._launch(timeout_s)
        if not self._mapper.running:  # that of another node has this port, and would end with it
            self.kill9()
            raise BrokerFailed(f"epmd ended: {self.bind_failed}")
        # Once is enough: a restart keeps what was changed since.
        _write(self.work_dir / "rabbitmq.conf", self._settings())

    def _start_mapper(self, work_dir: Path) -> None:
        program = self._installed.program("epmd")
        if program is None:
            raise RabbitMQMissing(
                "Erlang's program epmd is missing; install Erlang with: sudo apt-get install erlang-base"
            )
        self._mapper.start(program, work_dir, self._environment(work_dir))

    def _reap(self) -> None:
        if self._has_own_mapper:
            if self._process is not None:
                self._process.wait()
            self._mapper.kill9()
        super()._reap()


def definitions(config: RabbitMQConfig) -> dict[str, object]:
    """Return what the node has on its first start: virtual hosts, users and what they may do."""
    secrets_of = {**config.users, **({"client": None} if config.tls is not None else {})}
    return {
        "vhosts": [{"name": name} for name in config.vhosts],
        "users": [
            {
                "name": name,
                "password_hash": _password_hash(secret),
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": "administrator",
            }
            for name, secret in secrets_of.items()
        ],
        "permissions": [
            {"user": name, "vhost": vhost, "configure": may.configure, "write": may.write, "read": may.read}
            for name in secrets_of
            for may in (config.rights.get(name, Rights()),)
            for vhost in config.vhosts
        ],
    }


def _password_hash(secret: str | None) -> str:
    """Return the hash that RabbitMQ keeps: salt, then SHA-256 of salt and password; empty for no login by password."""
    if secret is None:
        return ""
    salt = secrets.token_bytes(4)
    return base64.b64encode(salt + hashlib.sha256(salt + secret.encode()).digest()).decode()


def binary(text: str) -> str:
    """Return the Erlang binary of a text."""
    return f"<<{','.join(map(str, text.encode()))}>>"


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


# -- make broker -------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Run a node in the foreground until it ends or a signal comes; return the exit code."""
    parser = foreground_parser("tests.support.rabbitmq", "a RabbitMQ node")
    node = RabbitMQNode(RabbitMQConfig(port=parser.parse_args(arguments).port, schedulers=os.cpu_count() or 2))
    return run_in_foreground(node, lambda: _banner(node), parser.prog)


def _banner(node: RabbitMQNode) -> str:
    login = (node.url("/"), node.username, node.password)
    return "\n".join(
        (
            f"RabbitMQ {node.version} is ready (AMQP 0-9-1; Ctrl-C stops it and forgets everything)",
            f"  url        {node.url('/')}",
            f"  username   {node.username}",
            f"  password   {node.password}",
            "for the benchmarks and the jobs:",
            exports("AMQP", *login),
        )
    )


if __name__ == "__main__":
    sys.exit(main())
