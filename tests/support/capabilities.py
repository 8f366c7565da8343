"""Measured differences between AMQP 0-10 brokers, by which tests state their requirements.

The specification leaves them open, or one of the brokers departs from it. ``@needs("rejects_unroutable")`` at a test,
or ``capabilities.rejects_unroutable`` where the same guarantee shows in two ways, keeps the suite valid for any broker
that ``AMQP_TEST_URL`` names. A test is skipped if its broker lacks the capability. The capabilities of the Broker-J
that the tests start themselves are known (``BROKER_J``), and a test compares them with the measured ones.
"""

from __future__ import annotations

import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

import pytest

from amqp_core.api import Xid
from amqp_core.errors import (
    AmqpError,
    AuthenticationFailed,
    IllegalArgument,
    MessageRejected,
    NotFound,
    VirtualHostRefused,
)
from amqp_core.v0_10 import spec
from amqp_core.v0_10.messages import Message, messages_of
from amqp_core.v0_10.type_codes import Datetime
from tests.support.dial import dial
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from amqp_core.v0_10.client import Client
    from tests.support.fixtures import Broker

_PATIENCE_S = 5.0
"""Seconds to wait for one answer: some brokers withhold it."""
_SHOWS_S = 3.0
"""Seconds to wait for actions of the broker itself."""


def _that(text: str) -> bool:
    """Define a capability; ``text`` describes a broker that has it."""
    found: bool = field(metadata={"text": text})
    return found


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """Capabilities of a broker."""

    is_broker_j: bool = _that("is Broker-J")
    virtual_hosts: bool = _that("refuses a virtual host that it does not have")
    durable_host: bool = _that('takes durable queues in the virtual host "durable"')
    checks_passwords: bool = _that("refuses a wrong password")
    refuses_unknown_arguments: bool = _that("refuses a queue.declare with an argument that it does not know")
    rejects_unroutable: bool = _that("rejects a message that it cannot route (message.reject)")
    rejects_overflow: bool = _that("rejects what a queue with the policy reject cannot take (message.reject)")
    stops_producers: bool = _that("tells a producer to stop while its queue is full (message.stop)")
    alternate_exchange: bool = _that("sends on by alternate exchanges what is not routed, or is rejected")
    takes_any_user_id: bool = _that("takes messages with a user-id that is not the login's")
    stamps_expiration: bool = _that("sets the expiration of a message with a time to live")
    keeps_ttl: bool = _that("delivers the time to live as it was published")
    keeps_resume_id: bool = _that("delivers resume-id and resume-ttl as they were published")
    rewrites_headers: bool = _that("delivers some headers in other types than they were published in")
    selectors: bool = _that("filters by message selectors")
    counts_held: bool = _that("counts messages that a consumer holds in queue.query")
    flags_redelivered: bool = _that("flags what it delivers again as redelivered")
    quiet_deletion: bool = _that("lets a session be whose subscription loses its queue")
    requeues_on_rollback: bool = _that("puts back at once what a transaction that is rolled back had accepted")
    keeps_open_branches: bool = _that("keeps the open branch of a session that has died until it is rolled back")
    endless_branches: bool = _that("takes the timer from a prepared branch (dtx.set-timeout of 0)")
    forgets_branches: bool = _that("implements dtx.forget")

    @classmethod
    def of(cls, broker: Broker) -> Self:
        """Measure a broker; refusals and late answers count as a missing capability.

        Raises:
            AmqpError: the login failed.
        """
        dial(broker, connect_timeout=_PATIENCE_S).close()
        probe = _Probe(broker)
        return cls(**{each.name: probe.finds(getattr(probe, each.name)) for each in fields(cls)})

    def lacking(self, names: Iterable[str]) -> list[str]:
        """The named capabilities that the broker lacks."""
        return [name for name in names if not getattr(self, name)]


BROKER_J = Capabilities(**{each.name: each.name != "keeps_resume_id" for each in fields(Capabilities)})
"""The broker that the tests start themselves."""

TEXTS = {each.name: str(each.metadata["text"]) for each in fields(Capabilities)}
"""Descriptions of the capabilities, by name."""


def needs(*names: str) -> pytest.MarkDecorator:
    """Mark a test, or a parameter of one, as valid only for brokers with these capabilities.

    Raises:
        ValueError: there is no such capability.
    """
    _check(names)
    return pytest.mark.needs(*names)


def skip_without(capabilities: Capabilities, names: Iterable[str]) -> None:
    """Skip a test that the broker in use cannot pass."""
    names = list(names)
    _check(names)
    lacking = capabilities.lacking(names)
    if lacking:
        pytest.skip("the broker of AMQP_TEST_URL lacks " + "; ".join(f"{name}: it {TEXTS[name]}" for name in lacking))


def _check(names: Iterable[str]) -> None:
    unknown = [name for name in names if name not in TEXTS]
    if unknown:
        raise ValueError(f"there is no capability {', '.join(unknown)}; there are {', '.join(TEXTS)}")


class _Probe:
    """One method for each capability, with its name; each uses connections and queues of its own."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._stack = ExitStack()

    def finds(self, has: Callable[[], bool]) -> bool:
        """Whether a broker has a capability, measured by one of the methods below."""
        try:
            with ExitStack() as self._stack:
                return has()
        except AmqpError:
            return False

    # ------------------------------------------------------------------------------------------------- logging in
    def is_broker_j(self) -> bool:
        return "Broker-J" in str(self._client().server_properties.get("product"))

    def virtual_hosts(self) -> bool:
        try:
            self._client(_fresh())
        except VirtualHostRefused:
            return True
        return False

    def durable_host(self) -> bool:
        client = self._client("durable")
        with self._queue(client, durable=True) as queue:
            found = client.query_queue(queue)
            return found is not None and bool(found.durable)

    def checks_passwords(self) -> bool:
        try:
            self._client(password=f"not {self._broker.password}")
        except AuthenticationFailed:
            return True
        return False

    # ------------------------------------------------------------------------------------------------- publishing
    def refuses_unknown_arguments(self) -> bool:
        try:
            with self._queue(self._client(), arguments={"no.such.argument": 1}):
                return False
        except IllegalArgument:
            return True

    def rejects_unroutable(self) -> bool:
        client = self._client()
        client.publish(Message(b""), "amq.direct", _fresh())
        return _is_rejected(client)

    def rejects_overflow(self) -> bool:
        client = self._client()
        with self._queue(client, arguments={"qpid.max_count": 1, "qpid.policy_type": "reject"}) as queue:
            for _ in range(2):
                client.publish(Message(b""), routing_key=queue)
            return _is_rejected(client)

    def stops_producers(self) -> bool:
        client = self._client()
        arguments: dict[str, object] = {"qpid.max_count": 1, "qpid.policy_type": "producer_flow_control"}
        with self._queue(client, arguments=arguments) as queue:
            for _ in range(2):
                client.publish(Message(b""), routing_key=queue)
            client.confirm()

            def stopped() -> bool:
                client.sync()
                return client._publisher.credit.left == 0

            return _comes_true(stopped)

    def alternate_exchange(self) -> bool:
        client, alternate, exchange = self._client(), _fresh(), _fresh()
        client.declare_exchange(alternate, "fanout")
        with self._queue(client) as rest, self._queue(client, alternate_exchange=alternate) as rejecting:
            client.bind(rest, alternate, "")
            client.declare_exchange(exchange, "direct", alternate_exchange=alternate)
            client.publish(Message(b"1"), exchange, "unbound")
            client.publish(Message(b"2"), routing_key=rejecting)
            client.confirm()
            client.reject(_ids(_received(client, rejecting)), code=1, sync=True)
            found = [message.body for message in _received(client, rest)]
            client.delete_exchange(exchange)
        self._client().delete_exchange(alternate)
        return found == [b"1", b"2"]

    def takes_any_user_id(self) -> bool:
        return self._passed(properties=spec.MessageProperties(user_id=b"another user")) is not None

    # --------------------------------------------------------------------------------------------- delivered fields
    def stamps_expiration(self) -> bool:
        message = self._passed(spec.DeliveryProperties(ttl=600_000))
        return message is not None and message.delivery.expiration is not None

    def keeps_ttl(self) -> bool:
        message = self._passed(spec.DeliveryProperties(ttl=600_000))
        return message is not None and message.delivery.ttl == 600_000

    def keeps_resume_id(self) -> bool:
        message = self._passed(spec.DeliveryProperties(resume_id="r", resume_ttl=5))
        return message is not None and (message.delivery.resume_id, message.delivery.resume_ttl) == ("r", 5)

    def rewrites_headers(self) -> bool:
        message = self._passed(properties=spec.MessageProperties(application_headers={"at": Datetime(5)}))
        return message is not None and not isinstance(message.headers.get("at"), Datetime)

    # --------------------------------------------------------------------------------------------------- receiving
    def selectors(self) -> bool:
        client = self._client()
        with self._queue(client) as queue:
            for price in (1, 5):
                properties = spec.MessageProperties(application_headers={"price": price})
                client.publish(Message(b"%d" % price, properties=properties), routing_key=queue)
            client.confirm()
            return [message.body for message in _received(client, queue, selector="price > 3")] == [b"5"]

    def counts_held(self) -> bool:
        client = self._client()
        with self._one(client) as queue:
            _received(client, queue)
            return _count(self._client(), queue) == 1

    def flags_redelivered(self) -> bool:
        client, other = self._client(), self._client()
        with self._one(client) as queue:
            _received(other, queue)
            other.close()
            return [bool(message.delivery.redelivered) for message in _received(client, queue)] == [True]

    def quiet_deletion(self) -> bool:
        client, other = self._client(), self._client()
        with self._one(client) as queue:
            other.subscribe(queue)
            client.delete_queue(queue)
            other.sync()
            return True

    # ------------------------------------------------------------------------------------------------- transactions
    def requeues_on_rollback(self) -> bool:
        client = self._client()
        with self._one(client) as queue:
            messages = _received(client, queue)
            client.transactions.select()
            client.accept(_ids(messages), sync=True)
            client.transactions.rollback()
            return len(_received(self._client(), queue)) == 1

    def keeps_open_branches(self) -> bool:
        client, other, xid = self._client(), self._client(), _xid()
        with self._one(other) as queue:
            subscription = client.subscribe(queue)
            subscription.grant(1)
            subscription.flush()
            messages = [message for block in subscription.take_blocks(0) for message in messages_of(block)]
            client.transactions.dtx_select()
            client.transactions.start(xid)
            client.accept(_ids(messages), sync=True)
            client.abort()

            def noticed() -> bool:
                found = other.query_queue(queue)
                return found is not None and not found.subscriber_count

            gone = _comes_true(noticed)
            there = _received(other, queue)
            other.transactions.rollback_branch(xid)
            return gone and len(messages) == 1 and not there

    def endless_branches(self) -> bool:
        client, other, xid = self._client(), self._client(), _xid()
        with self._queue(other) as queue:
            with client.transactions.branch(xid):
                client.publish(Message(b""), routing_key=queue)
                client.confirm()
            client.transactions.set_timeout(xid, 0)
            endless = client.transactions.get_timeout(xid) == 0 and xid in client.transactions.recover()
            client.transactions.rollback_branch(xid)
            return endless

    def forgets_branches(self) -> bool:
        client = self._client()
        client.transactions.dtx_select()
        try:
            client.transactions.forget(_xid())
        except NotFound:  # a broker without dtx.forget would not look the branch up
            return True
        return False

    # --------------------------------------------------------------------------------------------------- internals
    def _client(self, vhost: str = "default", **options: Any) -> Client:
        client = dial(self._broker, vhost, call_timeout_s=_PATIENCE_S, connect_timeout=_PATIENCE_S, **options)
        self._stack.callback(client.close)
        return client

    @contextmanager
    def _queue(self, client: Client, **settings: Any) -> Iterator[str]:
        name = _fresh()
        client.declare_queue(name, **settings)
        try:
            yield name
        finally:  # on a new connection: the probe may have ended the first
            with dial(self._broker, "durable" if settings.get("durable") else "default") as cleaner:
                if cleaner.query_queue(name) is not None:
                    cleaner.delete_queue(name)

    @contextmanager
    def _one(self, client: Client) -> Iterator[str]:
        """Make a queue with one message."""
        with self._queue(client) as name:
            client.publish(Message(b""), routing_key=name)
            client.confirm()
            yield name

    def _passed(
        self, delivery: spec.DeliveryProperties | None = None, properties: spec.MessageProperties | None = None
    ) -> Message | None:
        """A message as delivered by the broker, after a few milliseconds in a queue."""
        client = self._client()
        with self._queue(client) as queue:
            subscription = client.subscribe(queue)
            message = Message(b"", delivery or spec.DeliveryProperties(), properties or spec.MessageProperties())
            client.publish(message, routing_key=queue)
            client.confirm()
            subscription.take_blocks(0.02)  # without credit no message arrives
            subscription.grant(1)
            subscription.flush()
            found = [message for block in subscription.take_blocks(0) for message in messages_of(block)]
            return found[0] if found else None


def _fresh() -> str:
    return f"probe-{uuid.uuid4().hex[:12]}"


def _xid() -> Xid:
    return Xid(format=1, global_id=uuid.uuid4().bytes, branch_id=b"probe")


def _is_rejected(client: Client) -> bool:
    try:
        client.confirm()
    except MessageRejected:
        return True
    return False


def _received(client: Client, queue: str, *, selector: str | None = None) -> list[Message]:
    """Messages that the broker delivers at once."""
    subscription = client.subscribe(queue, selector=selector)
    subscription.grant(10)
    subscription.flush()
    found = [message for block in subscription.take_blocks(0) for message in messages_of(block)]
    subscription.cancel()
    return found


def _ids(messages: Iterable[Message]) -> list[tuple[int, int]]:
    return [(each.command_id, each.command_id) for each in messages if each.command_id is not None]


def _count(client: Client, queue: str) -> int | None:
    found = client.query_queue(queue)
    return None if found is None else found.message_count


def _comes_true(condition: Callable[[], bool]) -> bool:
    try:
        wait_until(condition, "the broker to show it", _SHOWS_S)
    except TimeoutError:
        return False
    return True
