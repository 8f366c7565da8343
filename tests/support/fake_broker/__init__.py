"""A broker in memory behind :class:`amqp_core.api.Client`, for tests without a network.

Queues, bindings, locks, transactions and branches work as on a 0-10 broker. A test can cut or refuse connections, let
commands fail, and script the outcome of what is published. Frames are built by hand here, not by the library's encoder.
"""

from __future__ import annotations

from tests.support.fake_broker.broker import FakeBroker
from tests.support.fake_broker.client import FakeClient
from tests.support.fake_broker.messages import FakeBlock, FakeInfo, FakeMessage, Received, bodies_of, transfer_frames
from tests.support.fake_broker.publisher import FakePublisher
from tests.support.fake_broker.script import CommitOutcome, Script
from tests.support.fake_broker.subscription import FakeSubscription
from tests.support.fake_broker.transactions import FakeTransactions

__all__ = [
    "CommitOutcome",
    "FakeBlock",
    "FakeBroker",
    "FakeClient",
    "FakeInfo",
    "FakeMessage",
    "FakePublisher",
    "FakeSubscription",
    "FakeTransactions",
    "Received",
    "Script",
    "bodies_of",
    "transfer_frames",
]
