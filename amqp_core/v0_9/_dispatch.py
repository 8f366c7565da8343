"""Methods and content headers of any kind, by tables of their functions (0-9-1 sections 2.3.5.1 and 2.3.5.2)."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from struct import error as StructError  # noqa: N812 - the module's own name for it says nothing
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from amqp_core.errors import DecodeError
from amqp_core.read_primitives import incomplete, read_uint32
from amqp_core.write_primitives import write_uint64

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_header = Struct(">HHQ").unpack_from


class _Method(Protocol):
    CODE: ClassVar[int]
    NAME: ClassVar[str]


class _Properties(Protocol):
    CLASS_ID: ClassVar[int]


MethodT = TypeVar("MethodT", bound=_Method)
PropertiesT = TypeVar("PropertiesT", bound=_Properties)


def unknown_flags(name: str, flags: int, pos: int) -> DecodeError:
    """Error: property flags without a property."""
    return DecodeError(f"{name}: property flags 0x{flags:04x} name properties that it does not have", pos)


@dataclass(frozen=True)
class Dispatch(Generic[MethodT, PropertiesT]):
    """Reads by number and writes by class; reading raises DecodeError for what is unknown or malformed.

    Immutable: any thread may use it.
    """

    methods: Mapping[int, Callable[[bytes, int], tuple[MethodT, int]]]
    properties: Mapping[int, Callable[[bytes, int], tuple[PropertiesT, int]]]
    encoders: Mapping[type, Callable[[Any], bytes]]

    def decode_method(self, payload: bytes) -> MethodT:
        """The payload of a method frame: class id, method id, arguments, and nothing after them.

        Raises:
            DecodeError: it is no such payload.
        """
        code, pos = read_uint32(payload, 0)
        decoder = self.methods.get(code)
        if decoder is None:
            raise DecodeError(f"unknown method {code >> 16}.{code & 0xFFFF}", 0)
        value, end = decoder(payload, pos)
        if end != len(payload):
            raise DecodeError(f"{value.NAME}: {len(payload) - end} bytes after its arguments", end)
        return value

    def encode_method(self, method: MethodT) -> bytes:
        """The payload of a method frame.

        Raises:
            EncodeError: an argument does not fit its type.
        """
        return method.CODE.to_bytes(4) + self.encoders[type(method)](method)

    def decode_header(self, payload: bytes) -> tuple[PropertiesT, int]:
        """The properties and the size of the body in bytes, from the payload of a content header frame.

        Raises:
            DecodeError: it is no such payload.
        """
        try:
            class_id, _weight, body_size = _header(payload)
        except StructError:
            raise incomplete("content header", 0) from None
        decoder = self.properties.get(class_id)
        if decoder is None:
            raise DecodeError(f"content header of class {class_id}, which has none", 0)
        value, end = decoder(payload, 12)
        if end != len(payload):
            raise DecodeError(f"content header: {len(payload) - end} bytes after its properties", end)
        return value, body_size

    def encode_header(self, properties: PropertiesT, body_size: int) -> bytes:
        """The payload of a content header frame.

        Raises:
            EncodeError: a property does not fit its type.
        """
        head = properties.CLASS_ID.to_bytes(2) + b"\x00\x00" + write_uint64(body_size, "body size")
        return head + self.encoders[type(properties)](properties)
