"""JSON values that gain a field while a stream runs: nothing stops, and nothing is lost.

    python examples/spark/evolving.py [DIRECTORY]

Values are parsed to Spark's `variant`, which has no columns to fall behind. A field is asked for where
it is used; a record from before it was there gives null, and gets what was meant all along.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

import millstream
from millstream.spark.local.session import local_session


def payments(records: DataFrame) -> DataFrame:
    """Payments with a currency each, whoever wrote them."""
    parsed = records.select("key", f.try_parse_json(f.col("value").cast("string")).alias("payment"))
    amount = f.try_variant_get("payment", "$.amount", "int")
    currency = f.coalesce(f.try_variant_get("payment", "$.currency", "string"), f.lit("EUR"))
    fields = f.struct(amount.alias("amount"), currency.alias("currency"))
    return parsed.select("key", f.to_json(fields).alias("value"))


def start(store: Path, checkpoint: Path) -> StreamingQuery:
    """A stream from the log `raw` to the log `payments`."""
    spark = local_session(name="evolving", directory=store.parent)
    records = (
        spark.readStream.format("millstream")
        .option("path", str(store))
        .option("subscribe", "raw")
        .option("startingOffsets", "earliest")
        .load()
    )
    return (
        payments(records)
        .writeStream.format("millstream")
        .option("path", str(store))
        .option("log", "payments")
        .option("checkpointLocation", str(checkpoint))
        .start()
    )


def main(directory: Path) -> None:
    """Append in the old form and in the new one, while the stream runs."""
    directory.mkdir(parents=True, exist_ok=True)
    store = directory / "evolving.db"
    with millstream.open(store) as ms:
        raw = ms.log("raw")
        raw.append({"amount": 5}, key="ann")
        query = start(store, directory / "checkpoint")
        query.processAllAvailable()
        raw.append({"amount": 7, "currency": "SEK"}, key="bo")
        raw.append({"amount": 9}, key="cy")
        query.processAllAvailable()
        query.stop()
        for record in ms.log("payments").read():
            print((record.key or b"").decode(), record.json())


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "evolving"))
