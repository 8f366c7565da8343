"""Which bindings of an exchange a message matches: one matcher per exchange type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from amqp_core.broker.model.errors import Refusal, Refused, listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from amqp_core.broker.model.messages import Message

T = TypeVar("T")

X_MATCH: Final = ("all", "any", "all-with-x", "any-with-x")


class Matcher(Protocol[T]):
    """The bindings of one exchange, each a ``target`` of its own with routing key and arguments."""

    by_key: bool
    """Whether the exchange and the routing key alone decide: such a result may be kept."""

    def add(self, target: T, key: str, arguments: Mapping[str, object], /) -> None:
        """Add a binding that is not there yet."""

    def remove(self, target: T, key: str, arguments: Mapping[str, object], /) -> None:
        """Remove a binding that is there."""

    def matches(self, message: Message, /) -> Iterable[T]:
        """Targets of all bindings that the message matches."""


class DirectMatcher(Generic[T]):
    """The binding's key is the message's."""

    by_key = True

    def __init__(self) -> None:
        self._targets: dict[str, dict[T, None]] = {}

    def add(self, target: T, key: str, _arguments: Mapping[str, object]) -> None:
        """Add a binding."""
        self._targets.setdefault(key, {})[target] = None

    def remove(self, target: T, key: str, _arguments: Mapping[str, object]) -> None:
        """Remove a binding."""
        targets = self._targets[key]
        del targets[target]
        if not targets:
            del self._targets[key]

    def matches(self, message: Message) -> Iterable[T]:
        """Targets that are bound with the message's key."""
        return self._targets.get(message.routing_key, ())


class FanoutMatcher(Generic[T]):
    """Everything matches."""

    by_key = True

    def __init__(self) -> None:
        self._targets: dict[T, None] = {}

    def add(self, target: T, _key: str, _arguments: Mapping[str, object]) -> None:
        """Add a binding."""
        self._targets[target] = None

    def remove(self, target: T, _key: str, _arguments: Mapping[str, object]) -> None:
        """Remove a binding."""
        del self._targets[target]

    def matches(self, _message: Message) -> Iterable[T]:
        """All targets."""
        return self._targets


class _Node(Generic[T]):
    """What may follow a beginning of patterns, and the targets whose pattern ends here."""

    __slots__ = ("children", "repeats", "targets")

    def __init__(self, *, repeats: bool = False) -> None:
        self.children: dict[str, _Node[T]] = {}
        self.targets: dict[T, None] = {}
        self.repeats = repeats
        """Whether it is a ``#``, which takes any number of words."""


class TopicMatcher(Generic[T]):
    """Words between dots; in a pattern ``*`` stands for one word and ``#`` for any number of them.

    All patterns are one tree, and a key is read through it word by word with the set of nodes that are possible so
    far: no pattern makes that take more than words times nodes.
    """

    by_key = True

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def add(self, target: T, key: str, _arguments: Mapping[str, object]) -> None:
        """Add a binding."""
        node = self._root
        for word in _words(key):
            if word not in node.children:
                node.children[word] = _Node(repeats=word == "#")
            node = node.children[word]
        node.targets[target] = None

    def remove(self, target: T, key: str, _arguments: Mapping[str, object]) -> None:
        """Remove a binding and the nodes that nothing needs any more."""
        words = _words(key)
        path = [self._root]
        for word in words:
            path.append(path[-1].children[word])
        del path[-1].targets[target]
        while words and not path[-1].targets and not path[-1].children:
            path.pop()
            del path[-1].children[words.pop()]

    def matches(self, message: Message) -> Iterable[T]:
        """Targets of all patterns that the message's key matches."""
        possible = _with_empty_hashes({self._root: None})
        for word in _words(message.routing_key):
            following: dict[_Node[T], None] = {}
            for node in possible:
                if node.repeats:
                    following[node] = None
                for each in ("*",) if word in ("*", "#") else (word, "*"):
                    child = node.children.get(each)
                    if child is not None:
                        following[child] = None
            possible = _with_empty_hashes(following)
        return [target for node in possible for target in node.targets]


def _with_empty_hashes(nodes: dict[_Node[T], None]) -> dict[_Node[T], None]:
    """The nodes, and those that are reached from them by a ``#`` that stands for no word."""
    waiting = list(nodes)
    while waiting:
        child = waiting.pop().children.get("#")
        if child is not None and child not in nodes:
            nodes[child] = None
            waiting.append(child)
    return nodes


def _words(key: str) -> list[str]:
    """An empty key has no words, not one that is empty."""
    return key.split(".") if key else []


class HeadersMatcher(Generic[T]):
    """The binding's arguments are compared with the message's headers (``x-match`` says how); None: any value."""

    by_key = False

    def __init__(self) -> None:
        self._wanted: dict[T, tuple[Mapping[str, object], bool]] = {}

    def add(self, target: T, _key: str, arguments: Mapping[str, object]) -> None:
        """Add a binding."""
        mode = x_match(arguments)
        wanted = {
            name: value
            for name, value in arguments.items()
            if name != "x-match" and (mode.endswith("-with-x") or not name.startswith("x-"))
        }
        self._wanted[target] = wanted, mode.startswith("all")

    def remove(self, target: T, _key: str, _arguments: Mapping[str, object]) -> None:
        """Remove a binding."""
        del self._wanted[target]

    def matches(self, message: Message) -> Iterable[T]:
        """Targets of all bindings that the message's headers match."""
        if not self._wanted:
            return ()
        headers = message.wire.headers(message)
        return [
            target
            for target, (wanted, every) in self._wanted.items()
            if (all if every else any)(
                name in headers and (value is None or _same(value, headers[name])) for name, value in wanted.items()
            )
        ]


def x_match(arguments: Mapping[str, object]) -> str:
    """How the arguments of a binding to a headers exchange are compared.

    Raises:
        Refused: PRECONDITION_FAILED, an unknown word.
    """
    mode = arguments.get("x-match", "all")
    if not isinstance(mode, str) or mode not in X_MATCH:
        raise Refused(
            Refusal.PRECONDITION_FAILED, f"Invalid binding argument 'x-match': {mode!r:.100} is not {listed(X_MATCH)}"
        )
    return mode


def _same(one: object, other: object) -> bool:
    """Equal as on the wire: numbers by value, but a boolean is no number."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


KINDS: Final = ("direct", "fanout", "topic", "headers")


def matcher(kind: str) -> Matcher[T]:
    """A matcher without bindings for a type of ``KINDS``."""
    if kind == "direct":
        return DirectMatcher()
    if kind == "fanout":
        return FanoutMatcher()
    return TopicMatcher() if kind == "topic" else HeadersMatcher()
