"""What the reader process can find out about the Spark that runs it: settings, the driver's address, its death.

Python data sources are given options only. The process that started this one is the driver's JVM, and its command line
and ``spark-defaults.conf`` hold the settings that were known when it started; what is not found there is not known.
"""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

PARENT_CHECK_SECONDS: Final = 1.0

_ENCRYPTED: Final = ("spark.network.crypto.enabled", "spark.authenticate.enableSaslEncryption", "spark.ssl.enabled",
                     "spark.ssl.rpc.enabled", "spark.io.encryption.enabled")  # fmt: skip


def spark_settings() -> dict[str, str]:
    """Settings of the driver as far as its command line and its defaults file name them."""
    settings: dict[str, str] = {}
    for folder in (os.environ.get("SPARK_CONF_DIR"), str(Path(os.environ.get("SPARK_HOME", "/nonexistent"), "conf"))):
        defaults = Path(folder or "/nonexistent", "spark-defaults.conf")
        if defaults.is_file():
            settings.update(parse_defaults(defaults.read_text(encoding="utf-8", errors="replace")))
            break
    try:
        command = Path(f"/proc/{os.getppid()}/cmdline").read_bytes()
    except OSError:
        command = b""
    settings.update(parse_command(command.decode(errors="replace").split("\0")))
    return settings


def parse_defaults(text: str) -> dict[str, str]:
    """A ``spark-defaults.conf``: a key and a value per line, separated by white space, ``=`` or ``:``."""
    settings = {}
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        key, _, value = stripped.replace("=", " ", 1).replace("\t", " ").partition(" ")
        settings[key] = value.strip()
    return settings


def parse_command(words: list[str]) -> dict[str, str]:
    """``--conf key=value``, ``--master m`` and ``-Dspark.key=value`` of a driver's command line."""
    settings = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word in {"--conf", "-c"} and "=" in following:
            key, _, value = following.partition("=")
            settings[key] = value
        elif word == "--master":
            settings["spark.master"] = following
        elif word.startswith("-Dspark.") and "=" in word:
            key, _, value = word[2:].partition("=")
            settings[key] = value
    return settings


def is_encrypted(settings: Mapping[str, str]) -> bool:
    """Whether Spark encrypts what it sends between its processes: then message bytes shall not travel in clear."""
    return any(settings.get(key, "").strip().lower() == "true" for key in _ENCRYPTED)


def driver_host(settings: Mapping[str, str]) -> str:
    """The address at which executors reach this machine."""
    if settings.get("spark.master", "").startswith("local"):
        return "127.0.0.1"  # local and local-cluster: all executors are on this machine
    known = settings.get("spark.driver.host") or os.environ.get("SPARK_LOCAL_IP")
    return known or _own_address()


def bind_address(host: str) -> str:
    """Where to listen so that ``host`` reaches it: that address alone if it is one of this machine, else all."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(address)
    except OSError:
        return ""  # a name or address that is translated on the way: a load balancer, a container's host
    return str(address[0])


def watch_parent(parent: int | None = None) -> threading.Thread:
    """End this process when the one that started it ends, however it ends; returns the thread that watches.

    A reader that waits inside a call of Spark would live on, hold its messages and keep its connection alive. Nothing
    has to be saved: the broker sees the connection drop and takes back what was not accepted.
    """
    started_by = os.getppid() if parent is None else parent

    def watch() -> None:
        never = threading.Event()
        while not never.wait(PARENT_CHECK_SECONDS):
            if os.getppid() != started_by:
                os._exit(1)

    thread = threading.Thread(target=watch, name="amqp-parent-watch", daemon=True)
    thread.start()
    return thread


def _own_address() -> str:
    """This machine's address on its default route; nothing is sent. Loopback when there is none."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))  # RFC 5737: an address that nobody has
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
