"""Credit, routing to subscriptions and transactions with peers that do what no real broker can be made to do."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.api import EMBEDDED_PRODUCT, Capabilities, Xid
from amqp_core.errors import (
    ProtocolError,
    TransactionFailed,
    UsageError,
)
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import decode_header, encode_command, encode_header
from amqp_core.v0_10.framing import encode_assembly
from amqp_core.v0_10.messages import Message
from amqp_core.v0_10.subscription import Subscription
from tests.support.fakepeer import QPIDD, FakePeer, Peer, serve
from tests.support.taking import again, bodies, take

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from amqp_core.v0_10.client import Client


@contextmanager
def recorded(seen: list[spec.Command], **settings: Any) -> Iterator[Client]:
    """A client of a peer that answers everything; ``seen`` has the commands after the client has closed."""

    def script(peer: Peer) -> None:
        serve(peer)
        seen.extend(command for _, command in peer.commands)

    with FakePeer(script, **settings) as server:
        client = server.connect()
        yield client
        client.close()


# -------------------------------------------------------------------------------------------------------------- credit
def test_large_credit_reaches_the_broker_in_parts() -> None:
    outstanding: list[int] = []

    def script(peer: Peer) -> None:
        peer.open()
        credit = sent = 0
        bytes_granted = False
        while sent < 40_000:
            _, flow = peer.expect(spec.MessageFlow)
            value = flow.value or 0
            if flow.unit == spec.MessageCreditUnit.BYTE:
                assert value == 0xFFFFFFFF
                bytes_granted = True
                continue
            credit += value
            outstanding.append(credit)
            assert bytes_granted
            part = min(credit, 40_000 - sent)
            peer.transfer(*[b""] * part)
            credit -= part
            sent += part
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        subscription = client.subscribe("q")
        subscription.grant(10_000)
        assert subscription.credit == 10_000
        subscription.grant(30_000)
        assert subscription.credit <= 40_000
        count = 0
        while count < 40_000:
            blocks = subscription.take_blocks(10.0)
            assert blocks
            count += sum(block.count for block in blocks)
        assert subscription.credit == 0
        assert max(outstanding) <= 16_384
        assert len(outstanding) <= 2 + 40_000 // 8192, "credit goes out in large parts"
        assert client._driver.session.received_next == 40_000


def test_flush_asks_again_while_more_is_granted_than_was_given() -> None:
    flushes: list[int] = []

    def script(peer: Peer) -> None:
        left, credit = 40_000, 0

        def flow(command: spec.MessageFlow) -> None:
            nonlocal credit
            if command.unit == spec.MessageCreditUnit.MESSAGE:
                credit += command.value or 0

        def flush(_: spec.MessageFlush) -> None:
            nonlocal left, credit
            part = min(left, credit)
            peer.transfer(*[b""] * part)
            left, credit = left - part, 0
            flushes.append(part)

        peer.hooks = {spec.MessageFlow: flow, spec.MessageFlush: flush}
        serve(peer)

    with FakePeer(script) as server:
        client = server.connect()
        subscription = client.subscribe("q")
        subscription.grant(100_000)
        subscription.flush()
        assert subscription.credit == 0
        assert sum(block.count for block in subscription.take_blocks(0)) == 40_000
        assert flushes == [16_384, 16_384, 40_000 - 2 * 16_384]
        subscription.grant(10)
        subscription.flush()
        assert subscription.take_blocks(0) == []
        subscription.flush()
        assert flushes[3:] == [0, 0]


def _queue_transfer(peer: Peer, body: bytes, destination: str = "s1") -> None:
    """Let a message go out with the next flush: what goes out together arrives in few reads."""
    transfer = spec.MessageTransfer(destination=destination, accept_mode=0, acquire_mode=0)
    peer.session.send(transfer, header=encode_header(spec.DeliveryProperties(), None), body=body)


def _queue_numbers(peer: Peer, count: int) -> None:
    for number in range(count):
        _queue_transfer(peer, b"%d" % number)


@pytest.mark.parametrize("at_once", [False, True])
def test_each_subscription_gets_its_own_messages(at_once: bool) -> None:
    """Also if only one of them has credit left: the last message of the other is its own."""

    def script(peer: Peer) -> None:
        peer.open()
        peer.expect(spec.ExecutionSync)
        for destination, body in (("s1", b"a"), ("s2", b"b"), ("s2", b"c"), ("s1", b"d"), ("s2", b"e")):
            _queue_transfer(peer, body, destination)
            if not at_once:
                peer.flush()
        peer.flush()
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        one, two = client.subscribe("q"), client.subscribe("q")
        one.grant(2)
        two.grant(100)
        client.sync()
        found_two = take(two, 3)
        assert [(message.body, message.command_id) for message in found_two] == [(b"b", 1), (b"c", 2), (b"e", 4)]
        found_one = take(one, 2)
        assert [(message.body, message.command_id) for message in found_one] == [(b"a", 0), (b"d", 3)]


def test_a_message_goes_to_no_other_subscription_that_has_credit() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.expect(spec.ExecutionSync)
        peer.transfer(b"a")
        peer.transfer(b"b", destination="s2")
        peer.transfer(b"too much")
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        one, two = client.subscribe("q"), client.subscribe("q")
        one.grant(1)
        two.grant(100)
        client._driver.send(spec.ExecutionSync())
        assert bodies(two, 1) == [b"b"]
        with pytest.raises(ProtocolError, match="to destination 's1', where it had a credit of 0"):
            two.take_blocks(10.0)
        assert bodies(one, 1) == [b"a"]


@pytest.mark.parametrize("subscriptions", [1, 2])
def test_a_message_to_a_destination_without_a_subscription_is_an_error(subscriptions: int) -> None:
    def script(peer: Peer) -> None:
        peer.subscribed()
        peer.transfer(b"1", b"2")
        peer.transfer(b"3", b"4", destination="gone")
        peer.transfer(b"5")
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        one, *_ = [client.subscribe("q") for _ in range(subscriptions)]
        one.grant(10)
        assert bodies(one, 2) == [b"1", b"2"]
        with pytest.raises(
            ProtocolError, match=r"sent [12] message\(s\) to destination 'gone', where this session has"
        ):
            one.take_blocks(10.0)


@pytest.mark.parametrize(("granted", "sent"), [(0, 1), (1, 2), (3, 1000), (20_000, 20_001)])
def test_more_than_was_granted_is_an_error_and_what_was_granted_stays(granted: int, sent: int) -> None:
    def script(peer: Peer) -> None:
        if granted:
            peer.subscribed()
        else:
            peer.open()
            peer.expect(spec.MessageSetFlowMode)
        _queue_numbers(peer, sent)
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        subscription = client.subscribe("q")
        found: list[bytes] = []
        wrong = r"sent \d+ message\(s\) to destination 's1', where it had a credit of \d+"
        if granted:
            subscription.grant(granted)
        with pytest.raises(ProtocolError, match=wrong):
            again(lambda: found.extend(bodies(subscription, 1)))
        assert found == [b"%d" % number for number in range(granted)]
        with pytest.raises(ProtocolError, match=wrong):
            client.sync()


ENDINGS: dict[str, tuple[type[spec.Command], Callable[[Subscription], None]]] = {
    "flush": (spec.MessageFlush, Subscription.flush),
    "stop": (spec.MessageStop, Subscription.stop),
    "cancel": (spec.MessageCancel, Subscription.cancel),
}


@pytest.mark.parametrize("how", ENDINGS)
def test_credit_may_be_used_until_what_ends_it_is_complete_and_not_after(how: str) -> None:
    command, end = ENDINGS[how]

    def script(peer: Peer) -> None:
        # on their way when the command was read, or sent because of it
        peer.hooks[command] = lambda _: _queue_numbers(peer, 4)
        peer.open()
        peer.expect(command)
        peer.expect(spec.ExecutionSync)
        peer.transfer(b"late")
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        subscription = client.subscribe("q")
        subscription.grant(5)
        end(subscription)
        assert subscription.credit == 0
        assert bodies(subscription, 4) == [b"0", b"1", b"2", b"3"]
        wrong = "where this session has no subscription" if how == "cancel" else "where it had a credit of 0"
        with pytest.raises(ProtocolError, match=wrong):
            again(client.sync)
        with pytest.raises(ProtocolError, match=wrong):
            subscription.take_blocks(10.0)


def test_what_comes_while_a_stop_is_under_way_is_bounded_by_the_credit_before_it() -> None:
    def script(peer: Peer) -> None:
        peer.hooks[spec.MessageStop] = lambda _: _queue_numbers(peer, 6)
        serve(peer)

    with FakePeer(script) as server:
        client = server.connect()
        subscription = client.subscribe("q")
        subscription.grant(5)
        with pytest.raises(
            ProtocolError, match=r"sent [1-6] message\(s\) to destination 's1', where it had a credit of [0-5]"
        ):
            subscription.stop()
        assert bodies(subscription, 5) == [b"0", b"1", b"2", b"3", b"4"]


def test_destinations_are_not_used_again() -> None:
    with FakePeer(serve) as server:
        client = server.connect()
        one, two = client.subscribe("q"), client.subscribe("q")
        one.cancel()
        three = client.subscribe("q")
        assert [s.destination for s in (one, two, three)] == ["s1", "s2", "s3"]


def test_many_ranges_are_split_to_what_fits_a_frame() -> None:
    ranges = [(i, i) for i in range(0, 40_000, 2)]
    seen: list[spec.Command] = []
    with recorded(seen) as client:
        client.accept(ranges, sync=True)
        client.reject(ranges, code=1, text="no", sync=True)
        client.release(ranges, set_redelivered=True)
        client.accept([])
        client.accept([], sync=True)
    for kind in (spec.MessageAccept, spec.MessageReject, spec.MessageRelease):
        commands = [command for command in seen if isinstance(command, kind)]
        assert len(commands) == 3
        assert [one for command in commands for one in command.transfers or []] == ranges
        assert max(len(encode_command(command)) for command in commands) < 65_500


# ----------------------------------------------------------------------------------------------- one broker or another
def test_qpidd_gets_what_qpidd_reads() -> None:
    seen: list[spec.Command] = []
    with recorded(seen, server_properties=QPIDD) as client:
        assert client.is_qpidd
        client.subscribe("q", selector="a = 1", arguments={"x": 1})
        client.publish(Message(b"x"))
        client.confirm()
    subscribe = next(command for command in seen if isinstance(command, spec.MessageSubscribe))
    assert subscribe.arguments == {"x": 1, "x-apache-selector": "a = 1"}
    transfer = next(command for command in seen if isinstance(command, spec.MessageTransfer))
    assert transfer.accept_mode == spec.MessageAcceptMode.NONE


@pytest.mark.parametrize(
    ("properties", "trusted"),
    [
        (QPIDD, True),
        ({"product": "qpidc"}, True),
        ({"qpid.federation_tag": "x"}, False),
        ({"qpid.federation_tag": "x", "qpid.features": ["qpid.jms-selector"]}, False),
        ({"product": "Apache Qpid Broker-J Core"}, False),
    ],
)
def test_a_completion_counts_at_once_if_the_broker_says_that_it_is_qpidd(
    properties: dict[str, object], *, trusted: bool
) -> None:
    """Early Qpid Java brokers name no product, as early qpidd: that a completion is kept must then be asked."""
    with recorded([], server_properties=properties) as client:
        assert client._publisher._trusting == trusted
        assert client.publisher()._trusting == trusted


@pytest.mark.parametrize("properties", [{}, {"qpid.features": ["qpid.jms-selector"]}, {"qpid.features": "odd"}])
def test_a_selector_is_given_so_that_the_broker_reads_it(properties: dict[str, object]) -> None:
    seen: list[spec.Command] = []
    with recorded(seen, server_properties=properties) as client:
        assert not client.is_qpidd
        client.subscribe("q", selector="a = 1")
    (subscribe,) = (command for command in seen if isinstance(command, spec.MessageSubscribe))
    assert subscribe.arguments is not None
    assert subscribe.arguments["x-filter-jms-selector"] == "a = 1"


SELECTORS = {"qpid.features": ["qpid.jms-selector"]}
KNOWN = Capabilities(rejects_unroutable=True, zero_timeout_is_none=True, selectors=True)
EARLY_QPIDD = Capabilities(counts_held_messages=False, lists_branches_in_one_frame=True)


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"product": "Apache Qpid Broker-J Core", **SELECTORS}, KNOWN),
        ({"product": EMBEDDED_PRODUCT, **SELECTORS}, replace(KNOWN, checks_rights_first=True)),
        ({"product": "qpid-cpp", "version": "1.39.0"}, replace(EARLY_QPIDD, selectors=True)),
        ({"product": "qpid-cpp", "version": "0.22"}, replace(EARLY_QPIDD, selectors=True)),
        ({"product": "qpid-cpp", "version": "0.20"}, EARLY_QPIDD),
        ({"product": "qpid-cpp", "version": "new"}, EARLY_QPIDD),
        ({"product": "qpidc", "version": "0.8"}, EARLY_QPIDD),
        ({"qpid.federation_tag": "x"}, EARLY_QPIDD),
        ({"qpid.federation_tag": "x", **SELECTORS}, Capabilities(selectors=True)),
        ({"product": "another", "qpid.federation_tag": "x", **SELECTORS}, Capabilities(selectors=True)),
        ({}, Capabilities()),
        ({"product": "another"}, Capabilities()),
    ],
)
def test_what_is_known_of_a_broker(properties: dict[str, object], expected: Capabilities) -> None:
    """Of one that is not known it is not expected that it rejects, selects, or takes 0 for no timer."""
    unknown = Capabilities()
    assert not any((unknown.rejects_unroutable, unknown.selectors, unknown.zero_timeout_is_none))
    with FakePeer(serve, server_properties=properties) as server:
        assert server.connect().capabilities == expected


def test_rights_are_not_asked_for_of_a_broker_that_may_look_at_arguments_first() -> None:
    seen: list[spec.Command] = []
    with recorded(seen, server_properties={"product": "another"}) as client:
        for question in (client.may_read, client.may_write):
            with pytest.raises(UsageError, match="without using it"):
                question("x")
    assert not [command for command in seen if isinstance(command, spec.MessageSubscribe | spec.MessageTransfer)]


@pytest.mark.parametrize("accept", [True, False])
@pytest.mark.parametrize("acquire", [True, False])
def test_the_modes_of_a_subscription(accept: bool, acquire: bool) -> None:
    seen: list[spec.Command] = []
    with recorded(seen) as client:
        client.subscribe("q", accept=accept, acquire=acquire)
    (subscribe,) = (command for command in seen if isinstance(command, spec.MessageSubscribe))
    assert (subscribe.accept_mode, subscribe.acquire_mode) == (0 if accept else 1, 0 if acquire else 1)


def test_the_text_of_a_reject_is_cut_to_what_str8_holds() -> None:
    seen: list[spec.Command] = []
    with recorded(seen) as client:
        client.reject([(0, 0)], text="x" * 254 + "\u20ac" * 20, sync=True)
    (reject,) = (command for command in seen if isinstance(command, spec.MessageReject))
    assert reject.text == "x" * 254


def test_a_message_for_a_queue_is_durable() -> None:
    seen: list[tuple[spec.Command, bytes | None, bytes | None]] = []
    bodies: list[bytes | None] = []

    def script(peer: Peer) -> None:
        peer.watch = lambda _command, body: bodies.append(body)
        serve(peer)
        commands = [command for _, command in peer.commands]
        seen.extend(zip(commands, peer.headers, bodies, strict=True))

    with FakePeer(script) as server:
        client = server.connect()
        client.publish_to_queue("q", b"{}", content_type="application/json")
        client.confirm()
        client.close()
    ((transfer, header, body),) = (each for each in seen if isinstance(each[0], spec.MessageTransfer))
    assert isinstance(transfer, spec.MessageTransfer)
    assert header is not None
    delivery, properties, _ = decode_header(header)
    assert (transfer.destination, body) == ("", b"{}")
    assert delivery == spec.DeliveryProperties(routing_key="q", delivery_mode=spec.MessageDeliveryMode.PERSISTENT)
    assert properties == spec.MessageProperties(content_type="application/json")


@pytest.mark.parametrize(
    ("image", "xids"),
    [
        ("0000 000d 0603 0100 0000 0005 ab 0000 0000", []),
        ("0000 0008 0603 0100 0000 0000", []),
        (
            "0000 0020 0603 0100 0000 0018 ab 0000 0001 0000 000f 0604 0700 0000 0007 03 616263 02 6465",
            [Xid(7, b"abc", b"de")],
        ),
    ],
)
def test_both_brokers_images_of_dtx_recover(image: str, xids: list[Xid]) -> None:
    def script(peer: Peer) -> None:
        peer.open()
        command_id, _ = peer.expect(spec.DtxRecover)
        result = bytes.fromhex("0302 0100 0300") + command_id.to_bytes(4) + bytes.fromhex(image)
        peer.raw(b"".join(encode_assembly(0, 1, [(1, result)], 65535)))
        peer.serve()

    with FakePeer(script) as server:
        assert server.connect().transactions.recover() == xids


def test_xa_status_other_than_ok_is_an_error() -> None:
    statuses = iter([*range(9), 99])

    def script(peer: Peer) -> None:
        peer.answers[spec.DtxCommit] = lambda _: spec.XaResult(status=next(statuses))
        serve(peer)

    xid = Xid(1, b"g", b"b")
    with FakePeer(script) as server:
        transactions = server.connect().transactions
        transactions.commit_branch(xid)
        for status in (1, 2, 3, 4, 5, 6, 7, 8, 99):
            with pytest.raises(TransactionFailed, match=f"dtx.commit ended with .* .{status}.") as raised:
                transactions.commit_branch(xid)
            assert raised.value.status == status


@pytest.mark.parametrize(
    ("failing", "status", "expected"),
    [
        ("nothing", 0, ["start", "end", "prepare"]),
        ("block", 0, ["start", "end", "rollback"]),
        ("end", 1, ["start", "end", "rollback"]),
        ("end", 2, ["start", "end", "rollback"]),
        ("prepare", 1, ["start", "end", "prepare", "rollback"]),
        ("prepare", 2, ["start", "end", "prepare"]),
    ],
)
def test_how_a_branch_that_fails_is_given_up(failing: str, status: int, expected: list[str]) -> None:
    calls: list[str] = []

    def script(peer: Peer) -> None:
        for cls in (spec.DtxStart, spec.DtxEnd, spec.DtxPrepare, spec.DtxRollback):
            peer.answers[cls] = answer
        serve(peer)

    def answer(command: spec.DtxStart | spec.DtxEnd | spec.DtxPrepare | spec.DtxRollback) -> spec.XaResult:
        name = command.NAME.removeprefix("dtx.")
        calls.append(name)
        if isinstance(command, spec.DtxEnd):
            assert command.fail == (failing == "block")
        return spec.XaResult(status=status if name == failing else 0)

    def use(client: Client) -> None:
        with client.transactions.branch(Xid(1, b"g", b"b")):
            if failing == "block":
                raise ZeroDivisionError

    with FakePeer(script) as server:
        client = server.connect()
        if failing == "nothing":
            use(client)
        else:
            with pytest.raises(ZeroDivisionError if failing == "block" else TransactionFailed):
                use(client)
        client.close()
    assert calls == expected


def test_an_empty_queue_query_result_is_no_queue() -> None:
    def script(peer: Peer) -> None:
        peer.answers[spec.QueueQuery] = lambda _: spec.QueueQueryResult()
        peer.answers[spec.ExchangeQuery] = lambda _: spec.ExchangeQueryResult(not_found=True)
        serve(peer)

    with FakePeer(script) as server:
        client = server.connect()
        assert client.query_queue("q") is None
        assert client.query_exchange("x") is None
