"""Hypothesis strategies for every wire type and for every generated class."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from amqp_core.v0_10 import _codec, spec
from amqp_core.v0_10 import type_codes as v
from amqp_core.v0_10.file_stream import _codec as codec_apart
from amqp_core.v0_10.file_stream import spec as spec_apart
from amqp_core.v0_10.type_codes import Datetime, Typed
from specs.facts import APART, Field, Struct, load

MODEL = load(Path(__file__).parents[2] / "specs" / "amqp_0_10")
USED, REST = MODEL.split(APART)
EVERYTHING = [*MODEL.structs, *MODEL.controls, *MODEL.commands]
CODECS = (_codec, codec_apart)
"""Both generated codecs: of all classes, and of those that nothing in production imports."""

_UNICODE = st.characters(exclude_categories=["Cs"])
_LATIN = st.integers(0, 255).map(lambda octet: bytes([octet]).decode("iso8859-15"))


def _text(octets: int, encoding: str = "utf-8", alphabet: st.SearchStrategy[str] = _UNICODE) -> st.SearchStrategy[str]:
    return st.text(alphabet, max_size=octets).filter(lambda text: len(text.encode(encoding)) <= octets)


def _decimals(bits: int) -> st.SearchStrategy[Decimal]:
    mantissas = st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return st.builds(lambda mantissa, places: Decimal(f"{mantissa}E-{places}"), mantissas, st.integers(0, 255))


def _pairs(bits: int, span: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    def pair(lower: int, more: int) -> tuple[int, int]:
        upper = lower + more
        return lower, upper % 2**32 if bits == 32 else min(upper, 2**64 - 1)

    return st.lists(st.builds(pair, st.integers(0, 2**bits - 1), st.integers(0, span)), max_size=5)


SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "uint8": st.integers(0, 2**8 - 1),
    "int8": st.integers(-(2**7), 2**7 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "sequence-no": st.integers(0, 2**32 - 1),
    "datetime": st.integers(-(2**63), 2**63 - 1).map(Datetime),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "boolean": st.booleans(),
    "char": _LATIN,
    "char-utf32": _UNICODE,
    "uuid": st.uuids(),
    "dec32": _decimals(32),
    "dec64": _decimals(64),
    "void": st.none(),
    "bit": st.just(True),
    **{f"bin{8 * width}": st.binary(min_size=width, max_size=width) for width in (1, 2, 4, 5, 8, 9, 16, 32, 64, 128)},
    "vbin8": st.binary(max_size=255),
    "vbin16": st.binary(max_size=300),
    "vbin32": st.binary(max_size=300),
    "str8": _text(255),
    "str16": _text(300),
    "str8-latin": _text(255, "iso8859-15", _LATIN),
    "str16-latin": _text(300, "iso8859-15", _LATIN),
    "str8-utf16": _text(252, "utf-16-be"),
    "str16-utf16": _text(300, "utf-16-be"),
    "sequence-set": _pairs(32, 2**31 - 1),
    "byte-ranges": _pairs(64, 2**63),
    "struct32": st.one_of(st.just(b""), st.binary(min_size=2, max_size=60)),
}
"""Strategies of all types but the containers, by name in the specification."""

CODES = {name: getattr(v, name.replace("-", "_").upper() if name != "uuid" else "UUID_", None) for name in SCALARS}

_keys = _text(20)


def _coded(code: int, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Typed]:
    return values.map(lambda value: Typed(code, value))


_scalars = st.one_of([_coded(code, SCALARS[name]) for name, code in CODES.items() if code is not None])


def _arrays(elements: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    """Arrays of one element type with at least one byte; equal codes come from one drawn value, repeated."""
    some = elements.filter(lambda item: item.code not in {v.VOID, v.BIT})
    return st.builds(lambda item, count: Typed(v.ARRAY, [item] * count), some, st.integers(0, 3))


typed_values: st.SearchStrategy[Typed] = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.dictionaries(_keys, inner, max_size=3).map(lambda value: Typed(v.MAP, value)),
        st.lists(inner, max_size=3).map(lambda value: Typed(v.LIST, value)),
        _arrays(inner),
    ),
    max_leaves=8,
)
"""Values of every type code, nested."""

typed_maps = st.dictionaries(_keys, typed_values, max_size=4)

natural_values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False),
        _text(40),
        st.binary(max_size=40),
        st.uuids(),
        SCALARS["dec64"],
        SCALARS["datetime"],
    ),
    lambda inner: st.one_of(st.dictionaries(_keys, inner, max_size=3), st.lists(inner, max_size=3)),
    max_leaves=8,
)
"""Python values that a map preserves."""

natural_maps = st.dictionaries(_keys, natural_values, max_size=4)


def codec_of(struct: Struct) -> Any:
    """The generated codec that has a struct, control or command."""
    return codec_apart if struct.cls in APART else _codec


def _class(struct: Struct) -> Any:
    return getattr(spec_apart if struct.cls in APART else spec, struct.python)


def field_values(field: Field) -> st.SearchStrategy[Any]:
    """Values of a field that is present."""
    kind, _, key = field.wire.partition(":")
    if kind == "struct":
        return instances(MODEL.find(key))
    if kind == "array" and "." in key:
        return st.lists(instances(MODEL.find(key)), max_size=3)
    if kind == "array" and key:
        return st.lists(_text(30), max_size=3)
    if kind == "array":
        return st.lists(st.integers(0, 9), max_size=3)
    if kind == "struct32":
        return st.one_of([instances(struct) for struct in USED.structs if struct.code is not None])
    if kind == "map":
        return natural_maps
    return SCALARS[kind]


def instances(struct: Struct) -> st.SearchStrategy[Any]:
    """Objects of a generated class with any fields present."""
    fields = {}
    for field in struct.fields:
        values = st.booleans() if field.wire == "bit" else field_values(field)
        fields[field.attr] = values if field.wire == "bit" or not struct.pack else st.one_of(st.none(), values)
    return st.builds(_class(struct), **fields)
