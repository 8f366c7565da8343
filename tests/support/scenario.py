"""The conversation of the bare client with Broker-J, which uses every command and every wire type once."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

from amqp_core.v0_10 import spec
from amqp_core.v0_10 import type_codes as v
from amqp_core.v0_10.type_codes import Datetime, Typed

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.bareclient import BareClient

# Values sent in a header, and Broker-J's echo: it re-encodes headers from its own Java objects.
ECHOES: list[tuple[Typed, Typed]] = [
    (Typed(v.BIN8, b"\x81"), Typed(v.INT16, 0x81)),
    (Typed(v.INT8, -5), Typed(v.INT8, -5)),
    (Typed(v.UINT8, 200), Typed(v.INT16, 200)),
    (Typed(v.CHAR, "é"), Typed(v.CHAR, "é")),
    (Typed(v.BOOLEAN, True), Typed(v.BOOLEAN, True)),
    (Typed(v.BIN16, b"ab"), Typed(v.INT32, 0x6162)),
    (Typed(v.INT16, -300), Typed(v.INT16, -300)),
    (Typed(v.UINT16, 60000), Typed(v.INT32, 60000)),
    (Typed(v.BIN32, b"abcd"), Typed(v.INT64, 0x61626364)),
    (Typed(v.INT32, -70000), Typed(v.INT32, -70000)),
    (Typed(v.UINT32, 4_000_000_000), Typed(v.INT64, 4_000_000_000)),
    (Typed(v.FLOAT, 1.5), Typed(v.FLOAT, 1.5)),
    (Typed(v.CHAR_UTF32, "€"), Typed(v.INT32, 0x20AC)),
    (Typed(v.BIN64, b"abcdefgh"), Typed(v.INT64, 0x6162636465666768)),
    (Typed(v.INT64, -(2**40)), Typed(v.INT64, -(2**40))),
    (Typed(v.UINT64, 2**63 + 1), Typed(v.INT64, -(2**63) + 1)),
    (Typed(v.DOUBLE, -2.5), Typed(v.DOUBLE, -2.5)),
    (Typed(v.DATETIME, Datetime(1_700_000_000)), Typed(v.INT64, 1_700_000_000)),
    (Typed(v.BIN128, bytes(range(16))), Typed(v.VBIN32, bytes(range(16)))),
    (Typed(v.UUID_, UUID(int=77)), Typed(v.UUID_, UUID(int=77))),
    (Typed(v.BIN256, bytes(range(32))), Typed(v.VBIN32, bytes(range(32)))),
    (Typed(v.BIN512, bytes(range(64))), Typed(v.VBIN32, bytes(range(64)))),
    (Typed(v.BIN1024, bytes(range(128))), Typed(v.VBIN32, bytes(range(128)))),
    (Typed(v.VBIN8, b"xyz"), Typed(v.VBIN32, b"xyz")),
    (Typed(v.STR8_LATIN, "é€"), Typed(v.STR16, "é€")),
    (Typed(v.STR8, "é€"), Typed(v.STR16, "é€")),
    (Typed(v.STR8_UTF16, "é😀"), Typed(v.STR16, "é😀")),
    (Typed(v.VBIN16, b"xyz"), Typed(v.VBIN32, b"xyz")),
    (Typed(v.STR16_LATIN, "é€"), Typed(v.STR16, "é€")),
    (Typed(v.STR16, "é€😀"), Typed(v.STR16, "é€😀")),
    (Typed(v.STR16_UTF16, "é😀"), Typed(v.STR16, "é😀")),
    (Typed(v.VBIN32, b"xyz"), Typed(v.VBIN32, b"xyz")),
    (Typed(v.MAP, {"k": Typed(v.INT8, 1)}), Typed(v.MAP, {"k": Typed(v.INT8, 1)})),
    (Typed(v.LIST, [Typed(v.VOID, None)]), Typed(v.LIST, [Typed(v.VOID, None)])),
    (Typed(v.ARRAY, [Typed(v.STR16, "a")]), Typed(v.LIST, [Typed(v.STR16, "a")])),
    (Typed(v.BIN40, b"12345"), Typed(v.VBIN32, b"12345")),
    (Typed(v.DEC32, Decimal("1.25")), Typed(v.VBIN32, bytes.fromhex("02 0000007d"))),
    (Typed(v.BIN72, b"123456789"), Typed(v.VBIN32, b"123456789")),
    (Typed(v.DEC64, Decimal("-12.5")), Typed(v.VBIN32, bytes.fromhex("01 ffffffffffffff83"))),
    (Typed(v.VOID, None), Typed(v.VOID, None)),
    (Typed(v.BIT, True), Typed(v.VBIN32, b"")),
]


def send_every_type(connect: Callable[[], BareClient]) -> None:
    """Publish a message per type and receive each one."""
    with connect() as client:
        client.attach()
        client.call(spec.QueueDeclare(queue="types", exclusive=True, auto_delete=True))
        for sent, _ in ECHOES:
            headers: dict[str, object] = {"value": sent}
            client.publish("types", spec.MessageProperties(content_type="x", application_headers=headers), b"-")
        client.subscribe("types", "all")
        client.take("all", len(ECHOES))
        client.call(spec.ExecutionSync())
        client.close()


def say_everything(connect: Callable[..., BareClient]) -> None:
    """Send every control and command that Broker-J accepts, to record its answers."""
    _controls(connect)
    with connect() as client:
        client.attach()
        _queues_and_exchanges(client)
        _messages(client)
        client.close()
    with connect() as client:
        client.attach()
        _tx(client)
        client.attach_again()
        _dtx(client)
        client.close()
    with connect() as client:
        client.attach()
        _flow_control(client)


def _controls(connect: Callable[..., BareClient]) -> None:
    with connect(heartbeat=1) as client, connect() as second:
        client.wait_for(spec.ConnectionHeartbeat)
        client.control(spec.ConnectionHeartbeat())
        name = client.attach()
        client.control(spec.SessionRequestTimeout(timeout=300))
        client.wait_for(spec.SessionTimeout)
        second.control(spec.SessionAttach(name=name))
        second.wait_for(spec.SessionDetached)
        client.call(spec.ExecutionSync())
        client.control(spec.SessionKnownCompleted(commands=[(0, 0)]))
        client.command(spec.ExecutionSync())
        client.control(spec.SessionFlush(completed=True))
        client.wait_for(spec.SessionCompleted)
        client.call(spec.QueueQuery(queue="missing"))  # its result is a command of the broker: id 0
        client.control(spec.SessionCompleted(commands=[(0, 0)], timely_reply=True))
        client.wait_for(spec.SessionKnownCompleted)
        client.refused(spec.QueueDelete(queue="missing"))
        client.control(spec.SessionDetach(name=client.session))
        client.wait_for(spec.SessionDetached)
        client.close()
        second.close()
    refused = connect(virtual_host="missing", wait=False)
    with refused:
        refused.wait_for(spec.ConnectionClose)
        refused.control(spec.ConnectionCloseOk())


def _queues_and_exchanges(client: BareClient) -> None:
    client.call(spec.ExchangeDeclare(exchange="dead", type="fanout", durable=True))
    client.call(spec.ExchangeQuery(name="dead"))
    client.call(spec.ExchangeQuery(name="missing"))
    arguments: dict[str, object] = {"qpid.max_count": 1000}
    client.call(spec.QueueDeclare(queue="q", alternate_exchange="dead", exclusive=True, arguments=arguments))
    client.call(spec.QueueQuery(queue="q"))
    client.call(spec.ExchangeDeclare(exchange="x", type="headers", alternate_exchange="dead"))
    client.call(spec.ExchangeDeclare(exchange="x", passive=True))
    match: dict[str, object] = {"x-match": "all", "symbol": "ABC"}
    client.call(spec.ExchangeBind(queue="q", exchange="x", binding_key="k", arguments=match))
    client.call(spec.ExchangeBound(exchange="x", queue="q", binding_key="k"))
    client.call(spec.ExchangeBound(exchange="x", queue="missing", binding_key="other"))
    client.call(spec.ExchangeUnbind(queue="q", exchange="x", binding_key="k"))
    client.call(spec.ExchangeDelete(exchange="x", if_unused=True))
    client.call(spec.QueueDeclare(queue="spare", auto_delete=True))
    client.call(spec.QueuePurge(queue="spare"))
    client.call(spec.QueueDelete(queue="spare", if_unused=True, if_empty=True))


def _messages(client: BareClient) -> None:
    everything = spec.MessageProperties(
        content_length=4,
        message_id=UUID("00112233-4455-6677-8899-aabbccddeeff"),
        correlation_id=b"\x00\xff",
        reply_to=spec.ReplyTo("amq.direct", "replies"),
        content_type="text/plain",
        content_encoding="identity",
        user_id=b"guest",
        app_id=b"capture",
        application_headers={"symbol": "ABC", "qty": 5},
    )
    delivery = spec.DeliveryProperties(
        priority=9, delivery_mode=2, ttl=600_000, timestamp=1_700_000_000, exchange="", routing_key="q"
    )
    client.transfer(delivery, everything, b"body")
    for body in (b"1", b"2", b"3"):
        client.publish("q", spec.MessageProperties(content_length=1), body)
    client.transfer(spec.DeliveryProperties(routing_key="q"), None, b"no message properties")
    client.transfer(spec.DeliveryProperties(routing_key="q"), spec.MessageProperties(), b"")
    client.subscribe("q", "d")
    ids = client.take("d", 6)
    client.call(spec.MessageAccept(transfers=[(ids[0], ids[0])]))
    client.call(spec.MessageRelease(transfers=[(ids[1], ids[1])], set_redelivered=True))
    client.call(spec.MessageReject(transfers=[(ids[2], ids[2])], code=0, text="no use"))
    client.call(spec.MessageAccept(transfers=[(ids[3], ids[3]), (ids[5], ids[5])]))
    client.call(spec.MessageRelease(transfers=[(ids[4], ids[4])]))
    client.call(spec.MessageStop(destination="d"))
    client.call(spec.MessageFlush(destination="d"))
    client.call(spec.MessageCancel(destination="d"))
    client.subscribe("q", "browse", acquire_mode=1)
    (seen, _) = client.take("browse", 2)
    client.call(spec.MessageAcquire(transfers=[(seen, seen)]))
    # Unroutable: with accept-mode explicit Broker-J rejects it; routable ones it accepts.
    lost = spec.DeliveryProperties(exchange="amq.direct", routing_key="nowhere")
    client.transfer(lost, None, b"", destination="amq.direct", accept_mode=0)
    client.transfer(spec.DeliveryProperties(routing_key="q"), None, b"", accept_mode=0)


def _tx(client: BareClient) -> None:
    client.call(spec.TxSelect())
    client.call(spec.QueueDeclare(queue="t", auto_delete=True))
    client.publish("t", spec.MessageProperties(), b"kept")
    client.call(spec.TxCommit())
    client.publish("t", spec.MessageProperties(), b"dropped")
    client.call(spec.TxRollback())
    client.call(spec.QueueDelete(queue="t"))


def _dtx(client: BareClient) -> None:
    one, two = spec.Xid(1, b"global", b"one"), spec.Xid(1, b"global", b"two")
    client.call(spec.DtxSelect())
    client.call(spec.DtxRecover())
    for xid in (one, two):
        client.call(spec.DtxStart(xid=xid))
        client.call(spec.DtxSetTimeout(xid=xid, timeout=300))
        client.call(spec.DtxGetTimeout(xid=xid))
        client.call(spec.DtxEnd(xid=xid))
        client.call(spec.DtxPrepare(xid=xid))
    client.call(spec.DtxRecover())
    client.call(spec.DtxCommit(xid=one))
    client.call(spec.DtxRollback(xid=two))
    client.call(spec.DtxStart(xid=one))
    client.call(spec.DtxEnd(xid=one))
    client.call(spec.DtxCommit(xid=one, one_phase=True))
    client.refused(spec.DtxForget(xid=one))


def _flow_control(client: BareClient) -> None:
    """Fill a queue with flow control: Broker-J sends set-flow-mode and stop, and flow when there is room."""
    arguments: dict[str, Any] = {"qpid.policy_type": "producer_flow_control", "qpid.max_count": 1}
    client.call(spec.QueueDeclare(queue="full", auto_delete=True, arguments=arguments))
    for body in (b"1", b"2"):
        client.publish("full", spec.MessageProperties(), body)
    client.wait_for(spec.MessageStop)
    client.call(spec.QueuePurge(queue="full"))
    client.wait_for(spec.MessageFlow)
    client.close()
