"""Captured frames as data files: the form of ``tests/vectors/*.toml``, read and written.

Expected fields are plain TOML where that suffices; other values are a table with one key: ``hex`` (bytes), ``uuid``,
``decimal``, ``datetime``, ``struct`` with ``fields``, ``map`` whose entries have ``type`` and ``value``. An absent
field is left out.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from amqp_core.v0_10 import spec, type_codes
from amqp_core.v0_10.framing import parse_frame
from amqp_core.v0_10.type_codes import Datetime, Typed

DIRECTORY = Path(__file__).parents[1] / "vectors"

_TYPE_NAMES: dict[int, str] = {
    code: name.rstrip("_").lower().replace("_", "-")
    for name, code in vars(type_codes).items()
    if name.isupper() and not name.startswith("MAX_")
}
_TYPE_CODES: dict[str, int] = {name: code for code, name in _TYPE_NAMES.items()}
_CLASSES: dict[str, Any] = {
    getattr(item, "NAME"): item  # noqa: B009 - not every dataclass has one
    for item in vars(spec).values()
    if isinstance(item, type) and dataclasses.is_dataclass(item)
}


@dataclasses.dataclass
class Vector:
    """One segment as it was on the wire.

    ``kind`` is control, command, header, map or list (the last two: bodies). ``canonical``: the encoder of this project
    writes the same bytes for ``expected``; ``note`` explains why not, or a peculiarity.
    """

    name: str
    kind: str
    sender: str
    direction: str
    frames: list[bytes]
    canonical: bool
    expected: Any
    sync: bool = False
    note: str = ""
    file: str = ""

    @property
    def payload(self) -> bytes:
        """The segment without frame headers."""
        parts = []
        for raw in self.frames:
            parsed = parse_frame(raw, 0, 65535)
            assert parsed is not None
            assert parsed[1] == len(raw)
            parts.append(parsed[0].payload)
        return b"".join(parts)


def type_name(code: int) -> str:
    """The name of a type in the specification."""
    return _TYPE_NAMES[code]


def type_code(name: str) -> int:
    """The code of a type in the specification."""
    return _TYPE_CODES[name]


def natural(value: Any) -> Any:
    """A value without :class:`Typed`, as returned by the generated decoders."""
    if isinstance(value, Typed):
        return natural(value.value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changes = {field.name: natural(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return type(value)(**changes)
    if isinstance(value, dict):
        return {key: natural(item) for key, item in value.items()}
    return [natural(item) for item in value] if isinstance(value, list) else value


# --- to TOML ---


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _table(items: dict[str, str]) -> str:
    return "{ " + ", ".join(f"{key} = {item}" for key, item in items.items()) + " }" if items else "{}"


def _fields(value: Any) -> dict[str, str]:
    out = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if item is not None and item is not False:
            out[field.name] = _toml(item)
    return out


def _toml(value: Any) -> str:
    if isinstance(value, Typed):
        inner = {"type": _text(type_name(value.code))}
        if value.value is not None:
            inner["value"] = _toml(value.value)
        return _table(inner)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Datetime):
        return _table({"datetime": str(int(value))})
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bytes):
        return _table({"hex": _text(value.hex())})
    if isinstance(value, UUID):
        return _table({"uuid": _text(str(value))})
    if isinstance(value, Decimal):
        return _table({"decimal": _text(str(value))})
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, dict):
        return _table({"map": _table({_text(key): _toml(item) for key, item in value.items()})})
    return _table({"struct": _text(value.NAME), "fields": _table(_fields(value))})


def to_toml(head: str, facts: dict[str, str], vectors: list[Vector]) -> str:
    """The text of a file of vectors."""
    lines = [f"# {line}".rstrip() for line in head.splitlines()] + [""]
    lines += [f"{key} = {_text(value)}" for key, value in facts.items()]
    for vector in vectors:
        lines += ["", "[[vector]]", f"name = {_text(vector.name)}", f"kind = {_text(vector.kind)}"]
        lines += [f"sender = {_text(vector.sender)}", f"direction = {_text(vector.direction)}"]
        if vector.sync:
            lines.append("sync = true")
        lines.append(f"canonical = {'true' if vector.canonical else 'false'}")
        if vector.note:
            lines.append(f"note = {_text(vector.note)}")
        lines += ["frames = [", *[f'  "{raw.hex()}",' for raw in vector.frames], "]"]
        lines.append(f"expected = {_toml(vector.expected)}")
    return "\n".join(lines) + "\n"


# --- from TOML ---

_SCALARS: dict[str, Any] = {"hex": bytes.fromhex, "uuid": UUID, "decimal": Decimal, "datetime": Datetime}


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return [_value(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "struct" in value:
        fields = {key: _value(item) for key, item in value["fields"].items()}
        for key, item in fields.items():  # pairs of numbers are the ranges of sequence sets
            if isinstance(item, list) and item and isinstance(item[0], list):
                fields[key] = [tuple(pair) for pair in item]
        return _CLASSES[value["struct"]](**fields)
    if "type" in value:
        return Typed(type_code(value["type"]), _value(value.get("value")))
    (kind, inner), *rest = value.items()
    assert not rest
    if kind == "map":
        return {key: _value(item) for key, item in inner.items()}
    return _SCALARS[kind](inner)


def load(directory: Path = DIRECTORY) -> list[Vector]:
    """All vectors of a directory.

    Raises:
        FileNotFoundError: the directory is missing or holds none.
    """
    out = []
    for path in sorted(directory.glob("*.toml")):
        with path.open("rb") as file:
            found = tomllib.load(file)
        for entry in found["vector"]:
            entry["frames"] = [bytes.fromhex(raw) for raw in entry["frames"]]
            entry["expected"] = _value(entry["expected"])
            out.append(Vector(**entry, file=path.name))
    if not out:
        raise FileNotFoundError(f"no captured frames in {directory}: python -m tests.support.capture makes them")
    return out
