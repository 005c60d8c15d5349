"""Entries that are decoded once for all queues of a log: what they take in memory is bounded."""

from __future__ import annotations

import tracemalloc

import pytest

from millstream import Millstream
from millstream.format import keys
from millstream.header import HeaderMapping
from millstream.queue.service.decoding import DecodedEntry
from millstream.testing import Probe

COUNT = 1_000

KINDS: dict[str, list[HeaderMapping]] = {
    "none": [{} for _ in range(COUNT)],
    "two numbers": [{"tenant": n, "priority": n % 10} for n in range(COUNT)],
    "a text alike": [{"region": f"r{n % 3}"} for n in range(COUNT)],
    "a long text": [{"note": f"{n:>500}"} for n in range(COUNT)],
    "many": [{f"h{i}": n * 1_000 + i for i in range(12)} for n in range(COUNT)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_entry_counts_for_the_memory_that_it_takes(ms: Millstream, kind: str) -> None:
    log = ms.log("events")
    log.append_many([b""] * COUNT, headers=KINDS[kind], keys=[f"key-{n}" for n in range(COUNT)])
    ((_, value),) = Probe(ms).rows(keys.ENTRY).items()
    tracemalloc.start()
    try:
        found = DecodedEntry(0, value)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / 2 < found.size < taken * 3
