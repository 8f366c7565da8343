"""What a login may do, found out by commands that the broker refuses in any case (the embedded broker).

It looks at rights before arguments: the code of the refusal tells which of the two was at fault. The session ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_core.errors import CommandFailed, NotFound, ProtocolError, UnauthorizedAccess
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import encode_command, encode_header, encode_struct32
from amqp_core.v0_10.driver import CHANNEL
from amqp_core.v0_10.framing import COMMAND, HEADER, TRACK_COMMAND, encode_assembly
from amqp_core.v0_10.publisher import Transfers

if TYPE_CHECKING:
    from amqp_core.v0_10.driver import Driver
    from amqp_core.v0_10.publisher import Publisher


def may_read(driver: Driver, queue: str) -> bool:
    """Ask for a subscription with a priority that is no number.

    Raises:
        NotFound: no such queue.
        ProtocolError: the broker has not refused it.
    """
    command = spec.MessageSubscribe(
        queue=queue,
        destination="right",
        accept_mode=spec.MessageAcceptMode.EXPLICIT,
        acquire_mode=spec.MessageAcquireMode.NOT_ACQUIRED,
        arguments={"x-priority": "invalid"},
    )
    try:
        driver.call(command)
    except CommandFailed as error:
        return _is_right_there(error)
    raise ProtocolError("the broker took a subscription whose priority is no number")


def may_write(publisher: Publisher, exchange: str) -> bool:
    """Send a fragment of a message, which the broker does not take (0-10 section message.fragment-properties).

    Raises:
        NotFound: no such exchange.
        ProtocolError: the broker has not refused it.
    """
    transfer = spec.MessageTransfer(
        destination=exchange,
        accept_mode=spec.MessageAcceptMode.EXPLICIT,
        acquire_mode=spec.MessageAcquireMode.PRE_ACQUIRED,
    )
    fragment = encode_struct32(spec.FragmentProperties(first=True, last=False))
    header = encode_header(spec.DeliveryProperties(routing_key="invalid"), None, [fragment])
    segments = [(COMMAND, encode_command(transfer, False)), (HEADER, header)]
    frames = b"".join(encode_assembly(CHANNEL, TRACK_COMMAND, segments, publisher.max_frame_size))
    try:
        publisher.send(Transfers(frames, (len(frames),)))
        publisher.finish()
    except CommandFailed as error:
        return _is_right_there(error)
    raise ProtocolError("the broker took a part of a message")


def _is_right_there(error: CommandFailed) -> bool:
    if isinstance(error, NotFound):
        raise error
    return not isinstance(error, UnauthorizedAccess)
