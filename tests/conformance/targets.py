"""The brokers that the suite runs on, each with each protocol that it speaks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from tests.conformance.differences import DIFFERENCES
from tests.conformance.peer import outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Broker = Literal["embedded", "broker-j", "rabbitmq"]
Protocol = Literal["0-10", "0-9-1"]


@dataclass(frozen=True)
class Address:
    """Where a broker listens, and how to log in."""

    port: int
    virtual_host: str
    username: str = "guest"
    password: str = "guest"


@dataclass(frozen=True)
class Target:
    """One broker with one protocol."""

    broker: Broker
    protocol: Protocol
    version: tuple[int, ...] = ()
    """Of the broker, where several are supported."""

    def __str__(self) -> str:
        return f"{self.broker}-{self.protocol}"

    def expects(self, case: str, specified: object) -> Any:
        """What this broker does in a case: what is specified, unless the table of differences has it."""
        found = [
            each.cases[case]
            for each in DIFFERENCES
            if case in each.cases and str(self) in each.targets and each.since <= self.version
        ]
        assert len(found) <= 1, f"{case}: several rows for {self}"
        if not found:
            return specified
        assert found[0] != specified, f"{case}: the row for {self} is no difference"
        return found[0]

    def serves(self, case: str, action: Callable[[], object]) -> bool:
        """Whether this broker does what an action asks for; it has to, unless the table has how it refuses."""
        found = outcome(action)
        assert found == self.expects(case, "ok"), case
        return found == "ok"


TARGETS: Final[Sequence[Target]] = (
    Target("embedded", "0-10"),
    Target("embedded", "0-9-1"),
    Target("broker-j", "0-10"),
    Target("broker-j", "0-9-1"),
    Target("rabbitmq", "0-9-1"),
)
