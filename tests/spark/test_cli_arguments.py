"""Checks of the jobs' command lines before Spark is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amqp_spark import cli

if TYPE_CHECKING:
    from pathlib import Path

FILES = ("passwordFile", "tls.caFile", "tls.certFile", "tls.keyFile")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("spelled", [str, str.lower, str.upper])
def test_a_file_that_cannot_be_read_is_found_however_its_option_is_spelled(
    name: str, spelled: type[str], tmp_path: Path
) -> None:
    there = tmp_path / "there"
    there.touch()
    cli.check_files({spelled(name): str(there), "queue": "/no/such/file"})
    with pytest.raises(cli.CommandLineError, match=rf"Option '{name}': '/no/such/file' cannot be read: No such file"):
        cli.check_files({"url": "amqp://h/", spelled(name): "/no/such/file"})


def test_a_path_that_no_file_can_have() -> None:
    with pytest.raises(cli.CommandLineError, match=r"Option 'tls\.caFile': 'a\\x00b' cannot be read: .*null"):
        cli.check_files({"tls.cafile": "a\0b"})
