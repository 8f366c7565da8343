"""Publishing to the fake broker."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

from amqp_core.errors import AmqpError, NotFound, ResourceLimitExceeded
from amqp_core.transfer_ledger import Counted, Rejected, Transfers

if TYPE_CHECKING:
    from amqp_core.api import Route
    from tests.support.fake_broker.client import FakeClient


class FakeQueries:
    """See :class:`amqp_core.api.RouteQueries`."""

    def __init__(self, client: FakeClient, found: list[Route]) -> None:
        self.client = client
        self.found = found

    @property
    def arrived(self) -> bool:
        return self.client.broker.arrives

    def answers(self) -> list[Route]:
        self.client.check()
        return self.found


class FakePublisher:
    """See :class:`amqp_core.api.Publisher`; follows the script of its connection."""

    def __init__(self, client: FakeClient, max_in_flight: int, blocked_timeout_s: float) -> None:
        self.client = client
        self.max_in_flight = max_in_flight
        self.blocked_timeout_s = blocked_timeout_s
        self.accept_mode = 1 if client.broker.qpidd else 0
        self.max_frame_size = client.broker.max_frame_size
        self.sent, self.completed = Counted(), Counted()
        self.runs: list[Transfers] = []
        self.rejected: list[Rejected] = []
        self.given_back: set[int] = set()

    @property
    def in_flight(self) -> int:
        return self.sent.transfers - self.completed.transfers

    @property
    def in_doubt(self) -> int:
        return len(set(range(self.completed.transfers, self.sent.transfers)) - self.given_back)

    @property
    def finished(self) -> bool:
        return not self.runs

    def send(self, transfers: Transfers, *, timeout_s: float = math.inf) -> int:
        self.runs.append(transfers)
        self.client.check()
        script, broker, first = self.client.script, self.client.broker, self.sent.transfers
        for index in range(len(transfers)):
            if self.sent.transfers == script.breaks_after:
                self.fail(script.error)
            broker.on_taken()
            broker.taken.append(bytes(transfers.cut(index, index + 1).frames))
            broker.modes.append(broker.taken[-1][19 + len("amq.direct")] if broker.protocol == "0-10" else 0)
            code = script.rejects.get(self.sent.transfers)
            if broker.modes[-1] and not broker.qpidd:
                if script.full:
                    self.fail(ResourceLimitExceeded(506, None, "Maximum depth exceeded"))
            elif code is not None:
                self.rejected.append(Rejected(transfers.tag, transfers.first + index, code, "so it is", transfers))
                self.given_back.add(self.sent.transfers)
            if self.sent.transfers == script.refuses:
                self.sent.transfers += 1
                self.fail(NotFound(404, self.sent.transfers - 1, "gone", "message.transfer"))
            self.sent.transfers += 1
        return first

    def finish(self, *, timeout_s: float = math.inf) -> None:
        if not self.runs:
            return
        self.client.check()
        if self.client.script.breaks_at_finish:
            self.fail(self.client.script.error)
        self.completed.transfers = self.sent.transfers
        self.runs.clear()

    def fail(self, error: AmqpError) -> None:
        self.completed.transfers = min(self.client.script.completes, self.sent.transfers)
        self.client.error = error
        raise error

    def unfinished(self) -> list[Transfers]:
        found, begin = [], 0
        for run in self.runs:
            end = begin + len(run)
            gone = {*range(begin, self.completed.transfers), *self.given_back}
            cuts = [begin - 1, *(number for number in range(begin, end) if number in gone), end]
            found += [run.cut(low + 1 - begin, high - begin) for low, high in pairwise(cuts) if high > low + 1]
            begin = end
        return found

    def take_rejected(self) -> list[Rejected]:
        rejected, self.rejected = self.rejected, []
        return rejected

    def probe(self) -> None:
        """It sends what it is given."""

    def locate(self, command_id: int) -> tuple[object, int] | None:
        for run in self.runs:
            if command_id < len(run):
                return run.tag, run.first + command_id
            command_id -= len(run)
        return None
