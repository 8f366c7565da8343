"""The fixtures that pytest finds where this package is installed."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import amqp_core.broker
from amqp_core import ConnectOptions, connect, parse_url

if TYPE_CHECKING:
    from pathlib import Path

TESTS = """
import pytest

from amqp_core import ConnectOptions, connect, parse_url


@pytest.mark.parametrize("number", [1, 2])
def test_each_test_has_a_virtual_host_of_its_own(amqp_url, number):
    hosts, virtual_host, _ = parse_url(amqp_url)
    options = ConnectOptions(hosts=hosts, virtual_host=virtual_host, username="guest", password="guest")
    with connect(options) as client:
        assert client.query_queue("orders") is None
        client.declare_queue("orders")
        client.publish_to_queue("orders", b"1", content_type="text/plain")
        client.confirm()
        assert client.query_queue("orders").message_count == 1


def test_the_broker_is_one(amqp_broker, amqp_url):
    assert f":{amqp_broker.port}/" in amqp_url
"""


def test_one_call_runs_a_broker() -> None:
    assert {"running", "Broker"} <= set(amqp_core.broker.__all__)
    with amqp_core.broker.running() as broker:
        hosts, virtual_host, _ = parse_url(broker.url)
        options = ConnectOptions(
            hosts=hosts, virtual_host=virtual_host, username=broker.username, password=broker.password
        )
        with connect(options) as client:
            client.declare_queue("orders")
            assert client.query_queue("orders") is not None
    with pytest.raises(AttributeError, match="walking"):
        amqp_core.broker.walking  # noqa: B018 - it is the access that fails


def test_a_port_in_use_leaves_the_store_free(tmp_path: Path) -> None:
    store = tmp_path / "broker.db"
    with amqp_core.broker.running() as other:
        with pytest.raises(OSError) as raised, amqp_core.broker.running(port=other.port, store=store):  # noqa: PT011 - any
            pass
        with amqp_core.broker.running(store=store):
            assert raised.value.errno, "nothing of the first one is kept by its error"


def test_pytest_does_not_load_the_broker_before_it_is_used() -> None:
    code = "import sys, amqp_core.broker.pytest_plugin; print('amqp_core.broker.server' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


def test_a_test_needs_nothing_but_the_fixtures(tmp_path: Path) -> None:
    (tmp_path / "test_orders.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
