"""What is found out about the Spark that runs the reader."""

from __future__ import annotations

import pytest

from amqp_spark.datasource.driver_env import bind_address, driver_host, is_encrypted, parse_command, parse_defaults

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


def test_settings_of_a_defaults_file() -> None:
    text = "# comment\n\nspark.master   yarn\nspark.driver.host=h\nspark.x\ty z\nspark.flag\n"
    assert parse_defaults(text) == {
        "spark.master": "yarn",
        "spark.driver.host": "h",
        "spark.x": "y z",
        "spark.flag": "",
    }


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
