"""A Java program that tries a client's features one after another, each a case with a name, against a broker."""

from __future__ import annotations

import subprocess
import threading
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from tests.support.java_source import broker_variables, java_command

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.box_process import BoxProcess

_TIMEOUT_S = 240.0
_MOST_TRACE = 6000


class Outcome:
    """What a program said of its cases.

    Attributes:
        cases: by name, whether each passed.
        trace: what it wrote to standard error: the failures.
    """

    def __init__(self) -> None:
        self.cases: dict[str, bool] = {}
        self.trace = ""

    def check(self, name: str) -> None:
        """Fail if a case did not pass."""
        assert name in self.cases, f"it did not come that far\n{self.trace}"
        assert self.cases[name], self.trace


def run_cases(source: Path, jars: Path, broker: BoxProcess) -> Outcome:
    """Run the program against a broker, which is restarted each time that the program asks for it.

    Args:
        source: of the program; it prints ``passed NAME``, ``failed NAME`` or ``restart`` on lines of their own, and
            gets the line ``restarted`` back.
        jars: directory of the client's jars.
    """
    command = java_command(source, jars)
    environment = broker_variables(
        host=broker.host,
        port=broker.port,
        vhost=unquote(urlsplit(broker.url()).path[1:]),
        username=broker.username,
        password=broker.password,
    )
    outcome, errors = Outcome(), list[str]()
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        reading = threading.Thread(target=errors.extend, args=(process.stderr,))
        reading.start()
        watchdog = threading.Timer(_TIMEOUT_S, process.kill)
        watchdog.start()
        try:
            for line in process.stdout:
                word, _, name = line.strip().partition(" ")
                if word == "restart":
                    broker.restart(kill=name == "killed")
                    process.stdin.write("restarted\n")
                    process.stdin.flush()
                elif word in ("passed", "failed"):
                    outcome.cases[name] = word == "passed"
        finally:
            watchdog.cancel()
            process.kill()
            reading.join()
    outcome.trace = "".join(errors)[-_MOST_TRACE:] + broker.log()
    return outcome
