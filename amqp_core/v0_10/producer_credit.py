"""Credit of a producer: message.stop, message.flow and message.set-flow-mode (0-10 section message).

A producer may send without limit until the broker restricts it. The broker names one destination, which is the exchange
of a transfer, or the empty one: Broker-J means the whole session by that, for every exchange. Only message credit is
counted: Broker-J resumes a stopped producer without granting byte credit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_core.errors import LimitExceeded
from amqp_core.scanning import COMMAND_FRAME_BYTES
from amqp_core.sequence_numbers import RangeSet
from amqp_core.v0_10 import spec
from amqp_core.v0_10.routing import destination_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqp_core.transfer_ledger import Transfers

# Infinite is 2**32 - 1, or a flow without value. Broker-J ends its flow control with 2**31 - 1 and grants nothing
# later: that means "no limit" as well.
_NO_LIMIT = 0x7FFFFFFF
# Credit is a uint32 on the wire; a sum of finite credits stays below infinite.
_MOST = 0xFFFFFFFE
# Most destinations that a broker may limit at a time: no client publishes to as many exchanges.
_MOST_DESTINATIONS = 4096


class _Balance:
    """The credit for one destination.

    Attributes:
        credit: transfers that may be sent; ``None``: infinite.
        windowed: whether the completion of a transfer returns its credit (flow-mode window, the default).
        spent: ids of the transfers that were sent with this credit and are not completed, in window mode.
    """

    __slots__ = ("credit", "spent", "windowed")

    def __init__(self) -> None:
        self.credit: int | None = None
        self.windowed = True
        self.spent = RangeSet()

    def set(self, credit: int | None) -> None:
        self.credit = credit
        self.spent = RangeSet()

    def set_mode(self, mode: int | None) -> None:
        windowed = mode != spec.MessageFlowMode.CREDIT
        if windowed != self.windowed:
            self.windowed = windowed
            self.spent = RangeSet()

    def add(self, value: int | None) -> None:
        if value is None or value >= _NO_LIMIT:
            self.set(None)
        elif self.credit is not None:
            self.credit = min(self.credit + value, _MOST)

    def spend(self, first_id: int, last_id: int) -> None:
        if self.credit is None:
            return
        self.credit -= last_id - first_id + 1
        if self.windowed:
            self.spent.add(first_id, last_id)

    def settle(self, completed: RangeSet) -> None:
        for low, high in self.spent.ranges():
            for first, last in completed.within(low, high):
                self.spent.discard(first, last)
                self.add(last - first + 1)


class ProducerCredit:
    """The credit of one session's producer. Not thread-safe."""

    def __init__(self) -> None:
        self._all = _Balance()
        self._named: dict[str, _Balance] = {}

    @property
    def left(self) -> int | None:
        """Number of transfers that may be sent to any destination; ``None``: no limit."""
        return self._all.credit

    def receive(self, command: spec.Command) -> None:
        """Process message.stop, message.flow or message.set-flow-mode; ignore other commands."""
        if isinstance(command, spec.MessageStop):
            self._balance(command.destination).set(0)
        elif isinstance(command, spec.MessageFlow) and command.unit == spec.MessageCreditUnit.MESSAGE:
            self._balance(command.destination).add(command.value)
        elif isinstance(command, spec.MessageSetFlowMode):
            self._balance(command.destination).set_mode(command.flow_mode)

    def room(self, transfers: Transfers, start: int, stop: int) -> int:
        """End of the part of ``transfers[start:stop]`` that the credit allows, in order."""
        if self._all.credit is not None:
            stop = min(stop, start + self._all.credit)
        left = {name: balance.credit for name, balance in self._named.items() if balance.credit is not None}
        if not left:
            return stop
        for index, name in _destinations(transfers, start, stop):
            credit = left.get(name)
            if credit is not None:
                if not credit:
                    return index
                left[name] = credit - 1
        return stop

    def spend(self, transfers: Transfers, start: int, stop: int, first_id: int) -> None:
        """Record that ``transfers[start:stop]`` were sent, the first as command ``first_id``."""
        self._all.spend(first_id, first_id + stop - start - 1)
        if not self._named:
            return
        for index, name in _destinations(transfers, start, stop):
            balance = self._named.get(name)
            if balance is not None:
                command_id = first_id + index - start
                balance.spend(command_id, command_id)

    def settle(self, completed: RangeSet) -> None:
        """In window mode, return the credit of completed transfers."""
        self._all.settle(completed)
        for balance in self._named.values():
            balance.settle(completed)

    def _balance(self, destination: str | None) -> _Balance:
        if not destination:
            return self._all
        balance = self._named.get(destination)
        if balance is None:
            if len(self._named) >= _MOST_DESTINATIONS:
                raise LimitExceeded(f"the broker controls the flow to more than {_MOST_DESTINATIONS} destinations")
            balance = self._named[destination] = _Balance()
        return balance


def _destinations(transfers: Transfers, start: int, stop: int) -> Iterator[tuple[int, str]]:
    for index in range(start, stop):
        begin = transfers.offset(index)
        frames = bytes(transfers.frames[begin : min(begin + COMMAND_FRAME_BYTES, transfers.offset(index + 1))])
        yield index, destination_of(frames, 0)
