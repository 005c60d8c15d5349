"""Runs pipelines in a process of their own, which a test kills or lets finish.

python pipeline_driver.py FOLDER STORE PIPELINE…
"""

from __future__ import annotations

import sys
from pathlib import Path

from millstream.spark.pipelines.archive import archive
from millstream.spark.pipelines.compact import compact
from millstream.spark.pipelines.replay import replay
from millstream.spark.pipelines.route import route
from millstream.spark.session import local_session


def main(folder: Path, store: str, wanted: list[str]) -> None:
    """Run the pipelines that are named, one after the other."""
    spark = local_session(
        master="local[2]",
        memory="1g",
        directory=folder / "spark",
        settings={"spark.sql.shuffle.partitions": "2"},
    )
    for name in wanted:
        if name in ("archive", "delta", "iceberg"):
            table = "" if name == "archive" else name
            archive(spark, store, folder / "archive", logs=["orders"], round_records=400,
                    table=table, target_file_bytes=20_000 if table else 0)  # fmt: skip
        elif name == "replay":
            source, to = folder / "rows.json", "replayed"
            replay(spark, store, source, to, checkpoint=folder / "checkpoint", format="json",
                   step_records=300)  # fmt: skip
        elif name == "compact":
            compact(spark, store, "keyed", to_log="compacted")
        else:
            route(spark, store, round_records=400)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
