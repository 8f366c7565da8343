"""What a publisher waits for: memory, or queues that are full. Shared by the adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from amqp_core.broker.model.memory import Restraint


class Restraints:
    """What has no room for the messages of one publisher. Not thread-safe."""

    def __init__(self) -> None:
        self._restraints: dict[Restraint, None] = {}

    def __bool__(self) -> bool:
        return bool(self._restraints)

    def __iter__(self) -> Iterator[Restraint]:
        return iter(self._restraints)

    @property
    def is_critical(self) -> bool:
        """Whether one of them is far above its limit."""
        return any(each.is_critical for each in self._restraints)

    @property
    def reason(self) -> str:
        """What has no room, for people."""
        return " and ".join(each.reason for each in self._restraints)

    def add(self, restraints: Iterable[Restraint]) -> None:
        """The publisher has published to what has no room for more."""
        self._restraints |= dict.fromkeys(restraints)

    def drop(self) -> None:
        """Forget what has room again."""
        self._restraints = {each: None for each in self._restraints if each.holds}
