"""A driver program for tests: streams from each source to a log of a server, on a cluster.

python standalone_driver.py DIRECTORY MASTER SERVER SOURCE…
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from millstream.spark.connector import JAR
from millstream.spark.local.session import DEFAULTS, prepare

CREDENTIALS = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION")


def session(directory: Path, master: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    prepare(os.environ)
    builder = SparkSession.Builder().master(master).appName("standalone")
    settings = {
        **DEFAULTS,
        "spark.jars": str(JAR),
        "spark.driver.memory": "700m",
        "spark.executor.memory": "600m",
        "spark.executor.cores": "1",
        "spark.local.dir": str(directory / "spark"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    settings |= {f"spark.executorEnv.{name}": os.environ[name] for name in CREDENTIALS}
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def main(directory: str, master: str, server: str, *sources: str) -> None:
    spark = session(Path(directory), master)
    for number, source in enumerate(sources):
        for _ in range(2):  # the second query goes on where the first one stopped
            rows = (
                spark.readStream.format("millstream")
                .option("server" if source.startswith("http") else "path", source)
                .option("subscribe", "orders")
                .option("startingOffsets", "earliest")
                .option("maxOffsetsPerTrigger", 500)
                .option("minPartitions", 2)
                .load()
            )
            writer = rows.select("value").writeStream.format("millstream")
            writer = writer.option("server", server).option("log", f"copy-{number}")
            writer = writer.option("checkpointLocation", f"{directory}/checkpoint-{number}")
            writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
