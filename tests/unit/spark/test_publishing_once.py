"""Promise: a transaction of Spark that was committed stores nothing when Spark repeats it."""

from __future__ import annotations

from millstream.format.packing import Single
from millstream.spark.sink.publishing import Version, publish_blocks
from millstream.testing import Probe, memory_store

PART = Single(b"a", None, b"", None)


def test_a_transaction_that_was_published_stores_nothing_again() -> None:
    with memory_store() as ms:
        store = Probe(ms).store
        counts = [
            publish_blocks(store, "events", lambda: [("", PART)], Version("query", number))
            for number in (0, 0, 1, 0)
        ]

        assert counts == [1, 0, 1, 0]
        assert ms.log("events").end_offset() == 2
