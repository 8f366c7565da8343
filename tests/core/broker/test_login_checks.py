"""Passwords that are checked elsewhere meanwhile: what becomes of the connection, whichever protocol it speaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amqp_core.address import ConnectOptions
from amqp_core.broker.login_checks import LoginChecks
from amqp_core.broker.model.virtual_host import VirtualHost
from amqp_core.broker.v0_9.connection import ServerConnection as Connection09
from amqp_core.broker.v0_10.connection import ServerConnection as Connection010
from amqp_core.broker.v0_10.names import SessionNames
from amqp_core.connection_states import Ended, Role
from amqp_core.sasl import SaslLogin
from amqp_core.v0_9 import connection as v0_9
from amqp_core.v0_9 import spec as spec_0_9
from amqp_core.v0_10 import connection as v0_10
from amqp_core.v0_10 import spec as spec_0_10
from tests.core.broker.logins_support import logins
from tests.core.broker.peer_0_9 import method
from tests.support.machines import control

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.broker.adapter import Adapter
    from amqp_core.broker.logins import Logins

TELLS = {"capabilities": {spec_0_9.Capability.AUTHENTICATION_FAILURE_CLOSE: True}}


class HeldBack(LoginChecks):
    """Runs nothing by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[tuple[Callable[[], bool], Callable[[bool], None]]] = []

    def run(self, check: Callable[[], bool], done: Callable[[bool], None]) -> None:
        self.waiting.append((check, done))


class Pair:
    """A client that logs in with PLAIN, and the broker's side of its connection."""

    def __init__(self, protocol: str, known: Logins, checks: LoginChecks, password: str) -> None:
        hosts, self.wakes = {"/": VirtualHost("/")}, 0
        options = ConnectOptions(
            hosts=(("x", 1),), username="carol", password=password, sasl_mechanisms=("PLAIN",), in_clear=("PLAIN",)
        )
        login = SaslLogin(options, loopback=True)
        self.client: v0_9.Connection | v0_10.Connection
        self.broker: Adapter
        if protocol == "0-10":
            self.client = v0_10.Connection(Role.CLIENT, login=login)
            self.broker = Connection010(
                hosts=hosts, logins=known, clock=lambda: 1.0, wake=self.wake, checks=checks, names=SessionNames()
            )
        else:
            self.client = v0_9.Connection(Role.CLIENT, login=login, client_properties=dict(TELLS))
            self.broker = Connection09(
                hosts=hosts, logins=known, clock=lambda: 1.0, wake=self.wake, checks=checks, version="0-9-1"
            )
        self.events: list[object] = []
        self.pump()

    def wake(self) -> None:
        self.wakes += 1

    def pump(self) -> None:
        """Carry bytes both ways until none are left."""
        while True:
            to_broker, to_client = self.client.data_to_send(), self.broker.take_bytes()
            if not to_broker and not to_client:
                return
            self.broker.receive(to_broker)
            self.events += self.client.receive_data(to_client)

    @property
    def error(self) -> str:
        """Why the client's connection has ended."""
        (ended,) = self.events
        assert isinstance(ended, Ended)
        return str(ended.error)


PROTOCOLS = pytest.mark.parametrize("protocol", ["0-10", "0-9-1"])


@PROTOCOLS
def test_the_login_goes_on_when_its_password_is_checked(protocol: str) -> None:
    known, checks = logins(carol="x"), HeldBack()
    pair = Pair(protocol, known, checks, "x")
    assert (pair.events, pair.broker.is_open, pair.broker.username) == ([], False, "")
    ((check, done),) = checks.waiting
    wakes = pair.wakes
    done(check())
    assert pair.wakes > wakes, "the server has to write"
    pair.pump()
    assert (pair.broker.is_open, pair.broker.username) == (True, "carol")
    again = Pair(protocol, known, checks, "x")
    assert again.broker.is_open, "a login that was right once is known"
    assert len(checks.waiting) == 1


@PROTOCOLS
def test_a_wrong_password_ends_the_connection(protocol: str) -> None:
    checks = HeldBack()
    pair = Pair(protocol, logins(carol="x"), checks, "y")
    ((check, done),) = checks.waiting
    done(check())
    pair.pump()
    assert pair.broker.is_over
    assert ("403 ACCESS_REFUSED" if protocol == "0-9-1" else "320 the login with PLAIN was refused") in pair.error


@PROTOCOLS
def test_a_client_that_has_gone_meanwhile_costs_no_check(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known, checks = logins(carol="x"), HeldBack()
    pair = Pair(protocol, known, checks, "x")
    ((check, done),) = checks.waiting
    pair.broker.lost()
    monkeypatch.setattr(known, "match", lambda *_: pytest.fail("it was checked"))
    assert not check()
    done(True)
    assert not pair.broker.is_open
    assert pair.broker.username == ""


@PROTOCOLS
def test_what_a_stranger_writes_controls_no_terminal_and_forges_no_line(
    protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    text = "x\n2026-01-01 INFO admin is connected\x1b[2J"
    with caplog.at_level("INFO"):
        pair = Pair(protocol, logins(carol="x"), HeldBack(), "x")
        if isinstance(pair.client, v0_10.Connection):
            closes = control(spec_0_10.ConnectionClose(reply_code=541, reply_text=text))
        else:
            closes = method(0, spec_0_9.ConnectionClose(541, text, 0, 0))
        pair.broker.receive(closes)
    (line,) = caplog.messages
    assert r"x\n2026-01-01 INFO admin is connected\x1b[2J" in line
    assert line.isprintable()
