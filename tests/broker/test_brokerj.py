"""The broker that the other tests rely on does what its class promises."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.support.brokerj import BrokerConfig, BrokerFailed, BrokerJ
from tests.support.process import wait_until

if TYPE_CHECKING:
    from tests.support.fixtures import OwnBroker

pytestmark = pytest.mark.broker

ROOT = Path(__file__).resolve().parents[2]
HEADER = b"AMQP\x01\x01\x00\x0a"


def connection_start(port: int, context: ssl.SSLContext | None = None) -> bytes:
    """The first bytes that the broker sends after the protocol header: its own header and connection.start."""
    with socket.create_connection(("127.0.0.1", port), 10) as plain:
        connection = plain if context is None else context.wrap_socket(plain, server_hostname="localhost")
        with connection:
            connection.sendall(HEADER)
            answer = b""
            while len(answer) < 12 or len(answer) < 8 + int.from_bytes(answer[10:12]):
                data = connection.recv(65536)
                assert data, f"closed after {answer!r}"
                answer += data
    assert answer.startswith(HEADER)
    return answer


def test_each_listener_offers_its_mechanisms(own_broker: OwnBroker) -> None:
    broker = own_broker(listeners=("anonymous", "plain", "tls", "tls-client-auth"), durable=False)
    login = connection_start(broker.port)
    assert b"SCRAM-SHA-256" in login
    assert b"CRAM-MD5" in login
    assert b"PLAIN" not in login
    assert b"PLAIN" in connection_start(broker.ports["plain"])
    assert b"ANONYMOUS" in connection_start(broker.ports["anonymous"])

    context = ssl.create_default_context(cafile=broker.tls.ca_file)
    assert b"PLAIN" in connection_start(broker.ports["tls"], context)
    context.load_cert_chain(broker.tls.client.cert_file, broker.tls.client.key_file)
    assert b"EXTERNAL" in connection_start(broker.ports["tls-client-auth"], context)
    assert broker.url("durable", listener="tls") == f"amqps://127.0.0.1:{broker.ports['tls']}/durable"


@pytest.mark.thorough
@pytest.mark.parametrize("kill", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_restart_keeps_port_and_work_directory(own_broker: OwnBroker, kill: bool) -> None:
    broker = own_broker()
    port, work_dir, pid = broker.port, broker.work_dir, broker.pid
    broker.restart(kill=kill)
    assert (broker.port, broker.work_dir) == (port, work_dir)
    assert broker.pid != pid
    assert connection_start(port)


def test_a_port_in_use_is_an_error_with_the_log(free_port: int) -> None:
    with socket.create_server(("127.0.0.1", free_port)):
        broker = BrokerJ(BrokerConfig(port=free_port, durable=False))
        with pytest.raises(BrokerFailed, match=f"(?s)exit code 1.*{free_port} - port in use"):
            broker.start()
    assert not broker.running
    assert broker.work_dir is None


@pytest.mark.thorough
def test_the_broker_dies_with_its_parent(tmp_path: Path) -> None:
    script = (
        "from tests.support.brokerj import *\n"
        "broker = BrokerJ(BrokerConfig(durable=False)); broker.start()\n"
        "print(broker.pid, broker.work_dir, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        pid, work_dir = parent.stdout.readline().split()
        java = psutil.Process(int(pid))
        parent.kill()
    java.wait(30)
    wait_until(lambda: not Path(work_dir).exists(), "the work directory to go")


@pytest.mark.thorough
def test_a_broker_that_was_stopped_and_forgotten_leaves_nothing_behind() -> None:
    script = (
        "from tests.support.brokerj import *\n"
        "broker = BrokerJ(BrokerConfig(durable=False)); broker.start(); broker.stop()\n"
        "print(broker.work_dir, broker.work_dir.exists())"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True)
    work_dir, existed = done.stdout.split()
    assert existed == "True"
    assert not Path(work_dir).exists()


@pytest.mark.thorough
def test_make_broker_prints_how_to_connect_and_stops_on_a_signal(free_port: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.brokerj", "--port", str(free_port)],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        banner = [process.stdout.readline() for _ in range(9)]
        assert f"amqp://127.0.0.1:{free_port}/default" in "".join(banner)
        assert "export AMQP_URL=" in banner[-2]
        assert "export AMQP_TEST_URL=" in banner[-1]
        assert connection_start(free_port)
        java = [child for child in psutil.Process(process.pid).children() if child.name() == "java"]
        os.kill(process.pid, signal.SIGTERM)
        assert process.stdout.read() == "stopped\n"
        assert process.wait(30) == 0
    assert len(java) == 1
    assert not java[0].is_running()
