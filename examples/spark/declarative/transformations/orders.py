"""Tables over a log of orders: one that grows with it, and one that sums it up."""

from __future__ import annotations

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()


@dp.table
def orders() -> DataFrame:
    """Every order, once: each run takes what was appended since the one before."""
    records = (
        spark.readStream.format("millstream")
        .option("path", os.environ["MILLSTREAM_STORE"])
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    order = f.from_json(f.col("value").cast("string"), "id int, country string, total int")
    return records.select("offset", order.alias("order")).select("offset", "order.*")


@dp.materialized_view
def revenue() -> DataFrame:
    """What each country has paid."""
    return spark.read.table("orders").groupBy("country").agg(f.sum("total").alias("total"))
