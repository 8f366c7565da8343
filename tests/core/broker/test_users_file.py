"""The file of users, and the sub-command that keeps it."""

from __future__ import annotations

import io
import json
import os
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.broker import user_command
from amqp_core.broker.errors import UnusableFile
from amqp_core.broker.logins import Logins
from amqp_core.broker.rights import Grants, Patterns
from amqp_core.broker.users_file import User, changing, load, save
from tests.core.broker.logins_support import secret

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

USERS = {
    "carol": User(secret("x"), Grants(Patterns("^c", "", "r$"), {"v/h": Patterns(), "": Patterns("", "", "")})),
    "dävid": User(None, Grants(None, {"only": Patterns("a", "b", "c")})),
    "erin": User(secret("y"), Grants()),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "users.json"
    save(path, USERS)
    return path


def run(*arguments: object, password: str | bytes = "") -> int:
    """The exit code of the sub-command."""
    content = password.encode() if isinstance(password, str) else password
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(content))
    try:
        return user_command.main([str(each) for each in arguments])
    finally:
        sys.stdin = before


def test_a_carriage_return_without_a_line_feed_is_part_of_a_password(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("add", "--users", file, "new", password=b"secret\r\n") == 0
    assert run("add", "--users", file, "other", password=b"secret\r") == 2, "which no password can have"
    assert "a control character" in capsys.readouterr().err


def test_a_list_that_cannot_be_written_is_one_sentence(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:  # noqa: PTH123 - no file of this test
        monkeypatch.setattr(sys, "stdout", full)
        assert run("list", "--users", file) == 3
    assert capsys.readouterr().err.startswith("Cannot write on standard output: No space left on device. Free its disk")


def test_what_is_written_is_read(file: Path) -> None:
    found = load(file)
    assert {name: user.grants for name, user in found.items()} == {name: user.grants for name, user in USERS.items()}
    assert Logins(users=found).match("carol", "x")
    assert found["dävid"].secret is None
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(file.parent.iterdir()) == [file], "nothing is left beside it"
    save(file, found)
    assert load(file).keys() == USERS.keys()


def test_a_change_is_on_the_disk_when_it_is_done(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a user who was removed could come back after a loss of power."""
    synced: list[tuple[bool, bool]] = []
    fsync = os.fsync

    def told(descriptor: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), load(file).keys() == USERS.keys()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", told)
    assert run("remove", "--users", file, "carol") == 0
    assert synced == [(False, True), (True, False)], "the new file before it gets its name, the directory after"


def test_a_file_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path, tmp_path / "a\0b"):
        with pytest.raises(UnusableFile, match=r"AMQP_USERS_UNREADABLE"):
            load(path)
    assert load(tmp_path / "missing", missing_ok=True) == {}
    for path in (tmp_path / "missing" / "file", tmp_path):
        with pytest.raises(UnusableFile, match=r"AMQP_USERS_NOT_WRITABLE"):
            save(path, USERS)
    assert list(tmp_path.iterdir()) == []


def changed(*path: str, value: object) -> Callable[[dict[str, Any]], None]:
    """A change of the file: ``value`` at a path, or nothing for ``...``."""

    def change(content: dict[str, Any]) -> None:
        *parents, last = path
        for each in parents:
            content = content[each]
        if value is ...:
            del content[last]
        else:
            content[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (changed("version", value=2), "its version is not 1"),
        (changed("users", value=[]), "users is no object"),
        (changed("users", "carol", value="x"), "user 'carol' is no object"),
        (changed("users", "carol", "rights", value=[]), "rights of user 'carol' is no object"),
        (changed("users", "carol", "rights", "write", value=...), "lack one of configure, write and read"),
        (changed("users", "carol", "rights", "read", value="("), "no regular expression"),
        (changed("users", "carol", "virtual_hosts", "v/h", "read", value=5), "virtual host 'v/h' of user 'carol'"),
        (changed("users", "carol", "scrypt", value=...), "scrypt of user 'carol' is no object"),
        (changed("users", "carol", "scram-sha-256", value=...), "scram-sha-256 of user 'carol' is no object"),
        (changed("users", "carol", "scrypt", "n", value=1000), "parameters that are not possible"),
        (changed("users", "carol", "scrypt", "n", value=1 << 23), "parameters that are not possible"),
        (changed("users", "carol", "scrypt", "r", value=True), "r of scrypt of user 'carol' is no number"),
        (changed("users", "carol", "scrypt", "salt", value="?"), "salt of scrypt of user 'carol' is not base64"),
        (changed("users", "carol", "scrypt", "hash", value=...), "hash of scrypt of user 'carol' is not base64"),
        (changed("users", "carol", "scram-sha-256", "iterations", value=1000), "is no number from 4096"),
        (changed("users", "carol", "scram-sha-256", "stored-key", value="AAAA"), "is not base64 of at least 32"),
    ],
)
def test_a_damaged_file(file: Path, change: Callable[[dict[str, Any]], None], text: str) -> None:
    content = json.loads(file.read_text(encoding="utf-8"))
    change(content)
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UnusableFile, match=text) as caught:
        load(file)
    assert caught.value.condition == "AMQP_USERS_DAMAGED"
    assert content["users"] == [] or "hash" not in str(caught.value).partition("hash of")[2]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"version": 1}'])
def test_what_is_no_file_of_users(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "users.json"
    path.write_bytes(content)
    with pytest.raises(UnusableFile, match=r"AMQP_USERS_DAMAGED"):
        load(path)


# --------------------------------------------------------------------------------------------------- the sub-command
def test_users_are_added_listed_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, password = tmp_path / "users.json", tmp_path / "password"
    password.write_text("from file\n", encoding="utf-8")
    assert run("add", "--users", file, "carol", password="sécret\n") == 0
    assert run("add", "--users", file, "dave", "--password-file", password, "--read", "^d", "--virtual-host", "v") == 0
    assert run("add", "--users", file, "erin", "--no-password") == 0
    found = load(file)
    assert Logins(users=found).match("carol", "sécret")
    assert Logins(users=found).match("dave", "from file")
    assert found["carol"].grants == found["erin"].grants == Grants(Patterns())
    assert found["dave"].grants == Grants(None, {"v": Patterns("", "", "^d")})
    assert run("rights", "--users", file, "dave", "--write", "w") == 0
    assert load(file)["dave"].grants == Grants(Patterns("", "w", ""), {"v": Patterns("", "", "^d")})
    assert Logins(users=load(file)).match("dave", "from file"), "the password stays"
    assert run("list", "--users", file) == 0
    out = capsys.readouterr().out
    assert "dave: logs in with a password\n  in 'v': configure '', write '', read '^d'\n  elsewhere:" in out
    assert "erin: logs in with a certificate\n  everywhere: configure '.*', write '.*', read '.*'\n" in out
    assert run("remove", "--users", file, "dave") == 0
    assert load(file).keys() == {"carol", "erin"}


@pytest.mark.parametrize(
    ("arguments", "password", "code", "text"),
    [
        (["add", "carol"], "y", 2, "There is a user 'carol' already"),
        (["add", "new", "--read", "("], "y", 2, "no regular expression"),
        (["add", ""], "y", 2, "cannot be the name of a user"),
        (["add", "a\u0007"], "y", 2, "cannot be the name of a user"),
        (["add", "\u2168"], "y", 2, "cannot be the name of a user"),
        (["add", "new"], "", 2, "The password is empty"),
        (["add", "new"], b"\xff\n", 2, "no text in UTF-8"),
        (["add", "new"], "secr\u0007et", 2, "does not allow"),
        (["add", "new", "--read", "\udcff"], "y", 2, "An argument is not text in UTF-8"),
        (["add", "new", "--password-file", "/nonexistent"], "", 3, "AMQP_PASSWORD_FILE_UNUSABLE"),
        (["remove", "new"], "", 2, "There is no user 'new'"),
        (["rights", "new"], "", 2, "There is no user 'new'"),
    ],
)
def test_the_sub_command_refuses(
    file: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], password: str | bytes, code: int, text: str
) -> None:
    before = file.read_bytes()
    assert run(*arguments, "--users", file, password=password) == code
    error = capsys.readouterr().err
    assert text in error
    assert "secr" not in error
    assert file.read_bytes() == before


class Terminal(io.StringIO):
    """Standard input that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("error", "code", "text"), [(EOFError, 2, "No password is given. Enter one"), (KeyboardInterrupt, 130, "")]
)
@pytest.mark.parametrize("given", [[], ["first"]])
def test_who_ends_the_question_for_a_password(
    file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
    code: int,
    text: str,
    given: list[str],
) -> None:
    """Ctrl-D or Ctrl-C, at either question."""
    answers = iter(given)

    def ask(_: str) -> str:
        for answer in answers:
            return answer
        raise error

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("getpass.getpass", ask)
    before = file.read_bytes()
    assert user_command.main(["add", "--users", str(file), "new"]) == code
    assert text in capsys.readouterr().err
    assert file.read_bytes() == before


def test_the_sub_command_without_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["list"], ["remove", "x"], ["rights", "x"]):
        assert run(*arguments, "--users", tmp_path / "missing") == 3
        assert "AMQP_USERS_UNREADABLE" in capsys.readouterr().err
    (tmp_path / "bad").write_text("no", encoding="utf-8")
    assert run("add", "x", "--users", tmp_path / "bad", password="y") == 3
    assert (tmp_path / "bad").read_text(encoding="utf-8") == "no", "a file that is something else is not overwritten"
    with pytest.raises(SystemExit, match="2"):
        run("add", "--users", tmp_path / "f", "x", "--password", "y")


@pytest.mark.parametrize(("meanwhile", "code", "names"), [("dävid", 0, ["carol", "erin", "new"]), ("new", 2, None)])
def test_a_change_while_the_password_is_asked_for_stays(
    file: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: str, code: int, names: list[str] | None
) -> None:
    asked: list[int] = []

    def ask(_: str) -> str:
        if not asked:
            with changing(file) as users:
                if users.pop(meanwhile, None) is None:
                    users[meanwhile] = User(None, Grants(Patterns("other", "", "")))
        asked.append(1)
        return "s3cret"

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("getpass.getpass", ask)
    assert user_command.main(["add", "--users", str(file), "new"]) == code
    found = load(file)
    assert sorted(found) == (names or sorted([*USERS, "new"]))
    assert (found["new"].secret is None) is bool(code), "that of the other process"


def test_changes_at_the_same_time_are_all_there(tmp_path: Path) -> None:
    path = tmp_path / "users"

    def add(name: str) -> None:
        with changing(path, missing_ok=True) as users:
            users[name] = User(None, Grants())

    names = [f"user{number}" for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, names))
    assert sorted(load(path)) == sorted(names)
    assert list(tmp_path.iterdir()) == [path]


def test_a_change_that_fails_changes_nothing(file: Path) -> None:
    before = file.read_bytes()

    def fail() -> None:
        with changing(file) as users:
            users.clear()
            raise KeyError

    for _ in range(2):  # the lock is free again
        with pytest.raises(KeyError):
            fail()
    assert file.read_bytes() == before
