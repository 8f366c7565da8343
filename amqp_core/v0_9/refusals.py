"""What the connection.close of a server means to its client: the error of each (0-9-1 section connection.close)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from amqp_core.connection_states import State
from amqp_core.error_conditions import CoreCondition
from amqp_core.errors import AuthenticationFailed, ConnectionClosed, LimitReached, VirtualHostRefused, given
from amqp_core.v0_9.error_codes import ERRORS, command_failure
from amqp_core.v0_9.spec import ReplyCode as Code

if TYPE_CHECKING:
    from amqp_core.errors import AmqpError
    from amqp_core.v0_9 import spec

# Reply codes to connection.open that concern the virtual host; 541 (it is down) may pass.
_ABOUT_VIRTUAL_HOST: Final = frozenset({402, 403, 404, 530})
# RabbitMQ: connection refused: node connection limit (9) is reached; access to vhost '/' refused for user 'u':
# connection limit (9) is reached; number of channels opened for user 'u' has reached the maximum allowed user limit of
# 9. Then others have to end first.
_LIMIT_REACHED: Final = re.compile(r"\bconnection limit\b|number of channels opened .* has reached", re.DOTALL)
# Reply codes that may pass, so that the same method may be taken on a new connection.
_MAY_PASS: Final = frozenset({Code.CONNECTION_FORCED, Code.CHANNEL_ERROR, Code.INTERNAL_ERROR})
# AMQProxy opens a connection itself, logs in at the broker when the first channel is opened, and answers what that
# refuses with 403, no method, and the text of the broker: of RabbitMQ, or of LavinMQ, which has the code alone.
_LOGIN_REFUSED: Final = re.compile(r"\bLogin was refused\b|^ACCESS_REFUSED$")
_VIRTUAL_HOST_REFUSED: Final = re.compile(r"^NOT_ALLOWED - .*\bvhost\b", re.DOTALL)


def explain_close(
    close: spec.ConnectionClose, text: str, state: State, *, mechanism: str, virtual_host: str
) -> AmqpError:
    """The error that a client gets.

    Args:
        close: what the server sent.
        text: its text, as it may be shown.
        state: what was awaited.
        mechanism, virtual_host: with which, and where, the client logs in.
    """
    code = close.reply_code
    said = given(text)
    of_proxy = state is State.OPEN and code == Code.ACCESS_REFUSED and not close.method_id
    if (state is State.SECURE_OR_TUNE and code not in _MAY_PASS) or (of_proxy and _LOGIN_REFUSED.search(text)):
        return AuthenticationFailed(CoreCondition.LOGIN_REFUSED(mechanism=mechanism, reason=f"{code} {said}"))
    if (code == Code.NOT_ALLOWED or of_proxy) and _LIMIT_REACHED.search(text):
        return LimitReached(code, text)
    if (state is State.OPEN_OK and code in _ABOUT_VIRTUAL_HOST) or (of_proxy and _VIRTUAL_HOST_REFUSED.search(text)):
        return VirtualHostRefused(CoreCondition.VIRTUAL_HOST_REFUSED(vhost=virtual_host, code=code, text=said))
    return closed(close, text)


def closed(close: spec.ConnectionClose, text: str) -> AmqpError:
    """The error of a connection that is over, in either role."""
    code = close.reply_code
    if close.method_id and code in ERRORS and code not in _MAY_PASS:
        # what should close a channel only closes the connection of Broker-J at times
        return command_failure(code, text, close.class_id, close.method_id)
    return ConnectionClosed(code, text)
