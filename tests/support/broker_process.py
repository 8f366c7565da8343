"""A broker that runs as a child process: started, stopped, killed, frozen, and never left behind."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from tests.support.process import die_with_us, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HOST = "127.0.0.1"

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_STARTS = 4
_PAUSE_S = 0.5


class BrokerFailed(RuntimeError):
    """The broker did not start; the text holds the end of its log."""


class BrokerProcess(ABC):
    """One broker process and its work directory; a context manager that starts and stops it.

    Ports and work directory stay the same over :meth:`restart`, so clients can reconnect. The process listens on the
    loopback interface only, and is killed when the process that started it ends.
    """

    title: ClassVar[str]
    """What messages call it."""
    ready: ClassVar[str]
    """What its log says when it accepts connections."""
    bind_failed: ClassVar[str]
    """What its log says about a port that is in use."""

    def __init__(self) -> None:
        self.work_dir: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watchers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def host(self) -> str:
        """The address that the broker listens on."""
        return HOST

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        if self._process is None:
            raise RuntimeError("the broker is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    # -- life cycle ----------------------------------------------------------------------------------------

    def start(self, timeout_s: float = 120.0) -> None:
        """Start the broker and wait until it accepts connections.

        Raises:
            PrerequisiteMissing: no Java, for a broker that needs it.
            BrokerFailed: it ended, or was not ready within ``timeout_s`` seconds.
        """
        if self.running:
            raise RuntimeError("the broker is running already")
        first_start = self.work_dir is None
        for attempt in range(_STARTS):
            if first_start:
                self.work_dir = Path(tempfile.mkdtemp(prefix="amqp-spark-broker-"))
                _live.add(self)
                self._prepare(self.work_dir)
            try:
                self._launch(timeout_s)
            except BrokerFailed as error:
                self._remove_work_dir(first_start)
                # Another process may have taken a port between our choice and the bind. A given port stays given. The
                # ports of a restart stay the same: seen once, one was not free at once after a kill.
                if attempt < _STARTS - 1 and self.bind_failed in str(error):
                    if not first_start:
                        time.sleep(_PAUSE_S)
                        continue
                    if not self._port_is_given():
                        continue
                raise
            return

    def stop(self, timeout_s: float = 30.0) -> None:
        """Stop the broker cleanly (SIGTERM); the work directory stays for :meth:`start`."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
        self._reap()

    def kill9(self) -> None:
        """Kill the broker with SIGKILL; return when the process is gone and its ports are free."""
        if self._process is not None:
            self._process.kill()
        self._reap()

    def restart(self, *, kill: bool = False, timeout_s: float = 120.0) -> None:
        """Stop (or ``kill``) the broker and start it on the same ports and work directory."""
        if kill:
            self.kill9()
        else:
            self.stop()
        self.start(timeout_s)

    def pause(self) -> None:
        """Freeze the process (SIGSTOP): connections stay open without answers; return when all threads have stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        tasks = Path(f"/proc/{self.pid}/task")
        if tasks.is_dir():  # a busy machine takes a while to stop every thread

            def frozen() -> bool:
                try:
                    states = [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks.iterdir()]
                except OSError:  # a thread has ended meanwhile
                    return False
                return all(state == "T" for state in states)

            wait_until(frozen, "every thread of the broker to stop")

    def resume(self) -> None:
        """Continue a paused broker."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """End the broker and remove its work directory."""
        self.kill9()  # no data is kept, so an orderly stop would only take longer
        self._remove_work_dir(True)

    def wait(self) -> int:
        """Wait until the broker ends by itself; return its exit code."""
        if self._process is None:
            raise RuntimeError("the broker is not running")
        return self._process.wait()

    def log(self, last_bytes: int = 4000) -> str:
        """Return the end of the broker's log since the work directory was made."""
        if self.work_dir is None:
            return ""
        with contextlib.suppress(FileNotFoundError):
            return _COLOURS.sub("", self._log_path().read_bytes()[-last_bytes:].decode(errors="replace"))
        return ""

    # -- what a kind of broker defines ---------------------------------------------------------------------

    @abstractmethod
    def _prepare(self, work_dir: Path) -> None:
        """Choose ports and write the configuration into the new work directory."""

    @abstractmethod
    def _command(self, work_dir: Path) -> list[str]:
        """Return the command that becomes the broker."""

    @abstractmethod
    def _port_is_given(self) -> bool:
        """Whether a port was asked for, so that no other will do."""

    def _environment(self, work_dir: Path) -> Mapping[str, str] | None:
        """Return the environment of the command; None for that of this process."""
        return None

    # -- internals -----------------------------------------------------------------------------------------

    def _launch(self, timeout_s: float) -> None:
        assert self.work_dir is not None
        command, environment = self._command(self.work_dir), self._environment(self.work_dir)
        with self._log_path().open("ab") as log:
            mark = log.tell()
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.work_dir,
                start_new_session=True,  # this process handles Ctrl-C of the terminal
            )
        self._watchers.append(die_with_us(self._process.pid, self.work_dir))
        process = self._process

        def ready() -> bool:
            said = self._log_path().read_bytes()[mark:].decode(errors="replace")
            if self.ready in said:
                return True
            if process.poll() is not None:
                raise BrokerFailed(f"{self.title} ended with exit code {process.returncode}:\n{_essence(said)}")
            return False

        try:
            wait_until(ready, f"{self.title} to be ready", timeout_s, poll_s=0.05)
        except TimeoutError as error:
            said = self._log_path().read_bytes()[mark:].decode(errors="replace")
            self.kill9()
            raise BrokerFailed(f"{self.title} was not ready after {timeout_s:g} s:\n{_essence(said)}") from error
        except BaseException:
            self.kill9()
            raise

    def _log_path(self) -> Path:
        assert self.work_dir is not None
        return self.work_dir / "broker.log"

    def _reap(self) -> None:
        for process in (self._process, *self._watchers):
            if process is not None:
                process.wait()
        self._process = None
        self._watchers.clear()

    def _remove_work_dir(self, really: bool) -> None:
        if really and self.work_dir is not None:
            shutil.rmtree(self.work_dir, ignore_errors=True)
            self.work_dir = None
            _live.discard(self)


def _essence(log: str) -> str:
    """Return the end of a log without the frames of stack traces, which hide the causes between them."""
    plain = _COLOURS.sub("", log)
    return "\n".join(line for line in plain.splitlines() if not line.startswith("\tat "))[-4000:]


# Brokers with a process or a work directory: those stopped and not closed are removed at exit, too.
_live: set[BrokerProcess] = set()


def started() -> list[BrokerProcess]:
    """Return the brokers of this process that have a work directory."""
    return sorted(_live, key=lambda broker: broker.title)


@atexit.register
def _close_all() -> None:
    for broker in list(_live):
        broker.close()


# -- make broker -------------------------------------------------------------------------------------------


def run_in_foreground(broker: BrokerProcess, banner: Callable[[], str], program: str) -> int:
    """Run a broker until it ends or a signal comes; return the exit code of the program.

    Args:
        broker: not yet started.
        banner: what is printed when it is ready.
        program: name of the program, for its errors.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        with broker:
            print(banner(), flush=True)
            code = broker.wait()
            print(f"{broker.title} ended with exit code {code}:\n{broker.log()}", file=sys.stderr)
            return 1
    except KeyboardInterrupt:
        print("stopped", flush=True)
        return 0
    except (
        RuntimeError
    ) as error:  # BrokerFailed, PrerequisiteMissing, FetchFailed, RabbitMQMissing: their texts suffice
        print(f"{program}: {error}", file=sys.stderr)
        return 1


def foreground_parser(module: str, title: str) -> argparse.ArgumentParser:
    """Return a parser of the arguments that all brokers in the foreground have."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=f"Run {title}.")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: a free one)")
    return parser


def exports(prefix: str, url: str, username: str, password: str) -> str:
    """Return the shell command that makes ``<prefix>_URL`` and so on name a broker."""
    given = {"URL": url, "USERNAME": username, "PASSWORD": password}
    return "  export " + " ".join(f"{prefix}_{name}={value}" for name, value in given.items())


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
