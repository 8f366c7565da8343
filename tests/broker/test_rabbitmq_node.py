"""The RabbitMQ node that other tests rely on does what its class promises."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pika
import psutil
import pytest
from pika.exceptions import ChannelClosedByBroker, ProbableAuthenticationError

from tests.support.process import wait_until
from tests.support.rabbitmq import BrokerFailed, RabbitMQConfig, RabbitMQNode, Rights

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pika.adapters.blocking_connection import BlockingChannel

    from tests.support.fixtures import OwnRabbitMQ

pytestmark = pytest.mark.broker

ROOT = Path(__file__).resolve().parents[2]
HEADER = b"AMQP\x00\x00\x09\x01"


def connection_start(port: int, context: ssl.SSLContext | None = None) -> bytes:
    """The first frame that the node sends after the protocol header: connection.start with its mechanisms."""
    with socket.create_connection(("127.0.0.1", port), 10) as plain:
        connection = plain if context is None else context.wrap_socket(plain, server_hostname="localhost")
        with connection:
            connection.sendall(HEADER)
            answer = b""
            while not answer.endswith(b"\xce"):
                data = connection.recv(65536)
                assert data, f"closed after {answer!r}"
                answer += data
    assert answer.startswith(b"\x01\x00\x00")
    return answer


def channel(node: RabbitMQNode, vhost: str = "/", login: tuple[str, str] | None = None, **more: Any) -> BlockingChannel:
    """A channel of a new connection; closed with the process that it ends with."""
    user, password = login or (node.username, node.password)
    parameters = pika.ConnectionParameters(
        node.host, node.port, vhost, pika.PlainCredentials(user, password), heartbeat=0, **more
    )
    opened: BlockingChannel = pika.BlockingConnection(parameters).channel()
    return opened


@pytest.fixture
def durable_queue_of(rabbitmq_private: RabbitMQNode) -> Iterator[tuple[RabbitMQNode, str]]:
    """A node that may be killed, and a durable queue with one confirmed message."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    sender = channel(rabbitmq_private, "durable")
    sender.queue_declare(name, durable=True)
    sender.confirm_delivery()
    sender.basic_publish("", name, b"kept", pika.BasicProperties(delivery_mode=2), mandatory=True)
    sender.connection.close()
    yield rabbitmq_private, name
    if not rabbitmq_private.running:
        rabbitmq_private.start()
    cleaner = channel(rabbitmq_private, "durable")
    cleaner.queue_delete(name)
    cleaner.connection.close()


@pytest.mark.sampled("kill", every=2)
@pytest.mark.parametrize("kill", [False, True])
def test_restart_keeps_ports_and_messages(durable_queue_of: tuple[RabbitMQNode, str], kill: bool) -> None:
    node, queue = durable_queue_of
    port, pid, descendants = node.port, node.pid, psutil.Process(node.pid).children(recursive=True)
    assert descendants
    node.restart(kill=kill)
    assert node.port == port
    assert node.pid != pid
    psutil.wait_procs(descendants, 10)
    assert not [child for child in descendants if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    receiver = channel(node, "durable")
    _, _, body = receiver.basic_get(queue, auto_ack=True)
    assert body == b"kept"
    receiver.connection.close()


def test_a_frozen_node_answers_when_it_is_resumed(rabbitmq_private: RabbitMQNode) -> None:
    rabbitmq_private.pause()
    with socket.create_connection(("127.0.0.1", rabbitmq_private.port), 10) as connection:
        connection.sendall(HEADER)
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        rabbitmq_private.resume()
        connection.settimeout(30)
        assert connection.recv(1) == b"\x01"


@pytest.mark.thorough
def test_virtual_hosts_users_and_rights(own_rabbitmq: OwnRabbitMQ) -> None:
    node = own_rabbitmq(
        listeners=("tls",),
        users={"guest": "guest", "reader": "r,:@/%"},
        rights={"reader": Rights(configure="^$", write="^$")},
    )
    assert node.url("with/slash") == f"amqp://127.0.0.1:{node.port}/with%2Fslash"
    assert node.url("/", "tls") == f"amqps://127.0.0.1:{node.ports['tls']}/%2F"

    owner = channel(node, "with/slash")
    owner.queue_declare("q")
    reader = channel(node, "with/slash", ("reader", "r,:@/%"))
    reader.basic_get("q")
    with pytest.raises(ChannelClosedByBroker, match="ACCESS_REFUSED"):
        reader.queue_declare("other")
    node.set_rights("reader", "with/slash", Rights(configure="^other$"))
    allowed = reader.connection.channel()
    allowed.queue_declare("other")
    reader.connection.close()
    with pytest.raises(ProbableAuthenticationError):
        channel(node, login=("guest", "wrong"))

    node.set_policy("short", "^q$", {"max-length": 3}, vhost="with/slash")
    (policy,) = json.loads(node.ctl("list_policies", "-p", "with/slash", "--formatter", "json"))
    assert (policy["pattern"], json.loads(policy["definition"])) == ("^q$", {"max-length": 3})
    node.clear_policy("short", vhost="with/slash")
    assert node.evaluate('rabbit_policy:list(<<"with/slash">>)') == "[]"
    owner.connection.close()

    # The TLS listener: EXTERNAL for those that show a certificate, and passwords.
    context = ssl.create_default_context(cafile=node.tls.ca_file)
    offered = connection_start(node.ports["tls"], context)
    assert b"PLAIN" in offered
    context.load_cert_chain(node.tls.client.cert_file, node.tls.client.key_file)
    assert b"EXTERNAL" in connection_start(node.ports["tls"], context)
    parameters = pika.ConnectionParameters(
        "localhost",
        node.ports["tls"],
        "default",
        pika.credentials.ExternalCredentials(),
        ssl_options=pika.SSLOptions(context, "localhost"),
    )
    pika.BlockingConnection(parameters).close()


def test_a_memory_alarm_blocks_publishers_until_it_is_cleared(rabbitmq_private: RabbitMQNode) -> None:
    sender = channel(rabbitmq_private)
    said: list[str] = []
    sender.connection.add_on_connection_blocked_callback(lambda *_: said.append("blocked"))
    sender.connection.add_on_connection_unblocked_callback(lambda *_: said.append("unblocked"))
    rabbitmq_private.set_memory_alarm(True)
    sender.basic_publish("", "no such queue", b"")  # a node says it only to those that publish

    def heard(what: list[str]) -> bool:
        sender.connection.process_data_events(0.05)
        return said == what

    wait_until(lambda: heard(["blocked"]), "connection.blocked")
    rabbitmq_private.set_memory_alarm(False)
    wait_until(lambda: heard(["blocked", "unblocked"]), "connection.unblocked")
    sender.connection.close()


@pytest.mark.thorough
def test_a_port_in_use_is_an_error_with_the_log(free_port: int) -> None:
    with socket.create_server(("127.0.0.1", free_port)):
        node = RabbitMQNode(RabbitMQConfig(port=free_port))
        with pytest.raises(BrokerFailed, match=r"(?s)RabbitMQ ended with exit code.*eaddrinuse"):
            node.start()
    assert not node.running
    assert node.work_dir is None


@pytest.mark.thorough
def test_make_broker_prints_how_to_connect_and_leaves_nothing_behind_when_it_is_killed(free_port: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.rabbitmq", "--port", str(free_port)],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        banner = [process.stdout.readline() for _ in range(6)]
        assert f"amqp://127.0.0.1:{free_port}/%2F" in "".join(banner)
        assert "export AMQP_URL=" in banner[-1]
        assert b"AMQPLAIN" in connection_start(free_port)

        children = psutil.Process(process.pid).children()
        (work_dir,) = {child.cwd() for child in children if Path(child.cwd()) != ROOT}
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) > 4  # the node, its helpers, epmd, and those that watch both
        process.kill()
    _, alive = psutil.wait_procs(family, 30)
    assert not alive
    wait_until(lambda: not Path(work_dir).exists(), "the work directory to go")
