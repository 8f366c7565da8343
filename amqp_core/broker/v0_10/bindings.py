"""What is bound to an exchange (0-10 section exchange.bound)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from amqp_core.v0_10 import spec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from amqp_core.broker.model.exchanges import Exchange
    from amqp_core.broker.model.queues import Queue
    from amqp_core.broker.model.virtual_host import VirtualHost


class _Bound(NamedTuple):
    destination: object
    key: str
    arguments: Mapping[str, object]


def matches_of(
    host: VirtualHost,
    exchange: Exchange,
    queue: Queue | None,
    key: str | None,
    arguments: Mapping[str, object] | None,
) -> spec.ExchangeBoundResult:
    """Which of the given criteria no binding of the exchange meets; ``None``: not asked.

    If each is met and no binding meets them all, the most special one is named as not matched.
    """
    no_queue, no_key, no_arguments = queue is not None, key is not None, arguments is not None
    for bound in _bindings(host, exchange, queue, key):
        same_queue = queue is None or bound.destination is queue
        same_key = key is None or bound.key == key
        same_arguments = arguments is None or dict(bound.arguments) == dict(arguments)
        if same_queue and same_key and same_arguments:
            return spec.ExchangeBoundResult()
        no_queue, no_key = no_queue and not same_queue, no_key and not same_key
        no_arguments = no_arguments and not same_arguments
    if not (no_queue or no_key or no_arguments):
        if arguments is not None:
            no_arguments = True
        elif key is not None:
            no_key = True
        else:  # nothing was asked but whether there is any binding
            no_queue = True
    return spec.ExchangeBoundResult(queue_not_matched=no_queue, key_not_matched=no_key, args_not_matched=no_arguments)


def _bindings(host: VirtualHost, exchange: Exchange, queue: Queue | None, key: str | None) -> Iterable[_Bound]:
    if exchange.name:
        return (_Bound(each.destination, each.key, each.arguments) for each in exchange.bindings.values())
    return _default_bindings(host, queue, key)


def _default_bindings(host: VirtualHost, queue: Queue | None, key: str | None) -> Iterator[_Bound]:
    """The bindings of the default exchange that matter: each queue is bound to it with its name."""
    if queue is not None:
        yield _Bound(queue, queue.name, {})
    named = host.queues.get(key) if key is not None else next(iter(host.queues.values()), None)
    if named is not None:
        yield _Bound(named, named.name, {})
