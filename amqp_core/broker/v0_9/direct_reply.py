"""Direct reply-to of RabbitMQ: replies come from a queue that the client neither declares nor names.

It consumes ``amq.rabbitmq.reply-to`` and publishes requests with this as their ``reply-to``. Here that stands for a
queue of the channel that goes with its consumer, and a request carries the name of that queue.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from amqp_core.broker.model.errors import Refusal, Refused
from amqp_core.v0_9._codec import encode_header
from amqp_core.v0_9.channel import Content

if TYPE_CHECKING:
    from amqp_core.broker.model.virtual_host import VirtualHost

REPLY_TO: Final = "amq.rabbitmq.reply-to"
_ENCODED: Final = REPLY_TO.encode()


class DirectReply:
    """The replies to one channel. Not thread-safe."""

    def __init__(self, host: VirtualHost) -> None:
        self._host = host
        self._name = ""

    def queue(self, owner: object, now: float, *, no_ack: bool) -> str:
        """The queue of the consumer of replies, which is made for it.

        Raises:
            Refused: PRECONDITION_FAILED, the consumer acknowledges, or there is one already.
        """
        if not no_ack:
            raise Refused(Refusal.PRECONDITION_FAILED, "reply consumer cannot acknowledge")
        if self._name in self._host.queues:
            raise Refused(Refusal.PRECONDITION_FAILED, "reply consumer already set")
        self._name = self._host.declare_queue("", owner=owner, auto_delete=True, now=now).name
        return self._name

    def addressed(self, content: Content) -> Content:
        """What is published, with the name of the queue where it asks for direct replies.

        Raises:
            DecodeError: the header is malformed.
            Refused: PRECONDITION_FAILED, the channel has no consumer of replies.
        """
        if _ENCODED not in content.header:
            return content
        properties = content.properties
        if properties.reply_to != REPLY_TO:
            return content
        if self._name not in self._host.queues:
            raise Refused(Refusal.PRECONDITION_FAILED, "fast reply consumer does not exist")
        header = encode_header(replace(properties, reply_to=self._name), len(content.body))
        return Content(header, content.body)
