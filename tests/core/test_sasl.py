"""SASL mechanisms against the vectors of their RFCs, and the choice between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.address import DEFAULT_MECHANISMS, ConnectOptions
from amqp_core.errors import AuthenticationFailed, UsageError
from amqp_core.sasl import (
    MAX_ITERATIONS,
    Amqplain,
    Anonymous,
    CramMd5,
    External,
    Mechanism,
    Plain,
    SaslLogin,
    Scram,
    ScramSha1,
    ScramSha256,
    choose,
    saslprep,
)

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "pencil"

# RFC 5802 section 5 and RFC 7677 section 3.
SHA1_NONCE = "fyko+d2lbbFgONRv9qkxdawL"
SHA1_SERVER_FIRST = b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096"
SHA1_CLIENT_FINAL = b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts="
SHA1_SERVER_FINAL = b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ="
SHA256_NONCE = "rOprNGfwEbeRWgbNEkqO"
SHA256_SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
SHA256_CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SHA256_SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def sha256() -> ScramSha256:
    return ScramSha256("user", SECRET, SHA256_NONCE)


def pick(offered: list[str], *, loopback: bool = False, client_certificate: bool = False, **changes: Any) -> Mechanism:
    given: dict[str, Any] = {"username": "u", "password": SECRET, "hosts": (("h", 1),)} | changes
    if client_certificate:
        given["tls_cert_file"] = "/cert.pem"
    if "allowed" in given:
        given["sasl_mechanisms"] = tuple(given.pop("allowed"))
    return choose(offered, ConnectOptions(**given), loopback=loopback)


@pytest.mark.parametrize(
    ("mechanism", "first", "server_first", "final", "server_final"),
    [
        (
            ScramSha1("user", SECRET, SHA1_NONCE),
            b"n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL",
            SHA1_SERVER_FIRST,
            SHA1_CLIENT_FINAL,
            SHA1_SERVER_FINAL,
        ),
        (
            sha256(),
            b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
            SHA256_SERVER_FIRST,
            SHA256_CLIENT_FINAL,
            SHA256_SERVER_FINAL,
        ),
    ],
    ids=["RFC 5802", "RFC 7677"],
)
def test_scram_follows_the_vectors_of_its_rfc(
    mechanism: Scram, first: bytes, server_first: bytes, final: bytes, server_final: bytes
) -> None:
    assert mechanism.initial() == first
    assert mechanism.respond(server_first) == final
    assert mechanism.respond(server_final) == b""
    mechanism.finished()


def test_cram_md5_follows_the_vector_of_rfc_2195() -> None:
    mechanism = CramMd5("tim", "tanstaaftanstaaf")
    assert mechanism.initial() is None
    digest = mechanism.respond(b"<1896.697170952@postoffice.reston.mci.net>")
    assert digest == b"tim b913a602c7eda7a495b4e6e7334d3890"
    mechanism.finished()
    with pytest.raises(AuthenticationFailed, match="CRAM-MD5"):
        mechanism.respond(b"again")


def test_cram_md5_without_a_challenge_is_no_login() -> None:
    with pytest.raises(AuthenticationFailed, match="no password was checked"):
        CramMd5("tim", SECRET).finished()


def test_amqplain_is_a_field_table_without_its_length() -> None:
    login = b"\x05LOGINS\0\0\0\x07j\xc3\xbcrgen\x08PASSWORDS\0\0\0\x03\0\xc3\xa9"
    assert Amqplain("jürgen", "\0é").initial() == login
    assert SECRET not in repr(Amqplain("u", SECRET))


def test_plain_is_nul_separated_utf8() -> None:
    assert Plain("tim", "tanstaaftanstaaf").initial() == b"\0tim\0tanstaaftanstaaf"
    assert Plain("jürgen", "€").initial() == "\0jürgen\0€".encode()
    with pytest.raises(UsageError, match="NUL"):
        Plain("a\0b", "c").initial()


@pytest.mark.parametrize("mechanism", [Anonymous(), External()])
def test_mechanisms_without_a_secret_send_an_empty_response_not_an_absent_one(mechanism: Mechanism) -> None:
    assert mechanism.initial() == b""
    mechanism.finished()


@pytest.mark.parametrize("mechanism", [Anonymous(), External(), Plain("u", SECRET)])
def test_a_challenge_that_the_mechanism_does_not_have_is_refused(mechanism: Mechanism) -> None:
    with pytest.raises(AuthenticationFailed, match=mechanism.name):
        mechanism.respond(b"who are you?")


def test_a_broker_that_skips_its_signature_is_refused() -> None:
    mechanism = sha256()
    mechanism.initial()
    with pytest.raises(AuthenticationFailed, match="without a proof"):
        mechanism.finished()
    mechanism.respond(SHA256_SERVER_FIRST)
    with pytest.raises(AuthenticationFailed, match="without a proof"):
        mechanism.finished()


def test_a_broker_with_a_wrong_signature_is_refused() -> None:
    mechanism = sha256()
    mechanism.respond(SHA256_SERVER_FIRST)
    with pytest.raises(AuthenticationFailed, match="server signature is wrong"):
        mechanism.respond(b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=")
    with pytest.raises(AuthenticationFailed):
        mechanism.finished()


@pytest.mark.parametrize(
    ("challenge", "text"),
    [
        (b"", "not a list of attributes"),
        (b"garbage", "not a list of attributes"),
        (b"\xff\xfe", "not a list of attributes"),
        (b"r=a,r=b", "not a list of attributes"),
        (b"e=unknown-user", "unknown-user"),
        (b"m=x," + SHA256_SERVER_FIRST, "extension"),
        (b"s=W22Z,r=" + SHA256_NONCE.encode() + b"x,i=4096", "r=...,s=...,i=..."),
        (b"r=other,s=W22Z,i=4096", "nonce"),
        (b"r=" + SHA256_NONCE.encode() + b",s=W22Z,i=4096", "nonce"),
        (SHA256_SERVER_FIRST.replace(b"gQ==", b"g!=="), "base64"),
        (SHA256_SERVER_FIRST.replace(b"i=4096", b"i=4095"), "iterations"),
        (SHA256_SERVER_FIRST.replace(b"i=4096", b"i=%d" % (MAX_ITERATIONS + 1)), "iterations"),
        (SHA256_SERVER_FIRST.replace(b"i=4096", b"i=-1"), "iterations"),
        (SHA256_SERVER_FIRST.replace(b"i=4096", b"i=" + b"9" * 5000), "iterations"),
        (SHA256_SERVER_FIRST.replace(b"i=4096", "i=४०९६".encode()), "iterations"),
    ],
)
def test_a_wrong_first_server_message_is_refused(challenge: bytes, text: str) -> None:
    with pytest.raises(AuthenticationFailed, match=text) as caught:
        sha256().respond(challenge)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("challenge", "text"), [(b"e=invalid-proof", "invalid-proof"), (b"x=1", "missing"), (b"v=!", "base64")]
)
def test_a_wrong_last_server_message_is_refused(challenge: bytes, text: str) -> None:
    mechanism = sha256()
    mechanism.respond(SHA256_SERVER_FIRST)
    with pytest.raises(AuthenticationFailed, match=text):
        mechanism.respond(challenge)


def test_a_third_challenge_is_refused() -> None:
    mechanism = sha256()
    mechanism.respond(SHA256_SERVER_FIRST)
    mechanism.respond(SHA256_SERVER_FINAL)
    with pytest.raises(AuthenticationFailed, match="SCRAM-SHA-256"):
        mechanism.respond(b"")


def test_user_names_are_escaped_and_nonces_differ() -> None:
    assert ScramSha256("a=b,c", SECRET, "n").initial() == b"n,,n=a=3Db=2Cc,r=n"
    assert ScramSha256("u", SECRET).initial() != ScramSha256("u", SECRET).initial()


# RFC 4013 section 3.
@pytest.mark.parametrize(
    ("given", "prepared"), [("I\xadX", "IX"), ("user", "user"), ("USER", "USER"), ("\xaa", "a"), ("\u2168", "IX")]
)
def test_saslprep_follows_the_examples_of_its_rfc(given: str, prepared: str) -> None:
    assert saslprep(given, "password") == prepared


@pytest.mark.parametrize("given", ["\x07", "\u0627\u0031"])
def test_saslprep_refuses_what_its_rfc_prohibits_and_shows_no_secret(given: str) -> None:
    with pytest.raises(UsageError, match="The password"):
        saslprep(given, "password")


def test_saslprep_maps_other_spaces() -> None:
    assert saslprep("a\u00a0b", "password") == "a b"


@pytest.mark.parametrize(
    ("offered", "expected"),
    [
        (["PLAIN", "CRAM-MD5", "SCRAM-SHA-1", "SCRAM-SHA-256"], "SCRAM-SHA-256"),
        (["CRAM-MD5", "SCRAM-SHA-1"], "SCRAM-SHA-1"),
        (["ANONYMOUS", "CRAM-MD5"], "CRAM-MD5"),
        (["PLAIN", "CRAM-MD5"], "CRAM-MD5"),
        (["AMQPLAIN", "PLAIN"], "PLAIN"),
        (["AMQPLAIN"], "AMQPLAIN"),
    ],
)
def test_the_best_mechanism_that_is_offered_is_used(offered: list[str], expected: str) -> None:
    assert pick(offered, tls=True).name == expected


def test_the_order_allowed_decides() -> None:
    allowed = ("CRAM-MD5", "SCRAM-SHA-256")
    assert pick(["SCRAM-SHA-256", "CRAM-MD5"], allowed=allowed, loopback=True).name == "CRAM-MD5"
    assert pick(["SCRAM-SHA-256", "CRAM-MD5"], allowed=allowed).name == "SCRAM-SHA-256"


@pytest.mark.parametrize(
    ("name", "other", "why"),
    [
        ("AMQPLAIN", "PLAIN", "AMQPLAIN would send the password in clear"),
        ("PLAIN", "CRAM-MD5", "PLAIN would send the password in clear"),
        ("CRAM-MD5", "PLAIN", "CRAM-MD5 would let a listener, or a false broker, find the password by trying out many"),
    ],
)
def test_a_weak_mechanism_only_with_tls_to_loopback_or_when_named(name: str, other: str, why: str) -> None:
    """Else a man in the middle could offer it alone, in the place of SCRAM."""
    assert pick([name], tls=True).name == name
    assert pick([name], loopback=True).name == name
    assert pick([name], in_clear=(name,)).name == name
    for in_clear in ((), (other,), ("SCRAM-SHA-256",)):
        with pytest.raises(AuthenticationFailed, match="No SASL mechanism suits") as caught:
            pick([name], in_clear=in_clear)
        assert f"{why}: use TLS (amqps://), or list {name} in the SASL mechanisms" in str(caught.value)
        assert SECRET not in str(caught.value)
    with pytest.raises(AuthenticationFailed) as caught:
        pick(["CRAM-MD5", "PLAIN"])
    assert str(caught.value).count("use TLS") == 2


def test_without_a_user_name_it_is_external_with_a_certificate_and_else_anonymous() -> None:
    no_login: dict[str, Any] = {"username": None, "password": None}
    both = ["ANONYMOUS", "EXTERNAL", "PLAIN"]
    assert pick(both, **no_login, tls=True, client_certificate=True).name == "EXTERNAL"
    assert pick(both, **no_login).name == "ANONYMOUS"
    with pytest.raises(AuthenticationFailed, match="needs TLS"):
        pick(["EXTERNAL"], **no_login, client_certificate=True)
    with pytest.raises(AuthenticationFailed, match="client certificate is given"):
        pick(["ANONYMOUS"], **no_login, tls=True, client_certificate=True)


def test_a_login_is_never_dropped_silently() -> None:
    for offered in (["ANONYMOUS"], ["EXTERNAL"]):
        with pytest.raises(AuthenticationFailed, match="is not used when a user name"):
            pick(offered, tls=True, client_certificate=True)


def test_the_error_names_what_is_offered_and_what_is_allowed() -> None:
    with pytest.raises(AuthenticationFailed) as caught:
        pick(["GSSAPI", "DIGEST-MD5"])
    assert "GSSAPI, DIGEST-MD5" in str(caught.value)
    assert ", ".join(DEFAULT_MECHANISMS) in str(caught.value)
    with pytest.raises(AuthenticationFailed, match="offers none"):
        pick([])
    with pytest.raises(AuthenticationFailed, match="needs a user name and a password"):
        pick(["SCRAM-SHA-256"], username=None, password=None)
    with pytest.raises(AuthenticationFailed, match="not implemented"):
        pick(["GSSAPI"], allowed=("GSSAPI",))


def test_no_repr_shows_the_password() -> None:
    for mechanism in (Plain("u", SECRET), CramMd5("u", SECRET), sha256()):
        assert SECRET not in repr(mechanism)


def test_a_text_of_the_broker_with_the_password_in_it_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")

    def login(**given: Any) -> SaslLogin:
        found = SaslLogin(ConnectOptions(hosts=(("h", 1),), **given), loopback=True)
        found.choose(["PLAIN"])
        return found

    for each in (login(username="user", password=SECRET), login(username="user", password_file=str(file))):
        assert each.shown(f"no user with '{SECRET}'") == "its text is not shown, since the password is in it"
        assert each.shown("no user 'user'") == "no user 'user'"
    text = "'guest' can only connect via localhost"
    assert login(username="guest", password="guest").shown(text) == text
