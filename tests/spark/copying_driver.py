"""A driver program for tests: copies a log to another by a stream, and ends when all is copied.

python copying_driver.py STORE CHECKPOINT
"""

from __future__ import annotations

import sys
from pathlib import Path

from millstream.spark.local.session import local_session


def main(store: str, checkpoint: str) -> None:
    spark = local_session(
        name="copying", master="local[2]", memory="800m", directory=Path(checkpoint).parent
    )
    reader = spark.readStream.format("millstream").option("path", store)
    rows = (
        reader.option("subscribe", "from")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 100)
        .option("minPartitions", 2)
        .load()
    )
    query = (
        rows.select("value")
        .writeStream.format("millstream")
        .option("path", store)
        .option("log", "to")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
