"""Capture frames between real peers and keep them as ``tests/vectors/*.toml``.

``python -m tests.support.capture`` starts Broker-J behind a recording proxy, and runs three clients through it: the
Java JMS client publishing, the same receiving, and a bare client that sends every command and every wire type, so that
Broker-J answers and sends the values back. The expected fields in the files are the output of this codec at the time of
the capture, and stay fixed. Where the sent values are known independently, they are compared before anything is
written: ``ECHOES`` of the scenario, ``expected.json`` of the Java peer.
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from amqp_core.errors import DecodeError
from amqp_core.v0_10 import _codec, spec
from amqp_core.v0_10._read import read_list_typed, read_map_typed
from amqp_core.v0_10._write import write_list, write_map
from amqp_core.v0_10.framing import BODY, COMMAND, CONTROL
from amqp_core.v0_10.type_codes import Typed
from tests.support import brokerj, javapeer
from tests.support.bareclient import BareClient
from tests.support.recorder import Recorder, Recording, segments_of
from tests.support.scenario import ECHOES, say_everything, send_every_type
from tests.support.vectors import DIRECTORY, Vector, to_toml, type_code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

BROKER = f"Broker-J {brokerj.VERSION}"
JAVA = f"Qpid JMS client {javapeer.VERSION}"
BARE = "this project's bare client"

EMPTY_ARRAYS = (bytes.fromhex("00000005 95 00000000"), bytes.fromhex("00000005 ab 00000000"))
"""Arrays of str16 and of struct32 as our encoder writes them."""

HEAD = """Captured by `python -m tests.support.capture`: {what}
Frames are exactly as they were on the wire, headers included. `sender` made them; what this project's client sent
was taken by Broker-J without complaint. How to read `expected`: tests/support/vectors.py."""


def expected_of(kind: int, payload: bytes, body: str) -> tuple[str, str, bool, Any, bytes]:
    """Name, kind, sync, expected value with the types of all map values, and the bytes of our encoder."""
    with patch.object(_codec, "read_map", read_map_typed):
        if kind == CONTROL:
            control = _codec.decode_control(payload)
            return control.NAME, "control", False, control, _codec.encode_control(control)
        if kind == COMMAND:
            command, sync = _codec.decode_command(payload)
            return command.NAME, "command", sync, command, _codec.encode_command(command, sync)
        if kind == BODY:
            if body == "amqp/list":
                items, _ = read_list_typed(payload, 0)
                return "amqp/list", "list", False, items, write_list(items)
            entries, _ = read_map_typed(payload, 0)
            return "amqp/map", "map", False, entries, write_map(entries)
        delivery, message, others = _codec.decode_header(payload)
        structs = [struct for struct in (delivery, message) if struct is not None]
        assert not others
        return "header", "header", False, structs, _codec.encode_header(delivery, message)


def shape(value: Any) -> Any:
    """Key of similar vectors: the fields that are present, without their values."""
    if isinstance(value, list):
        return tuple(shape(item) for item in value)
    if isinstance(value, dict):
        return tuple(sorted((key, repr(item)) for key, item in value.items()))  # every typed value counts
    if not dataclasses.is_dataclass(value):
        return type(value)
    fields = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    kinds = (value.content_type,) if isinstance(value, spec.MessageProperties) else ()
    return (
        type(value),
        kinds,
        tuple((name, shape(item)) for name, item in fields if item is not None and item is not False),
    )


def vectors_of(recordings: Iterable[Recording], sender: str, *, to_broker: bool) -> list[Vector]:
    """One vector for each distinct shape of segment in one direction."""
    direction = "client to broker" if to_broker else "broker to client"
    out: dict[Any, Vector] = {}
    for recording in recordings:
        body = ""
        for kind, frames in segments_of(bytes(recording.to_broker if to_broker else recording.to_client)):
            if kind == BODY and body not in {"amqp/map", "amqp/list"}:
                continue  # opaque
            vector = Vector("", "", sender, direction, frames, True, None)
            try:
                vector.name, vector.kind, vector.sync, vector.expected, ours = expected_of(kind, vector.payload, body)
            except DecodeError as error:
                raise AssertionError(f"{sender}: {error}: {vector.payload.hex()}") from error
            vector.canonical = ours == vector.payload
            if not vector.canonical:  # the one known reason; any other is a defect
                assert any(ours.endswith(empty) for empty in EMPTY_ARRAYS), vector
                assert vector.payload.endswith(bytes(4)), vector
                vector.note = "an empty array is a size word of 0 here: specs/amqp_0_10/errata.toml"
            if vector.kind == "header":
                properties = [item for item in vector.expected if isinstance(item, spec.MessageProperties)]
                body = (properties[0].content_type or "") if properties else ""
            out.setdefault((vector.name, vector.sync, shape(vector.expected)), vector)
    return list(out.values())


def check_echoes(sent: list[Vector], echoed: list[Vector]) -> None:
    """Check that every type was sent as intended, and came back retyped in Broker-J's known way."""

    def values(vectors: list[Vector]) -> list[Any]:
        properties = [struct for vector in vectors if vector.kind == "header" for struct in vector.expected]
        maps = [struct.application_headers for struct in properties if isinstance(struct, spec.MessageProperties)]
        return [headers["value"] for headers in maps if headers and "value" in headers]

    there, back = values(sent), values(echoed)
    for meant, retyped in ECHOES:
        assert meant in there, meant
        assert retyped in back, (meant, retyped)


def check_java(vectors: list[Vector]) -> None:
    """Check that the Java peer's messages match its own list."""
    headers = [vector.expected for vector in vectors if vector.kind == "header"]
    bodies = [vector.expected for vector in vectors if vector.kind in {"map", "list"}]
    for row in javapeer.expected():
        wire = row["wire"]
        wanted = {key: from_list(value) for key, value in (wire["headers"] or {}).items()}
        assert any(
            (message.content_type, delivery.priority) == (wire["content_type"], wire["priority"])
            and (message.application_headers or {}) == wanted
            for delivery, message in (structs for structs in headers if len(structs) == 2)
        ), row["name"]
        for kind in ("map", "list"):
            if kind in wire["body"]:
                assert from_list([kind, wire["body"][kind]]).value in bodies, row["name"]


def from_list(value: list[Any]) -> Typed:
    """Parse a value of ``expected.json``: ``["int8", -1]``."""
    kind, inner = value
    if kind == "map":
        inner = {key: from_list(item) for key, item in inner.items()}
    elif kind in {"list", "array"}:
        inner = [from_list(item) for item in inner]
    elif kind.startswith(("vbin", "bin")):
        inner = bytes.fromhex(inner)
    return Typed(type_code(kind), inner)


def write(name: str, what: str, client: str, vectors: list[Vector]) -> None:
    """Write one file."""
    DIRECTORY.mkdir(exist_ok=True)
    facts = {"broker": BROKER, "client": client}
    (DIRECTORY / f"{name}.toml").write_text(to_toml(HEAD.format(what=what), facts, vectors), encoding="utf-8")
    print(f"{name}: {len(vectors)} vectors, {sum(not vector.canonical for vector in vectors)} not canonical")


def bare(broker: brokerj.BrokerJ, talk: Callable[[Callable[..., BareClient]], None]) -> list[Recording]:
    """Record the conversation of the bare client and the broker."""
    with Recorder(broker.ports["anonymous"]) as recorder:
        talk(lambda **options: BareClient(brokerj.HOST, recorder.port, **options))
        return recorder.recordings


class Through:
    """The broker as seen through a recorder, for the Java peer."""

    def __init__(self, broker: brokerj.BrokerJ, recorder: Recorder) -> None:
        self.username, self.password = broker.username, broker.password
        self._port = recorder.port
        self.log = broker.log

    def url(self, vhost: str = "default") -> str:
        """Return the URL of the recorder."""
        return f"amqp://{brokerj.HOST}:{self._port}/{vhost}"


def main() -> None:
    """Capture everything."""
    with brokerj.BrokerJ(brokerj.BrokerConfig(listeners=("anonymous",), durable=False)) as broker:
        types = bare(broker, send_every_type)
        commands = bare(broker, say_everything)
        # The Java client sends its kernel version to the broker; hide that of this machine.
        with Recorder(broker.port) as recorder, patch.dict(os.environ, JAVA_TOOL_OPTIONS="-Dos.version=6"):
            javapeer.publish_all(Through(broker, recorder), "java")
            published, recorder.recordings = recorder.recordings, []
            count = len(javapeer.expected())
            javapeer.receive(Through(broker, recorder), "java", count)
            received = recorder.recordings
    sent, echoed = vectors_of(types, BARE, to_broker=True), vectors_of(types, BROKER, to_broker=False)
    check_echoes(sent, echoed)
    java = vectors_of(published, JAVA, to_broker=True)
    check_java(java)
    headers_only = [[vector for vector in side if vector.kind == "header"] for side in (sent, echoed)]
    write("types_sent", "every wire type in a header, sent to Broker-J.", BARE, headers_only[0])
    write("types_from_broker", "the same headers as Broker-J sends them on.", BARE, headers_only[1])
    write("commands_sent", "every command of the bare client.", BARE, vectors_of(commands, BARE, to_broker=True))
    write("commands_from_broker", "what Broker-J answers.", BARE, vectors_of(commands, BROKER, to_broker=False))
    write("java_publishes", "the Java JMS client sends every kind of message.", JAVA, java)
    write("java_receives", "the Java JMS client receives.", JAVA, vectors_of(received, JAVA, to_broker=True))
    seen_by_java = vectors_of([*published, *received], BROKER, to_broker=False)
    write("broker_to_java", "Broker-J to the Java JMS client.", JAVA, seen_by_java)


if __name__ == "__main__":
    main()
