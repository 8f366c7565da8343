"""Hypothesis strategies for every type of fields of AMQP 0-9-1, and for every generated class."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from amqp_core.typed_values import Datetime, Typed
from amqp_core.v0_9 import _codec, spec
from amqp_core.v0_9 import type_codes as v
from amqp_core.v0_9.unserved import _codec as codec_apart
from amqp_core.v0_9.unserved import spec as spec_apart
from specs.facts_0_9 import APART, Field, Method, Properties, load

MODEL = load(Path(__file__).parents[2] / "specs" / "amqp_0_9")
USED, REST = MODEL.split(APART)

_UNICODE = st.characters(exclude_categories=["Cs"])


def _text(octets: int) -> st.SearchStrategy[str]:
    return st.text(_UNICODE, max_size=octets).filter(lambda text: len(text.encode()) <= octets)


def _integers(bits: int, *, signed: bool) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else st.integers(0, 2**bits - 1)


_times = _integers(64, signed=True).map(Datetime)
_decimals = st.builds(
    lambda mantissa, places: Decimal(f"{mantissa}E-{places}"), _integers(32, signed=True), st.integers(0, 255)
)

WRITTEN: dict[int, st.SearchStrategy[Any]] = {
    v.BOOLEAN: st.booleans(),
    v.INT8: _integers(8, signed=True),
    v.UINT8: _integers(8, signed=False),
    v.INT16: _integers(16, signed=True),
    v.UINT16: _integers(16, signed=False),
    v.INT32: _integers(32, signed=True),
    v.UINT32: _integers(32, signed=False),
    v.INT64: _integers(64, signed=True),
    v.FLOAT: st.floats(width=32, allow_nan=False, allow_infinity=False),
    v.DOUBLE: st.floats(allow_nan=False, allow_infinity=False),
    v.DECIMAL: _decimals,
    v.LONG_STRING: st.one_of(_text(300), st.binary(max_size=60).map(lambda raw: b"\xff" + raw)),
    v.BINARY: st.binary(max_size=300),
    v.TIMESTAMP: _times,
    v.VOID: st.none(),
}
"""Strategies of all types that are written but the containers, by letter."""

_keys = _text(20)


def _coded(code: int, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Typed]:
    return values.map(lambda value: Typed(code, value))


typed_values: st.SearchStrategy[Typed] = st.recursive(
    st.one_of([_coded(code, values) for code, values in WRITTEN.items()]),
    lambda inner: st.one_of(
        st.dictionaries(_keys, inner, max_size=3).map(lambda value: Typed(v.TABLE, value)),
        st.lists(inner, max_size=3).map(lambda value: Typed(v.ARRAY, value)),
    ),
    max_leaves=8,
)
"""Values of every letter that is written, nested."""

typed_tables = st.dictionaries(_keys, typed_values, max_size=4)

natural_values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        _integers(64, signed=True),
        st.floats(allow_nan=False, allow_infinity=False),
        _text(40),
        st.binary(max_size=40),
        _decimals,
        _times,
    ),
    lambda inner: st.one_of(st.dictionaries(_keys, inner, max_size=3), st.lists(inner, max_size=3)),
    max_leaves=8,
)
"""Python values that a table preserves."""

natural_tables = st.dictionaries(_keys, natural_values, max_size=4)

_BY_WIRE_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "bit": st.booleans(),
    "octet": _integers(8, signed=False),
    "short": _integers(16, signed=False),
    "long": _integers(32, signed=False),
    "longlong": _integers(64, signed=False),
    "shortstr": _text(255),
    "longstr": st.binary(max_size=300),
    "timestamp": _times,
    "table": natural_tables,
}


def codec_of(owner: Method | Properties) -> Any:
    """The generated codec that has a method or a content header."""
    return codec_apart if owner.cls in APART else _codec


def _class(owner: Method | Properties) -> Any:
    return getattr(spec_apart if owner.cls in APART else spec, owner.python)


_any_octets = st.one_of(_text(255), st.binary(max_size=255).map(lambda raw: raw.decode("utf-8", "surrogateescape")))
_ADDRESSED = {"basic.publish", "basic.return", "basic.deliver", "basic.get-ok"}


def _values(field: Field) -> st.SearchStrategy[Any]:
    return _BY_WIRE_TYPE[field.wire]


def methods(method: Method) -> st.SearchStrategy[Any]:
    """Objects of the class of a method."""
    fields = {field.attr: _values(field) for field in method.fields}
    if method.key in _ADDRESSED:
        fields |= {"exchange": _any_octets, "routing_key": _any_octets}
    return st.builds(_class(method), **fields)


def headers(properties: Properties) -> st.SearchStrategy[Any]:
    """Objects of the class of a content header with any properties present."""
    fields = {field.attr: st.one_of(st.none(), _values(field)) for field in properties.fields}
    return st.builds(_class(properties), **fields)
