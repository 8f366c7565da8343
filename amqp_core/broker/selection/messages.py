"""What a selector calls the properties of a message, of either protocol."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Final, cast
from uuid import UUID

from amqp_core.broker.properties import TYPE, NeutralWire, Properties, milliseconds
from amqp_core.broker.selection.language import compiled
from amqp_core.typed_values import Typed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from amqp_core.broker.model.messages import Message
    from amqp_core.broker.selection.language import Condition
    from amqp_core.broker.selection.operations import Value

# Of messages that have none (0-10 domain message.delivery-priority: medium; JMS 1.1 section 3.4.10).
_PRIORITY: Final = 4
_SUBJECT: Final = "qpid.subject"


# Steps of a condition that take as long as to decode a header.
_STEPS: Final = 16


class Selector:
    """Which messages a selector wants: call it with one.

    Attributes:
        weight: how long it takes with a message, as a multiple of what a simple selector takes.
    """

    __slots__ = ("_condition", "weight")

    def __init__(self, condition: Condition) -> None:
        self._condition = condition
        self.weight = 1 + condition.steps // _STEPS

    def __call__(self, message: Message) -> bool:
        """Whether it wants a message."""
        return self._condition(_Names(message).value)


def selector(text: str) -> Selector | None:
    """The messages that a selector wants; None: all, since it is empty.

    Identifiers are names of application headers, but for those that JMS, or qpidd (``amqp.``), gives to properties.

    Raises:
        SelectorError: it is no selector.
    """
    if not text.strip():
        return None
    return Selector(compiled(text))


class _Names:
    """Values of identifiers for one message, which is decoded when the first is asked for."""

    __slots__ = ("_headers", "_message", "_properties", "_values")

    def __init__(self, message: Message) -> None:
        self._message = message
        self._headers: Mapping[str, object] | None = None
        self._properties: Properties | None = None
        self._values: dict[str, Value] = {}

    def value(self, name: str) -> Value:
        """The value of an identifier; None: it has none, or one that selectors do not know."""
        if name not in self._values:  # once, however often it is asked for: a value may be long and have to be decoded
            self._values[name] = self._read(name)
        return self._values[name]

    def _read(self, name: str) -> Value:
        special = _PROPERTIES.get(name)
        if special is None:
            if self._headers is None:
                self._headers = self._message.wire.headers(self._message)
            return _value(self._headers.get(name))
        if self._properties is None:
            self._properties = cast("NeutralWire", self._message.wire).properties(self._message)
        return special(self._properties)


def _value(value: object) -> Value:
    if isinstance(value, Typed):
        return _value(value.value)
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, bytes | bytearray):  # the C++ client of Qpid writes texts so
        return _text(bytes(value))
    return None


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _message_id(properties: Properties) -> str | None:
    """As Qpid's JMS client tells it to programs: it writes ``ID:`` before a UUID."""
    name = properties.message_id
    return name if name is None or name.startswith("ID:") else f"ID:{name}"


def _type(properties: Properties) -> Value:
    kind = properties.type
    return kind if kind is not None else _value(properties.headers.get(TYPE))


def _delivery_mode(properties: Properties) -> str:
    return "PERSISTENT" if properties.persistent else "NON_PERSISTENT"


def _priority(properties: Properties) -> int:
    return _PRIORITY if properties.priority is None else properties.priority


def _timestamp(properties: Properties) -> int | None:
    return milliseconds(properties.timestamp)


def _correlation_id(properties: Properties) -> str | None:
    return _text(properties.correlation_id)


_PROPERTIES: Final[dict[str, Callable[[Properties], Value]]] = {
    "JMSCorrelationID": _correlation_id,
    "JMSDeliveryMode": _delivery_mode,
    "JMSMessageID": _message_id,
    "JMSPriority": _priority,
    "JMSTimestamp": _timestamp,
    "JMSType": _type,
    "amqp.correlation_id": _correlation_id,
    "amqp.creation_time": _timestamp,
    "amqp.delivery_mode": _delivery_mode,
    "amqp.durable": lambda properties: properties.persistent,
    "amqp.jms_type": _type,
    "amqp.message_id": lambda properties: properties.message_id,
    "amqp.priority": _priority,
    "amqp.subject": lambda properties: _value(properties.headers.get(_SUBJECT)),
}
