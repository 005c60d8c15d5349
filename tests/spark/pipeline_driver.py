"""Runs pipelines in a process of their own, which a test kills or lets finish."""

from __future__ import annotations

import sys
from pathlib import Path

from millstream.spark.pipelines.archive import archive
from millstream.spark.pipelines.replay import replay
from millstream.spark.pipelines.route import route
from millstream.spark.session import local_session


def main(folder: Path, wanted: list[str]) -> None:
    """Run the pipelines that are named, one after the other."""
    spark = local_session(
        master="local[2]",
        memory="1g",
        directory=folder / "spark",
        settings={"spark.sql.shuffle.partitions": "2"},
    )
    store = folder / "store.db"
    for name in wanted:
        if name == "archive":
            archive(spark, store, folder / "archive", logs=["orders"], round_records=400)
        elif name == "replay":
            source, to = folder / "rows.json", "replayed"
            replay(spark, store, source, to, checkpoint=folder / "checkpoint", format="json",
                   step_records=300)  # fmt: skip
        else:
            route(spark, store, round_records=400)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
