"""The Java client of RabbitMQ, run as a Java program.

Messages go to it and come from it as two files of a directory: ``messages.json``, and ``bodies`` with all contents one
after another. A value of a table is a pair of its kind and itself, as ``["int", 5]``.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tests.support.java_source import broker_variables, java_command
from tests.support.maven import cache_root, cached_directory, fetch_dependencies
from tests.support.peers_0_9.messages import TIMEOUT_S, PeerFailed, PeerMessage, Place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VERSION = "5.26.0"
_HERE = Path(__file__).parent
_CACHE_NAME = f"rabbitmq-java-client-{VERSION}"
_RUN_TIMEOUT_S = 300


def is_fetched() -> bool:
    """Whether the jars are in the cache."""
    return (cache_root() / _CACHE_NAME).is_dir()


def jars() -> Path:
    """Return the directory of the client's jars, fetching them on first use."""
    return cached_directory(_CACHE_NAME, lambda directory: fetch_dependencies(_HERE / "pom.xml", directory))


class JavaPeer:
    """The Java client. It writes an integer in the smallest of 8, 16, 32 and 64 bits that holds it (Peer.java)."""

    name: ClassVar[str] = "java"
    cannot_write: ClassVar[frozenset[type]] = frozenset()
    cannot_set: ClassVar[frozenset[str]] = frozenset()
    always_sets: ClassVar[Mapping[str, object]] = {}

    def publish(self, place: Place, messages: Sequence[PeerMessage]) -> None:
        """Publish messages, mandatory and confirmed."""
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            with (directory / "bodies").open("wb") as bodies:
                for message in messages:
                    bodies.write(message.body)
            rows = [_row(message) for message in messages]
            (directory / "messages.json").write_text(json.dumps(rows), encoding="utf-8")
            _run(place, "publish", name)

    def consume(self, place: Place, queue: str, count: int) -> list[PeerMessage]:
        """Receive and acknowledge the next ``count`` messages of a queue."""
        with tempfile.TemporaryDirectory() as name:
            _run(place, "consume", name, queue, str(count), str(int(TIMEOUT_S * 1000)))
            directory = Path(name)
            rows = json.loads((directory / "messages.json").read_text(encoding="utf-8"))
            with (directory / "bodies").open("rb") as bodies:
                return [_message(row, bodies.read(row["size"])) for row in rows]

    def reading_of(self, message: PeerMessage) -> PeerMessage:
        """Return the message: the Java client reads all there is."""
        return message


def _run(place: Place, *arguments: str) -> None:
    environment = broker_variables(
        host=place.host, port=place.port, vhost=place.vhost, username=place.username, password=place.password
    )
    command = java_command(_HERE / "Peer.java", jars(), *arguments, heap="1g")
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_RUN_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise PeerFailed(f"Peer.java {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr[-4000:]}")


def _row(message: PeerMessage) -> dict[str, object]:
    properties = dict(message.properties)
    if "headers" in properties:
        properties["headers"] = {key: _spelled(value) for key, value in message.headers.items()}
    return {
        "size": len(message.body),
        "routing_key": message.routing_key,
        "exchange": message.exchange,
        "properties": properties,
    }


def _message(row: dict[str, Any], body: bytes) -> PeerMessage:
    properties = row["properties"]
    if "headers" in properties:
        properties["headers"] = {key: _read(pair) for key, pair in properties["headers"].items()}
    return PeerMessage(body=body, routing_key=row["routing_key"], exchange=row["exchange"], properties=properties)


def _spelled(value: object) -> tuple[str, object]:
    match value:
        case None:
            return "null", ""
        case bool():
            return "bool", value
        case int():
            return "int", value
        case float():
            return "float", value
        case Decimal():
            return "decimal", str(value)
        case str():
            return "str", value
        case bytes():
            return "bytes", value.hex()
        case datetime():
            return "time", int(value.timestamp())
        case list():
            return "list", [_spelled(item) for item in value]
        case dict():
            return "map", {key: _spelled(item) for key, item in value.items()}
        case _:
            raise TypeError(f"no table holds a {type(value).__name__}")


def _read(pair: tuple[str, Any]) -> object:
    kind, value = pair
    match kind:
        case "null":
            return None
        case "float":
            return float(value)
        case "decimal":
            return Decimal(value)
        case "bytes":
            return bytes.fromhex(value)
        case "time":
            return datetime.fromtimestamp(value, UTC)
        case "list":
            return [_read(item) for item in value]
        case "map":
            return {key: _read(item) for key, item in value.items()}
        case _:
            return value
