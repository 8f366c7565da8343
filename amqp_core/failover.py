"""Connect to the first usable host of a list, and follow the redirects of brokers. Knows no protocol."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from amqp_core.address import format_address
from amqp_core.error_conditions import CoreCondition, reason
from amqp_core.errors import (
    AmqpError,
    AuthenticationFailed,
    ConnectionFailed,
    ProtocolError,
    UsageError,
    VirtualHostRefused,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MOST_REDIRECTS = 3

_Connected = TypeVar("_Connected")


class Redirect(Exception):
    """Raised by a dial function: the broker asks to connect to another host (connection.redirect)."""

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.host = host


def connect_any(hosts: Sequence[tuple[str, int]], dial: Callable[[str, int], _Connected]) -> _Connected:
    """Try each host once, in order, and follow at most three redirects of each; return the first result of ``dial``.

    ``dial`` raises :class:`Redirect` to continue at another host. An error that another host would answer, too, is
    raised at once; of several hosts that cannot be used the ConnectionFailed names each with its reason.
    """
    failures: list[AmqpError] = []
    for host, port in hosts:
        try:
            return _follow(host, port, dial)
        except (AuthenticationFailed, VirtualHostRefused, UsageError):
            raise
        except AmqpError as error:
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    lasting = [error for error in failures if not error.retryable]
    if len(lasting) == len(failures):
        raise lasting[0]
    raise ConnectionFailed(CoreCondition.NO_HOST_USABLE(reasons="; ".join(map(reason, failures))))


def _follow(host: str, port: int, dial: Callable[[str, int], _Connected]) -> _Connected:
    for _ in range(_MOST_REDIRECTS + 1):
        try:
            return dial(host, port)
        except Redirect as redirect:
            host, port = redirected_to(redirect.host, port)
    circle = f"brokers have redirected to one another more than {_MOST_REDIRECTS} times"
    raise ConnectionFailed(CoreCondition.CONNECT_FAILED(peer=format_address(host, port), reason=circle))


def redirected_to(text: str, port: int) -> tuple[str, int]:
    """Parse the host of a redirect: ``amqp:tcp:host:port``, ``tcp:host:port``, ``host:port`` or ``host``.

    Of a comma list the first one counts; ``port`` is the default.
    """
    text = text.partition(",")[0].strip()
    for prefix in ("amqp://", "amqps://", "amqp:", "amqps:", "tcp:", "ssl:"):
        text = text.removeprefix(prefix)
    host, separator, tail = text.rpartition(":")
    bare_ipv6 = ":" in host and not host.endswith("]")
    if separator and not bare_ipv6 and re.fullmatch("[0-9]{1,5}", tail) and 0 < int(tail) < 65536:
        return host.strip("[]"), int(tail)
    if not text:
        raise ProtocolError("connection.redirect names no host")
    return text.strip("[]"), port
