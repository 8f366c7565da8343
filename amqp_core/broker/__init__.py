"""A small broker of AMQP 0-10, 0-9-1 and 0-9, for tests, demonstrations, and use on a single machine (docs/broker.md).

``with amqp_core.broker.running() as broker: ...`` runs one in a thread of this process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amqp_core.broker.in_process import Broker, running

__all__ = ["Broker", "running"]


def __getattr__(name: str) -> Any:
    # Every run of pytest imports this package, for its fixtures; the broker is loaded when it is used.
    if name in __all__:
        from amqp_core.broker import in_process  # noqa: PLC0415 - see above

        return getattr(in_process, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
