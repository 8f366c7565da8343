"""The facts of specs/amqp_0_9/*.toml as checked, resolved objects: what the emitters of 0-9 read."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from specs.facts import FactError, snake, studly

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

CLASSES = (
    "connection",
    "channel",
    "access",
    "exchange",
    "queue",
    "basic",
    "file",
    "stream",
    "tx",
    "confirm",
    "dtx",
    "tunnel",
    "message",
)

# No known broker serves them on 0-9-1: their code stands apart, where only tests import it.
APART = ("access", "file", "stream", "dtx", "tunnel", "message")

SCALARS = {
    "bit": ("bool", "False"),
    **dict.fromkeys(("octet", "short", "long", "longlong", "timestamp"), ("int", "0")),
    "shortstr": ("str", '""'),
    "longstr": ("bytes", 'b""'),
    "table": ("dict[str, object]", "field(default_factory=dict)"),
}
"""Python type and default of the wire types."""


@dataclass
class Field:
    """One field: its wire type after all domains, and how Python holds it."""

    name: str
    wire: str
    secret: bool = False
    flag: int = 0
    """The property flag, if the field is a property of a content header."""
    column: str = ""
    """The column of a property, if it is not its name."""
    meaning: str = ""
    """A property for the source; text of this project, as the next one."""
    written: str = ""
    """A property for the sink."""
    choices: tuple[int, int] | None = None
    """Least and greatest value of a property that the specification names."""

    @property
    def attr(self) -> str:
        """The attribute of the dataclass."""
        return snake(self.name)

    @property
    def python(self) -> str:
        """The Python type."""
        return SCALARS[self.wire][0]

    @property
    def default(self) -> str:
        """The default of the attribute, as code."""
        return SCALARS[self.wire][1]


@dataclass
class Method:
    """A method."""

    cls: str
    class_code: int
    name: str
    code: int
    origin: str
    synchronous: bool
    content: bool
    responses: list[str]
    fields: list[Field] = field(default_factory=list)

    @property
    def key(self) -> str:
        """``basic.consume-ok``."""
        return f"{self.cls}.{self.name}"

    @property
    def python(self) -> str:
        """The name of the dataclass."""
        return studly(self.cls) + studly(self.name)

    @property
    def function(self) -> str:
        """The part of ``decode_`` and ``encode_`` names after the underscore."""
        return f"{self.cls}_{self.name}".replace("-", "_")

    @property
    def number(self) -> int:
        """Class id and method id in one number: the first four octets of the payload."""
        return self.class_code << 16 | self.code


@dataclass
class Properties:
    """The properties in the content header of a class."""

    cls: str
    class_code: int
    fields: list[Field]

    @property
    def python(self) -> str:
        """The name of the dataclass."""
        return f"{studly(self.cls)}Properties"

    @property
    def function(self) -> str:
        """The part of ``decode_`` and ``encode_`` names after the underscore."""
        return f"{self.cls}_properties"


@dataclass
class Constant:
    """A constant; ``kind`` says what it counts among."""

    name: str
    value: int
    kind: str
    severity: str


@dataclass
class Capability:
    """A name that a server announces; ``client``: our client announces it, too."""

    name: str
    client: bool


@dataclass
class Model:
    """Everything, in the order of the specification."""

    protocol: dict[str, int]
    constants: list[Constant]
    capabilities: list[Capability]
    methods: list[Method]
    properties: list[Properties]

    def of_kind(self, kind: str) -> list[Constant]:
        """The constants of a kind."""
        return [constant for constant in self.constants if constant.kind == kind]

    def split(self, classes: Collection[str]) -> tuple[Model, Model]:
        """Two parts: all that is not of these classes, and what is."""
        rest, part = (
            replace(
                self,
                methods=[method for method in self.methods if (method.cls in classes) is inside],
                properties=[entry for entry in self.properties if (entry.cls in classes) is inside],
            )
            for inside in (False, True)
        )
        return rest, replace(part, protocol={}, constants=[], capabilities=[])


class _Loader:
    def __init__(self, folder: Path) -> None:
        self.top = self.read(folder / "protocol.toml")
        self.classes = {name: self.read(folder / f"{name}.toml") for name in CLASSES}
        self.secrets: list[str] = self.top["secret-fields"]["names"]
        self.domains: dict[str, str] = {
            entry["name"]: entry["type"] for entry in (*self.top["domains"], *self.top["undefined_domains"])
        }
        self.found: set[str] = set()

    @staticmethod
    def read(path: Path) -> dict[str, Any]:
        with path.open("rb") as file:
            return tomllib.load(file)

    def field(self, owner: str, fact: dict[str, Any]) -> Field:
        wire = self.domains.get(fact["domain"])
        if wire not in SCALARS:
            raise FactError(f"{owner}: no domain {fact['domain']} that a field can have")
        key = f"{owner}.{fact['name']}"
        self.found.add(key)
        meaning = fact.get("meaning", "")
        return Field(
            fact.get("name_0_9_1", fact["name"]),
            wire,
            key in self.secrets,
            column=fact.get("column", snake(fact["name"])),
            meaning=meaning,
            written=fact.get("written", meaning),
            choices=tuple(fact["choices"]) if "choices" in fact else None,
        )

    def methods(self, cls: str) -> list[Method]:
        facts = self.classes[cls]
        out = []
        for entry in facts.get("method", ()):
            key = f"{cls}.{entry['name']}"
            made = Method(
                cls,
                facts["class"]["code"],
                entry.get("name_0_9_1", entry["name"]),
                entry["code"],
                entry.get("origin", facts["class"]["origin"]),
                entry.get("synchronous", False),
                entry.get("content", False),
                entry.get("responses", []),
            )
            made.fields = [self.field(key, fact) for fact in entry.get("fields", ())]
            out.append(made)
        names = {method.name for method in out}
        for method in out:
            if not names.issuperset(method.responses):
                raise FactError(f"{method.key}: no method {' or '.join(method.responses)}")
        if len({method.number for method in out}) < len(out) or len(names) < len(out):
            raise FactError(f"class {cls}: two methods have one name or number")
        return out

    def properties(self, cls: str) -> list[Properties]:
        facts = self.classes[cls]["class"]
        fields = [self.field(cls, fact) for fact in facts.get("properties", ())]
        if len(fields) > 15:
            raise FactError(f"class {cls}: more properties than flags in one word")
        for index, made in enumerate(fields):
            made.flag = 1 << (15 - index)  # the highest bit is the first property; the lowest continues the flags
        return [Properties(cls, facts["code"], fields)] if fields else []

    def constants(self) -> list[Constant]:
        return [
            Constant(entry["name"], entry["value"], entry["kind"], entry.get("class", ""))
            for entry in self.top["constants"]
        ]

    def capabilities(self) -> list[Capability]:
        return [Capability(entry["name"], entry.get("client", False)) for entry in self.top["capabilities"]]


def load(folder: Path) -> Model:
    """Read and check the facts."""
    loader = _Loader(folder)
    methods = [method for cls in CLASSES for method in loader.methods(cls)]
    properties = [entry for cls in CLASSES for entry in loader.properties(cls)]
    missing = set(loader.secrets) - loader.found
    if missing:
        raise FactError(f"no field {min(missing)}, which is said to be secret")
    return Model(loader.top["protocol"], loader.constants(), loader.capabilities(), methods, properties)
