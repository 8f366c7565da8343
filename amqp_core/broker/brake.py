"""Whether a connection is read: what keeps the rest of its bytes waiting, here and in its socket. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

_E = TypeVar("_E")


class Brake(Generic[_E]):
    """The brake of one connection. Not thread-safe.

    It is pulled within an event: the events behind it wait here, and the socket is not read, until it is released.

    Attributes:
        is_on: whether no more events are processed.
    """

    __slots__ = ("_answers", "_ended", "_sip", "_stopped", "_waiting", "is_on")

    def __init__(self) -> None:
        self.is_on = False
        self._answers = False
        self._stopped = False
        self._sip = False
        self._ended = False
        self._waiting: list[_E] = []

    @property
    def is_stopped(self) -> bool:
        """Whether it was pulled for a publisher, and not released."""
        return self._stopped

    @property
    def has_waiting(self) -> bool:
        """Whether events wait."""
        return bool(self._waiting)

    def let_through(self, events: list[_E]) -> Iterator[_E]:
        """The events that wait and these, until the brake is pulled; a caller that breaks off drops the others."""
        if self._waiting:
            events, self._waiting = self._waiting + events, []
        for index, event in enumerate(events):
            if self.is_on:
                self._waiting = events[index:]
                break
            yield event
        if self._sip:
            self._sip = False
            self._update()

    def drop(self) -> None:
        """The connection ends: forget what waits, and let the end through."""
        self._waiting = []
        self._answers = self._stopped = self._sip = False
        self._update()

    def end(self) -> None:
        """The client has closed the connection. Process what waits: nothing follows it.

        The client already has connection.close-ok and closes its socket, so that later would be too late.
        """
        self._ended = True
        self._update()

    def pull_for_answers(self) -> None:
        """The client has to read the answers that it asked for."""
        self._answers = True
        self._update()

    def pull_for_publisher(self) -> None:
        """The client publishes what there is no room for."""
        self._stopped = True
        self._update()

    def release_for_answers(self) -> None:
        """The client has read."""
        self._answers = False
        self._update()

    def release_for_publisher(self) -> None:
        """There is room for what the client publishes."""
        self._stopped = self._sip = False
        self._update()

    def sip(self) -> None:
        """Process what waits, or else what is read next, in spite of a publisher that is stopped."""
        self._sip = self._stopped
        self._update()

    def _update(self) -> None:
        self.is_on = not self._ended and (self._answers or (self._stopped and not self._sip))
