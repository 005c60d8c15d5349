"""Averages per minute, from log to log, by a stateful stream with a watermark.

    python examples/spark/windows.py [DIRECTORY]

A minute is written once, when nothing older than it is expected any more: the watermark trails the
newest measurement by thirty seconds. Stopped at any moment and started again, the stream goes on
from its checkpoint, and no minute is written twice.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import millstream
from millstream.spark.local.session import local_session

MINUTE_MS = 60_000
BEGIN_MS = 1_800_000_000_000


def measure(store: Path, minutes: range) -> None:
    """Append four measurements per minute of two sensors; those of a minute come out of order."""
    with millstream.open(store) as ms:
        for minute in minutes:
            seconds = [45, 5, 25, 10]
            ms.log("measurements").append_many(
                [{"degrees": minute + second} for second in seconds],
                keys=["north", "south", "north", "south"],
                timestamps=[BEGIN_MS + minute * MINUTE_MS + second * 1_000 for second in seconds],
            )


def average(spark: SparkSession, store: Path, checkpoint: Path) -> None:
    """Take what is there, write each minute that is over, and stop."""
    measurements = (
        spark.readStream.format("millstream")
        .option("path", str(store))
        .option("subscribe", "measurements")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 4)
        .option("cursor", "averages")
        .load()
        .select(
            f.col("key").cast("string").alias("sensor"),
            "timestamp",
            f.from_json(f.col("value").cast("string"), "degrees double").alias("measured"),
        )
    )
    averages = (
        measurements.withWatermark("timestamp", "30 seconds")
        .groupBy(f.window("timestamp", "1 minute"), "sensor")
        .agg(f.avg("measured.degrees").alias("degrees"), f.count("*").alias("count"))
    )
    rows = averages.select(
        f.col("sensor").alias("key"),
        f.to_json(f.struct(f.col("window.start").alias("minute"), "degrees", "count")).alias(
            "value"
        ),
        f.col("window.start").alias("timestamp"),
    )
    query = (
        rows.writeStream.format("millstream")
        .option("path", str(store))
        .option("log", "averages")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main(directory: Path) -> None:
    """Measure three minutes, average; measure two more, and average what is new."""
    directory.mkdir(parents=True, exist_ok=True)
    store, checkpoint = directory / "windows.db", directory / "checkpoint"
    spark = local_session(name="windows", directory=directory)
    for minutes in (range(3), range(3, 5)):
        measure(store, minutes)
        average(spark, store, checkpoint)
        with millstream.open(store) as ms:
            print(
                f"{len(ms.log('averages'))} averages of {len(ms.log('measurements'))} measurements"
            )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "windows"))
