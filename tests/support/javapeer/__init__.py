"""An AMQP 0-10 peer that shares no code with this project: the JMS client of Apache Qpid, run as a Java program.

``expected.json`` lists the messages of ``publish_all``: for each its name, the report of the Java peer on receiving
it, and its form on the wire. ``sink_expected.json`` lists the reports about messages of the sink.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.support.java_source import broker_variables, java_command
from tests.support.maven import cache_root, cached_directory, fetch_dependencies

if TYPE_CHECKING:
    from tests.support.fixtures import Broker

VERSION = "6.4.0"
_HERE = Path(__file__).parent
_CACHE_NAME = f"qpid-jms-client-{VERSION}"


class PeerFailed(RuntimeError):
    """The Java program ended with an error; the text holds what it printed."""


def is_fetched() -> bool:
    """Whether the jars are in the cache."""
    return (cache_root() / _CACHE_NAME).is_dir()


def jars() -> Path:
    """Return the directory of the client's jars, fetching them on first use."""
    return cached_directory(_CACHE_NAME, lambda directory: fetch_dependencies(_HERE / "pom.xml", directory))


def expected() -> list[dict[str, Any]]:
    """Return the messages that ``publish_all`` sends, in order."""
    rows: list[dict[str, Any]] = json.loads((_HERE / "expected.json").read_text(encoding="utf-8"))
    return rows


def expected_of_sink() -> list[dict[str, Any]]:
    """Return the Java peer's reports about the messages of ``tests/broker/test_java_sink.py``, in order."""
    rows: list[dict[str, Any]] = json.loads((_HERE / "sink_expected.json").read_text(encoding="utf-8"))
    return rows


def publish_all(broker: Broker, queue: str, *, vhost: str = "default") -> None:
    """Send one message of every JMS type to ``queue``, which is created if it does not exist.

    Raises:
        PrerequisiteMissing: no Java.
        PeerFailed: anything else.
    """
    _run(broker, vhost, "publish-all", queue)


def receive(
    broker: Broker, queue: str, count: int, *, vhost: str = "default", timeout_s: float = 30.0
) -> list[dict[str, Any]]:
    """Receive and accept ``count`` messages of ``queue``, waiting up to ``timeout_s`` seconds for each.

    Returns:
        One dict for each: body (kind and value), properties (each with the Java type it came as), other_headers (the
        same for those of types that no JMS property has), message_id, correlation_id (hex), reply_to, type, priority,
        persistent, timestamp and expiration (ms), redelivered.

    Raises:
        PrerequisiteMissing: no Java.
        PeerFailed: anything else; exit code 3 if fewer messages came.
    """
    lines = _run(broker, vhost, "receive", queue, str(count), str(int(timeout_s * 1000)))
    return [json.loads(line) for line in lines.splitlines()]


def _run(broker: Broker, vhost: str, *arguments: str) -> str:
    url = urlsplit(broker.url(vhost))
    command = java_command(_HERE / "Peer.java", jars(), *arguments)
    environment = broker_variables(
        host=url.hostname or "localhost",
        port=url.port or 5672,
        vhost=url.path.strip("/"),
        username=broker.username,
        password=broker.password,
    )
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240, check=False
    )
    if done.returncode != 0:
        raise PeerFailed(f"Peer.java {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr[-4000:]}")
    return done.stdout
