"""A Spark session; with the master ``two-hosts[memory in MB]`` over executors on two hosts, as needed for speculation.

The workers of ``local-cluster`` are all on one host, and Spark starts the copy of a slow task only on another one. Here
master and two workers with one core each live in the driver's JVM, at 127.0.0.1 and 127.0.0.2.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from collections.abc import Mapping

HOSTS = ("127.0.0.1", "127.0.0.2")
_MASTER = re.compile(r"two-hosts\[(\d+)\]")


def start_session(name: str, settings: Mapping[str, str]) -> SparkSession:
    """Start Spark with these settings; with any other master it is an ordinary session."""
    found = _MASTER.fullmatch(settings["spark.master"])
    if found is None:
        builder = SparkSession.builder.appName(name)
        for key, value in settings.items():
            builder = builder.config(key, value)
        return builder.getOrCreate()
    conf = SparkConf().setAppName(name)
    for key, value in settings.items():
        if key != "spark.master":
            conf = conf.set(key, value)
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))  # needed to start an executor
    gateway = launch_gateway(conf)  # type: ignore[no-untyped-call]
    url = _start_cluster(gateway, int(found[1]), Path(settings["spark.sql.warehouse.dir"]).parent)
    return SparkSession(SparkContext(conf=conf.setMaster(url), gateway=gateway))


def _start_cluster(gateway: Any, memory_mb: int, directory: Path) -> str:
    jvm = gateway.jvm
    conf = jvm.org.apache.spark.SparkConf(False)
    conf.set("spark.ui.enabled", "false").set("spark.master.rest.enabled", "false")
    master = jvm.org.apache.spark.deploy.master.Master.startRpcEnvAndEndpoint(HOSTS[0], 0, 0, conf)
    url: str = master._1().address().toSparkURL()
    urls = gateway.new_array(jvm.java.lang.String, 1)
    urls[0] = url
    option = jvm.scala.Option
    for number, host in enumerate(HOSTS):
        jvm.org.apache.spark.deploy.worker.Worker.startRpcEnvAndEndpoint(
            host, 0, 0, 1, memory_mb, urls, str(directory / host), option.apply(number), conf, option.empty()
        )
    return url
