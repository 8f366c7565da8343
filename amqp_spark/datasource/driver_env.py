"""Environment of the reader process: settings of Spark, the driver's address, the end of the parent process.

Python data sources receive options only. The parent process is the driver's JVM: its command line and the properties
file named there (present on Kubernetes and in YARN's cluster mode), or else ``spark-defaults.conf``, hold the settings
that were known when it started. Settings made elsewhere are not known.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import signal
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from amqp_core import address

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_log = logging.getLogger(__name__)

PARENT_CHECK_SECONDS: Final = 1.0
STOPPING_SECONDS: Final = 15.0
"""How long a reader that is stopping may outlive its parent."""

_MAIN_CLASS: Final = re.compile(r"(?:[\w$]+\.)*(?:SparkSubmit|ApplicationMaster)")
"""Main classes of a driver with options of Spark; ``ApplicationMaster`` is the one of YARN's cluster mode."""

_SWITCHES: Final = frozenset({"--load-spark-defaults", "--supervise", "--verbose", "-v", "--usage-error", "-server"})
_JOINED: Final = ("-D", "-X", "-javaagent:", "-agentlib:", "-agentpath:", "-ea", "-da", "-esa", "-dsa")
"""Beginnings of options of Java that have no further word: they occur before a main class that is not Spark's."""

_ENCRYPTED: Final = ("spark.network.crypto.enabled", "spark.authenticate.enableSaslEncryption", "spark.ssl.enabled",
                     "spark.ssl.rpc.enabled", "spark.io.encryption.enabled")  # fmt: skip


_NEVER_ASSIGNED: Final = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))  # RFC 5737, RFC 3849


def spark_settings() -> dict[str, str]:
    """Settings of the driver, as far as its command line and its properties file contain them."""
    parent = Path(f"/proc/{os.getppid()}")
    try:
        command = (parent / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        command = []
    return read_settings(command, os.environ, parent / "cwd")


def read_settings(command: list[str], environment: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Merge settings as spark-submit does: the command line overrides the file it names, relative to the working
    ``directory`` of that process, which overrides the defaults."""
    options = _options(command)
    named = [value for name, value in options if name == "--properties-file"]
    settings: dict[str, str] = {}
    if not named or any(name == "--load-spark-defaults" for name, _ in options):
        settings = _read_properties(_defaults_file(environment))
    if named:
        settings |= _read_properties(directory / named[-1].removeprefix("file://"))
    return settings | parse_command(command)


def _defaults_file(environment: Mapping[str, str]) -> Path:
    folder = environment.get("SPARK_CONF_DIR") or str(Path(environment.get("SPARK_HOME") or "/nonexistent", "conf"))
    return Path(folder, "spark-defaults.conf")


def _read_properties(path: Path) -> dict[str, str]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return {}
    except OSError as error:
        _log.warning("settings of Spark are not known, since %s cannot be read: %s", path, error.strerror or error)
        return {}
    return parse_properties(text)


_BLANKS: Final = " \t\f"
_KEY: Final = re.compile(r"((?:\\.|[^\\ \t\f=:])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Parse text as ``java.util.Properties`` does, which Spark uses; blanks around a value are removed.

    A key ends at the first ``=``, ``:`` or blank without a backslash before it; a line that ends with a backslash
    continues on the next one; ``#`` and ``!`` begin a comment.
    """
    settings = {}
    for line in _logical_lines(text):
        match = _KEY.fullmatch(line)
        if match is not None:
            settings[_unescaped(match[1])] = _unescaped(match[2]).strip()
    return settings


def _logical_lines(text: str) -> Iterator[str]:
    begun = ""
    for natural in re.split(r"\r\n|\r|\n", text):
        line = natural.lstrip(_BLANKS)
        if not begun and (not line or line[0] in "#!"):
            continue
        begun += line
        if (len(begun) - len(begun.rstrip("\\"))) % 2:
            begun = begun[:-1]
            continue
        yield begun
        begun = ""
    if begun:
        yield begun


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else _CONTROLS.get(match[2], match[2]), text)


def parse_command(words: list[str]) -> dict[str, str]:
    """Parse ``--conf key=value``, ``--master m`` and ``-Dspark.key=value`` of a driver's command line, without the
    arguments of the job's own program."""
    settings = {}
    for name, value in _options(words):
        if name in {"--conf", "-c"} and "=" in value:
            key, _, value = value.partition("=")  # noqa: PLW2901
            settings[key] = value
        elif name == "--master":
            settings["spark.master"] = value
        elif name.startswith("-Dspark."):
            settings[name[2:]] = value
    return settings


def _options(words: list[str]) -> list[tuple[str, str]]:
    """The options of Java and Spark, each with its value: the text after ``=``, or the next word.

    They end at the job's own program: what follows belongs to the job, which may have options of the same names. So a
    value is skipped, and what is no option ends the search, but for the name of Java and of Spark's main class.
    """
    main = next((at for at, word in enumerate(words) if _MAIN_CLASS.fullmatch(word)), 0)
    java = [(name, value) for name, _, value in (word.partition("=") for word in words[:main]) if name.startswith("-D")]
    rest = iter(words[main:] if words and words[main].startswith("-") else words[main + 1 :])
    return java + list(_leading_options(rest))


def _leading_options(words: Iterator[str]) -> Iterator[tuple[str, str]]:
    for word in words:
        if not word.startswith("-"):
            return
        name, equals, value = word.partition("=")
        if not equals and name not in _SWITCHES and not name.startswith(_JOINED):
            value = next(words, "")
        yield name, value


def is_encrypted(settings: Mapping[str, str]) -> bool:
    """Whether Spark encrypts traffic between its processes: then message bytes must be encrypted, too."""
    return any(settings.get(key, "").strip().lower() == "true" for key in _ENCRYPTED)


def driver_host(settings: Mapping[str, str]) -> str:
    """The address at which executors reach this machine."""
    if _is_local(settings):
        return "127.0.0.1"
    known = (settings.get("spark.driver.host"), os.environ.get("SPARK_LOCAL_IP"))
    hosts = [without_brackets(host) for host in known if host]
    return next((host for host in hosts if not _is_wildcard(host)), None) or own_address()


def without_brackets(host: str) -> str:
    """The host as a connection takes it: Spark wants an address of IPv6 in brackets."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def _is_local(settings: Mapping[str, str]) -> bool:
    return settings.get("spark.master", "").startswith("local")  # and local-cluster: executors are on this machine


def _is_wildcard(host: str) -> bool:
    """Whether an address stands for all of a machine; nobody can connect to it from elsewhere."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def bind_address(host: str) -> str:
    """The listening address for ``host``: that address alone if this machine has it, else all (empty)."""
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(place)
    except (OSError, UnicodeError):
        return ""  # a translated name or address: a load balancer, a container's host
    return str(place[0])


@dataclass(frozen=True, slots=True)
class PullPlace:
    """Place of the pull endpoint: the host that executors connect to, the listening address (empty: all), and whether
    its bytes must be encrypted."""

    host: str
    bind: str
    encrypt: bool


def pull_place(settings: Mapping[str, str], host: str | None) -> PullPlace:
    """Choose the place; message bytes are unencrypted only on this machine, and only if Spark is not known to encrypt.
    ``host``: option ``transferHost``."""
    host = host or driver_host(settings)
    bind = "" if _is_reached_elsewhere(settings, host) else bind_address(host)
    if is_loopback(bind) and not (_is_local(settings) or address.is_loopback(host)):
        bind = ""  # a name that is loopback in this machine's own table of hosts, and not for executors
    return PullPlace(host, bind, encrypt=is_encrypted(settings) or not is_loopback(bind))


def _is_reached_elsewhere(settings: Mapping[str, str], host: str) -> bool:
    """Whether connections to ``host`` may arrive at any address: Spark itself was told to listen on all of them."""
    if _is_local(settings) or address.is_loopback(host):
        return False
    return _is_wildcard(without_brackets(settings.get("spark.driver.bindAddress", "")))


def is_loopback(bind: str) -> bool:
    """Whether traffic to an address of :func:`bind_address` stays on this machine."""
    try:
        return ipaddress.ip_address(bind).is_loopback
    except ValueError:
        return False


class ParentWatch(threading.Thread):
    """Ends this process when its parent process has ended, for any reason."""

    def __init__(self, parent: int) -> None:
        super().__init__(name="amqp-parent-watch", daemon=True)
        self._parent = parent
        self._paused_until = 0.0

    def pause_for(self, seconds: float) -> None:
        """Let this process outlive its parent by so many seconds: it is about to end by itself."""
        self._paused_until = time.monotonic() + seconds

    def run(self) -> None:
        """Watch."""
        never = threading.Event()
        while not never.wait(PARENT_CHECK_SECONDS):
            if os.getppid() != self._parent and time.monotonic() >= self._paused_until:
                os._exit(1)


def watch_parent(parent: int | None = None) -> ParentWatch:
    """End this process when its parent process ends; return the watching thread.

    Otherwise a reader that waits inside a call of Spark would live on, hold its messages and keep its connection alive.
    Nothing has to be saved: the broker sees the connection drop and requeues the messages that were not accepted.
    """
    watch = ParentWatch(os.getppid() if parent is None else parent)
    watch.start()
    return watch


def stop_in_order() -> None:
    """Turn the SIGTERM with which Spark stops a query into an exception, so that ``stop`` is called.

    Spark sends two; the second one must not interrupt the stop that the first has begun.
    """

    stopping = False

    def stop(_number: int, _frame: object) -> None:
        nonlocal stopping
        if not stopping:
            stopping = True
            raise SystemExit(0)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, stop)


def own_address() -> str:
    """This machine's address on its default route, of IPv4 if it has one; nothing is sent. Loopback when there is
    none."""
    for family, target in _NEVER_ASSIGNED:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"
