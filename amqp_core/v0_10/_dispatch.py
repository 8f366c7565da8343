"""Structs, controls and commands of any kind, by tables of their functions (0-10 sections 3.3.3 and 4.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from amqp_core.errors import DecodeError, EncodeError
from amqp_core.read_primitives import read_uint16, read_uint32
from amqp_core.write_primitives import write_uint32

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class _Coded(Protocol):
    CODE: ClassVar[int]
    NAME: ClassVar[str]


StructT = TypeVar("StructT", bound=_Coded)
ControlT = TypeVar("ControlT", bound=_Coded)
CommandT = TypeVar("CommandT", bound=_Coded)


def unknown_flags(name: str, flags: int, pos: int) -> DecodeError:
    """Error: packing flags without a field."""
    return DecodeError(f"{name}: packing flags 0x{flags:04x} name fields that it does not have", pos)


def wrong_size(name: str, size: int, taken: int, pos: int) -> DecodeError:
    """Error: a size word that is not the size of the fields."""
    return DecodeError(f"{name}: its size is {size} bytes, its fields take {taken}", pos)


def wrong_struct(code: int, name: str, pos: int) -> DecodeError:
    """Error: another struct than the expected one."""
    return DecodeError(f"struct 0x{code:04x} where {name} belongs", pos)


@dataclass(frozen=True)
class Dispatch(Generic[StructT, ControlT, CommandT]):
    """Reads by code and writes by class; reading raises DecodeError for what is unknown or malformed.

    Immutable: any thread may use it. ``required``: attribute and name of the fields required of a sender, by class.
    """

    structs: Mapping[int, Callable[[bytes, int], tuple[StructT, int]]]
    controls: Mapping[int, Callable[[bytes, int], tuple[ControlT, int]]]
    commands: Mapping[int, Callable[[bytes, int], tuple[CommandT, int]]]
    encoders: Mapping[type, Callable[[Any], bytes]]
    required: Mapping[type, tuple[tuple[str, str], ...]]
    read_session_header: Callable[[bytes, int], tuple[Any, int]]

    def decode_struct32(self, data: bytes, pos: int) -> tuple[StructT, int]:
        """A struct with its size word and code, and the position after it."""
        size, at = read_uint32(data, pos)
        code, at = read_uint16(data, at)
        decoder = self.structs.get(code)
        if decoder is None:
            raise DecodeError(f"unknown struct 0x{code:04x}", pos)
        value, end = decoder(data, at)
        if end != pos + 4 + size:
            raise wrong_size(value.NAME, size, end - pos - 4, pos)
        return value, end

    def encode_struct32(self, struct: StructT) -> bytes:
        """A struct with its size word and code."""
        body = self.encoders[type(struct)](struct)
        return write_uint32(len(body) + 2) + struct.CODE.to_bytes(2) + body

    def decode_control(self, data: bytes, pos: int = 0) -> ControlT:
        """A control segment: class code, code, arguments, and nothing after them."""
        code, at = read_uint16(data, pos)
        decoder = self.controls.get(code)
        if decoder is None:
            raise DecodeError(f"unknown control 0x{code:04x}", pos)
        value, end = decoder(data, at)
        _check_end(value, data, end)
        return value

    def encode_control(self, control: ControlT) -> bytes:
        """A control segment."""
        return control.CODE.to_bytes(2) + self.encoders[type(control)](control)

    def decode_command(self, data: bytes, pos: int = 0) -> tuple[CommandT, bool]:
        """A command segment (class code, code, session header, arguments) and its sync flag."""
        code, at = read_uint16(data, pos)
        decoder = self.commands.get(code)
        if decoder is None:
            raise DecodeError(f"unknown command 0x{code:04x}", pos)
        header, at = self.read_session_header(data, at)
        value, end = decoder(data, at)
        _check_end(value, data, end)
        return value, header is not None and header.sync

    def encode_command(self, command: CommandT, sync: bool = False) -> bytes:  # noqa: FBT001 - named as on the wire
        """A command segment; ``sync`` asks the peer to say at once when it has completed it."""
        body = self.encoders[type(command)](command)
        return command.CODE.to_bytes(2) + (b"\x01\x01" if sync else b"\x01\x00") + body

    def check_required(self, value: StructT | ControlT | CommandT) -> None:
        """Raise EncodeError if a control or command to be sent, or a struct in it, lacks a required field."""
        for attribute, name in self.required.get(type(value), ()):
            field = getattr(value, attribute)
            if field is None:
                raise EncodeError(f"{value.NAME} cannot be sent without {name}, which is required")
            self.check_required(field)


def _check_end(value: _Coded, data: bytes, end: int) -> None:
    if end != len(data):
        raise DecodeError(f"{value.NAME}: {len(data) - end} bytes after its arguments", end)
