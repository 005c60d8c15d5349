# ruff: noqa: E402 (each cell imports what it needs)
"""A walk through the Spark source, cell by cell, for a notebook or an editor that knows `# %%`.

    python examples/spark/walkthrough.py

Everything lies in a directory `walkthrough`, or in the one that MILLSTREAM_WALKTHROUGH names.
"""

# %% [markdown]
# ## A store with something in it
# Millstream needs no server: a store is a file.

# %%
import os
from pathlib import Path

import millstream

directory = Path(os.environ.get("MILLSTREAM_WALKTHROUGH", "walkthrough"))
directory.mkdir(parents=True, exist_ok=True)
store = str(directory / "shop.db")

ms = millstream.open(store)
if not ms.log("orders").end_offset():
    ms.log("orders").append_many(
        [{"id": number, "total": number * 10} for number in range(100)],
        keys=[f"customer-{number % 7}" for number in range(100)],
        headers=[{"country": "de" if number % 4 else "fr"} for number in range(100)],
    )

# %% [markdown]
# ## A log as a table
# The columns have the names of Spark's Kafka source.

# %%
from millstream.spark.local.session import local_session

spark = local_session(name="walkthrough", directory=directory)
orders = (
    spark.read.format("millstream")
    .option("path", store)
    .option("subscribe", "orders")
    .option("typedHeaders", "true")
    .load()
)
orders.printSchema()
print(orders.count(), "records")

# %% [markdown]
# ## SQL over it
# A view in SQL needs no Python at all.

# %%
spark.sql(
    f"""
    CREATE OR REPLACE TEMPORARY VIEW orders USING millstream
    OPTIONS (path '{store}', subscribe 'orders', typedHeaders 'true')
    """
)
by_country = spark.sql(
    """
    SELECT headers['country'].s AS country,
           sum(get_json_object(CAST(value AS STRING), '$.total')::INT) AS total
    FROM orders GROUP BY country ORDER BY country
    """
)
by_country.show()

# %% [markdown]
# ## A stream that does its work once
# Large orders become work. However often this cell runs, each of them is put into the queue once: the
# checkpoint knows what was read, and the sink knows which batch was written.

# %%
from pyspark.sql import functions as f

checks = ms.create_queue("checks", lease=60)
total = f.get_json_object(f.col("value").cast("string"), "$.total").cast("int")
query = (
    spark.readStream.format("millstream")
    .option("path", store)
    .option("subscribe", "orders")
    .option("startingOffsets", "earliest")
    .option("cursor", "checking")
    .load()
    .where(total >= 900)
    .select("key", "value")
    .writeStream.format("millstream")
    .option("path", store)
    .option("queue", "checks")
    .option("checkpointLocation", str(directory / "checkpoint"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

# %% [markdown]
# ## Somebody works on it
# The queue is the same for Spark, for a worker in Python, and for one behind a server.

# %%
while messages := checks.claim(4):
    print([message.json()["id"] for message in messages])
    checks.ack(messages)

# %% [markdown]
# ## How the stream stands
# It moves a cursor, so its lag shows where that of every other reader does.

# %%
lag = ms.log("orders").end_offset() - ms.log("orders").cursor("checking").position()
print("lag", lag)
ms.close()
