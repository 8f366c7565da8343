"""Clients for AMQP 0-10 and 0-9-1 with the standard library only: codecs, state machines without I/O, blocking clients.

>>> from amqp_core import Client, ConnectOptions, Message, parse_url

These are for 0-10; those for 0-9-1 are in :mod:`amqp_core.amqp_0_9_1`.
"""

from amqp_core import errors
from amqp_core.address import ConnectOptions, parse_url
from amqp_core.api import Capabilities, Xid
from amqp_core.errors import (
    AmqpError,
    CommandFailed,
    ConnectionFailed,
    ConnectionLost,
    DeadlineExceeded,
    MessageRejected,
    NotFound,
    OutcomeUnknown,
    PublishingBlocked,
    ResourceLocked,
    TransactionFailed,
    UnauthorizedAccess,
    UndecodableMessage,
    UsageError,
)
from amqp_core.protocols import connect
from amqp_core.transfer_ledger import Rejected, Transfers
from amqp_core.typed_values import Datetime, Typed
from amqp_core.v0_10.client import Client
from amqp_core.v0_10.messages import Message
from amqp_core.v0_10.publisher import Publisher
from amqp_core.v0_10.spec import (
    DeliveryProperties,
    MessageAcceptMode,
    MessageAcquireMode,
    MessageDeliveryMode,
    MessageProperties,
    ReplyTo,
)
from amqp_core.v0_10.subscription import Subscription
from amqp_core.v0_10.transactions import Transactions
from amqp_core.version import __version__

__all__ = [
    "AmqpError",
    "Capabilities",
    "Client",
    "CommandFailed",
    "ConnectOptions",
    "ConnectionFailed",
    "ConnectionLost",
    "Datetime",
    "DeadlineExceeded",
    "DeliveryProperties",
    "Message",
    "MessageAcceptMode",
    "MessageAcquireMode",
    "MessageDeliveryMode",
    "MessageProperties",
    "MessageRejected",
    "NotFound",
    "OutcomeUnknown",
    "Publisher",
    "PublishingBlocked",
    "Rejected",
    "ReplyTo",
    "ResourceLocked",
    "Subscription",
    "TransactionFailed",
    "Transactions",
    "Transfers",
    "Typed",
    "UnauthorizedAccess",
    "UndecodableMessage",
    "UsageError",
    "Xid",
    "__version__",
    "connect",
    "errors",
    "parse_url",
]
