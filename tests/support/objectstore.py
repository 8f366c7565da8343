"""An object store on loopback: the S3 server of moto, in a process of its own, everything in memory."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Final, Self

from pyarrow import fs

from tests.support.ports import free_port
from tests.support.process import die_with_us, wait_until

if TYPE_CHECKING:
    from types import TracebackType

REGION: Final = "us-east-1"
CREDENTIALS: Final = {
    "AWS_ACCESS_KEY_ID": "tester",
    "AWS_SECRET_ACCESS_KEY": "not-so-secret",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""Environment variables of a process that uses the store."""
BUCKET: Final = "bucket"


class ObjectStore:
    """A server with one bucket, ended by ``stop`` or with this process."""

    def __init__(self) -> None:
        self.port = free_port()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        # Its warnings do not concern the tests, and it checks no credentials: they are there for the client.
        command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)
        self._watcher = die_with_us(self._process.pid)
        try:
            wait_until(self._answers, "the object store", timeout_s=120)
            self._request("PUT", BUCKET)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def url(self, directory: str, port: int | None = None) -> str:
        """The URI of a directory, as option ``spoolLocation`` takes it; ``port``: of a proxy."""
        endpoint = f"127.0.0.1:{port or self.port}"
        return f"s3://{BUCKET}/{directory}?endpoint_override={endpoint}&scheme=http&region={REGION}"

    def filesystem(self, attempts: int = 3) -> fs.S3FileSystem:
        """The whole store, for direct access by a test; paths begin with the bucket."""
        return fs.S3FileSystem(
            access_key="tester",
            secret_key="not-so-secret",
            endpoint_override=f"127.0.0.1:{self.port}",
            scheme="http",
            region=REGION,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=attempts),
        )

    def names(self, directory: str) -> list[str]:
        """The objects of a directory, sorted, without directory placeholders."""
        selector = fs.FileSelector(f"{BUCKET}/{directory}", allow_not_found=True, recursive=True)
        found = self.filesystem().get_file_info(selector)
        return sorted(each.base_name for each in found if each.type == fs.FileType.File)

    def stop(self) -> None:
        """End the server; its contents are lost."""
        self._process.kill()
        self._process.wait()
        self._watcher.wait()
        self._log.close()

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            self._log.seek(0)
            raise RuntimeError(f"the object store ended at once:\n{self._log.read().decode(errors='replace')[-3000:]}")
        try:
            self._request("GET", "")
        except OSError:
            return False
        return True

    def _request(self, method: str, path: str) -> None:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{path}", method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
