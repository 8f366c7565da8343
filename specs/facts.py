"""The facts of specs/amqp_0_10/*.toml as checked, resolved objects: what the emitters read."""

from __future__ import annotations

import keyword
import tomllib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

CLASSES = ("connection", "session", "execution", "message", "tx", "dtx", "exchange", "queue", "file", "stream")

# Optional in the specification, and no broker known has them: their code stands apart, where only tests import it.
APART = ("file", "stream")

# Structs whose own name says what they are; the others get the name of their class in front.
SELF_NAMED = {
    "delivery-properties",
    "fragment-properties",
    "reply-to",
    "message-properties",
    "message-resume-result",
    "xa-result",
    "xid",
    "exchange-query-result",
    "exchange-bound-result",
    "queue-query-result",
    "file-properties",
    "stream-properties",
}

SCALARS = {
    **dict.fromkeys(("bit", "boolean"), "bool"),
    **dict.fromkeys(("uint8", "uint16", "uint32", "uint64", "sequence-no", "datetime"), "int"),
    "uuid": "UUID",
    **dict.fromkeys(("str8", "str16"), "str"),
    **dict.fromkeys(("vbin8", "vbin16", "vbin32"), "bytes"),
    "map": "dict[str, object]",
    "array": "list[object]",
    **dict.fromkeys(("sequence-set", "byte-ranges"), "list[tuple[int, int]]"),
    "struct32": "Struct",
}
"""Python types of the wire types that occur as fields."""


class FactError(Exception):
    """The TOML files contradict themselves or name something that does not exist."""


def snake(name: str) -> str:
    """``reply-to`` to ``reply_to``; Python keywords get an underscore."""
    word = name.replace("-", "_")
    return word + "_" if keyword.iskeyword(word) else word


def studly(name: str) -> str:
    """``reply-to`` to ``ReplyTo``."""
    return "".join(part.capitalize() for part in name.split("-"))


@dataclass
class Field:
    """One field: its wire type after all domains, and how Python holds it."""

    name: str
    wire: str  # base type; "struct:<key>", "array:str16", "array:<struct key>" for what is more than a base type
    python: str
    required: bool
    default: bool
    secret: bool
    flag: int = 0
    meaning: str = ""
    """Of the column of the source, if the field is a property of messages."""
    written: str = ""
    """Of the column of the sink; empty: a publisher cannot set it."""
    choices: tuple[int, int] | None = None
    """Least and greatest choice of its domain."""

    @property
    def attr(self) -> str:
        """The attribute of the dataclass."""
        return snake(self.name)


@dataclass
class Struct:
    """A struct, control or command."""

    kind: str
    cls: str
    name: str
    code: int | None
    size: int
    pack: int
    fields: list[Field]
    result: str | None = None
    content: bool = False

    @property
    def key(self) -> str:
        """``message.transfer``."""
        return f"{self.cls}.{self.name}"

    @property
    def python(self) -> str:
        """The name of the dataclass."""
        if self.kind == "struct" and self.name in SELF_NAMED:
            return studly(self.name)
        return studly(self.cls) + studly(self.name)

    @property
    def function(self) -> str:
        """The part of ``decode_`` and ``encode_`` names after the underscore."""
        if self.kind == "struct" and self.name in SELF_NAMED:
            return self.name.replace("-", "_")
        return f"{self.cls}_{self.name}".replace("-", "_")


@dataclass
class Enum:
    """A domain with choices."""

    key: str
    python: str
    wire: str
    choices: list[tuple[str, int]]

    @property
    def cls(self) -> str:
        """The class that it belongs to; empty outside the classes."""
        return self.key.rpartition(".")[0]


@dataclass
class Model:
    """Everything, in the order of the specification."""

    protocol: dict[str, int]
    types: list[dict[str, Any]]
    constants: list[tuple[str, int]]
    enums: list[Enum]
    structs: list[Struct]
    controls: list[Struct]
    commands: list[Struct]

    def find(self, key: str) -> Struct:
        """A struct by its key."""
        for struct in self.structs:
            if struct.key == key:
                return struct
        raise FactError(f"no struct {key}")

    def split(self, classes: Collection[str]) -> tuple[Model, Model]:
        """Two parts: all that is not of these classes, and what is."""
        rest, part = (
            replace(
                self,
                enums=[enum for enum in self.enums if (enum.cls in classes) is inside],
                structs=[struct for struct in self.structs if (struct.cls in classes) is inside],
                controls=[control for control in self.controls if (control.cls in classes) is inside],
                commands=[command for command in self.commands if (command.cls in classes) is inside],
            )
            for inside in (False, True)
        )
        return rest, replace(part, protocol={}, types=[], constants=[])


class _Loader:
    def __init__(self, folder: Path) -> None:
        self.top = self.read(folder / "types.toml")
        self.classes = {name: self.read(folder / f"{name}.toml") for name in CLASSES}
        errata = self.read(folder / "errata.toml")
        self.elements: dict[str, str] = errata["array-elements"]
        self.secrets: list[str] = errata["secret-fields"]["names"]
        self.types = {entry["name"] for entry in self.top["type"]}
        self.domains: dict[str, dict[str, Any]] = {entry["name"]: entry for entry in self.top["domain"]}
        self.structs: dict[str, dict[str, Any]] = {}
        for name, facts in self.classes.items():
            self.domains.update({f"{name}.{entry['name']}": entry for entry in facts.get("domain", ())})
            self.structs.update({f"{name}.{entry['name']}": entry for entry in facts.get("struct", ())})

    @staticmethod
    def read(path: Path) -> dict[str, Any]:
        with path.open("rb") as file:
            return tomllib.load(file)

    def resolve(self, cls: str, name: str, element: str | None) -> tuple[str, str]:
        """The wire type and the Python type of a type name used in a class."""
        for key in (f"{cls}.{name}", name):
            if key in self.structs:
                return f"struct:{key}", _python_name(key)
            if key in self.domains:
                domain = self.domains[key]
                return self.resolve(key.rpartition(".")[0] or cls, domain["type"], domain.get("element", element))
        if name == "array" and element is not None:
            return self.array(cls, element)
        if name not in self.types or name not in SCALARS:
            raise FactError(f"class {cls}: no type {name} that a field can have")
        return name, SCALARS[name]

    def array(self, cls: str, element: str) -> tuple[str, str]:
        wire, python = self.resolve(cls, element, None)
        key = wire.removeprefix("struct:")
        if wire == "str16":
            return "array:str16", "list[str]"
        if key in self.structs and "code" in self.structs[key]:
            return f"array:{key}", f"list[{python}]"
        return "array", SCALARS["array"]  # elements without a code of their own cannot be typed on the wire

    def fields(self, cls: str, entry: dict[str, Any], pack: int) -> list[Field]:
        out = []
        for index, fact in enumerate(entry.get("fields", ())):
            key = f"{cls}.{entry['name']}.{fact['name']}"
            wire, python = self.resolve(cls, fact["type"], self.elements.get(key))
            default = bool(fact.get("default", 0))
            made = Field(fact["name"], wire, python, fact.get("required", False), default, key in self.secrets)
            made.meaning = fact.get("meaning", "")
            made.written = fact.get("written", made.meaning)
            values = [choice["value"] for choice in self.domains.get(f"{cls}.{fact['type']}", {}).get("choices", ())]
            made.choices = (min(values), max(values)) if values else None
            # The first byte holds the flags of fields 0 to 7, its lowest bit is field 0; read as a big-endian number.
            made.flag = 1 << (index % 8 + 8 * (pack - 1 - index // 8)) if pack else 0
            out.append(made)
        if pack and len(out) > 8 * pack:
            raise FactError(f"{cls}.{entry['name']}: more fields than packing flags")
        return out

    def operation(self, kind: str, cls: str, entry: dict[str, Any]) -> Struct:
        pack = entry.get("pack", 2)  # controls and commands always have two bytes of flags
        code = entry.get("code")
        made = Struct(
            kind,
            cls,
            entry["name"],
            None if code is None else self.classes[cls]["class"]["code"] << 8 | code,
            entry.get("size", 0),
            pack,
            self.fields(cls, entry, pack),
            entry.get("result"),
            "header" in entry,
        )
        if made.result is not None and f"{cls}.{made.result}" not in self.structs:
            raise FactError(f"{made.key}: no struct {made.result}")
        return made

    def all(self, kind: str) -> list[Struct]:
        return [self.operation(kind, cls, entry) for cls in CLASSES for entry in self.classes[cls].get(kind, ())]

    def enums(self) -> list[Enum]:
        out = []
        for key, domain in self.domains.items():
            if "choices" in domain:
                python = "".join(studly(part) for part in key.split("."))
                choices = [(choice["name"], choice["value"]) for choice in domain["choices"]]
                out.append(Enum(key, python, domain["type"], choices))
        return out


def _python_name(key: str) -> str:
    cls, _, name = key.partition(".")
    return Struct("struct", cls, name, None, 0, 0, []).python


def load(folder: Path) -> Model:
    """Read and check the facts."""
    loader = _Loader(folder)
    return Model(
        loader.top["protocol"],
        loader.top["type"],
        [(entry["name"], entry["value"]) for entry in loader.top["constant"]],
        loader.enums(),
        loader.all("struct"),
        loader.all("control"),
        loader.all("command"),
    )
