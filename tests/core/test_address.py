"""URLs and connect options."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from amqp_core.address import MAX_CONNECT_TIMEOUT_S, ConnectOptions, format_address, is_loopback, parse_url
from amqp_core.errors import AuthenticationFailed, UsageError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("url", "hosts", "virtual_host", "tls"),
    [
        ("amqp://localhost", [("localhost", 5672)], "", False),
        ("amqp://localhost/", [("localhost", 5672)], "", False),
        ("amqp://localhost/default", [("localhost", 5672)], "default", False),
        ("AMQPS://broker", [("broker", 5671)], "", True),
        ("amqp://a:1,b,c:65535/v", [("a", 1), ("b", 5672), ("c", 65535)], "v", False),
        ("amqp://a, b/v", [("a", 5672), ("b", 5672)], "v", False),
        ("amqp://[::1]/v", [("::1", 5672)], "v", False),
        ("amqps://[fe80::1%25eth0]:99,h", [("fe80::1%eth0", 99), ("h", 5671)], "", True),
        ("amqp://h/a%2Fb%20%C3%BC%40", [("h", 5672)], "a/b ü@", False),
        ("amqp://10.0.0.1:7", [("10.0.0.1", 7)], "", False),
    ],
)
def test_urls_are_taken_apart(url: str, hosts: list[tuple[str, int]], virtual_host: str, *, tls: bool) -> None:
    assert parse_url(url) == (tuple(hosts), virtual_host, tls)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("", "amqp://"),
        ("localhost:5672", "amqp://"),
        ("http://localhost", "amqp://"),
        ("amqp:localhost", "amqp://"),
        ("amqp://", "empty host"),
        ("amqp:///v", "empty host"),
        ("amqp://a,,b", "empty host"),
        ("amqp://:5672", "empty host"),
        ("amqp://a b", "not a host name"),
        ("amqp://a:0", "1 to 65535"),
        ("amqp://a:65536", "1 to 65535"),
        ("amqp://a:000065536000", "1 to 65535"),
        (f"amqp://a:{5000 * '0'}", "1 to 65535"),
        ("amqp://a:99999999999999", "1 to 65535"),
        ("amqp://a:", "1 to 65535"),
        ("amqp://a:-1", "1 to 65535"),
        ("amqp://a:x", "1 to 65535"),
        ("amqp://::1", "in brackets"),
        ("amqp://[::1", "IPv6"),
        ("amqp://[::1]5672", "IPv6"),
        ("amqp://[localhost]", "IPv6"),
        ("amqp://h/a/b", "%2F"),
        ("amqp://h/%ff", "UTF-8"),
        ("amqp://h/" + "v" * 256, "255"),
    ],
)
def test_wrong_urls_are_refused_with_what_is_wrong(url: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        parse_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "amqp://guest:s3cret@localhost/v",
        "amqp://s3cret@localhost",
        "amqp://guest:s3/cret@localhost",
        "http://guest:s3cret@localhost",
        "guest:s3cret@localhost",
        "amqp://localhost/v?password=s3cret",
        "amqp://localhost/v#s3cret",
        "amqp://guest:s3cret",
        "rabbitmq://localhost/v?password=s3cret",
        "localhost:5672?password=s3cret",
        "amqp://localhost:5672:guest:s3cret/v",
        "localhost:5672:guest:s3cret",
    ],
)
def test_what_may_be_a_secret_is_not_repeated(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_url(url)
    assert "s3" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("LOCALHOST.", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("::", False),
        ("0.0.0.0", False),
        ("localhost.example.org", False),
        ("broker", False),
    ],
)
def test_loopback_addresses(host: str, *, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_addresses_are_written_as_urls_write_them() -> None:
    assert format_address("broker", 5672) == "broker:5672"
    assert format_address("::1", 5672) == "[::1]:5672"


def options(**changes: object) -> ConnectOptions:
    return ConnectOptions(**({"hosts": (("h", 1),)} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"hosts": ()}, "hosts"),
        ({"heartbeat": -1}, "heartbeat"),
        ({"heartbeat": 65536}, "heartbeat"),
        ({"connect_timeout": 0}, "connect_timeout"),
        ({"connect_timeout": float("nan")}, "connect_timeout=nan is not valid: more than 0 and at most 2147483 s"),
        ({"connect_timeout": float("inf")}, "connect_timeout=inf is not valid"),
        ({"connect_timeout": MAX_CONNECT_TIMEOUT_S + 1}, "connect_timeout=2147484 is not valid"),
        ({"max_message_bytes": (64 << 10) - 1}, "max_message_bytes=65535 is not valid: 65536 to"),
        ({"max_message_bytes": 4 << 30}, "max_message_bytes"),
        ({"password": "x", "password_file": "y"}, "password_file"),
    ],
)
def test_values_that_no_connection_can_have_are_refused(changes: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        options(**changes)


def test_the_password_is_not_shown_and_is_pickled() -> None:
    given = options(username="u", password="s3cret")
    assert "s3cret" not in repr(given)
    assert "u" in repr(given)
    assert pickle.loads(pickle.dumps(given)) == given
    assert "redacted" not in repr(options())


def test_the_password_file_is_read_every_time(tmp_path: Path) -> None:
    file = tmp_path / "password"
    given = options(username="u", password_file=str(file))
    for content, password in [
        ("one\n", "one"),
        ("two", "two"),
        ("three\r\n", "three"),
        ("four\n\n", "four\n"),
        ("", ""),
    ]:
        file.write_bytes(content.encode())
        assert given.read_password() == password
    assert options(password="given").read_password() == "given"
    assert options().read_password() is None


def test_a_password_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(AuthenticationFailed, match=r"no-file.*No such file"):
        options(password_file=str(tmp_path / "no-file")).read_password()
    with pytest.raises(AuthenticationFailed, match="cannot be used"):
        options(password_file=str(tmp_path)).read_password()
    (tmp_path / "binary").write_bytes(b"s3cret\xff")
    with pytest.raises(AuthenticationFailed, match="not UTF-8") as caught:
        options(password_file=str(tmp_path / "binary")).read_password()
    assert caught.value.__cause__ is None
