"""Checks of the jobs' command lines before Spark is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amqp_spark import cli
from amqp_spark.options import SOURCE

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


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (["amqp://guest:s3cret@host/x"], "a value stands where none is expected"),
        (["--password=s3cret"], "there is no argument --password. job --help lists what is allowed"),
        (["--password", "s3cret"], "there is no argument --password."),
        (["--quite", "--other"], "there is no argument --other, --quite; similar is --quiet. job --help lists"),
        (["-ps3cret"], "a value stands where none is expected"),
        (["--quiet=s3cret"], "argument --quiet takes no value."),
    ],
)
def test_errors_of_the_parser_repeat_no_value(given: list[str], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = cli.job_parser("job", None, {"options": SOURCE})
    parser.add_argument("--quiet", action="store_true")
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(given)
    shown = capsys.readouterr().err
    assert ended.value.code == 2
    assert f"job: error: {what}" in shown
    assert "s3cret" not in shown
