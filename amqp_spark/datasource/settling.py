"""Send the settlements of processed transfers, in commands of a bounded size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp_spark import crashpoints
from amqp_spark.datasource.receive_buffer import add_range
from amqp_spark.timeouts import accept_timeout

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from amqp_core.api import Client
    from amqp_spark.datasource.counters import QueueCounters
    from amqp_spark.datasource.receive_buffer import Settlement

MOST_RANGES: Final = 4096
"""Most ranges of ids in one command: qpidd takes commands of one frame only; a frame of 64 KiB holds twice as many."""


class Settler:
    """Settles transfers of one consumer, on its thread. ``accepts``: whether there is anything to accept, which is not
    so where the broker forgets messages as it transfers them; ``heartbeat_s``: of the connection."""

    def __init__(self, counters: QueueCounters, *, accepts: bool) -> None:
        self.heartbeat_s = 0.0
        self._counters = counters
        self._accepts = accepts
        self._unconfirmed = 0
        """Messages settled since the broker was last allowed silence for storing them."""

    def settle(self, client: Client, settlements: Sequence[Settlement], incarnation: int) -> bool:
        """Send the settlements of this incarnation and drop those of sessions that are gone; return whether there were
        any."""
        accept: list[tuple[int, int]] = []
        reject: dict[str, list[tuple[int, int]]] = {}
        settled = False
        for settlement in settlements:
            if settlement.incarnation != incarnation:
                continue
            settled = True
            if not self._accepts:
                continue
            accept.extend(settlement.accept)
            for ids, text in settlement.reject:
                add_range(reject.setdefault(text, []), *ids)
        for text, ranges in reject.items():
            self._counters.rejected += sum(last - first + 1 for first, last in ranges)
            for part, silence in self._parts(ranges):
                client.reject(part, text=text, silence_timeout_s=silence)
        if accept:
            crashpoints.reached(crashpoints.ACCEPT_UNSENT)
            for part, silence in self._parts(accept):
                client.accept(part, silence_timeout_s=silence)
            crashpoints.reached(crashpoints.ACCEPT_SENT)
        return settled

    def _parts(self, ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[Sequence[tuple[int, int]], float]]:
        """Split into ranges for one command each, with the seconds of silence that the broker may need to store all."""
        for at in range(0, len(ranges), MOST_RANGES):
            part = ranges[at : at + MOST_RANGES]
            self._unconfirmed += sum(last - first + 1 for first, last in part)
            silence = 0.0
            if at + MOST_RANGES >= len(ranges):  # its completion covers the previous commands, too
                silence = accept_timeout(self._unconfirmed)
            if silence < self.heartbeat_s:
                silence = 0.0  # two heartbeats of silence are allowed anyway
            else:
                self._unconfirmed = 0
            yield part, silence
