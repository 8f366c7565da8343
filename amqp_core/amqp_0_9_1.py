"""The client for AMQP 0-9-1 and its values, for programs: RabbitMQ, and other brokers of that protocol.

>>> from amqp_core import ConnectOptions
>>> from amqp_core.amqp_0_9_1 import BasicProperties, Client, Message

The client of :mod:`amqp_core` itself is the one for AMQP 0-10; :func:`amqp_core.connect` takes the one that suits the
broker, with the interface that both have.
"""

from amqp_core.v0_9.client import Client
from amqp_core.v0_9.messages import Message
from amqp_core.v0_9.publisher import Publisher
from amqp_core.v0_9.spec import BasicProperties
from amqp_core.v0_9.subscription import Subscription
from amqp_core.v0_9.topology import QueueInfo

__all__ = ["BasicProperties", "Client", "Message", "Publisher", "QueueInfo", "Subscription"]
