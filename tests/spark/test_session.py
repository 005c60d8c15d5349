"""The session that `local_session` gives."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.spark.local.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_running_session_is_given_back_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    before = spark.conf.getAll
    again = local_session(
        name="other", memory="9g", directory=tmp_path, settings={"spark.sql.ansi.enabled": "false"}
    )
    assert again.sparkContext is spark.sparkContext
    assert again.conf.getAll == before


def test_workers_run_this_interpreter(spark: SparkSession) -> None:
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
    assert found == [sys.executable]


def test_nothing_listens_beyond_this_machine(spark: SparkSession) -> None:
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None
