"""The selector of a subscription (argument of message.subscribe)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp_core.broker.selection.errors import SelectorError
from amqp_core.broker.selection.messages import selector
from amqp_core.broker.v0_10.errors import Code, Failed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqp_core.broker.selection.messages import Selector

FEATURE: Final = "qpid.jms-selector"
"""Told to clients in ``qpid.features``: without it Qpid's JMS client browses, and acquires what it selects itself."""
# The first is read by Broker-J, the second by qpidd; clients that do not know the broker send both.
_ARGUMENTS: Final = ("x-filter-jms-selector", "x-apache-selector")


def selector_of(arguments: Mapping[str, object]) -> Selector | None:
    """Which messages a subscription asks for; None: all.

    Raises:
        Failed: INVALID_ARGUMENT.
    """
    name = next((name for name in _ARGUMENTS if arguments.get(name)), None)
    if name is None:
        return None
    text = arguments[name]
    if isinstance(text, bytes):  # the C++ client of Qpid writes texts so
        text = text.decode(errors="replace")
    if not isinstance(text, str):
        raise Failed(Code.INVALID_ARGUMENT, f"{name} must be a text")
    try:
        return selector(text)
    except SelectorError as error:
        raise Failed(Code.INVALID_ARGUMENT, f"{name}, {error}") from error
