"""Which hosts the connections to the scripted broker try first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

    from amqp_core.address import ConnectOptions
    from amqp_core.api import Client
    from tests.support.fake_broker import FakeBroker


def hosts_tried(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The hosts that connections try first, which this list gets."""
    tried: list[str] = []
    connect = fake.connect

    def connecting(options: ConnectOptions) -> Client:
        tried.append(options.hosts[0][0])
        return connect(options)

    monkeypatch.setattr(fake, "connect", connecting)
    return tried
