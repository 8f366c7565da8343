"""Exchanges: what may be declared, bound and deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amqp_core.broker.model.errors import Refusal
from tests.core.broker.model_support import ME, OTHER, Host, message, refused

if TYPE_CHECKING:
    from collections.abc import Callable


def test_every_virtual_host_has_the_standard_exchanges() -> None:
    kinds = {name: exchange.kind for name, exchange in Host().exchanges.items()}
    assert kinds == {
        "": "direct",
        "amq.direct": "direct",
        "amq.fanout": "fanout",
        "amq.topic": "topic",
        "amq.headers": "headers",
        "amq.match": "headers",
    }


def test_the_default_exchange_goes_to_the_queue_of_that_name() -> None:
    host = Host()
    host.make("a")
    assert host.send("1", "a") == (1, False)
    assert host.send("2", "b") == (0, False)
    assert host.waiting("a") == ["1"]
    host.make("b")
    assert host.send("3", "b") == (1, False)
    host.delete_queue("b", owner=ME)
    assert host.send("4", "b") == (0, False)


def test_the_default_exchange_is_not_to_be_touched() -> None:
    host = Host()
    host.make()
    for call in (
        lambda: host.declare_exchange("", "direct"),
        lambda: host.delete_exchange(""),
        lambda: host.bind_queue("q", "", "q", owner=ME),
        lambda: host.unbind_queue("q", "", "q", owner=ME),
        lambda: host.bind_exchange("", "amq.direct", "q"),
        lambda: host.bind_exchange("amq.direct", "", "q"),
        lambda: host.unbind_exchange("amq.direct", "", "q"),
    ):
        with refused(Refusal.ACCESS_REFUSED):
            call()


def test_reserved_names_are_refused_unless_they_exist() -> None:
    host = Host()
    with refused(Refusal.ACCESS_REFUSED, "amq.mine"):
        host.declare_exchange("amq.mine", "direct")
    assert host.declare_exchange("amq.topic", "topic") is host.exchanges["amq.topic"]
    assert host.declare_exchange("amq.topic", "topic", durable=True) is host.exchanges["amq.topic"]
    with refused(Refusal.PRECONDITION_FAILED, "amq.topic", "type"):
        host.declare_exchange("amq.topic", "direct")
    with refused(Refusal.ACCESS_REFUSED, "amq.topic"):
        host.delete_exchange("amq.topic")


@pytest.mark.parametrize("kind", ["x-delayed-message", "system", "", "Direct"])
def test_unknown_types_are_refused_with_the_known_ones(kind: str) -> None:
    with refused(Refusal.NOT_IMPLEMENTED, f"'{kind}'", "direct, fanout, topic or headers"):
        Host().declare_exchange("e", kind)


def test_declaring_again_needs_the_same_properties() -> None:
    host = Host()
    first = host.declare_exchange("e", "direct", alternate="a")
    assert host.declare_exchange("e", "direct", arguments={"alternate-exchange": "a"}) is first
    assert host.declare_exchange("e", "no matter", passive=True) is first
    other: dict[str, Callable[[], object]] = {
        "type": lambda: host.declare_exchange("e", "fanout", alternate="a"),
        "durable": lambda: host.declare_exchange("e", "direct", durable=True, alternate="a"),
        "auto-delete": lambda: host.declare_exchange("e", "direct", auto_delete=True, alternate="a"),
        "internal": lambda: host.declare_exchange("e", "direct", internal=True, alternate="a"),
        "alternate-exchange": lambda: host.declare_exchange("e", "direct", alternate="b"),
    }
    for word, declare in other.items():
        with refused(Refusal.PRECONDITION_FAILED, "'e'", word):
            declare()


@pytest.mark.parametrize("value", [1, b"a", ["a"]])
def test_an_alternate_exchange_is_a_name(value: object) -> None:
    host = Host()
    with refused(Refusal.PRECONDITION_FAILED, "alternate-exchange"):
        host.declare_exchange("e", "direct", arguments={"alternate-exchange": value})
    assert "e" not in host.exchanges


def test_what_is_not_there_is_not_found() -> None:
    host = Host()
    host.make()
    for call in (
        lambda: host.declare_exchange("e", "direct", passive=True),
        lambda: host.delete_exchange("e"),
        lambda: host.bind_queue("q", "e", "k", owner=ME),
        lambda: host.unbind_queue("q", "e", "k", owner=ME),
        lambda: host.bind_exchange("e", "amq.direct", "k"),
        lambda: host.bind_exchange("amq.direct", "e", "k"),
        lambda: host.publish(message(exchange="e"), now=0),
        lambda: host.route(message(exchange="e")),
    ):
        with refused(Refusal.NOT_FOUND, "exchange 'e'"):
            call()
    with refused(Refusal.NOT_FOUND, "queue 'none'"):
        host.bind_queue("none", "amq.direct", "k", owner=ME)


def test_an_internal_exchange_takes_messages_from_exchanges_only() -> None:
    host = Host()
    host.make()
    host.declare_exchange("inside", "fanout", internal=True)
    host.declare_exchange("outside", "fanout")
    host.bind_exchange("inside", "outside", "")
    host.bind_queue("q", "inside", "", owner=ME)
    with refused(Refusal.ACCESS_REFUSED, "inside"):
        host.send("1", exchange="inside")
    assert host.send("2", exchange="outside") == (1, False)


def test_if_unused_looks_at_bindings_from_the_exchange() -> None:
    host = Host()
    host.make()
    host.declare_exchange("e", "direct")
    host.bind_queue("q", "e", "k", owner=ME)
    with refused(Refusal.IN_USE, "'e'"):
        host.delete_exchange("e", if_unused=True)
    host.unbind_queue("q", "e", "k", owner=ME)
    host.bind_exchange("e", "amq.direct", "k")
    host.delete_exchange("e", if_unused=True)
    assert not host.exchanges["amq.direct"].bindings


def test_an_auto_delete_exchange_goes_with_its_last_binding() -> None:
    host = Host()
    host.make()
    host.declare_exchange("e", "direct", auto_delete=True)
    host.bind_queue("q", "e", "1", owner=ME)
    host.bind_queue("q", "e", "2", owner=ME)
    host.unbind_queue("q", "e", "1", owner=ME)
    assert "e" in host.exchanges
    host.unbind_queue("q", "e", "none", owner=ME)
    assert "e" in host.exchanges
    host.unbind_queue("q", "e", "2", owner=ME)
    assert "e" not in host.exchanges


def test_auto_delete_exchanges_go_in_a_row() -> None:
    host = Host()
    host.make()
    for number in range(2000):
        host.declare_exchange(f"e{number}", "fanout", auto_delete=True)
        if number:
            host.bind_exchange(f"e{number}", f"e{number - 1}", "")
    host.bind_queue("q", "e1999", "", owner=ME)
    assert host.send("1", exchange="e0") == (1, False)
    host.delete_queue("q", owner=ME)
    assert not [name for name in host.exchanges if name.startswith("e")]


def test_a_binding_is_known_by_its_key_and_arguments() -> None:
    host = Host()
    host.make()
    for kind in ("direct", "fanout", "topic"):
        host.declare_exchange(kind, kind)
        for arguments in (None, {"a": 1}, {"a": True}, {"a": {"b": [1, {}]}}, None):
            host.bind_queue("q", kind, "k", owner=ME, arguments=arguments)
        assert len(host.exchanges[kind].bindings) == 4
        assert host.send("1", "k", kind) == (1, False)
        for arguments in (None, {"a": 1}, {"a": True}):
            host.unbind_queue("q", kind, "k", owner=ME, arguments=arguments)
            assert host.send("1", "k", kind) == (1, False)
        host.unbind_queue("q", kind, "k", owner=ME, arguments={"a": {"b": [1, {}]}})
        assert host.send("1", "k", kind) == (0, False)


def test_bindings_to_an_exclusive_queue_are_its_owners() -> None:
    host = Host()
    host.declare_queue("q", owner=OTHER, exclusive=True)
    with refused(Refusal.RESOURCE_LOCKED, "'q'"):
        host.bind_queue("q", "amq.direct", "k", owner=ME)
    with refused(Refusal.RESOURCE_LOCKED, "'q'"):
        host.unbind_queue("q", "amq.direct", "k", owner=ME)
