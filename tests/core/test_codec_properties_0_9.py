"""Properties of the codec of 0-9-1: what is written is read back, and damaged bytes give documented errors only."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from amqp_core.errors import DecodeError
from amqp_core.v0_9 import _codec, spec
from amqp_core.v0_9._read import read_array, read_array_typed, read_table, read_table_typed
from amqp_core.v0_9._write import write_array, write_table
from specs.facts_0_9 import Properties
from tests.support.choice import all_cases, examples
from tests.support.mutations_0_9 import attempt, mutated, sampled_payloads
from tests.support.values_0_9 import (
    MODEL,
    REST,
    USED,
    codec_of,
    headers,
    methods,
    natural_tables,
    typed_tables,
    typed_values,
)

if TYPE_CHECKING:
    from amqp_core.typed_values import Typed
    from specs.facts_0_9 import Method


@given(typed_tables)
@settings(max_examples=examples(300))
def test_typed_tables_come_back_with_every_type_and_byte(value: dict[str, Typed]) -> None:
    raw = write_table(value)
    got, end = read_table_typed(raw, 0)
    assert (got, end) == (value, len(raw))
    assert write_table(got) == raw


@given(st.lists(typed_values, max_size=4))
def test_typed_arrays_come_back_with_every_type_and_byte(value: list[Typed]) -> None:
    raw = write_array(value)
    assert read_array_typed(raw, 0) == (value, len(raw))
    assert write_array(read_array_typed(raw, 0)[0]) == raw


@given(natural_tables)
@settings(max_examples=examples(200))
def test_natural_tables_come_back(value: dict[str, object]) -> None:
    assert read_table(write_table(value), 0)[0] == value


@given(typed_tables)
def test_natural_and_typed_readers_agree(value: dict[str, Typed]) -> None:
    def natural(item: Any) -> Any:
        if isinstance(item, tuple):
            return natural(item[1])
        if isinstance(item, dict):
            return {key: natural(inner) for key, inner in item.items()}
        return [natural(inner) for inner in item] if isinstance(item, list) else item

    raw = write_table(value)
    assert read_table(raw, 0)[0] == natural(read_table_typed(raw, 0)[0])


@pytest.mark.parametrize("method", MODEL.methods, ids=lambda method: method.key)
@given(data=st.data(), before=st.binary(max_size=3), after=st.binary(max_size=3))
@settings(max_examples=examples(25))
def test_every_method_comes_back(method: Method, data: st.DataObject, before: bytes, after: bytes) -> None:
    value = data.draw(methods(method))
    codec = codec_of(method)
    raw = getattr(codec, f"encode_{method.function}")(value)
    got, end = getattr(codec, f"decode_{method.function}")(before + raw + after, len(before))
    assert (got, end) == (value, len(before) + len(raw))
    payload = codec.encode_method(value)
    assert codec.decode_method(payload) == value
    assert payload == method.number.to_bytes(4) + raw


@pytest.mark.parametrize("properties", MODEL.properties, ids=lambda properties: properties.cls)
@given(data=st.data(), size=st.integers(0, 2**64 - 1))
@settings(max_examples=examples(100))
def test_every_content_header_comes_back(properties: Properties, data: st.DataObject, size: int) -> None:
    value = data.draw(headers(properties))
    codec = codec_of(properties)
    payload = codec.encode_header(value, size)
    assert codec.decode_header(payload) == (value, size)
    assert payload[:4] == properties.class_code.to_bytes(2) + b"\0\0"


@given(st.one_of([methods(method) for method in REST.methods]))
def test_methods_that_no_broker_serves_are_unknown_to_the_codec_in_use(value: Any) -> None:
    with pytest.raises(DecodeError, match=f"unknown method {value.CODE >> 16}\\.{value.CODE & 0xFFFF}"):
        _codec.decode_method(value.CODE.to_bytes(4))


@pytest.mark.parametrize("method", MODEL.methods, ids=lambda method: method.key)
def test_every_truncation_and_every_excess_of_every_method_is_refused(method: Method) -> None:
    decode = codec_of(method).decode_method
    for payload in sampled_payloads(method):
        for end in range(len(payload)):
            assert not attempt(decode, payload[:end])
        assert attempt(decode, payload)
        assert not attempt(decode, payload + b"\0")


def test_every_truncation_and_every_excess_of_a_content_header_is_refused() -> None:
    for payload in sampled_payloads(USED.properties[0]):
        for end in range(len(payload)):
            assert not attempt(_codec.decode_header, payload[:end])
        assert not attempt(_codec.decode_header, payload + b"\0")


@pytest.mark.parametrize("owner", [*MODEL.methods, *MODEL.properties], ids=lambda owner: owner.function)
def test_mutations_of_every_method_and_content_header(owner: Method | Properties) -> None:
    """Valid bytes with a few octets changed, cut or put in reach deeper than arbitrary ones."""
    rng = random.Random(owner.function)
    codec = codec_of(owner)
    decode = codec.decode_header if isinstance(owner, Properties) else codec.decode_method
    for payload in sampled_payloads(owner):
        for _ in range(200 if all_cases() else 40):
            attempt(decode, mutated(payload, rng))


@given(st.binary(max_size=300))
@settings(max_examples=examples(300))
@example(b"\xff" * 16)
@example(b"")
def test_arbitrary_bytes(data: bytes) -> None:
    attempt(_codec.decode_method, data)
    attempt(_codec.decode_header, data)
    attempt(_codec.decode_header, b"\0\x3c" + data)
    for code in spec.METHOD_TYPES:
        attempt(_codec.decode_method, code.to_bytes(4) + data)
    for read in (read_table, read_table_typed, read_array, read_array_typed):
        attempt(read, data, 0)
        attempt(read, len(data).to_bytes(4) + data, 0)


@given(st.integers(0, 255), st.binary(min_size=8, max_size=64))
@settings(max_examples=examples(300))
def test_any_value_after_any_type_letter(code: int, content: bytes) -> None:
    item = bytes([code]) + content
    raw = len(item).to_bytes(4) + item
    assert attempt(read_array, raw, 0) == attempt(read_array_typed, raw, 0)
    keyed = b"\x01k" + item
    raw = len(keyed).to_bytes(4) + keyed
    assert attempt(read_table, raw, 0) == attempt(read_table_typed, raw, 0)
