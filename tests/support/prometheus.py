"""A Prometheus to run: the one on the PATH, or one unpacked from Debian's packages into the cache, without root."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.debian_packages import own_apt, repeated, require_tools, run
from tests.support.maven import cached_directory
from tests.support.ports import free_port
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROGRAMS = ("prometheus", "promtool")


def programs() -> Path:
    """Return the directory with the programs; FetchFailed: there is none, and it cannot be fetched."""
    found = shutil.which("prometheus")
    if found is not None and shutil.which("promtool", path=str(Path(found).parent)):
        return Path(found).parent
    return cached_directory("prometheus", lambda directory: repeated(lambda: _fetch(directory))) / "usr/bin"


def _fetch(into: Path) -> None:
    require_tools()
    with tempfile.TemporaryDirectory(prefix=".apt.", dir=into.parent) as name:
        work = Path(name)
        apt = own_apt(work)
        run(*apt, "update")
        run(*apt, "download", "prometheus", cwd=work)  # its dependencies are for a service of the system and pages
        for package in work.glob("*.deb"):
            run("dpkg-deb", "--extract", str(package), str(into))
    for program in _PROGRAMS:
        run(str(into / "usr/bin" / program), "--version")


class Prometheus:
    """A running server."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ready(self) -> bool:
        """Whether it answers."""
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=60) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an expression now; AssertionError if it is not one."""
        data = urllib.parse.urlencode({"query": expression}).encode()
        try:
            with urllib.request.urlopen(f"{self._url}/api/v1/query", data, timeout=60) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from None
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result


@contextmanager
def scraping(target: str, directory: Path) -> Iterator[Prometheus]:
    """Run a server that scrapes ``host:port`` every second, with its files in a directory."""
    port = free_port()
    config = directory / "prometheus.yml"
    job = {"job_name": "amqp_spark", "static_configs": [{"targets": [target]}]}
    config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}))  # JSON is YAML
    command = [
        str(programs() / "prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (directory / "prometheus.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            server = Prometheus(f"http://127.0.0.1:{port}")
            wait_until(lambda: process.poll() is not None or server.ready(), "Prometheus answers", 60.0)
            assert process.poll() is None, (directory / "prometheus.log").read_text()
            yield server
        finally:
            process.terminate()
            process.wait(60)
