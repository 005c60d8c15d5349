"""What most jobs begin with, on a store that is then thrown away: so that Java has loaded its classes.

`python -m millstream.spark.local.rehearsal` ends when its Java has. A batch is written and read, counted by
key, written as Parquet, and read as a stream.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import millstream
from millstream.spark.local.session import local_session

JAVA_END_S = 600
"""How long Java may take to end: it writes the archive then."""


def main() -> None:
    """Let Spark work a little, and wait for the end of its Java."""
    from pyspark import SparkContext

    with tempfile.TemporaryDirectory(prefix="millstream-rehearsal-") as scratch:
        folder = Path(scratch)
        store = str(folder / "rehearsal.db")
        with millstream.open(store) as ms:
            ms.log("lines").append_many([f"line {n}" for n in range(1_000)])
        spark = local_session(name="rehearsal", master="local[2]", directory=folder)
        options = {"path": store, "subscribe": "lines"}
        lines = spark.read.format("millstream").options(**options).load()
        lines.selectExpr("value", "cast(offset % 10 as string) as key").write.format(
            "millstream"
        ).option("path", store).option("log", "copies").mode("append").save()
        lines.groupBy("key").count().collect()
        lines.select("offset", "value").write.parquet(str(folder / "lines.parquet"))
        stream = spark.readStream.format("millstream").options(**options).load()
        query = (
            stream.writeStream.format("noop")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        spark.stop()
        gateway = SparkContext._gateway
        assert gateway is not None
        gateway.shutdown()
        gateway.proc.stdin.close()
        sys.exit(gateway.proc.wait(JAVA_END_S))


if __name__ == "__main__":
    main()
