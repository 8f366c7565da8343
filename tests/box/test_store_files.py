"""Stores that cannot be used: a clear error, and nothing that was confirmed is lost."""

from __future__ import annotations

import os
import re
import resource
import sqlite3
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pika
import pytest

from amqp_core.broker import running
from amqp_core.broker.error_conditions import BrokerCondition
from amqp_core.broker.store.database import Database, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from amqp_core.broker import Broker

COMMAND = (sys.executable, "-m", "amqp_core.broker", "--port", "0")


def of_another_program(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()


def of_another_version(path: Path) -> None:
    with running(store=path):
        pass
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()


def not_a_database(path: Path) -> None:
    path.write_bytes(b"no database at all, and long enough to have a header" * 100)


def filled(path: Path, count: int = 200) -> None:
    with running(store=path) as broker, connected(broker.port) as connection:
        publish(connection, count)


def damaged(path: Path) -> None:
    filled(path)
    content = bytearray(path.read_bytes())
    for start in range(4096, len(content), 4096):
        content[start : start + 8] = bytes(8)
    path.write_bytes(content)


def with_a_damaged_row(path: Path) -> None:
    filled(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE queues SET arguments = 'nothing'")
    connection.close()


def connected(port: int) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))


def publish(
    connection: pika.BlockingConnection, count: int, size: int = 100, confirmed: list[int] | None = None
) -> None:
    """Publish messages one by one, and note those that are confirmed."""
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    for number in range(count):
        body = b"%d:" % number + os.urandom(size)
        channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2))
        if confirmed is not None:
            confirmed.append(number)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (of_another_program, "is a database of another program. Give another file"),
        (of_another_version, "is of version 99, this program needs version 1. Use the program that wrote it"),
        (not_a_database, "file is not a database. Restore a copy of it"),
        (damaged, "Cannot read the store .* Restore a copy"),
        (with_a_damaged_row, "holds what this program does not write .* Restore a copy"),
        (lambda path: path.mkdir(), "Give a file in a directory that exists"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_store(tmp_path: Path, make: Callable[[Path], object], text: str) -> None:
    path = tmp_path / "broker.db"
    make(path)
    done = subprocess.run([*COMMAND, "--store", str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert re.search(text, done.stderr)
    assert "Traceback" not in done.stderr
    with pytest.raises(StoreError, match=text), running(store=path):
        pass


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with (
        pytest.raises(StoreError, match="Give a file in a directory that exists"),
        running(store=tmp_path / "no" / "f"),
    ):
        pass


def test_a_store_in_use(tmp_path: Path) -> None:
    path = tmp_path / "broker.db"
    with running(store=path):
        done = subprocess.run([*COMMAND, "--store", str(path)], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 3
        assert "Stop the process that uses it, or give another file" in done.stderr
        with pytest.raises(StoreError, match="Stop the process that uses it"), running(store=path):
            pass
    with running(store=path):
        pass


def test_a_store_that_cannot_be_written_at_the_end_is_closed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the disk is full, and messages that clients hold come back with the last commit."""
    path = tmp_path / "broker.db"
    declared = threading.Event()

    def fail(_: object, statements: object) -> None:
        raise StoreError(BrokerCondition.STORE_FULL(operation="write", path=path, reason="disk full"))

    def declare(broker: Broker) -> None:
        broker._server.hosts["/"].declare_queue("q", owner=None, durable=True)
        declared.set()

    def fill_up(broker: Broker) -> None:
        patch.setattr(Database, "commit", fail)
        broker._loop.call_soon_threadsafe(declare, broker)
        assert declared.wait(30)

    full = pytest.raises(StoreError, match="AMQP_STORE_FULL")
    with monkeypatch.context() as patch, full, running(store=path) as broker:
        fill_up(broker)
    with running(store=path):
        pass


def test_a_full_disk_ends_the_broker_and_loses_nothing_that_was_confirmed(tmp_path: Path) -> None:
    path = tmp_path / "broker.db"
    most = 2_000_000

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    arguments = [*COMMAND, "--store", str(path)]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=limit  # noqa: PLW1509 - no threads
    ) as process:  # fmt: skip
        assert process.stdout is not None
        found = re.match(r"amqp://127\.0\.0\.1:(\d+)/", process.stdout.readline())
        assert found is not None
        connection = connected(int(found[1]))
        confirmed: list[int] = []
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            publish(connection, 1000, size=50_000, confirmed=confirmed)
        _, log = process.communicate(timeout=30)
    assert process.returncode == 3
    assert f"Cannot write the store {path}" in log
    assert "start the broker again: all that was confirmed is in the store" in log
    assert "Traceback" not in log
    assert len(confirmed) > 5
    with running(store=path) as broker, connected(broker.port) as connection:
        channel = connection.channel()
        bodies = []
        while (body := channel.basic_get("q", auto_ack=True)[2]) is not None:
            bodies.append(int(body.split(b":")[0]))
    assert bodies[: len(confirmed)] == confirmed
    assert len(bodies) <= len(confirmed) + 1, "the last may be there without its confirmation"
