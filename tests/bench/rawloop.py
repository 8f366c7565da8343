"""The denominator of ``drain_ratio``: what a bare blocking socket loop in Python takes from the same queue.

It does what a consumer must (credit, completion, accept) and finds where each message ends; it decodes nothing, keeps
nothing and hands nothing on. Boundaries are found by ``amqp_core.v0_10._scan.scan``: it costs 0.34 us per message of
three frames, as much as a bare loop over the frame headers that checks nothing (both measured on one idle core).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from amqp_core.scanning import OUTSIDE
from amqp_core.sequence_numbers import wire_ranges
from amqp_core.v0_10 import spec
from amqp_core.v0_10._scan import scan

if TYPE_CHECKING:
    from amqp_core.v0_10.driver import Driver

READ_BYTES = 1 << 18
CREDIT = 32_768  # Broker-J ends itself at 65,536 transfers that are not completed
COMPLETE_EVERY = 4096
ACCEPT_EVERY = 16_384
_MAX_FRAME = 65_535
_INFINITE = 0xFFFFFFFF


def drain(driver: Driver, queue: str, count: int) -> float:
    """Receive and accept ``count`` messages of ``queue``; return seconds from the first credit to the last accept.

    The clock stops when the broker has confirmed that it did the last accept. The driver is used up: close it.

    Raises:
        ConnectionError: the broker ended the connection.
    """
    driver.call(
        spec.MessageSubscribe(
            queue=queue,
            destination="raw",
            accept_mode=spec.MessageAcceptMode.EXPLICIT,
            acquire_mode=spec.MessageAcquireMode.PRE_ACQUIRED,
        )
    )
    driver.send(spec.MessageSetFlowMode(destination="raw", flow_mode=spec.MessageFlowMode.CREDIT))
    driver.call(spec.ExecutionSync())
    sock = driver.transport._sock
    session = driver.session
    sock.setblocking(True)

    def flow(unit: int, value: int) -> None:
        session.send(spec.MessageFlow(destination="raw", unit=unit, value=value))

    first_id = session.received_next
    received = accepted = completed = 0
    credit = min(CREDIT, count)
    granted = credit
    rest, start, inside = b"", 0, OUTSIDE
    begin = time.perf_counter()
    flow(spec.MessageCreditUnit.BYTE, _INFINITE)
    flow(spec.MessageCreditUnit.MESSAGE, credit)
    sock.sendall(driver.connection.data_to_send())
    while received < count:
        data = sock.recv(READ_BYTES)
        if not data:
            raise ConnectionError(f"the broker closed the connection after {received} of {count} messages")
        if rest:
            data = rest + data
        found = scan(data, start, 0, _MAX_FRAME, inside)
        if found.error is not None:
            raise found.error
        arrived = len(found.ends)
        received += arrived
        session.received_next += arrived
        if received - completed >= COMPLETE_EVERY:
            session.tell_completed()
            completed = received
        if received - accepted >= ACCEPT_EVERY or received == count:
            ranges = wire_ranges([(first_id + accepted, first_id + received - 1)])
            session.send(spec.MessageAccept(transfers=ranges))
            accepted = received
        if granted - received < CREDIT // 2 and granted < count:
            more = min(CREDIT - (granted - received), count - granted)
            flow(spec.MessageCreditUnit.MESSAGE, more)
            granted += more
        out = driver.connection.data_to_send()
        if out:
            sock.sendall(out)
        rest, start, inside = data[found.begin :], found.next - found.begin, found.inside
    sock.setblocking(False)
    if rest:  # the begin of some control
        driver._receive(rest)
    driver.call(spec.ExecutionSync())
    return time.perf_counter() - begin
