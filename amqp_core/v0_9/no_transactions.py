"""The transactions of a client that has none. Each call is refused, with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from amqp_core.error_conditions import CoreCondition
from amqp_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.api import Xid


class NoTransactions:
    """Refuses local and distributed transactions. Immutable: any thread may use it.

    Every method raises UsageError. 0-9-1 has no distributed transactions; local ones are not implemented here, and
    RabbitMQ does not keep them whole if it is killed.

    Args:
        protocol: name of the protocol.
    """

    silence_timeout_s: float = 0.0

    def __init__(self, protocol: str) -> None:
        self._protocol = protocol

    @property
    def is_local(self) -> bool:
        """``False``."""
        return False

    def select(self) -> None:
        """Refused."""
        self._refuse("A local transaction")

    def commit(self, sent: Callable[[], None] | None = None, *, silence_timeout_s: float | None = None) -> None:
        """Refused."""
        self._refuse("A local transaction")

    def dtx_select(self) -> None:
        """Refused."""
        self._refuse("A distributed transaction")

    def start(self, xid: Xid) -> None:
        """Refused."""
        self._refuse(f"Branch {xid}")

    def end(self, xid: Xid, *, fail: bool = False) -> None:
        """Refused."""
        self._refuse(f"Branch {xid}")

    def prepare(self, xid: Xid) -> None:
        """Refused."""
        self._refuse(f"Branch {xid}")

    def commit_branch(self, xid: Xid) -> None:
        """Refused."""
        self._refuse(f"Branch {xid}")

    def rollback_branch(self, xid: Xid) -> None:
        """Refused."""
        self._refuse(f"Branch {xid}")

    def abandon(self, xid: Xid, *, ended: bool) -> bool:
        """Refused."""
        self._refuse(f"Branch {xid}")

    def get_timeout(self, xid: Xid) -> int:
        """Refused."""
        self._refuse(f"Branch {xid}")

    def set_timeout(self, xid: Xid, seconds: int) -> None:
        """Refused."""
        self._refuse(f"Branch {xid}")

    def recover(self) -> list[Xid]:
        """Refused."""
        self._refuse("A list of prepared branches")

    def _refuse(self, what: str) -> NoReturn:
        raise UsageError(
            CoreCondition.NOT_SUPPORTED(
                what=what,
                protocol=self._protocol,
                reason="it has no transactions that a broker keeps whole",
                action="Use publisher confirms and acknowledgements, or AMQP 0-10",
            )
        )
