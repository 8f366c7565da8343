"""``python -m amqp_spark.transactions`` as the tests of it run it: in this process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from amqp_spark.cli import EXIT_DONE
from amqp_spark.transactions.__main__ import main

if TYPE_CHECKING:
    import pytest

    from tests.support.fixtures import Broker


@dataclass
class Command:
    """Runs the command line; keeps what it printed."""

    url: str
    capsys: pytest.CaptureFixture[str]
    out: str = ""
    err: str = ""

    @classmethod
    def of(
        cls,
        broker: Broker,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        vhost: str = "default",
    ) -> Self:
        """For a virtual host of a broker; the login is in the environment."""
        monkeypatch.delenv("AMQP_URL", raising=False)
        monkeypatch.setenv("AMQP_USERNAME", broker.username)
        monkeypatch.setenv("AMQP_PASSWORD", broker.password)
        return cls(broker.url(vhost), capsys)

    def __call__(self, *arguments: str) -> int:
        code = main([self.url, *arguments])
        self.out, self.err = self.capsys.readouterr()
        return code

    def json(self, *arguments: str) -> dict[str, Any]:
        """The output of ``--json``."""
        assert self(*arguments, "--json") == EXIT_DONE, self.err
        found: dict[str, Any] = json.loads(self.out)
        return found
