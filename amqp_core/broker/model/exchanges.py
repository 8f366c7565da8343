"""Exchanges and what is bound to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from amqp_core.broker.model.routing import Matcher, matcher

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from amqp_core.broker.model.messages import Message
    from amqp_core.broker.model.queues import Queue

    Destination: TypeAlias = "Queue | Exchange"
    BindingKey: TypeAlias = tuple[Destination, str, object]


class Binding:
    """What ``source`` passes to ``destination``; one per source, destination, key and arguments."""

    __slots__ = ("arguments", "destination", "key", "source")

    def __init__(
        self, source: Exchange, destination: Destination, key: str, arguments: Mapping[str, object] | None
    ) -> None:
        self.source = source
        self.destination = destination
        self.key = key
        self.arguments = dict(arguments or {})

    @property
    def identity(self) -> BindingKey:
        """What tells it from the others of its source."""
        return self.destination, self.key, _frozen(self.arguments)


class Exchange:
    """A named set of bindings of one type.

    ``alternate`` names the exchange that gets what no binding matches; there need not be one of that name.
    """

    __slots__ = (
        "_matcher",
        "alternate",
        "arguments",
        "auto_delete",
        "bindings",
        "durable",
        "incoming",
        "internal",
        "kind",
        "name",
        "predeclared",
    )

    def __init__(
        self,
        name: str,
        kind: str,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        alternate: str | None = None,
        arguments: Mapping[str, object] | None = None,
        predeclared: bool = False,
    ) -> None:
        self.name = name
        self.kind = kind
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.alternate = alternate
        self.arguments = dict(arguments or {})
        self.predeclared = predeclared
        self.bindings: dict[BindingKey, Binding] = {}
        """Bindings from this exchange."""
        self.incoming: dict[Binding, None] = {}
        """Bindings to this exchange."""
        self._matcher: Matcher[Binding] = matcher(kind)

    def __repr__(self) -> str:
        return f"<{self.kind} exchange {self.name!r}>"

    @property
    def by_key(self) -> bool:
        """Whether the routing key alone decides what matches."""
        return self._matcher.by_key

    def add(self, binding: Binding) -> bool:
        """Add a binding from this exchange; False: it is there already."""
        identity = binding.identity
        if identity in self.bindings:
            return False
        self._matcher.add(binding, binding.key, binding.arguments)
        self.bindings[identity] = binding
        return True

    def remove(self, binding: Binding) -> None:
        """Remove a binding that ``add`` has added."""
        del self.bindings[binding.identity]
        self._matcher.remove(binding, binding.key, binding.arguments)

    def matches(self, message: Message) -> Iterable[Binding]:
        """The bindings that the message matches."""
        return self._matcher.matches(message)


def _frozen(value: object) -> object:
    """A hashable copy of a table, a list or a value, with the types that tell 1 from True."""
    if isinstance(value, dict):
        return frozenset((name, _frozen(each)) for name, each in value.items())
    if isinstance(value, list | tuple):
        return tuple(_frozen(each) for each in value)
    return type(value), bytes(value) if isinstance(value, bytearray | memoryview) else value
