"""Where the tests' RabbitMQ comes from, and what is said where there is none."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.support import debian_packages, rabbitmq_needed
from tests.support.rabbitmq import RabbitMQConfig, RabbitMQNode
from tests.support.rabbitmq_install import OLD, REFERENCE, RabbitMQMissing, find, is_fetched
from tests.support.rabbitmq_needed import put_together, start_or_skip

if TYPE_CHECKING:
    from pathlib import Path

URIS = """\
'http://deb.example/debian/dists/bookworm/InRelease' deb_InRelease 0
'http://deb.example/debian/dists/bookworm-updates/InRelease' deb-updates_InRelease 0
'http://deb.example/security/dists/bookworm-security/InRelease' security_InRelease 0
'https://other.example/node/dists/nodistro/InRelease' other_InRelease 0
'http://second.example/debian/dists/bookworm/InRelease' second_InRelease 0
'http://deb.example/debian/dists/bookworm/main/binary-amd64/Packages.xz' deb_Packages 0
"""


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a PATH with this directory only."""
    directory = tmp_path / "programs"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("RABBITMQ_HOME", raising=False)
    monkeypatch.setattr(debian_packages, "_PAUSE_S", 0.0)
    monkeypatch.setattr(debian_packages, "_codename", lambda: "bookworm")
    return directory


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


def server(home: Path, version: str) -> Path:
    """A directory that looks like a RabbitMQ."""
    (home / "plugins" / f"rabbit-{version}").mkdir(parents=True)
    (home / "plugins" / "rabbit_common-9.9.9").mkdir()
    write_program(home / "sbin" / "rabbitmq-server", "exit 1")
    return home


def test_rabbitmq_home_is_the_reference_of_any_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RABBITMQ_HOME", str(server(tmp_path / "mine", "3.13.7")))
    assert is_fetched()
    assert find().home == tmp_path / "mine"
    assert find().version == "3.13.7"
    assert not is_fetched(OLD)

    monkeypatch.setenv("RABBITMQ_HOME", str(tmp_path))
    with pytest.raises(RabbitMQMissing, match="has no sbin/rabbitmq-server; unset it or correct it"):
        find()


def test_one_on_the_path_is_taken_if_its_version_fits(tmp_path: Path, programs: Path) -> None:
    home = server(tmp_path / "opt" / "rabbitmq", "3.10.25")
    (programs / "rabbitmq-server").symlink_to(home / "sbin" / "rabbitmq-server")
    assert find(OLD).home == home
    assert find(OLD).path == os.environ["PATH"]
    assert not is_fetched(REFERENCE)


def test_without_debians_tools_the_error_says_what_to_install() -> None:
    with pytest.raises(RabbitMQMissing, match=r"no apt-get.*install rabbitmq-server, or set RABBITMQ_HOME") as caught:
        find()
    assert "\n" not in str(caught.value)


def test_where_there_is_none_tests_are_skipped_and_fetch_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(rabbitmq_needed, "_missing", {})
    reasons = []
    for config in (RabbitMQConfig(), RabbitMQConfig(), RabbitMQConfig(release=OLD)):
        with closing(RabbitMQNode(config)) as node, pytest.raises(pytest.skip.Exception) as caught:
            start_or_skip(node)
        reasons.append(str(caught.value))
        monkeypatch.setenv("RABBITMQ_HOME", "/changed")  # another reason, if it were looked for again
    assert reasons[0] == reasons[1]
    assert "RabbitMQ 4 is missing" in reasons[0]
    assert "install rabbitmq-server, or set RABBITMQ_HOME" in reasons[0]
    assert "\n" not in reasons[0]
    assert "RabbitMQ 3.10 is missing" in reasons[2]


def test_the_summary_has_one_line_for_all_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rabbitmq_needed, "_missing", {REFERENCE: "there is none"})

    def place(line: int, reason: str) -> object:
        report = pytest.TestReport(
            "test", ("test.py", line, "test"), {}, "skipped", ("test.py", line, f"Skipped: {reason}"), "setup"
        )
        put_together(report)
        return report.longrepr

    assert place(1, "there is none") == place(2, "there is none")
    assert place(1, "another reason") == ("test.py", 1, "Skipped: another reason")


def test_in_ci_a_missing_one_fails_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(rabbitmq_needed, "_missing", {REFERENCE: "skipped before"})
    with closing(RabbitMQNode()) as node, pytest.raises(RabbitMQMissing, match="install rabbitmq-server"):
        start_or_skip(node)


def test_mirrors_are_those_of_this_machine_and_are_tried_again(programs: Path, tmp_path: Path) -> None:
    said = tmp_path / "said"
    for program in ("cat", "sed"):
        found = shutil.which(program, path=os.defpath)
        assert found is not None
        (programs / program).symlink_to(found)
    write_program(programs / "dpkg-deb", "exit 1")
    write_program(
        programs / "apt-get",
        f"""case "$*" in
*--print-uris*) cat {tmp_path}/uris ;;
*) for word; do
     case $word in -oDir::Etc::sourcelist=*) sed 's/.* \\(http\\)/\\1/' "${{word#*=}}" >> {said} ;; esac
   done
   echo 'E: first'; echo 'E: Unable to fetch it'; exit 100 ;;
esac""",
    )
    (tmp_path / "uris").write_text(URIS, encoding="utf-8")
    with pytest.raises(RabbitMQMissing, match="apt-get: E: Unable to fetch it"):
        find()
    once = [f"http://{host}.example/debian {suite} main" for suite in ("forky", "trixie") for host in ("deb", "second")]
    assert said.read_text(encoding="utf-8").splitlines() == once * 3
    assert not is_fetched()

    (tmp_path / "uris").write_text("", encoding="utf-8")
    with pytest.raises(RabbitMQMissing, match="without a mirror of Debian"):
        find()


def test_versions() -> None:
    assert REFERENCE.matches("4.3.6")
    assert not REFERENCE.matches("40.1")
    assert OLD.matches("3.10.8")
    assert not OLD.matches("3.1.0")
