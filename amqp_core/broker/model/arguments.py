"""Arguments of a queue declaration (``x-...``): read, checked and compared.

As on RabbitMQ, an unknown argument is ignored, and so are those that only place a queue in a cluster or on disk. Its
``x-overflow`` has no ``flow-control``: that is the producer flow control of the Qpid brokers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from amqp_core.broker.model.errors import Refusal, Refused, listed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_OVERFLOWS = ("drop-head", "reject-publish", "reject-publish-dlx", "flow-control")
_QUEUE_TYPES = ("classic", "quorum")
# RabbitMQ's bound, ten years, so that a declaration that passes here passes there.
MOST_MS = 315_360_000_000
_MOST = 0x7FFF_FFFF_FFFF_FFFF
_MOST_NAME_BYTES = 255

DELETED: Final = "amqp_core.deleted"
"""Marks the row of a queue that was deleted while messages in it were held; only the store has this argument."""


class _InvalidError(Exception):
    """What a value must be."""


def _integer(least: int, most: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            bounds = f"at least {least}" if most == _MOST else f"from {least} to {most}"
            raise _InvalidError(f"an integer {bounds}")
        return int(value)

    return read


def _seconds(least_ms: int) -> Callable[[object], float]:
    read_ms = _integer(least_ms, MOST_MS)

    def read(value: object) -> float:
        return read_ms(value) / 1000

    return read


def _name(value: object) -> str:
    if not isinstance(value, str) or len(value.encode(errors="replace")) > _MOST_NAME_BYTES:
        raise _InvalidError(f"a string of at most {_MOST_NAME_BYTES} bytes")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise _InvalidError("a boolean")
    return value


def _one_of(words: tuple[str, ...]) -> Callable[[object], str]:
    def read(value: object) -> str:
        if not isinstance(value, str) or value not in words:
            raise _InvalidError(listed(words))
        return value

    return read


def _delivery_limit(value: object) -> int | None:
    limit = _integer(-1, _MOST)(value)
    return None if limit < 0 else limit


def _argument(name: str, read: Callable[[object], object], default: object = None) -> Any:
    return field(default=default, metadata={"name": name, "read": read})


@dataclass(frozen=True, slots=True)
class QueueArguments:
    """What the arguments of a queue mean; None: not set. Times are seconds, sizes bytes of body."""

    max_length: int | None = _argument("x-max-length", _integer(0, _MOST))
    max_bytes: int | None = _argument("x-max-length-bytes", _integer(0, _MOST))
    overflow: str = _argument("x-overflow", _one_of(_OVERFLOWS), "drop-head")
    resume_bytes: int | None = _argument("x-qpid-flow-resume-capacity", _integer(0, _MOST))
    ttl: float | None = _argument("x-message-ttl", _seconds(0))
    expires: float | None = _argument("x-expires", _seconds(1))
    dead_letter_exchange: str | None = _argument("x-dead-letter-exchange", _name)
    dead_letter_routing_key: str | None = _argument("x-dead-letter-routing-key", _name)
    max_priority: int | None = _argument("x-max-priority", _integer(1, 255))
    single_active_consumer: bool = _argument("x-single-active-consumer", _flag, default=False)
    delivery_limit: int | None = _argument("x-delivery-limit", _delivery_limit)
    queue_type: str = _argument("x-queue-type", _one_of(_QUEUE_TYPES), "classic")


def parse(queue: str, arguments: Mapping[str, object]) -> QueueArguments:
    """Read the arguments of a declaration.

    Raises:
        Refused: PRECONDITION_FAILED for a value of a wrong type or out of bounds, and for an argument that only the
            store may use; NOT_IMPLEMENTED for streams.
    """
    if DELETED in arguments:
        raise Refused(Refusal.PRECONDITION_FAILED, f"Queue '{queue}': argument '{DELETED}' is reserved; leave it out")
    if arguments.get("x-queue-type") == "stream":
        raise Refused(
            Refusal.NOT_IMPLEMENTED,
            f"Queue '{queue}': x-queue-type must be {listed(_QUEUE_TYPES)}, streams are not served",
        )
    values: dict[str, Any] = {}
    for each in fields(QueueArguments):
        name = each.metadata["name"]
        if name not in arguments:
            continue
        try:
            values[each.name] = each.metadata["read"](arguments[name])
        except _InvalidError as reason:
            text = f"Invalid argument '{name}' of queue '{queue}': {arguments[name]!r:.100} is not {reason}"
            raise Refused(Refusal.PRECONDITION_FAILED, text) from None
    parsed = QueueArguments(**values)
    if parsed.dead_letter_routing_key is not None and parsed.dead_letter_exchange is None:
        text = f"Argument 'x-dead-letter-routing-key' of queue '{queue}' needs 'x-dead-letter-exchange'"
        raise Refused(Refusal.PRECONDITION_FAILED, text)
    return parsed


def difference(existing: QueueArguments, other: QueueArguments) -> str | None:
    """Name of an argument whose meaning differs, or None."""
    for each in fields(QueueArguments):
        if getattr(existing, each.name) != getattr(other, each.name):
            return str(each.metadata["name"])
    return None
