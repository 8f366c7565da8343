"""Values for the fields of methods, controls and commands: right, odd and wrong ones."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, get_args

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

_NAMES: Final = (
    *("", "q", "e", "d", "b", "c", "own", "missing", "a.b", "a.*", "#", "é" * 100, "x" * 255),
    *("amq.direct", "amq.topic", "amq.fanout", "amq.match", "direct", "topic", "fanout", "headers", "x-odd"),
)
_NUMBERS: Final = (
    0,
    0,
    0,
    1,
    1,
    1,
    2,
    3,
    5,
    7,
    8,
    100,
    255,
    256,
    65_535,
    65_536,
    1 << 31,
    (1 << 32) - 1,
    (1 << 63) - 1,
)
_ARGUMENTS: Final = (
    *("x-max-length", "x-max-length-bytes", "x-overflow", "x-message-ttl", "x-expires", "x-max-priority", "x-odd"),
    *("x-dead-letter-exchange", "x-dead-letter-routing-key", "x-single-active-consumer", "x-delivery-limit"),
    *("x-queue-type", "x-priority", "x-match", "alternate-exchange", "a", "", "x" * 255),
    *("qpid.max_count", "qpid.max_size", "qpid.policy_type", "x-qpid-priorities", "x-filter-jms-selector"),
)
_VALUES: Final[tuple[Any, ...]] = (
    *(0, 1, -1, 50, 1000, 1 << 40, None, True, False, 1.5, float("nan"), "", "q", "e", "all", "any", "any-with-x"),
    *(
        "drop-head",
        "reject-publish",
        "reject",
        "ring",
        "quorum",
        "stream",
        b"x",
        [],
        [1, "x", None],
        {},
        {"a": {"b": 1}},
    ),
)


def drawn(kind: Any, chance: Random) -> Any:
    """An instance of a generated class, most of its fields as they are by default."""
    values = {each.name: _value(each.type, chance) for each in dataclasses.fields(kind) if chance.random() < 0.6}
    return kind(**values)


def arguments(chance: Random) -> dict[str, object]:
    """Arguments of a declaration, a binding or a subscription."""
    return {chance.choice(_ARGUMENTS): chance.choice(_VALUES) for _ in range(chance.randrange(4))}


def _ranges(chance: Random) -> list[tuple[int, int]]:
    low = chance.randrange(12)
    return [(low, chance.choice((low, low + 3, 0, (1 << 32) - 1))) for _ in range(chance.randrange(3))]


def _value(kind: Any, chance: Random) -> Any:
    options = get_args(kind) if type(None) in get_args(kind) else (kind,)
    if len(options) > 2:  # any struct
        return None
    found: Any = options[0]
    make = _MADE.get(found)
    if make is not None:
        return make(chance)
    return drawn(found, chance) if dataclasses.is_dataclass(found) else None


_MADE: Final[dict[Any, Callable[[Random], Any]]] = {
    str: lambda chance: chance.choice(_NAMES),
    int: lambda chance: chance.choice(_NUMBERS),
    bool: lambda chance: chance.random() < 0.5,
    bytes: lambda chance: chance.choice((b"", b"one", b"two", bytes(9), b"\xff" * 200)),
    dict[str, object]: arguments,
    list[tuple[int, int]]: _ranges,
}
