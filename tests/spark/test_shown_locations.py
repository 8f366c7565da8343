"""Places of files in messages."""

from __future__ import annotations

import pytest

from amqp_spark.options.kinds import shown_location


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("/a:b@c?d", "/a:b@c?d"),
        ("s3://bucket/spool", "s3://bucket/spool"),
        ("s3://host:9000/a@b/spool", "s3://b/spool"),  # it may be a secret: rather too little than too much
        ("s3://key:secret@bucket/spool?secret_key=x", "s3://bucket/spool"),
        ("s3://key:sec/ret@bucket/spool", "s3://bucket/spool"),
        ("s3://key:sec/ret/with@sign@bucket/spool", "s3://bucket/spool"),
        ("file:///data/a@b", "file:///data/a@b"),
        (
            "abfs://container@account.dfs.core.windows.net/spool?x=y",
            "abfs://container@account.dfs.core.windows.net/spool",
        ),
        ("abfss://container:secret@account.dfs.core.windows.net/spool", "abfss://account.dfs.core.windows.net/spool"),
        ("HDFS://user@host/spool", "HDFS://user@host/spool"),
        ("hdfs://user:secret@host/spool", "hdfs://host/spool"),
        ("hdfs://user:sec/ret@host/spool", "hdfs://host/spool"),
        ("nothing", "nothing"),
    ],
)
def test_a_place_is_shown_without_secrets(place: str, text: str) -> None:
    assert shown_location(place) == text
