"""Properties of the codec: what is written is read back, and arbitrary bytes give documented errors only."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from amqp_core.errors import DecodeError, LimitExceeded
from amqp_core.v0_10 import _codec, _read, _write
from amqp_core.v0_10._read import read_array, read_array_typed, read_list, read_list_typed, read_map, read_map_typed
from amqp_core.v0_10._write import write_list, write_map
from amqp_core.v0_10.file_stream import _codec as codec_apart
from amqp_core.v0_10.type_codes import Typed
from tests.support.choice import examples
from tests.support.values import (
    CODECS,
    EVERYTHING,
    MODEL,
    REST,
    SCALARS,
    USED,
    codec_of,
    instances,
    natural_maps,
    typed_maps,
    typed_values,
)

if TYPE_CHECKING:
    from specs.facts import Struct

CRASHERS = Path(__file__).parents[1] / "crashers"

READERS = sorted(name for name in dir(_read) if name.startswith("read_") and name != "read_array_head")
DECODERS = [
    pytest.param(getattr(codec, name), id=f"{codec.__name__.removeprefix('amqp_core.v0_10.')}.{name}")
    for codec in CODECS
    for name in sorted(dir(codec))
    if name.startswith("decode_")
]


@pytest.mark.parametrize("name", SCALARS)
@given(data=st.data(), before=st.binary(max_size=3), after=st.binary(max_size=3))
@settings(max_examples=examples(60))
def test_every_type_comes_back(name: str, data: st.DataObject, before: bytes, after: bytes) -> None:
    value = data.draw(SCALARS[name])
    wire = name.replace("-", "_")
    raw = getattr(_write, f"write_{wire}")(value)
    assert getattr(_read, f"read_{wire}")(before + raw + after, len(before)) == (value, len(before) + len(raw))


@given(typed_maps)
@settings(max_examples=examples(300))
def test_typed_maps_come_back_with_every_type_and_byte(value: dict[str, Typed]) -> None:
    raw = write_map(value)
    got, end = read_map_typed(raw, 0)
    assert (got, end) == (value, len(raw))
    assert write_map(got) == raw


@given(st.lists(typed_values, max_size=4))
def test_typed_lists_come_back_with_every_type_and_byte(value: list[Typed]) -> None:
    raw = write_list(value)
    got, end = read_list_typed(raw, 0)
    assert (got, end) == (value, len(raw))
    assert write_list(got) == raw


@given(natural_maps)
@settings(max_examples=examples(200))
def test_natural_maps_come_back(value: dict[str, object]) -> None:
    assert read_map(write_map(value), 0)[0] == value


@given(typed_maps)
def test_natural_and_typed_readers_agree(value: dict[str, Typed]) -> None:
    def natural(item: Any) -> Any:
        if isinstance(item, Typed):
            return natural(item.value)
        if isinstance(item, dict):
            return {key: natural(inner) for key, inner in item.items()}
        return [natural(inner) for inner in item] if isinstance(item, list) else item

    raw = write_map(value)
    assert read_map(raw, 0)[0] == natural(read_map_typed(raw, 0)[0])


def _with_codec(struct: Struct) -> st.SearchStrategy[tuple[Any, Any]]:
    return st.tuples(st.just(codec_of(struct)), instances(struct))


@pytest.mark.parametrize("struct", EVERYTHING, ids=lambda struct: struct.key)
@given(data=st.data(), before=st.binary(max_size=3), after=st.binary(max_size=3))
@settings(max_examples=examples(25))
def test_every_generated_class_comes_back(struct: Struct, data: st.DataObject, before: bytes, after: bytes) -> None:
    value = data.draw(instances(struct))
    codec = codec_of(struct)
    raw = getattr(codec, f"encode_{struct.function}")(value)
    got, end = getattr(codec, f"decode_{struct.function}")(before + raw + after, len(before))
    assert (got, end) == (value, len(before) + len(raw))


@given(st.one_of([instances(control) for control in MODEL.controls]))
@settings(max_examples=examples(200))
def test_controls_come_back_through_the_dispatch(control: Any) -> None:
    assert _codec.decode_control(_codec.encode_control(control)) == control


@given(st.one_of([instances(command) for command in USED.commands]), st.booleans())
@settings(max_examples=examples(300))
def test_commands_come_back_through_the_dispatch(command: Any, sync: bool) -> None:
    assert _codec.decode_command(_codec.encode_command(command, sync)) == (command, sync)


@given(st.one_of([instances(command) for command in REST.commands]), st.booleans())
@settings(max_examples=examples(200))
def test_commands_of_file_and_stream_come_back_through_their_own_dispatch(command: Any, sync: bool) -> None:
    raw = codec_apart.encode_command(command, sync)
    assert codec_apart.decode_command(raw) == (command, sync)
    with pytest.raises(DecodeError, match=f"unknown command 0x{command.CODE:04x}"):
        _codec.decode_command(raw)


@given(st.sampled_from([struct for struct in MODEL.structs if struct.code is not None]).flatmap(_with_codec))
@settings(max_examples=examples(200))
def test_structs_come_back_through_the_dispatch(pair: Any) -> None:
    codec, struct = pair
    raw = codec.encode_struct32(struct)
    assert codec.decode_struct32(raw, 0) == (struct, len(raw))


@given(
    st.one_of(st.none(), instances(MODEL.find("message.delivery-properties"))),
    st.one_of(st.none(), instances(MODEL.find("message.message-properties"))),
    st.lists(instances(MODEL.find("message.fragment-properties")), max_size=2),
)
def test_headers_come_back(delivery: Any, message: Any, fragments: list[Any]) -> None:
    extra = [_codec.encode_struct32(fragment) for fragment in fragments]
    assert _codec.decode_header(_codec.encode_header(delivery, message, extra)) == (delivery, message, extra)


def attempt(function: Any, data: bytes, pos: int = 0) -> bool:
    """Whether the bytes were read; anything but a documented error fails the test."""
    try:
        result = function(data) if function is _codec.decode_header else function(data, pos)
    except LimitExceeded:
        return False
    except DecodeError as error:
        refused = error
    else:
        if isinstance(result, tuple) and type(result[-1]) is int:
            assert pos <= result[-1] <= len(data)
        return True
    assert refused.reason
    assert 0 <= refused.offset <= len(data)
    return False


@pytest.mark.parametrize("name", READERS)
@given(data=st.binary(max_size=300), pos=st.integers(0, 3))
@settings(max_examples=examples(100))
@example(data=b"\xff" * 16, pos=0)
@example(data=b"\x00\x00\x00\x05\xf0\xff\xff\xff\xff", pos=0)
@example(data=b"", pos=0)
def test_arbitrary_bytes_as_any_type(name: str, data: bytes, pos: int) -> None:
    attempt(getattr(_read, name), data, min(pos, len(data)))


@pytest.mark.parametrize("decode", DECODERS)
@given(data=st.binary(max_size=300))
@settings(max_examples=examples(60))
@example(data=b"\xff" * 64)
@example(data=b"")
def test_arbitrary_bytes_as_any_class(decode: Any, data: bytes) -> None:
    attempt(decode, data)


@given(st.data())
@settings(max_examples=examples(600))
def test_damaged_segments(data: st.DataObject) -> None:
    """Valid bytes with a few octets changed, cut or put in reach deeper than arbitrary ones."""
    struct = data.draw(st.sampled_from(EVERYTHING))
    codec = codec_of(struct)
    raw = bytearray(getattr(codec, f"encode_{struct.function}")(data.draw(instances(struct))))
    for _ in range(data.draw(st.integers(1, 3))):
        if not raw:
            break
        at = data.draw(st.integers(0, len(raw) - 1))
        change = data.draw(st.sampled_from(["set", "cut", "insert", "end"]))
        if change == "set":
            raw[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xA8, 0xA9, 0xAA, 0xAB, 0xF0, 0xFF]))
        elif change == "cut":
            del raw[at]
        elif change == "insert":
            raw.insert(at, data.draw(st.integers(0, 255)))
        else:
            del raw[at:]
    attempt(getattr(codec, f"decode_{struct.function}"), bytes(raw))


@given(st.integers(0, 255), st.binary(min_size=8, max_size=64))
@settings(max_examples=examples(300))
def test_any_value_after_any_type_code(code: int, content: bytes) -> None:
    item = bytes([code]) + content
    listed = (4 + len(item)).to_bytes(4) + (1).to_bytes(4) + item
    assert attempt(read_list, listed) == attempt(read_list_typed, listed)
    arrayed = (5 + len(content)).to_bytes(4) + bytes([code]) + (1).to_bytes(4) + content
    assert attempt(read_array, arrayed) == attempt(read_array_typed, arrayed)


HUGE = [
    pytest.param("read_map", "00000004 ffffffff", id="map count"),
    pytest.param("read_map", "ffffffff ffffffff", id="map size"),
    pytest.param("read_list", "00000004 ffffffff", id="list count"),
    pytest.param("read_list", "0000000e 00000001 aa 00000005 f0 ffffffff", id="array of void in a list"),
    pytest.param("read_list", "0000000e 00000001 aa 00000005 f1 ffffffff", id="array of bit in a list"),
    pytest.param("read_array", "00000006 f0 ffffffff 00", id="array of void and a byte"),
    pytest.param("read_array", "00000005 95 ffffffff", id="array of str16"),
    pytest.param("read_array", "0000000e aa 00000001 00000005 f0 ffffffff", id="array of array of void"),
    pytest.param("read_vbin32", "ffffffff", id="vbin32"),
    pytest.param("read_struct32", "ffffffff", id="struct32"),
]


@pytest.mark.parametrize(("name", "wire"), HUGE)
def test_huge_claims_in_few_bytes_take_no_memory(name: str, wire: str) -> None:
    data = bytes.fromhex(wire)
    tracemalloc.start()
    try:
        assert not attempt(getattr(_read, name), data)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def test_inputs_that_break_decoders() -> None:
    """Each input broke this decoder once, or breaks a straightforward one; it is named after the function it is for."""
    files = sorted(CRASHERS.glob("*.bin"))
    assert files, "the crashers are gone"
    for file in files:
        name = file.name.partition("-")[0]
        assert not attempt(getattr(_read, name, None) or getattr(_codec, name), file.read_bytes()), file.name
