"""An AMQP 0-10 client that needs only the standard library: codec, state machines without I/O, a blocking client.

>>> from amqp_core import Client, ConnectOptions, Message, parse_url
"""

from amqp_core.address import ConnectOptions, parse_url
from amqp_core.errors import AmqpError
from amqp_core.v0_10.client import Client
from amqp_core.v0_10.messages import Message
from amqp_core.v0_10.subscription import Subscription

__all__ = ["AmqpError", "Client", "ConnectOptions", "Message", "Subscription", "parse_url"]
