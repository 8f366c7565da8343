"""Which published message a broker speaks of: returned messages, and refusals that close the channel. No I/O.

A basic.return has no delivery tag (0-9-1 section basic.return), and a channel.close names no message. So published
frames are read again, and compared with what the broker says.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from amqp_core.errors import DecodeError
from amqp_core.v0_9 import spec
from amqp_core.v0_9._codec import decode_method
from amqp_core.v0_9.channel import basic_properties
from amqp_core.v0_9.framing import parse_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from amqp_core.v0_9.channel import Content

_ANY_FRAME_SIZE: Final = 1 << 33
_Key = tuple[str, str, int, int]
# Keys of settled messages that may be kept, besides those of messages in flight.
_MANY: Final = 1000

# no exchange 'x' in vhost '/'; write access to exchange 'x' in vhost '/' refused; Unknown exchange name: 'x'
_EXCHANGE: Final = re.compile(r"\bexchange (?:name: )?'(.*?)'", re.DOTALL)
# message size 17 is larger than configured max size 16; Message size of 17 greater than allowed maximum of 16
_SIZE: Final = re.compile(r"\bsize (?:of )?(\d+) .*(?:larger|greater) than", re.DOTALL)
# user_id property set to 'x' but authenticated user was 'guest'
_USER: Final = re.compile(r"\buser_id property set to '(.*?)' but", re.DOTALL)
# invalid expiration '35184372088832': {value_too_large,35184372088832}
_EXPIRATION: Final = re.compile(r"\binvalid expiration '(.*?)'", re.DOTALL)
# write access to topic 'k' in exchange exchange 'x' in vhost '/' refused for user 'u'
_TOPIC: Final = re.compile(r"\baccess to topic '(.*?)' in (?:exchange )+'(.*?)'", re.DOTALL)


class Published(NamedTuple):
    """A published message, read from its frames. Immutable: any thread may use it."""

    method: spec.BasicPublish
    header: bytes
    body: bytes


def read_published(frames: memoryview) -> Published:
    """Read the frames of one basic.publish.

    Raises:
        DecodeError: they are none.
    """
    data = bytes(frames)
    payloads: list[bytes] = []
    pos = 0
    while (parsed := parse_frame(data, pos, _ANY_FRAME_SIZE)) is not None:
        frame, pos = parsed
        payloads.append(frame.payload)
    method = decode_method(payloads[0]) if payloads else None
    if not isinstance(method, spec.BasicPublish) or len(payloads) < 2 or pos != len(data):
        raise DecodeError("the frames of a run are not those of basic.publish")
    return Published(method, payloads[1], b"".join(payloads[2:]))


class Returned:
    """Finds the message of a basic.return among those in flight. Not thread-safe.

    Brokers return messages in the order in which they were published, but nothing rests on it. Each message is read
    once, unless its exchange, routing key and body equal those of a returned one.

    Args:
        frames_of: frames of the message with a sequence number; ``None`` if it is not in flight, or was returned.
    """

    def __init__(self, frames_of: Callable[[int], memoryview | None]) -> None:
        self._frames_of = frames_of
        self._next = 1
        self._numbers: dict[_Key, deque[int]] = {}

    def find(self, method: spec.BasicReturn, content: Content, lowest: int, last: int) -> int | None:
        """Return the sequence number of a returned message; ``None``: there is none like it in flight.

        Of equal messages it is the first. Brokers may write a header in another way, or add to it: then equal
        properties, or else exchange, routing key and body decide.

        Args:
            method, content: what was returned.
            lowest, last: the first number that may be in flight, and the last one.
        """
        key = _key(method.exchange, method.routing_key, content.body)
        self._next = max(self._next, lowest)
        if len(self._numbers) > 2 * (last - lowest) + _MANY:
            self._forget_settled()

        def is_same(message: Published) -> bool:
            return message.header == content.header and message.body == content.body

        number = self._take(key, is_same)
        while number is None and self._next <= last:
            if self._read_next() == key:
                number = self._take(key, is_same)
        if number is None and (properties := _properties(content.header)) is not None:
            number = self._take(key, lambda one: one.body == content.body and _properties(one.header) == properties)
        return self._take(key, lambda one: one.body == content.body) if number is None else number

    def _read_next(self) -> _Key | None:
        """Read the next message; return its key if it is mandatory."""
        number, self._next = self._next, self._next + 1
        frames = self._frames_of(number)
        if frames is None:
            return None
        method, _, body = read_published(frames)
        if not method.mandatory:
            return None
        key = _key(method.exchange, method.routing_key, body)
        self._numbers.setdefault(key, deque()).append(number)
        return key

    def _take(self, key: _Key, fits: Callable[[Published], bool]) -> int | None:
        """Take the first message in flight with this key that fits."""
        numbers = self._numbers.get(key)
        if numbers is None:
            return None
        taken: int | None = None
        settled: list[int] = []
        for number in numbers:
            frames = self._frames_of(number)
            if frames is None:
                settled.append(number)
            elif fits(read_published(frames)):
                taken = number
                settled.append(number)
                break
        for number in settled:
            numbers.remove(number)
        if not numbers:
            del self._numbers[key]
        return taken

    def _forget_settled(self) -> None:
        for key, numbers in list(self._numbers.items()):
            left = deque(number for number in numbers if self._frames_of(number) is not None)
            if left:
                self._numbers[key] = left
            else:
                del self._numbers[key]


def find_refused(text: str, in_flight: Iterable[tuple[int, memoryview]]) -> int | None:
    """Return the sequence number of the message for which the broker closed the channel; ``None`` if it is not known.

    The text may name the exchange (and key), the size of the message, its user id or expiration: then it is the first
    unconfirmed message that fits. An earlier one to the same exchange may have been taken, without its confirm. Else
    only a single message is certain.

    Args:
        text: reply-text of channel.close.
        in_flight: number and frames of each message that is not confirmed, in order.
    """
    fits = _criterion(text)
    count, single = 0, None
    for number, frames in in_flight:
        count, single = count + 1, number
        if fits is None:
            if count > 1:
                return None
        elif fits(read_published(frames)):
            return number
    return single if count == 1 else None


def _criterion(text: str) -> Callable[[Published], bool] | None:
    """What the refused message has, as far as the text says it."""
    size, exchange, user = _SIZE.search(text), _EXCHANGE.search(text), _USER.search(text)
    expiration, topic = _EXPIRATION.search(text), _TOPIC.search(text)
    if size is not None:
        return lambda message: len(message.body) == int(size[1])
    if topic is not None:
        return lambda message: (message.method.routing_key, message.method.exchange) == topic.groups()
    if exchange is not None:
        return lambda message: message.method.exchange == exchange[1]
    if user is not None:
        return lambda message: _has(message, "user_id", user[1])
    if expiration is not None:
        return lambda message: _has(message, "expiration", expiration[1])
    return None


def _has(message: Published, name: str, value: str) -> bool:
    properties = _properties(message.header)
    return properties is not None and getattr(properties, name) == value


def _properties(header: bytes) -> spec.BasicProperties | None:
    """The properties in a content header; ``None`` if they cannot be read: brokers pass on texts of any octets."""
    try:
        return basic_properties(header)
    except DecodeError:
        return None


def _key(exchange: str, routing_key: str, body: bytes) -> _Key:
    return exchange, routing_key, len(body), crc32(body)
