"""Facts about the Spark that runs the reader."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from amqp_spark.datasource.driver_env import (
    bind_address,
    driver_host,
    is_encrypted,
    own_address,
    parse_command,
    parse_properties,
    pull_place,
    read_settings,
)

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = (
    "java -cp x -Xmx1g -Dspark.ssl.enabled=true org.apache.spark.deploy.SparkSubmit --master local[2] "
    "--conf spark.driver.host=10.0.0.5 --conf spark.app.name=a=b pyspark-shell"
)


def test_settings_of_a_command_line() -> None:
    assert parse_command(COMMAND.split()) == {
        "spark.ssl.enabled": "true",
        "spark.master": "local[2]",
        "spark.driver.host": "10.0.0.5",
        "spark.app.name": "a=b",
    }


def test_a_value_may_stand_behind_an_equals_sign_of_the_option() -> None:
    words = ["--conf=spark.a=b=c", "--master=yarn", "-c", "spark.d=e", "--conf", "nothing", "--conf"]
    assert parse_command(words) == {"spark.a": "b=c", "spark.master": "yarn", "spark.d": "e"}


OWN = "--conf spark.a=own --master=local[2] --master local -Dspark.b=own --properties-file own.conf"


@pytest.mark.parametrize(
    "command",
    [
        "java -Xmx1g org.apache.spark.deploy.SparkSubmit --master yarn --verbose --conf spark.a=b job.py",
        "java --add-opens x/y=ALL SparkSubmit --supervise --master yarn --conf=spark.a=b --py-files --conf local:///j.jar",
        "java -Dspark.master=yarn -ea -server -cp x:y -XX:+UseG1GC -Dspark.a=b com.example.Main",
        "java -Dx=y.SparkSubmit -Dspark.master=yarn -Dspark.a=b com.example.Main",
        "/jdk/bin/java -Dspark.master=yarn -Dspark.a=b org.apache.spark.deploy.worker.DriverWrapper",
    ],
)
def test_the_arguments_of_the_job_are_no_settings_of_spark(command: str, tmp_path: Path) -> None:
    written(tmp_path / "own.conf", "spark.a own\n")
    assert parse_command([*command.split(), *OWN.split()]) == {"spark.master": "yarn", "spark.a": "b"}
    assert read_settings([*command.split(), *OWN.split()], {}, tmp_path) == {"spark.master": "yarn", "spark.a": "b"}


def test_the_arguments_of_the_job_are_no_settings_of_spark_in_the_cluster_mode_of_yarn(tmp_path: Path) -> None:
    file = written(tmp_path / "spark.conf", "spark.ssl.enabled true\n")
    arguments = [word for argument in OWN.split() for word in ("--arg", argument)]
    command = ["java", "-Dspark.x=y", "org.apache.spark.deploy.yarn.ApplicationMaster", "--primary-py-file", "job.py"]
    settings = read_settings([*command, *arguments, "--properties-file", str(file)], {}, tmp_path)
    assert settings == {"spark.x": "y", "spark.ssl.enabled": "true"}


def test_an_own_file_of_the_job_leaves_the_settings_and_so_the_encryption(tmp_path: Path) -> None:
    written(tmp_path / "conf" / "spark-defaults.conf", "spark.network.crypto.enabled true\n")
    environment = {"SPARK_CONF_DIR": str(tmp_path / "conf")}
    command = ["java", "SparkSubmit", "--master", "local[2]", "job.py", *OWN.split()]
    assert pull_place(read_settings(command, environment, tmp_path), None).encrypt


def test_a_file_of_settings_is_read_as_java_reads_it() -> None:
    text = (
        "# comment\n"
        "  ! another \\\n"
        "\n"
        "spark.master   yarn\n"
        "spark.driver.host=h\n"
        "spark.x\ty z  \n"
        "spark.flag\n"
        "spark.network.crypto.enabled:true\n"
        "spark.a : b\r\n"
        "spark.b = c=d:e\n"
        "spark.long a,\\\n"
        "    b,\\\r\n"
        "\tc\n"
        "spark.even a\\\\\n"
        "spark.\\=\\:\\ key v\n"
        "spark.letters \\u00fc\\t\\n\\q\n"
        "spark.twice 1\n"
        "spark.twice 2\n"
        "spark.last open\\"
    )
    assert parse_properties(text) == {
        "spark.master": "yarn",
        "spark.driver.host": "h",
        "spark.x": "y z",
        "spark.flag": "",
        "spark.network.crypto.enabled": "true",
        "spark.a": "b",
        "spark.b": "c=d:e",
        "spark.long": "a,b,c",
        "spark.even": "a\\",
        "spark.=: key": "v",
        "spark.letters": "ü\t\nq",
        "spark.twice": "2",
        "spark.last": "open",
    }


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_settings_come_from_the_file_that_the_command_names_as_on_kubernetes_and_yarn(tmp_path: Path) -> None:
    conf = written(tmp_path / "conf" / "spark-defaults.conf", "spark.only.defaults 1\nspark.a default\n").parent
    file = written(tmp_path / "app" / "spark.properties", "spark.network.crypto.enabled:true\nspark.a file\n")
    environment = {"SPARK_CONF_DIR": str(conf)}
    command = ["java", "SparkSubmit", "--conf", "spark.b=command", "--properties-file", str(file)]
    named = {"spark.network.crypto.enabled": "true", "spark.a": "file", "spark.b": "command"}
    assert read_settings(command, environment, tmp_path) == named
    relative = ["java", "SparkSubmit", "--properties-file=app/spark.properties", "--conf", "spark.a=command"]
    assert read_settings(relative, environment, tmp_path)["spark.a"] == "command"
    assert is_encrypted(read_settings(relative, environment, tmp_path))
    both = read_settings([*command, "--load-spark-defaults"], environment, tmp_path)
    assert both == named | {"spark.only.defaults": "1"}


def test_settings_come_from_the_defaults_without_such_a_file(tmp_path: Path) -> None:
    written(tmp_path / "conf" / "spark-defaults.conf", "spark.ssl.enabled: true\n")
    assert is_encrypted(read_settings([], {"SPARK_HOME": str(tmp_path)}, tmp_path))
    assert read_settings([], {"SPARK_CONF_DIR": str(tmp_path)}, tmp_path) == {}
    assert read_settings([], {}, tmp_path) == {}


def test_a_file_of_settings_that_cannot_be_read_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read_settings(["--properties-file", str(tmp_path)], {}, tmp_path) == {}
    assert str(tmp_path) in caplog.text


@pytest.mark.parametrize("key", ["spark.network.crypto.enabled", "spark.ssl.enabled", "spark.ssl.rpc.enabled"])
def test_encryption(key: str) -> None:
    assert is_encrypted({key: "true"})
    assert not is_encrypted({key: "false"})
    assert not is_encrypted({})


def test_the_driver_is_on_this_machine_for_local_masters() -> None:
    settings = {"spark.driver.host": "far"}
    assert driver_host(settings | {"spark.master": "local-cluster[2,1,1024]"}) == "127.0.0.1"
    assert driver_host(settings | {"spark.master": "yarn"}) == "far"


def test_the_endpoint_listens_on_the_address_that_is_advertised_if_it_is_one_of_ours() -> None:
    assert bind_address("127.0.0.1") == "127.0.0.1"
    assert bind_address("localhost") in {"127.0.0.1", "::1"}
    assert bind_address("192.0.2.1") == ""
    assert bind_address("no-such-host.invalid") == ""


def test_some_address_of_this_machine_is_found_without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    assert bind_address(driver_host({})) != ""


def test_an_address_of_ipv6_has_no_brackets_in_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    assert driver_host({"spark.master": "yarn", "spark.driver.host": "[fd00::2]"}) == "fd00::2"
    monkeypatch.setenv("SPARK_LOCAL_IP", "[::1]")
    assert driver_host({}) == "::1"


@pytest.mark.parametrize("wildcard", ["0.0.0.0", "::", "[::]"])
def test_all_addresses_are_none_to_connect_to(wildcard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqp_spark.datasource.driver_env.own_address", lambda: "10.0.0.9")
    monkeypatch.setenv("SPARK_LOCAL_IP", wildcard)
    assert driver_host({"spark.master": "yarn"}) == "10.0.0.9"
    assert driver_host({"spark.master": "yarn", "spark.driver.host": wildcard}) == "10.0.0.9"


class OnlyIpv6(socket.socket):
    """A socket of a machine whose only route is one of IPv6."""

    def connect(self, _address: object) -> None:
        if self.family == socket.AF_INET:
            raise OSError(101, "Network is unreachable")

    def getsockname(self) -> tuple[str, int, int, int]:
        return ("fd00::2", 4000, 0, 0)


def test_the_own_address_of_a_machine_with_ipv6_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqp_spark.datasource.driver_env.socket.socket", OnlyIpv6)
    assert own_address() == "fd00::2"


def test_the_own_address_of_a_machine_without_a_route_is_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: object, _address: object) -> None:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(OnlyIpv6, "connect", refuse)
    monkeypatch.setattr("amqp_spark.datasource.driver_env.socket.socket", OnlyIpv6)
    assert own_address() == "127.0.0.1"


@pytest.fixture
def debian(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of this machine, ``driver``, has a loopback address in its own table of hosts."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]
    real = socket.getaddrinfo
    monkeypatch.setattr(
        "amqp_spark.datasource.driver_env.socket.getaddrinfo",
        lambda host, *rest, **named: found if host == "driver" else real(host, *rest, **named),
    )


CLUSTER = {"spark.master": "spark://m:7077"}
WILDCARDS = ("0.0.0.0", "::", "[::]")


@pytest.mark.usefixtures("debian")
@pytest.mark.parametrize(
    ("settings", "host", "expected"),
    [
        (CLUSTER | {"spark.driver.host": "driver"}, None, ("driver", "", True)),
        ({"spark.driver.host": "driver"}, None, ("driver", "", True)),
        (CLUSTER, "driver", ("driver", "", True)),
        ({"spark.master": "local[2]"}, "driver", ("driver", "127.0.1.1", False)),
        (CLUSTER | {"spark.driver.host": "127.0.0.1"}, None, ("127.0.0.1", "127.0.0.1", False)),
        (CLUSTER, "::1", ("::1", "::1", False)),
        *(
            (CLUSTER | {"spark.driver.bindAddress": each, "spark.driver.host": "driver"}, None, ("driver", "", True))
            for each in WILDCARDS
        ),
        ({"spark.master": "local[2]", "spark.driver.bindAddress": "::"}, None, ("127.0.0.1", "127.0.0.1", False)),
        (CLUSTER | {"spark.driver.bindAddress": "::"}, "127.0.0.1", ("127.0.0.1", "127.0.0.1", False)),
    ],
)
def test_a_name_that_is_loopback_only_here_is_listened_for_everywhere_and_encrypted(
    settings: dict[str, str], host: str | None, expected: tuple[str, str, bool]
) -> None:
    place = pull_place(settings, host)
    assert (place.host, place.bind, place.encrypt) == expected


@pytest.mark.parametrize("wildcard", WILDCARDS)
def test_the_endpoint_listens_everywhere_where_spark_does(wildcard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqp_spark.datasource.driver_env.bind_address", lambda _: "10.0.0.9")
    place = pull_place(CLUSTER | {"spark.driver.bindAddress": wildcard, "spark.driver.host": "10.0.0.9"}, None)
    assert (place.host, place.bind, place.encrypt) == ("10.0.0.9", "", True)
    named = pull_place(CLUSTER | {"spark.driver.bindAddress": "10.0.0.9", "spark.driver.host": "10.0.0.9"}, None)
    assert named.bind == "10.0.0.9"


@pytest.mark.parametrize(
    ("settings", "host", "encrypt"),
    [
        ({"spark.master": "local[2]"}, None, False),
        ({"spark.master": "local[2]", "spark.network.crypto.enabled": "true"}, None, True),
        ({"spark.master": "local[2]"}, "192.0.2.1", True),  # an address that is not of this machine: a translated one
        ({"spark.master": "k8s://x", "spark.driver.host": "no-such-host.invalid"}, None, True),
        ({}, "localhost", False),
    ],
)
def test_messages_leave_this_machine_encrypted_whatever_is_known_of_settings(
    settings: dict[str, str], host: str | None, encrypt: bool
) -> None:
    assert pull_place(settings, host).encrypt is encrypt
