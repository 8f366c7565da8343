"""What a login may do, found out by requests that the broker refuses in any case (RabbitMQ, the embedded broker).

These brokers look at rights before arguments: the code of the refusal tells which of the two was at fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp_core.errors import CommandFailed, NotFound, ProtocolError, UnauthorizedAccess
from amqp_core.v0_9 import spec
from amqp_core.v0_9.driver import ASKING

if TYPE_CHECKING:
    from amqp_core.v0_9.driver import Driver

_INVALID: Final = "invalid"
"""As a priority, which is a number, and as an expiration, which is milliseconds in digits."""
_TOPIC: Final = "access to topic '"
"""A refusal of RabbitMQ that is about the routing key: the right on the exchange is there."""


def may_read(driver: Driver, queue: str) -> bool:
    """Ask for a consumer with a priority that is no number.

    Raises:
        NotFound: no such queue.
        ProtocolError: the broker has not refused it.
    """
    method = spec.BasicConsume(queue=queue, arguments={"x-priority": _INVALID})
    try:
        driver.call(ASKING, method, spec.BasicConsumeOk)
    except CommandFailed as error:
        return _is_right_there(driver, error)
    raise ProtocolError("the broker took a consumer whose priority is no number")


def may_write(driver: Driver, exchange: str) -> bool:
    """Send a message with an expiration that is no number, and wait until the broker has looked at it.

    Raises:
        NotFound: no such exchange.
        UnauthorizedAccess: the login may publish to it with some routing keys only (topic permissions of RabbitMQ), so
            that there is no answer for the exchange as a whole.
        ProtocolError: the broker has not refused it.
    """
    properties = spec.BasicProperties(expiration=_INVALID)
    driver.open_channel(ASKING)
    try:
        driver.send(ASKING, spec.BasicPublish(exchange=exchange, routing_key=_INVALID), properties)
        request = driver.request(ASKING, spec.ChannelFlow(active=True))
        driver.wait_done(request)
        if request.error is not None:
            raise request.error
    except CommandFailed as error:
        return _is_right_there(driver, error)
    raise ProtocolError("the broker took a message whose expiration is no number")


def _is_right_there(driver: Driver, error: CommandFailed) -> bool:
    driver.check()  # it may be the error that ended the client
    if isinstance(error, NotFound):
        raise error
    if isinstance(error, UnauthorizedAccess) and _TOPIC in error.description:
        raise error
    return not isinstance(error, UnauthorizedAccess)
