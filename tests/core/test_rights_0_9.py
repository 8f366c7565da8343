"""What refusals of RabbitMQ say of the right to publish to an exchange."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from amqp_core.errors import CommandFailed, PreconditionFailed, UnauthorizedAccess
from amqp_core.v0_9.rights import may_write

if TYPE_CHECKING:
    from amqp_core.v0_9.driver import Driver


def refusing(error: CommandFailed) -> Driver:
    """A driver whose broker refuses what is published, with its channel."""

    def nothing(*_: object) -> None:
        return

    return cast(
        "Driver",
        SimpleNamespace(
            open_channel=nothing,
            send=nothing,
            request=lambda *_: SimpleNamespace(error=error),
            wait_done=nothing,
            check=nothing,
        ),
    )


def test_a_refused_expiration_and_a_refused_exchange() -> None:
    assert may_write(refusing(PreconditionFailed(406, None, "invalid expiration 'invalid': no_integer")), "x")
    text = "write access to exchange 'x' in vhost '/' refused for user 'u'"
    assert not may_write(refusing(UnauthorizedAccess(403, None, text)), "x")


def test_a_refused_routing_key_is_no_answer_for_the_exchange() -> None:
    text = "write access to topic 'invalid' in exchange exchange 'x' in vhost '/' refused for user 'u'"
    with pytest.raises(UnauthorizedAccess, match="topic"):
        may_write(refusing(UnauthorizedAccess(403, None, text)), "x")
