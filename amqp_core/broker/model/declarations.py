"""What may be declared: reserved names, types, and whether a declaration means what exists already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_core.broker.model.arguments import difference
from amqp_core.broker.model.errors import Refusal, Refused, listed
from amqp_core.broker.model.exchanges import Exchange
from amqp_core.broker.model.routing import KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqp_core.broker.model.arguments import QueueArguments
    from amqp_core.broker.model.queues import Queue

_PREDECLARED = (
    ("", "direct"),
    ("amq.direct", "direct"),
    ("amq.fanout", "fanout"),
    ("amq.topic", "topic"),
    ("amq.headers", "headers"),
    ("amq.match", "headers"),
)


def predeclared_exchanges() -> list[Exchange]:
    """The exchanges of every virtual host."""
    return [Exchange(name, kind, durable=True, predeclared=True) for name, kind in _PREDECLARED]


def require_application_name(what: str, name: str) -> None:
    """Refuse to declare something new under a reserved name.

    Raises:
        Refused: ACCESS_REFUSED.
    """
    if name.startswith("amq."):
        raise Refused(Refusal.ACCESS_REFUSED, f"The name of {what} '{name}' is reserved: it begins with 'amq.'")


def new_exchange(
    name: str,
    kind: str,
    *,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    alternate: str | None,
    arguments: Mapping[str, object] | None,
) -> Exchange:
    """An exchange as declared; it is in no virtual host yet.

    Raises:
        Refused: ACCESS_REFUSED (the default exchange), NOT_IMPLEMENTED (its type), PRECONDITION_FAILED (its alternate
            exchange is no name, or named twice).
    """
    if not name:
        raise Refused(Refusal.ACCESS_REFUSED, "The default exchange cannot be declared")
    if kind not in KINDS:
        text = f"Exchange type '{kind}' of exchange '{name}' is not served: it must be {listed(KINDS)}"
        raise Refused(Refusal.NOT_IMPLEMENTED, text)
    named = (arguments or {}).get("alternate-exchange", alternate)
    if not (named is None or isinstance(named, str)) or (alternate is not None and named != alternate):
        text = f"Invalid argument 'alternate-exchange' of exchange '{name}': {named!r:.100} is not one name"
        raise Refused(Refusal.PRECONDITION_FAILED, text)
    return Exchange(
        name,
        kind,
        durable=durable,
        auto_delete=auto_delete,
        internal=internal,
        alternate=named,
        arguments=arguments,
    )


def existing_exchange(existing: Exchange, declared: Exchange) -> Exchange:
    """The exchange that exists, if it is what was declared; of a predeclared one only the type counts.

    Raises:
        Refused: PRECONDITION_FAILED.
    """
    compared = ("kind",) if existing.predeclared else ("kind", "durable", "auto_delete", "internal", "alternate")
    for name in compared:
        _compare(f"Exchange '{existing.name}'", name, getattr(existing, name), getattr(declared, name))
    return existing


def existing_queue(
    existing: Queue, settings: QueueArguments, *, durable: bool, exclusive: bool, auto_delete: bool
) -> None:
    """Check that a queue that exists is what was declared; unknown arguments do not count.

    Raises:
        Refused: RESOURCE_LOCKED, it is to be exclusive, and is not; PRECONDITION_FAILED for another difference.
    """
    what = f"Queue '{existing.name}'"
    _compare(what, "durable", existing.durable, durable)
    if exclusive and existing.exclusive is None:  # as on RabbitMQ; the rest of what differs is a precondition
        raise Refused(Refusal.RESOURCE_LOCKED, f"{what} exists and is shared")
    _compare(what, "exclusive", existing.exclusive is not None, exclusive)
    _compare(what, "auto_delete", existing.auto_delete, auto_delete)
    argument = difference(existing.settings, settings)
    if argument is not None:
        raise Refused(Refusal.PRECONDITION_FAILED, f"{what} exists with another argument '{argument}'")


def _compare(what: str, name: str, existing: object, declared: object) -> None:
    if existing != declared:
        words = {"kind": "type", "auto_delete": "auto-delete", "alternate": "alternate-exchange"}
        text = f"{what} exists with another {words.get(name, name)}: {existing}, not {declared}"
        raise Refused(Refusal.PRECONDITION_FAILED, text)
