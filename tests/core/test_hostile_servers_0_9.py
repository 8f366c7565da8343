"""A client of 0-9-1 whose server errs: every call ends, and with a documented error."""

from __future__ import annotations

from tests.support import hostile_servers_0_9
from tests.support.choice import examples


def test_a_server_that_errs_is_an_error_of_amqp() -> None:
    found = hostile_servers_0_9.run(examples(6000), seed=1)
    assert found["no error"] > found.total() / 20
    assert found["blocks"] > found.total() / 20
    assert "an error without a text" not in found
    assert {"ProtocolError", "ConnectionLost", "ConnectionClosed", "DecodeError"} <= found.keys()
