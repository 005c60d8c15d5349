"""Runs pipelines in a process of their own, which a test kills or lets finish.

python pipeline_driver.py FOLDER STORE PIPELINE…

Pipelines are `archive`, `delta`, `iceberg` (an archive as a table), `route`, and `replay` and
`compact`, which may have a number: `replay:3` appends rows-3.json, `compact:3` makes compacted-3.
What has begun and ended is noted in steps.txt.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.spark.local.session import local_session
from millstream.spark.pipelines.archive import archive
from millstream.spark.pipelines.compact import compact
from millstream.spark.pipelines.replay import replay
from millstream.spark.pipelines.route import route

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(folder: Path, store: str, wanted: list[str]) -> None:
    """Run the pipelines that are named, one after the other."""
    spark = local_session(
        master="local[2]",
        memory="1g",
        directory=folder / "spark",
        settings={"spark.sql.shuffle.partitions": "2"},
    )
    note(folder, "ready")
    for name in wanted:
        note(folder, f"begin {name}")
        run(spark, folder, store, name)
        note(folder, f"end {name}")
    spark.stop()


def note(folder: Path, text: str) -> None:
    """Add a line, in one write: it is there as a whole, or not at all."""
    descriptor = os.open(folder / "steps.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(descriptor, f"{text}\n".encode())
    finally:
        os.close(descriptor)


def run(spark: SparkSession, folder: Path, store: str, name: str) -> None:
    """Run one pipeline."""
    kind, _, number = name.partition(":")
    end = f"-{number}" if number else ""
    if kind in ("archive", "delta", "iceberg"):
        table = "" if kind == "archive" else kind
        archive(spark, store, folder / "archive", logs=["orders"], round_records=400,
                table=table, target_file_size=20_000 if table else 0)  # fmt: skip
    elif kind == "replay":
        source, checkpoint = folder / f"rows{end}.json", folder / f"checkpoint{end}"
        replay(spark, store, source, "replayed", checkpoint=checkpoint, format="json",
               step_records=300)  # fmt: skip
    elif kind == "compact":
        compact(spark, store, "keyed", to=f"compacted{end}")
    else:
        route(spark, store, round_records=400)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
