"""Runs the doctor's command in this process, and gives its findings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from amqp_spark.diagnosis.command import main

if TYPE_CHECKING:
    import pytest

    from tests.support.fixtures import Broker


@dataclass(frozen=True)
class Diagnosis:
    """What the command said: status, value and advice by section and name."""

    code: int
    found: dict[tuple[str, str], tuple[str, str, str]]

    def status(self, section: str, name: str) -> str:
        return self.found[section, name][0]

    def value(self, section: str, name: str) -> str:
        return self.found[section, name][1]

    def advice(self, section: str, name: str) -> str:
        return self.found[section, name][2]

    def about(self, name: str) -> tuple[str, str, str]:
        """The only finding of this name."""
        [found] = [finding for (_, each), finding in self.found.items() if each == name]
        return found


class Doctor:
    """The command, with a login that the environment gives; no output may show the password."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, url: str, *arguments: str, login: tuple[str, str] | None = ("guest", "guest")) -> Diagnosis:
        code, out, err = self.run(url, "--json", *arguments, login=login)
        assert not err
        report = json.loads(out)
        assert report["exit_code"] == code
        rows = report["findings"]
        found = {(each["section"], each["name"]): (each["status"], each["value"], each["advice"]) for each in rows}
        assert len(found) == len(rows), "two findings of one name"
        for each in rows:
            assert each["value"]
            assert each["advice"] or each["status"] not in ("warning", "error"), each
        return Diagnosis(code, found)

    def at(self, broker: Broker, *arguments: str, vhost: str = "default") -> Diagnosis:
        """Examine a broker of the fixtures with its own login."""
        return self(broker.url(vhost), *arguments, login=(broker.username, broker.password))

    def run(self, *arguments: str, login: tuple[str, str] | None = ("guest", "guest")) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        for name, value in zip(("AMQP_USERNAME", "AMQP_PASSWORD"), login or (None, None), strict=True):
            if value is None:
                self._monkeypatch.delenv(name, raising=False)
            else:
                self._monkeypatch.setenv(name, value)
        code = main(arguments)
        out, err = self._capsys.readouterr()
        if login is not None and login[0] != login[1]:
            assert login[1] not in out + err
        return code, out, err
