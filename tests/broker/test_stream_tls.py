"""The source over TLS: a verified broker, a certificate of an unknown authority, and one for another name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from amqp_core.address import ConnectOptions, parse_url
from amqp_core.v0_10.client import Client
from tests.broker.stream_support import Stream, numbers, publish
from tests.support.brokerj import BrokerConfig, BrokerJ
from tests.support.tls import TlsMaterial

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> TlsMaterial:
    return TlsMaterial.make(tmp_path_factory.mktemp("tls") / "keys")


@pytest.fixture(scope="module")
def tls_broker(material: TlsMaterial) -> Iterator[BrokerJ]:
    with BrokerJ(BrokerConfig(listeners=("tls",), durable=False, heap="512m", tls=material)) as broker:
        yield broker


@pytest.fixture(scope="module")
def misnamed_broker(material: TlsMaterial) -> Iterator[BrokerJ]:
    """Its certificate is of the right authority, and for another host."""
    config = BrokerConfig(
        listeners=("tls",), durable=False, heap="512m", tls=replace(material, server=material.wrong_name)
    )
    with BrokerJ(config) as broker:
        yield broker


@pytest.fixture
def options(tls_broker: BrokerJ, material: TlsMaterial) -> dict[str, Any]:
    return {"url": tls_broker.url(listener="tls"), "tls__caFile": material.ca_file, "retry__maxAttempts": 1}


def test_a_query_over_tls(spark: SparkSession, tls_broker: BrokerJ, options: dict[str, Any], tmp_path: Path) -> None:
    hosts, vhost, tls = parse_url(tls_broker.url(listener="tls"))
    with Client.connect(
        ConnectOptions(
            hosts=hosts, virtual_host=vhost, tls=tls, username=tls_broker.username, password=tls_broker.password,
            tls_ca_file=str(options["tls__caFile"]),
        )
    ) as client:  # fmt: skip
        client.declare_queue("over-tls")
        publish(client, "over-tls", numbers(5000))
    stream = Stream(spark, tls_broker, tmp_path)
    stream.drain(stream.frame("over-tls", **options))
    assert sorted(stream.bodies()) == numbers(5000)


def test_an_untrusted_certificate_is_refused(
    spark: SparkSession, tls_broker: BrokerJ, options: dict[str, Any], material: TlsMaterial, tmp_path: Path
) -> None:
    stream = Stream(spark, tls_broker, tmp_path)
    frame = stream.frame("q", **options | {"tls__caFile": material.other_ca_file})
    with pytest.raises(StreamingQueryException, match=r"(?s)TlsError: .* is not trusted.*CA file"):
        stream.drain(frame)


@pytest.mark.thorough
def test_a_certificate_for_another_name_is_refused_and_can_be_allowed(
    spark: SparkSession, misnamed_broker: BrokerJ, material: TlsMaterial, tmp_path: Path
) -> None:
    options: dict[str, Any] = {
        "url": misnamed_broker.url(listener="tls"),
        "tls__caFile": material.ca_file,
        "retry__maxAttempts": 1,
    }
    stream = Stream(spark, misnamed_broker, tmp_path)
    with pytest.raises(StreamingQueryException, match=r"(?s) is for another name.*verification of host names"):
        stream.drain(stream.frame("named", **options))
    stream.drain(stream.frame("named", **options, tls__verifyHostname="false", declare="ifMissing"))
    assert stream.bodies() == []
