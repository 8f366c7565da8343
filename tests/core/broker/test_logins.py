"""SASL of the server role, with the mechanisms of our client and the messages of the RFCs."""

from __future__ import annotations

import base64
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_core.broker import passwords
from amqp_core.broker.login import Caller, Check, ServerLogin
from amqp_core.broker.logins import Logins
from amqp_core.broker.passwords import HashedPassword, ScramKeys, hashed
from amqp_core.broker.scram import ServerScram
from amqp_core.broker.users_file import User
from amqp_core.broker.v0_9.login import PASSWORDS
from amqp_core.errors import AuthenticationFailed
from amqp_core.sasl import Amqplain, Anonymous, External, Plain, ScramSha256
from amqp_core.scram import keys_of, stored_key
from tests.core.broker.logins_support import log_in, logins, secret

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.sasl import Mechanism

REMOTE = Caller(loopback=False)
CERTIFIED = Caller(loopback=False, certificate_name="carol")
BY_PASSWORD = [Plain, Amqplain, ScramSha256]


@pytest.mark.parametrize("mechanism", BY_PASSWORD)
@pytest.mark.parametrize("known", [Logins({"carol": "sécret"}), logins(carol="sécret")], ids=["clear", "hashed"])
def test_a_password(known: Logins, mechanism: Callable[[str, str], Mechanism]) -> None:
    for _ in range(2):  # the second time it is known
        assert log_in(known, mechanism("carol", "sécret")) == "carol"
    for name, password in (("carol", "wrong"), ("carol", ""), ("nobody", "sécret"), ("Carol", "sécret")):
        with pytest.raises(AuthenticationFailed, match="name or password is wrong"):
            log_in(known, mechanism(name, password))


@pytest.mark.parametrize("mechanism", BY_PASSWORD)
def test_characters_that_are_written_in_two_ways(mechanism: Callable[[str, str], Mechanism]) -> None:
    known = logins(carol="\u2168\u00a0x")  # RFC 4013: the same as "IX x"
    assert log_in(known, mechanism("carol", "IX x")) == "carol"
    assert log_in(known, mechanism("carol", "\u2168\u00a0x")) == "carol"


@pytest.mark.parametrize("mechanism", BY_PASSWORD)
def test_a_user_without_a_password_has_none_that_fits(mechanism: Callable[[str, str], Mechanism]) -> None:
    for known in (logins(carol=None), logins(carol=None, dave="x")):
        for password in ("", "x", "None"):
            with pytest.raises(AuthenticationFailed, match="name or password is wrong"):
                log_in(known, mechanism("carol", password))


def test_a_password_that_sasl_does_not_allow_is_wrong() -> None:
    with pytest.raises(AuthenticationFailed, match="name or password is wrong"):
        log_in(logins(carol="x"), Plain("carol", "x\u0007"))


def test_a_login_that_was_right_once_costs_no_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    known, hashes = logins(carol="secret", dave="other"), 0
    original = passwords.scrypt_hash

    def counted(*args: object, **options: object) -> object:
        nonlocal hashes
        hashes += 1
        return original(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(passwords, "scrypt_hash", counted)
    for _ in range(3):
        log_in(known, Plain("carol", "secret"))
    assert hashes == 1
    for name, password in (("carol", "wrong"), ("dave", "secret"), ("carolsecret", "")):
        with pytest.raises(AuthenticationFailed):
            log_in(known, Plain(name, password))
    assert hashes >= 4, "each of these was checked"


def test_scram_follows_the_vector_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    keys = keys_of("sha256", b"pencil", salt, 4096)
    kept = ScramKeys(salt, 4096, stored_key("sha256", keys.client), keys.server)
    known = Logins(users={"user": User(HashedPassword(secret("x").scrypt, kept))})
    scram = ServerScram(known, nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert scram.respond(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert scram.respond(final) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert (scram.is_proved, scram.username) == (True, "user")


def test_scram_with_a_name_that_needs_escaping() -> None:
    known = Logins({"a=b,c=2C": "x"})
    assert log_in(known, ScramSha256("a=b,c=2C", "x")) == "a=b,c=2C"


@pytest.mark.parametrize(
    "message",
    [
        b"", b"n", b"n,,", b"n,,n=carol", b"n,,r=x,n=carol", b"p=tls-unique,,n=carol,r=x", b"x,,n=carol,r=x",
        b"n,,n=,r=x", b"n,,n=a=b,r=x", b"n,,n=carol,r=", b"n,,n=carol,r=\xc3\xa9", b"n,,m=x,n=carol,r=x",
        b"n,,n=carol,m=x,r=x", b"n,a=other,n=carol,r=x", b"n,,n=carol,n=carol,r=x", b"\xff", b"n,,n=carol,r=x,m=1",
    ],
)  # fmt: skip
def test_scram_refuses_a_first_message_that_is_not_valid(message: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        ServerScram(Logins({"carol": "x"})).respond(message)


@pytest.mark.parametrize(
    "change",
    [
        lambda final: final.replace(b"c=biws", b"c=eSws"),
        lambda final: final.replace(b",r=", b",r=x"),
        lambda final: final[:-4],
        lambda final: final[:-8] + b"AAAA" + final[-4:],
        lambda final: final.replace(b",p=", b",m=1,p="),
        lambda final: final.partition(b",p=")[0],
        lambda _: b"",
        lambda _: b"\xff\xfe",
    ],
)
def test_scram_refuses_a_last_message_that_is_not_valid(change: Callable[[bytes], bytes]) -> None:
    client, server = ScramSha256("carol", "x"), ServerScram(Logins({"carol": "x"}))
    final = client.respond(server.respond(client.initial()))
    with pytest.raises(AuthenticationFailed):
        server.respond(change(final))
    assert not server.is_proved


def test_scram_does_not_tell_who_exists() -> None:
    known = logins(carol="x")
    real, unknown, again = (
        ServerScram(known, nonce="n").respond(b"n,,n=" + name + b",r=c").decode()
        for name in (b"carol", b"nobody", b"nobody")
    )
    assert unknown == again, "the salt stays"
    assert [len(part) for part in real.split(",")] == [len(part) for part in unknown.split(",")]
    assert real.rpartition(",")[2] == unknown.rpartition(",")[2], "as many iterations"
    users = {"carol": User(hashed("x"))}

    def salt_of_unknown(users: dict[str, User]) -> bytes:
        keys, _ = Logins(users=users).scram("unknown")
        return keys.salt

    first = salt_of_unknown(users)
    assert salt_of_unknown(users) == first, "a restart keeps the salt"
    assert salt_of_unknown({"carol": User(hashed("x"))}) != first, "another file of users gives another salt"


def test_external_is_for_those_with_a_certificate() -> None:
    known = logins(carol=None, dave="x")
    assert log_in(known, External(), CERTIFIED) == "carol"
    assert "EXTERNAL" not in ServerLogin(known, REMOTE, PASSWORDS).mechanisms
    with pytest.raises(AuthenticationFailed, match="offered are"):
        log_in(known, External(), REMOTE)
    with pytest.raises(AuthenticationFailed, match="there is no user 'erin'"):
        log_in(known, External(), Caller(certificate_name="erin"))
    server = ServerLogin(known, CERTIFIED, PASSWORDS)
    with pytest.raises(AuthenticationFailed, match="as another user"):
        server.respond("EXTERNAL", b"dave")
    assert ServerLogin(known, CERTIFIED, PASSWORDS).respond("EXTERNAL", b"carol") is None


def test_anonymous_is_for_this_machine_unless_asked_for() -> None:
    assert log_in(Logins(), Anonymous()) == "guest"
    assert log_in(Logins(allow_anonymous=True), Anonymous(), REMOTE) == "guest"
    assert log_in(logins(guest="x"), Anonymous()) == "guest"
    for known, caller in ((Logins(), REMOTE), (logins(carol="x"), Caller())):
        with pytest.raises(AuthenticationFailed, match="offered are"):
            log_in(known, Anonymous(), caller)


@pytest.mark.parametrize("mechanism", BY_PASSWORD)
def test_guest_comes_from_this_machine_unless_anybody_may(mechanism: Callable[[str, str], Mechanism]) -> None:
    for known in (Logins(), logins(guest="guest", carol="x")):
        assert log_in(known, mechanism("guest", "guest")) == "guest"
        with pytest.raises(AuthenticationFailed, match="from this machine only"):
            log_in(known, mechanism("guest", "guest"), REMOTE)
    assert log_in(logins(carol="x"), mechanism("carol", "x"), REMOTE) == "carol"
    assert log_in(Logins(allow_anonymous=True), mechanism("guest", "guest"), REMOTE) == "guest"


def test_a_client_that_sends_no_initial_response_is_asked_for_it_once() -> None:
    for mechanism in (Plain("guest", "guest"), ScramSha256("guest", "guest"), Anonymous()):
        server = ServerLogin(Logins(), Caller(), PASSWORDS)
        assert server.respond(mechanism.name, None) == b""
        assert isinstance(server.respond(mechanism.name, mechanism.initial()), bytes | None)
    server = ServerLogin(Logins(), Caller(), PASSWORDS)
    server.respond("PLAIN", None)
    with pytest.raises(AuthenticationFailed):
        server.respond("PLAIN", None)


def test_a_check_that_takes_long_can_run_in_another_thread() -> None:
    server = ServerLogin(logins(carol="x"), Caller(), PASSWORDS)
    check = server.respond("PLAIN", b"\0carol\0x")
    assert isinstance(check, Check)
    assert server.username == ""
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(check.run()))
    thread.start()
    thread.join()
    server.checked(found[0])
    assert server.username == "carol"


GUEST = (Plain("guest", "guest"), Amqplain("guest", "guest"), ScramSha256("guest", "guest", nonce="n"), Anonymous())
RESPONSES = st.none() | st.binary(max_size=60) | st.sampled_from([each.initial() for each in GUEST])


@given(
    st.sampled_from(["PLAIN", "AMQPLAIN", "SCRAM-SHA-256", "EXTERNAL", "ANONYMOUS", "GSSAPI", ""]),
    st.lists(RESPONSES, min_size=1, max_size=4),
    st.binary(max_size=20),
    st.integers(0, 60),
)
def test_garbage_is_refused_and_breaks_nothing(
    mechanism: str, responses: list[bytes | None], noise: bytes, place: int
) -> None:
    server = ServerLogin(Logins(), CERTIFIED._replace(loopback=True), PASSWORDS)
    try:
        for response in responses:
            spoiled = None if response is None else response[:place] + noise + response[place + len(noise) :]
            answer = server.respond(mechanism, spoiled)
            assert not isinstance(answer, Check), "nothing here takes long"
            if answer is None:
                break
    except AuthenticationFailed:
        assert server.username == ""
    else:
        assert server.username in ("", "guest")


def test_no_repr_shows_a_secret() -> None:
    kept = secret("pässword")
    for each in (kept, passwords.ClearPassword("pässword"), Logins({"a": "pässword"}), User(kept)):
        text = repr(each)
        assert "ssword" not in text.replace("Password", "")
        assert repr(kept.scrypt.hash) not in text
