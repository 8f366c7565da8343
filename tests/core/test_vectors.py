"""Frames captured from Broker-J and the Java JMS client: read as expected, and written again byte by byte."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.v0_10 import _codec, spec
from amqp_core.v0_10._read import read_list, read_map
from amqp_core.v0_10._write import write_list, write_map
from amqp_core.v0_10.framing import Assembler, encode_assembly, parse_frame
from amqp_core.v0_10.type_codes import Typed
from specs.facts import APART
from tests.support import javapeer
from tests.support.scenario import ECHOES
from tests.support.values import MODEL, SCALARS
from tests.support.vectors import Vector, load, natural, type_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VECTORS = load()
BROKER, JAVA, OURS = "Broker-J 9.2.1", f"Qpid JMS client {javapeer.VERSION}", "this project's bare client"

# Types that no peer here can be made to send or take, with the reason.
UNCAPTURED_TYPES = {"byte-ranges": "Broker-J cannot read it (readByteRanges is not implemented), nor does it send it"}

# Operations that no peer here sends or takes, with the reason.
UNCAPTURED = {
    "connection.redirect": "Broker-J sends it for an inactive member of a group of brokers only",
    "session.expected": "only for resuming sessions, which no broker does",
    "session.confirmed": "only for resuming sessions, which no broker does",
    "session.gap": "only for resuming sessions, which no broker does",
    "message.resume": "Broker-J never answers it",
}


def title(vector: Vector) -> str:
    return f"{vector.file.removesuffix('.toml')}-{vector.name}"


def decode(vector: Vector) -> Any:
    if vector.kind == "control":
        return _codec.decode_control(vector.payload)
    if vector.kind == "command":
        value, sync = _codec.decode_command(vector.payload)
        assert sync == vector.sync
        return value
    if vector.kind == "header":
        delivery, message, others = _codec.decode_header(vector.payload)
        assert others == []
        return [struct for struct in (delivery, message) if struct is not None]
    content, end = (read_list if vector.kind == "list" else read_map)(vector.payload, 0)
    assert end == len(vector.payload)
    return content


def encode(vector: Vector, value: Any) -> bytes:
    if vector.kind == "control":
        return _codec.encode_control(value)
    if vector.kind == "command":
        return _codec.encode_command(value, vector.sync)
    if vector.kind == "header":
        by_type = {type(struct): struct for struct in value}
        return _codec.encode_header(by_type.get(spec.DeliveryProperties), by_type.get(spec.MessageProperties))
    return write_list(value) if vector.kind == "list" else write_map(value)


@pytest.mark.parametrize("vector", VECTORS, ids=title)
def test_captured_bytes_are_read_as_expected(vector: Vector) -> None:
    assert decode(vector) == natural(vector.expected)


@pytest.mark.parametrize("vector", VECTORS, ids=title)
def test_captured_bytes_are_written_again(vector: Vector) -> None:
    ours = encode(vector, vector.expected)
    if vector.canonical:
        assert ours == vector.payload
    else:
        assert vector.note
        assert ours != vector.payload
        again = Vector(vector.name, vector.kind, "", "", framed(vector, ours), True, None, vector.sync)
        assert decode(again) == natural(vector.expected)


def framed(vector: Vector, payload: bytes) -> list[bytes]:
    track = 0 if vector.kind == "control" else 1
    pieces = encode_assembly(0, track, [(vector_type(vector), payload)], 65535)
    return [b"".join(pieces)]


def vector_type(vector: Vector) -> int:
    parsed = parse_frame(vector.frames[0], 0, 65535)
    assert parsed is not None
    return parsed[0].type


@pytest.mark.parametrize("vector", [v for v in VECTORS if v.kind in {"control", "command"}], ids=title)
def test_captured_frames_are_assembled(vector: Vector) -> None:
    assembler = Assembler()
    assemblies = []
    for raw in vector.frames:
        parsed = parse_frame(raw, 0, 65535)
        assert parsed is not None
        assemblies.append(assembler.receive(parsed[0]))
    # Of a command with content only the first segment is kept here: its assembly is not complete.
    if assemblies[-1] is not None:
        assert assemblies[-1].operation == vector.payload
        assert assemblies[-1].track == (vector.kind == "command")
    else:
        assert vector.name == "message.transfer"


def types_in(value: Any) -> Iterator[str]:
    """Every wire type in an expected value: of map values, and of fields as the facts have them."""
    if isinstance(value, Typed):
        yield type_name(value.code)
        yield from types_in(value.value)
    elif isinstance(value, dict):
        for item in value.values():
            yield from types_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from types_in(item)
    elif hasattr(value, "NAME"):
        facts = next(item for item in MODEL.structs + MODEL.controls + MODEL.commands if item.key == value.NAME)
        for field in facts.fields:
            present = getattr(value, field.attr)
            if present is not None and present is not False:
                kind, _, element = field.wire.partition(":")
                yield "struct32" if kind == "struct" and MODEL.find(element).size == 4 else kind
                yield from [element] if element == "str16" and present else []
                yield from types_in(present)


def test_every_wire_type_has_been_captured() -> None:
    captured = {name for vector in VECTORS for name in types_in(vector.expected)}
    wanted = {*SCALARS, "map", "list", "array"}
    assert wanted - captured == set(UNCAPTURED_TYPES)


def test_what_broker_and_java_send_covers_these_types() -> None:
    """These do not come from this project's encoder at all."""
    captured = {name for vector in VECTORS if vector.sender != OURS for name in types_in(vector.expected)}
    assert captured >= {
        *("bit", "boolean", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "sequence-no"),
        *("float", "double", "char", "datetime", "uuid", "void", "str8", "str16", "vbin8", "vbin16", "vbin32"),
        *("map", "list", "array", "struct32", "sequence-set"),
    }


def test_every_operation_in_use_has_been_captured() -> None:
    captured = {vector.name for vector in VECTORS}
    in_use = {item.key for item in MODEL.controls + MODEL.commands if item.cls not in APART}
    assert in_use - captured == set(UNCAPTURED)
    results = {
        value.NAME
        for vector in VECTORS
        if (value := getattr(vector.expected, "value", None)) is not None and hasattr(value, "NAME")
    }
    assert results == {result.NAME for result in spec.RESULT_TYPES.values()} - {"message.message-resume-result"}


def header_values(sender: str) -> list[Any]:
    """Values of the header "value" in the messages of a sender."""
    structs = [
        struct for vector in VECTORS if (vector.kind, vector.sender) == ("header", sender) for struct in vector.expected
    ]
    return [(getattr(struct, "application_headers", None) or {}).get("value") for struct in structs]


@pytest.mark.parametrize(("sent", "echoed"), ECHOES, ids=[type_name(sent.code) for sent, _ in ECHOES])
def test_broker_read_every_type_as_it_was_meant(sent: Typed, echoed: Typed) -> None:
    """Broker-J retypes some header values; what it makes of them shows that it read what had been written."""
    assert sent in header_values(OURS)
    assert echoed in header_values(BROKER)


def test_both_sides_and_all_peers_are_there() -> None:
    assert {(vector.sender, vector.direction) for vector in VECTORS} == {
        (BROKER, "broker to client"),
        (JAVA, "client to broker"),
        (OURS, "client to broker"),
    }


def test_missing_or_empty_directory_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"python -m tests\.support\.capture"):
        load(tmp_path)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "missing")
