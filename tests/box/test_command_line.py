"""``python -m amqp_core.broker`` as a process."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pika
import pytest

from amqp_core.broker import running
from amqp_core.broker.__main__ import main
from amqp_core.broker.server import Server
from amqp_core.broker.settings import Settings
from amqp_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND = (sys.executable, "-m", "amqp_core.broker")


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    arguments = (
        "--port",
        "0",
        "--virtual-host",
        "test",
        "--queue",
        "prices",
        "orders",
        "--bind",
        "amq.topic:prices:stocks.#",
    )
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as found:
        yield found
        found.kill()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_says_where_it_is_and_ends_cleanly(process: subprocess.Popen[str], number: int, code: int) -> None:
    assert process.stdout is not None
    found = re.fullmatch(r"amqp://127\.0\.0\.1:(\d+)/%2F  user guest, password guest\n", process.stdout.readline())
    assert found is not None
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", int(found[1])))
    channel = connection.channel()
    channel.basic_publish("amq.topic", "stocks.a.b", b"1")
    assert channel.basic_get("prices", auto_ack=True)[2] == b"1"
    channel.queue_declare("orders", passive=True)
    pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", int(found[1]), "test")).close()
    process.send_signal(number)
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="CONNECTION_FORCED"):
        connection.process_data_events(10)
    _, log = process.communicate(timeout=20)
    assert process.returncode == code
    assert "guest is connected to '/'" in log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--port", "70000"), "'70000' is not a port"),
        (("--port", "²"), "'²' is not a port"),
        (("--host", ""), "no address is given, which would mean all of this machine: give one, or 0.0.0.0 for all"),
        (("--host", "h" * 64), "'h{64}' is neither an address nor a name of a machine"),
        (("--host", "a..b"), "'a..b' is neither an address nor a name of a machine"),
        (("--host", "\udcff"), "is not text in UTF-8"),
        (("--queue", "a", ""), "an empty name is not allowed"),
        (("--queue", "\udcff"), "is not text in UTF-8"),
        (("--queue", "ü" * 128), "a name of 256 bytes is too long: give one of at most 255"),
        (("--virtual-host", "\udcff"), "is not text in UTF-8"),
        (("--virtual-host", "v" * 256), "a name of 256 bytes is too long"),
        (("--queue", "q", "--bind", "amq.topic:q:\udcff"), "is not text in UTF-8"),
        (("--queue", "q", "--bind", "amq.topic:q:" + "k" * 256), "a name of 256 bytes is too long"),
        (
            ("--stor", "x"),
            r"error: there is no argument --stor; similar is --store\. python -m amqp_core\.broker --help lists",
        ),
        (("--memory-limit", "3T"), "'3T' is not a size of memory"),
        (("--max-connections", "0"), "'0' is not a number of connections"),
        (("--max-connections", "²"), "'²' is not a number of connections"),
        (("--bind", "x"), "'x' is not EXCHANGE:QUEUE"),
        (("--bind", "amq.topic:missing"), "missing.*Correct --queue or --bind"),
        (("--queue", "amq.own"), "amq.own.*Correct --queue or --bind"),
    ],
)
def test_wrong_arguments(arguments: tuple[str, ...], text: str) -> None:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert re.search(text, done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("host", ["", "a..b", "\udcff"])
def test_an_address_that_is_none_in_a_program(host: str) -> None:
    with pytest.raises(UsageError, match=r"AMQP_ARGUMENT_INVALID.*host"), running(host=host):
        pass


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_is_none_in_a_program(port: int) -> None:
    with pytest.raises(UsageError, match=r"AMQP_ARGUMENT_INVALID.*port.*0 \(any free port\)"), running(port=port):
        pytest.fail("nothing listens")


def test_whatever_keeps_a_broker_in_a_program_from_its_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Server) -> None:
        raise OverflowError("seen in the test")

    monkeypatch.setattr(Server, "_expect", fail)
    with pytest.raises(OverflowError, match="seen in the test"), running():
        pytest.fail("nothing listens")


def test_as_many_files_as_connections() -> None:
    with subprocess.Popen(
        ["/bin/sh", "-c", 'ulimit -S -n 64; exec "$@"', "sh", *COMMAND, "--port", "0", "--max-connections", "300"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        port = int(process.stdout.readline().split("/")[2].split(":")[1])
        with ExitStack() as stack:
            for _ in range(300):
                client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
                client.sendall(b"AMQP\0\0\x09\x01")
                assert client.recv(1) == b"\1", "connection.start"
        process.terminate()


def test_who_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a store is read."""

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Settings, "server", interrupt)
    assert main(["--port", "0"]) == 130


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        arguments = ("--port", str(port))
        done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert f"Cannot listen on port {port}" in done.stderr
