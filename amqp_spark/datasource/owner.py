"""What exactly-once adds to the consumer of a queue: it owns the messages that the consumer receives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqp_core.api import Block, Client


class Owner(Protocol):
    """Steps that exactly-once adds on the thread of a consumer; :class:`.TransactionalState` implements it."""

    @property
    def in_doubt(self) -> bool:
        """Whether messages may arrive that are to be dropped, or are withheld for this reason."""

    @property
    def withheld(self) -> int:
        """Number of messages that are withheld: while there are any, nothing is accepted, and no room becomes free."""

    @property
    def owned(self) -> tuple[int, int]:
        """Number of messages that are owned, and their bytes."""

    def enter(self, client: Client, *, declared: bool = False) -> bool:
        """Take ownership on a new session; False if that is not yet possible: try again on another session.
        ``declared``: the queue was declared just now."""

    def most_unsettled(self, most: int | None) -> int | None:
        """Change the limit of unsettled messages of a subscription."""

    def sift(self, blocks: Sequence[Block]) -> Sequence[Block]:
        """Return the transfers that are received, of those that arrived."""

    def overlooked(self, block: Block) -> None:
        """Take note of transfers that arrived before an answer, and were dropped since there was no room."""

    def take_again(self) -> tuple[int, int]:
        """Numbers of transfers that may have come again since the last call: those that were dropped, and those that
        are received once more."""

    def surveyed(self, consumers: int | None) -> None:
        """Take the number of consumers of the queue; from any thread."""

    def is_asked(self) -> bool:
        """Whether a requested change waits for the broker."""

    def run(self, *, finish: bool) -> bool:
        """Make the changes requested since the last call; return whether there were any."""

    def left(self) -> None:
        """Handle the end of the session."""
