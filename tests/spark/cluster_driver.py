"""A driver program for tests: reads and writes from executors that are processes of their own.

python cluster_driver.py DIRECTORY STORE SERVER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from millstream.spark.local.session import local_session


def main(directory: str, store: str, server: str) -> None:
    spark = local_session(
        name="cluster",
        master="local-cluster[2,1,1024]",
        memory="800m",
        directory=Path(directory),
        settings={
            "spark.executor.memory": "700m",
            "spark.executorEnv.MILLSTREAM_HOST": "executor.example",
        },
    )
    found: dict[str, object] = {}
    try:
        reader = spark.read.format("millstream").option("subscribe", "from")
        reader.option("path", store).load().collect()
        found["path"] = "was read"
    except Exception as error:
        found["path"] = str(error)
    reader = spark.read.format("millstream").option("subscribe", "from").option("server", server)
    rows = reader.option("minPartitions", 4).load()
    # A count of rows alone would come from metadata, without executors.
    found["executors"] = rows.selectExpr("count(value)").first()[0]
    writer = rows.select("value").write.format("millstream").mode("append")
    writer.option("server", server).option("log", "to").save()
    print("FOUND", json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
