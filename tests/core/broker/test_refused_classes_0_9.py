"""Classes of the older versions of AMQP 0-9 that this broker does not serve."""

from __future__ import annotations

import pytest

from amqp_core.v0_9 import spec
from amqp_core.v0_9.framing import encode_method_frame
from tests.core.broker.peer_0_9 import FRAME_MAX, World


@pytest.mark.parametrize(
    ("class_id", "code"), [(30, 540), (70, 540), (80, 540), (100, 540), (110, 540), (120, 540), (77, 505)]
)
def test_a_class_that_is_not_served_ends_the_connection(class_id: int, code: int) -> None:
    peer = World().connect()
    peer.send(encode_method_frame(1, (class_id << 16 | 10).to_bytes(4) + bytes(8), FRAME_MAX))
    assert [each.reply_code for each in peer.received(spec.ConnectionClose)] == [code]
