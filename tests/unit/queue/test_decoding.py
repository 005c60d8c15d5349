"""Entries that are decoded once for all queues of a log: what they take in memory is bounded."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest

from millstream import Millstream
from millstream.format import keys
from millstream.header import HeaderMapping, Scalar
from millstream.queue.service.decoded_entries import DecodedEntry, TextIndex
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
    # Records with equal headers share one dictionary, which the estimate counts for each record.
    assert taken / 2 < found.size < taken * 4


class Interrupted(list[dict[str, Scalar]]):
    """Headers of records; in the middle of a look at them, another thread asks the same."""

    def __init__(self, headers: list[dict[str, Scalar]]) -> None:
        super().__init__(headers)
        self.index = TextIndex(self)
        self.told: list[list[int]] = []

    def __iter__(self) -> Iterator[dict[str, Scalar]]:
        for number, headers in enumerate(super().__iter__()):
            if number == 2 and not self.told:
                self.told.append([])
                self.told[0] = list(self.index.having("region", ["eu"]))
            yield headers


def test_an_index_that_is_being_made_answers_another_thread_in_full() -> None:
    headers = Interrupted([{"region": "eu"}, {"region": 7}, {"region": "us"}, {"region": "eu"}])
    assert headers.index.having("region", ["eu"]) == [0, 3]
    assert headers.told == [[0, 3]]
    assert headers.index.having("region", ["us", "eu", "de"]) == [0, 2, 3]
    assert headers.index.having("region", ["de"]) == headers.index.having("no", ["eu"]) == []
