"""Passwords and paths that are no text, or none that can be used: a clear error, and the secret nowhere in it."""

from __future__ import annotations

import pickle
import traceback
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.address import ConnectOptions, is_utf8, parse_url
from amqp_core.errors import AmqpError, AuthenticationFailed, UsageError
from amqp_core.sasl import CramMd5, Plain, ScramSha1, ScramSha256, saslprep
from tests.support.fakepeer import FakePeer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# As os.environ gives a password in Latin-1 where the locale is UTF-8.
SECRET = b"s3cr\xe4t-w0rd".decode("utf-8", "surrogateescape")
PIECES = ("s3cr", "w0rd", "udce4", "xe4", "U+DCE4")


def raised(call: Callable[[], object]) -> AmqpError:
    with pytest.raises(AmqpError) as caught:
        call()
    return caught.value


def assert_silent(error: BaseException) -> None:
    """Nothing of the secret in the error, in what it came from, in its traceback, or in what crosses processes."""
    shown = ["".join(traceback.format_exception(error)), repr(pickle.loads(pickle.dumps(error)))]
    chain: BaseException | None = error
    while chain is not None:
        shown += [str(chain), repr(chain), repr(vars(chain))]
        chain = chain.__cause__ or chain.__context__
    for text in shown:
        lines = [line for line in text.splitlines() if not line.startswith("    ")]  # but for the lines of this file
        assert not [piece for piece in PIECES for line in lines if piece in line]


@pytest.mark.parametrize("mechanism", [Plain, CramMd5, ScramSha1, ScramSha256])
@pytest.mark.parametrize("what", ["user name", "password"])
def test_a_login_that_is_not_utf8_is_refused_by_every_mechanism(mechanism: type[Plain], what: str) -> None:
    login = (SECRET, "x") if what == "user name" else ("x", SECRET)

    def log_in() -> None:
        used = mechanism(*login)
        used.initial()
        used.respond(b"challenge")

    error = raised(log_in)
    assert isinstance(error, UsageError)
    assert f"The {what} is not valid: it is not text in UTF-8" in str(error)
    assert "write it in UTF-8" in str(error)
    assert_silent(error)


@pytest.mark.parametrize("name", ["username", "password", "virtual_host"])
def test_options_that_are_not_utf8_are_refused(name: str) -> None:
    given: dict[str, Any] = {"hosts": (("h", 1),), name: SECRET}
    error = raised(lambda: ConnectOptions(**given))
    assert isinstance(error, UsageError)
    assert f"{name} is not valid: it is not text in UTF-8" in str(error)
    assert_silent(error)


@pytest.mark.parametrize("url", [f"amqp://{SECRET}", f"amqp://h/{SECRET}", f"amqp://u:{SECRET}@h/", SECRET])
def test_a_url_that_is_not_utf8_is_refused_without_being_repeated(url: str) -> None:
    error = raised(lambda: parse_url(url))
    assert isinstance(error, UsageError)
    assert_silent(error)


def test_a_password_file_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_bytes(b"s3cr\xe4t-w0rd\n")
    options = ConnectOptions(hosts=(("h", 1),), username="u", password_file=str(path))
    error = raised(options.read_password)
    assert isinstance(error, AuthenticationFailed)
    assert "is not UTF-8 text. Give a file with the password in UTF-8." in str(error)
    assert str(path) in str(error)
    assert_silent(error)
    with FakePeer(lambda peer: peer.serve(), mechanisms=["PLAIN"]) as server:
        error = raised(lambda: server.connect(username="u", password_file=str(path)))
    assert "is not UTF-8 text" in str(error)
    assert_silent(error)


@pytest.mark.parametrize(
    ("content", "password"),
    [
        (b"p\xc3\xa4ss\n", "p\u00e4ss"),
        (b"p w\r\n", "p w"),
        (b"\n\n", "\n"),
        (b"", ""),
        (b"a\r\nb", "a\r\nb"),
        (b"a\r", "a\r"),
        (b"a\r\r\n", "a\r"),
        (b"a\n\r\n", "a\n"),
    ],
)
def test_a_password_file_is_read_as_it_is_but_for_one_line_end(content: bytes, password: str, tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_bytes(content)
    assert ConnectOptions(hosts=(("h", 1),), password_file=str(path)).read_password() == password


@pytest.mark.parametrize("name", ["password_file", "tls_ca_file", "tls_cert_file", "tls_key_file"])
def test_a_path_with_a_nul_is_refused(name: str) -> None:
    given: dict[str, Any] = {"hosts": (("h", 1),), "tls": True, name: "a\0b"}
    error = raised(lambda: ConnectOptions(**given))
    assert isinstance(error, UsageError)
    assert f"{name} is not valid: it contains a NUL character, which no path does" in str(error)


@pytest.mark.parametrize("path", ["/nowhere/at/all", "/", "\ud800"])
def test_a_password_file_that_cannot_be_read(path: str) -> None:
    options = ConnectOptions(hosts=(("h", 1),), password_file=path)
    error = raised(options.read_password)
    assert isinstance(error, AuthenticationFailed)
    assert "cannot be used" in str(error)


@pytest.mark.parametrize("char", ["\x07", "\u2028", "\ufffd", "\ue000"])
def test_what_sasl_does_not_allow_is_not_shown(char: str) -> None:
    error = raised(lambda: saslprep(f"s3cr{char}", "password"))
    assert isinstance(error, UsageError)
    assert "The password is not valid: it contains a character that SASL does not allow (RFC 4013)" in str(error)
    assert f"{ord(char):04X}" not in str(error)
    assert_silent(error)


def test_what_is_utf8() -> None:
    assert is_utf8("")
    assert is_utf8("a\u00e4\U0001f600\ud7ff\ue000\0")
    for char in ("\ud800", "\udbff", "\udc80", "\udfff"):
        assert not is_utf8(f"a{char}")
