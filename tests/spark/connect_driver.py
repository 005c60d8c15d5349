"""A driver program for tests: the source through Spark Connect, over a server that it starts.

python connect_driver.py STORE CHECKPOINT
"""

from __future__ import annotations

import os
import sys

from millstream.spark.local.session import prepare


def main(store: str, checkpoint: str) -> None:
    prepare(os.environ)
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.remote("local[2]").config("spark.driver.memory", "800m").getOrCreate()
    )
    reader = spark.read.format("millstream").option("subscribe", "from").option("path", store)
    rows = reader.load()
    assert rows.count() == 10, rows.count()
    rows.select("value").write.format("millstream").mode("append").option("path", store).option(
        "log", "batch"
    ).save()
    stream = spark.readStream.format("millstream").option("subscribe", "from")
    stream = stream.option("path", store).option("startingOffsets", "earliest").load()
    writer = stream.select("value").writeStream.format("millstream").option("path", store)
    writer = writer.option("log", "streamed").option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    print("TYPE", type(spark).__module__)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
