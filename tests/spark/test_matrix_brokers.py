"""The broker that the crash matrix is given: started by a command, killed with all that this has started."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from amqp_core.errors import AmqpError, ConnectionFailed
from tests.matrix import __main__ as program
from tests.matrix.brokers import GivenBroker
from tests.matrix.cases import (
    ALO,
    AMO,
    BROKER,
    END,
    EO,
    LOG_POINTS,
    MEMORY_BROKER,
    SOURCE,
    Case,
    all_cases,
    quorum_cases,
)
from tests.matrix.results import how_to_repeat
from tests.matrix.servers import BROKER_J, SERVERS
from tests.spark.matrix_support import EXACTLY_ONCE, FORGETFUL, result_of
from tests.support.brokerj import BrokerFailed, BrokerJ
from tests.support.dial import by_way_of, dial
from tests.support.fakepeer import FakePeer, serve
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
BROKER_CASE = "source:exactly-once:tx-sent@broker#0"
SERVER = """
import sys, threading
from tests.support.fakepeer import FakePeer, serve
from tests.support.process import wait_until
with FakePeer(serve, port=int(sys.argv[1]), mechanisms=("PLAIN",)):
    print("listening", flush=True)
    threading.Event().wait()
"""


@pytest.fixture
def command(tmp_path: Path, free_port: int) -> str:
    """Starts a server at a free port, as a child of a shell that writes down its process id."""
    (tmp_path / "server.py").write_text(SERVER, encoding="utf-8")
    run = shlex.join([sys.executable, str(tmp_path / "server.py"), str(free_port)])
    return f"cd {ROOT} && PYTHONPATH=. {run} & echo $! >> {tmp_path}/pids; wait"


@pytest.fixture
def broker(command: str, free_port: int) -> Iterator[GivenBroker]:
    broker = GivenBroker(f"amqp://127.0.0.1:{free_port}/v", "guest", "guest", command)
    yield broker
    broker.close()


def servers(directory: Path) -> list[bool]:
    """Of every server that was started, whether it lives."""

    def lives(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    return [lives(int(line)) for line in (directory / "pids").read_text().split()]


def runs(broker: GivenBroker) -> bool:
    return broker.running


def test_a_broker_is_started_killed_with_its_children_and_started_again(broker: GivenBroker, tmp_path: Path) -> None:
    assert not runs(broker)
    for number in range(2):
        broker.start()
        assert runs(broker)
        assert servers(tmp_path) == [False] * number + [True]
        dial(broker, heartbeat=0).close()
        broker.kill9()
        assert not runs(broker)
        with pytest.raises(ConnectionFailed):
            dial(broker)
    wait_until(lambda: servers(tmp_path) == [False, False], "both are gone")
    assert broker.log().count("listening") == 2
    broker.start()
    broker.close()
    wait_until(lambda: servers(tmp_path) == [False] * 3, "all are gone")


def test_a_broker_that_is_there_before_its_command_is_not_ours_to_kill(broker: GivenBroker, free_port: int) -> None:
    with (
        FakePeer(serve, port=free_port, mechanisms=("PLAIN",)),
        pytest.raises(BrokerFailed, match=rf"answers at 127.0.0.1:{free_port} before .* was run: stop it"),
    ):
        broker.start()
    assert not broker.running


def test_a_command_that_ends_is_named_with_what_it_says(free_port: int) -> None:
    broker = GivenBroker(
        f"amqp://127.0.0.1:{free_port}/", "guest", "guest", "echo 'no such option: --auht' >&2; exit 3"
    )
    with pytest.raises(BrokerFailed, match=r"(?s)ended with 3:.*no such option: --auht"):
        broker.start()
    broker.close()


def test_a_command_that_never_lets_anybody_in_is_named_with_what_it_says(
    free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = "echo loading the store; exec sleep 600"
    broker = GivenBroker(f"amqp://127.0.0.1:{free_port}/", "guest", "s3cret", command, timeout_s=0.1)
    ready = GivenBroker._ready

    def has_spoken(broker: GivenBroker) -> bool:
        wait_until(lambda: "loading the store" in broker.log(), "its command to speak")
        return ready(broker)

    monkeypatch.setattr(GivenBroker, "_ready", has_spoken)
    with pytest.raises(BrokerFailed, match=r"(?s)waited 0.1 s .*loading the store") as failed:
        broker.start()
    assert "s3cret" not in str(failed.value)
    assert not broker.running
    broker.close()


def test_a_broker_without_a_command_is_used_and_never_killed() -> None:
    with FakePeer(serve, mechanisms=("PLAIN",)) as server:
        broker = GivenBroker(f"amqp://127.0.0.1:{server.port}/v", "guest", "guest")
        broker.start()
        assert broker.running
        with pytest.raises(RuntimeError, match="is not killed"):
            broker.kill9()
        broker.close()
        dial(broker).close()
        assert server.connections == 2
    with pytest.raises(AmqpError):
        broker.start()


def test_connections_go_through_the_proxy_to_the_same_virtual_host() -> None:
    assert by_way_of(7, "amqp://broker.example.org:5673/market") == "amqp://127.0.0.1:7/market"
    assert by_way_of(7, "amqp://broker.example.org") == "amqp://127.0.0.1:7"


# -- the command line -------------------------------------------------------------------------------------------------


def test_without_a_url_each_job_has_a_broker_of_its_own() -> None:
    options, given = program.parsed([])
    assert (options.jobs, options.output.name) == (2, "crash-matrix.jsonl")
    assert isinstance(given.make(), BrokerJ)
    assert given.server is BROKER_J
    assert [given.left_out(case) for case in all_cases()] == [None] * len(all_cases())


@pytest.mark.parametrize("name", [name for name, server in SERVERS.items() if server.guarantees == (ALO, AMO)])
def test_servers_of_0_9_1_run_what_needs_no_transaction(name: str) -> None:
    options, given = program.parsed(["--broker", name])
    assert options.output.name == f"crash-matrix-{name}.jsonl"
    run = [case for case in all_cases() if given.left_out(case) is None]
    assert {case.guarantee for case in run} == {ALO, AMO}
    assert set(run) == {case for case in all_cases() if case.guarantee != EO}
    result = result_of(EXACTLY_ONCE)
    result.broker = name
    assert f"--broker {name}" in how_to_repeat(result)


def test_a_server_of_streams_runs_the_source_exactly_once() -> None:
    _, given = program.parsed(["--broker", "rabbitmq-stream"])
    run = [case for case in all_cases() if given.left_out(case) is None]
    assert {(case.kind, case.guarantee) for case in run} == {("source", EO)}
    assert {step.point for case in run for step in case.steps} == LOG_POINTS | {END}
    assert {"driver", "reader", "worker", "connection", "broker"} <= {victim for case in run for victim in case.victims}


@pytest.mark.parametrize("name", [name for name, server in SERVERS.items() if server.recognises])
def test_a_server_of_quorum_queues_runs_the_source_with_every_guarantee(name: str) -> None:
    _, given = program.parsed(["--broker", name])
    cases = all_cases(quorum=True)
    run = [case for case in cases if given.left_out(case) is None]
    assert [case for case in run if case.guarantee == EO] == [
        case for case in cases if case.guarantee == EO and case.kind == SOURCE and MEMORY_BROKER not in case.victims
    ]
    assert {case.guarantee for case in run if case.writes} == {ALO}


def test_points_of_quorum_queues_are_left_out_elsewhere() -> None:
    others = [server for server in SERVERS.values() if not server.recognises]
    assert all(server.left_out(case) is not None for server in others for case in quorum_cases())


def test_what_a_given_broker_cannot_show_is_left_out() -> None:
    cases = all_cases()
    _, runs_already = program.parsed(["--url", "amqp://b:5673/v"])
    left = [case for case in cases if runs_already.left_out(case)]
    assert left == [case for case in cases if {BROKER, MEMORY_BROKER} & set(case.victims)]
    _, commanded = program.parsed(["--url", "amqp://b:5673/v", "--broker-command", "exec broker"])
    left = [case for case in cases if commanded.left_out(case)]
    assert left == [case for case in cases if MEMORY_BROKER in case.victims]


@pytest.mark.parametrize("name", [BROKER_CASE, FORGETFUL])
def test_a_case_that_is_asked_for_and_cannot_be_run_is_an_error(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--url", "amqp://b/v", "--case", name, "--list"]) == 2
    assert f"crash-matrix: {name}: " in capsys.readouterr().err


def test_a_given_broker_has_a_record_of_its_own_and_login(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("s3cret\n")
    options, given = program.parsed(
        ["--url", "amqp://b:5673/v", "--username", "trader", "--password-file", str(tmp_path / "password")]
    )
    broker = given.make()
    assert (broker.url("durable"), broker.username, broker.password) == ("amqp://b:5673/v", "trader", "s3cret")
    assert (options.jobs, options.output.name) == (2, "crash-matrix-b-5673.jsonl")
    result = result_of(EXACTLY_ONCE)
    result.broker = given.url or ""
    command = how_to_repeat(result).removeprefix('make crash-matrix ARGS="').removesuffix('"')
    again, same = program.parsed(shlex.split(command))
    assert program.chosen(again) == [Case.parse(EXACTLY_ONCE)]
    assert same.url == given.url


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--broker-command", "qpidd"], "--broker-command is about the broker of --url, which is missing"),
        (["--password-file", "p"], "--password-file is about the broker of --url, which is missing"),
        (["--url", "http://b/v"], "--url: "),
        (["--url", "amqp://u:s3cret@b/v"], "--url: "),
        (["--url", "amqp://b/v", "--password-file", "/no/such/file"], "--password-file /no/such/file: "),
        (["--url", "amqp://b/v", "--broker-command", "qpidd", "--jobs", "3"], "--jobs 3: .*allowed is 1"),
    ],
)
def test_a_command_line_that_makes_no_sense(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        program.parsed(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert re.search(error, said)
    assert "s3cret" not in said
