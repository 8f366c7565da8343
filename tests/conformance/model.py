"""Where messages go, written from the words of the specification, and for nothing but to be compared with brokers.

0-9-1 section 3.1.3 (exchange types), 0-10 class exchange; bindings from exchange to exchange are RabbitMQ's. Nothing
here comes from ``amqp_core.broker``, and nothing is made fast.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KINDS: Final = ("direct", "fanout", "topic", "headers")


@dataclass(frozen=True)
class Binding:
    """A binding of an exchange; ``destination`` is the name of a queue, or of an exchange if ``to_exchange``."""

    source: str
    destination: str
    key: str = ""
    arguments: tuple[tuple[str, object], ...] = ()
    to_exchange: bool = False


@dataclass
class Model:
    """Exchanges with their types, and bindings. Queues are those that something is bound to, or ``queues``."""

    exchanges: dict[str, str]
    queues: set[str]
    bindings: list[Binding] = field(default_factory=list)

    def bind(self, binding: Binding) -> None:
        """Bind; a binding that is there already stays one."""
        if binding not in self.bindings:
            self.bindings.append(binding)

    def unbind(self, binding: Binding) -> None:
        """Unbind what is bound."""
        self.bindings.remove(binding)

    def route(self, exchange: str, key: str, headers: Mapping[str, object]) -> set[str]:
        """The queues that get a message, each once."""
        if not exchange:  # each queue is bound to the default exchange with its name
            return {key} & self.queues
        found: set[str] = set()
        seen: set[str] = set()
        waiting = [exchange]
        while waiting:
            source = waiting.pop()
            if source in seen:
                continue
            seen.add(source)
            for each in self.bindings:
                if each.source == source and matches(self.exchanges[source], each, key, headers):
                    if each.to_exchange:
                        waiting.append(each.destination)
                    else:
                        found.add(each.destination)
        return found


def matches(kind: str, binding: Binding, key: str, headers: Mapping[str, object]) -> bool:
    """Whether an exchange of a type passes a message to a binding."""
    if kind == "fanout":
        return True
    if kind == "direct":
        return binding.key == key
    if kind == "topic":
        return topic_matches(words_of(binding.key), words_of(key))
    return headers_match(dict(binding.arguments), headers)


def words_of(key: str) -> Sequence[str]:
    """Zero or more words, delimited by dots."""
    return key.split(".") if key else []


def topic_matches(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """``*`` matches a single word, ``#`` zero or more words."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return topic_matches(pattern[1:], words) or (bool(words) and topic_matches(pattern, words[1:]))
    return bool(words) and pattern[0] in ("*", words[0]) and topic_matches(pattern[1:], words[1:])


def headers_match(wanted: Mapping[str, object], headers: Mapping[str, object]) -> bool:
    """``x-match`` all: every field is there; any: one of them is. A field without a value is there with any value."""
    fields = {name: value for name, value in wanted.items() if not name.startswith("x-")}
    met = [name in headers and (value is None or _same(headers[name], value)) for name, value in fields.items()]
    return any(met) if wanted["x-match"] == "any" else all(met)


def _same(one: object, other: object) -> bool:
    """Equal values of the same kind: true is no number."""
    return type(one) is type(other) and one == other
