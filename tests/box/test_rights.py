"""Rights over 0-9-1, with pika: the table and the texts of RabbitMQ."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from amqp_core import ConnectOptions, connect
from amqp_core.address import parse_url
from amqp_core.broker import Broker, running
from amqp_core.broker.rights import Grants, Patterns, Right
from amqp_core.errors import UnauthorizedAccess
from tests.box.logins_support import PASSWORD, write_users

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pika.adapters.blocking_connection import BlockingChannel

Need = tuple[str, str, str]
"""Right, kind and name; ``~`` begins a regular expression."""


def a(right: str, place: str) -> Need:
    kind, _, name = place.partition(" ")
    return right, kind, name


def publish(channel: BlockingChannel, exchange: str, key: str) -> None:
    channel.confirm_delivery()
    channel.basic_publish(exchange, key, b"x")


GENERATED = r"~amq\.gen-[\w-]+"
TABLE: dict[str, tuple[Callable[[BlockingChannel], object], list[Need]]] = {
    "declare": (lambda channel: channel.queue_declare("new"), [a("configure", "queue new")]),
    "declare again": (lambda channel: channel.queue_declare("q"), [a("configure", "queue q")]),
    "declare passive": (lambda channel: channel.queue_declare("q", passive=True), [a("configure", "queue q")]),
    "declare server-named": (
        lambda channel: channel.queue_declare("", exclusive=True), [a("configure", f"queue {GENERATED}")]
    ),
    "dead letters": (
        lambda channel: channel.queue_declare("new", arguments={"x-dead-letter-exchange": "x"}),
        [a("configure", "queue new"), a("read", "queue new"), a("write", "exchange x")],
    ),
    "dead letters, default exchange": (
        lambda channel: channel.queue_declare("new", arguments={"x-dead-letter-exchange": ""}),
        [a("configure", "queue new"), a("read", "queue new"), a("write", "exchange amq.default")],
    ),
    "delete": (lambda channel: channel.queue_delete("q"), [a("configure", "queue q")]),
    "delete missing": (lambda channel: channel.queue_delete("new"), [a("configure", "queue new")]),
    "purge": (lambda channel: channel.queue_purge("q"), [a("read", "queue q")]),
    "bind": (lambda channel: channel.queue_bind("q", "x", "k"), [a("write", "queue q"), a("read", "exchange x")]),
    "unbind": (lambda channel: channel.queue_unbind("q", "x", "k"), [a("write", "queue q"), a("read", "exchange x")]),
    "exchange declare": (lambda channel: channel.exchange_declare("new"), [a("configure", "exchange new")]),
    "exchange declare again": (lambda channel: channel.exchange_declare("x"), [a("configure", "exchange x")]),
    "exchange declare passive": (
        lambda channel: channel.exchange_declare("x", passive=True), [a("configure", "exchange x")]
    ),
    "alternate": (
        lambda channel: channel.exchange_declare("new", arguments={"alternate-exchange": "x"}),
        [a("configure", "exchange new"), a("read", "exchange new"), a("write", "exchange x")],
    ),
    "exchange delete": (lambda channel: channel.exchange_delete("x"), [a("configure", "exchange x")]),
    "exchange bind": (
        lambda channel: channel.exchange_bind("amq.fanout", "x", "k"),
        [a("write", "exchange amq.fanout"), a("read", "exchange x")],
    ),
    "exchange unbind": (
        lambda channel: channel.exchange_unbind("amq.fanout", "x", "k"),
        [a("write", "exchange amq.fanout"), a("read", "exchange x")],
    ),
    "get": (lambda channel: channel.basic_get("q"), [a("read", "queue q")]),
    "consume": (lambda channel: channel.basic_consume("q", lambda *_: None), [a("read", "queue q")]),
    "publish": (lambda channel: publish(channel, "x", "k"), [a("write", "exchange x")]),
    "publish to a queue": (lambda channel: publish(channel, "", "q"), [a("write", "exchange amq.default")]),
}  # fmt: skip


def patterns_for(needs: list[Need]) -> Patterns:
    """Patterns that allow these needs and nothing else."""
    found: dict[str, str] = {}
    for right in Right:
        names = [name[1:] if name[0] == "~" else re.escape(name) for kind, _, name in needs if kind == right.value]
        found[right.value] = f"^({'|'.join(names)})$" if names else ""
    return Patterns(**found)


def grants() -> dict[str, Grants]:
    """For each row one user that may just do it, and for each of its needs one that lacks it."""
    made = {"owner": Grants(Patterns()), "elsewhere": Grants(None, {"other": Patterns()})}
    for title, (_, needs) in TABLE.items():
        made[title] = Grants(patterns_for(needs))
        for number, missing in enumerate(needs):
            made[f"{title} {number}"] = Grants(patterns_for([each for each in needs if each != missing]))
    return made


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(users=write_users(tmp_path_factory.mktemp("users") / "users.json", grants())) as found:
        yield found


@pytest.fixture
def log_in(broker: Broker) -> Iterator[Callable[[str], pika.BlockingConnection]]:
    connections: list[pika.BlockingConnection] = []

    def make(name: str, virtual_host: str = "/") -> pika.BlockingConnection:
        login = pika.PlainCredentials(name, PASSWORD)
        parameters = pika.ConnectionParameters("127.0.0.1", broker.port, virtual_host, login)
        connections.append(pika.BlockingConnection(parameters))
        return connections[-1]

    yield make
    for each in connections:
        if each.is_open:
            each.close()


@pytest.mark.parametrize("title", TABLE)
def test_an_operation_needs_these_rights_and_no_others(
    log_in: Callable[[str], pika.BlockingConnection], title: str
) -> None:
    operation, needs = TABLE[title]
    owner = log_in("owner").channel()
    for number, (right, kind, name) in enumerate(needs):
        prepare(owner)
        connection = log_in(f"{title} {number}")
        with pytest.raises(ChannelClosedByBroker) as caught:
            operation(connection.channel())
        assert caught.value.reply_code == 403
        pattern = name[1:] if name[0] == "~" else re.escape(name)
        user = re.escape(f"{title} {number}")
        text = rf"ACCESS_REFUSED - {right} access to {kind} '{pattern}' in vhost '/' refused for user '{user}'"
        assert re.fullmatch(text, caught.value.reply_text)
        assert connection.is_open
    prepare(owner)
    operation(log_in(title).channel())


def prepare(owner: BlockingChannel) -> None:
    """A queue and an exchange, bound, and nothing else."""
    for queue in ("q", "new"):
        owner.queue_delete(queue)
    for exchange in ("x", "new"):
        owner.exchange_delete(exchange)
    owner.queue_declare("q")
    owner.exchange_declare("x")
    owner.queue_bind("q", "x", "k")
    owner.exchange_bind("amq.fanout", "x", "k")


def test_a_virtual_host_that_the_login_may_not_open(broker: Broker, log_in: Callable[..., object]) -> None:
    broker.add_virtual_host("other")
    log_in("elsewhere", "other")
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match=r"530.*access to vhost '/' refused for user"):
        log_in("elsewhere", "/")


@pytest.mark.parametrize("protocol", ["0-10", "0-9-1", "0-9"])
def test_our_client_says_what_is_refused(broker: Broker, protocol: str) -> None:
    hosts, virtual_host, _ = parse_url(broker.url)
    options = ConnectOptions(
        hosts=hosts, virtual_host=virtual_host, username="get", password=PASSWORD, protocol=protocol
    )
    text = "configure access to queue 'z' in vhost '/' refused for user 'get'"
    with connect(options) as client, pytest.raises(UnauthorizedAccess, match=text):
        client.declare_queue("z")
