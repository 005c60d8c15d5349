"""Time to the first row, in a process and a session of its own: prints seconds, the session excluded."""

from __future__ import annotations

import sys

from millstream.bench.measure import seconds
from millstream.spark.local.session import local_session


def main(store: str, log: str) -> None:
    """Start Spark, then read one row of a log."""
    spark = local_session(name="first row", master="local[2]")
    began = seconds()
    rows = spark.read.format("millstream").option("path", store).option("subscribe", log).load()
    assert rows.first() is not None
    sys.stdout.write(f"{seconds() - began}\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
