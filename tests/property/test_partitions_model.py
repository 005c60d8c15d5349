"""A log with partitions against a model: nothing is lost or doubled, and keys stay in order.

Several producers append, alone and in batches, in transactions that may fail, while the store is
folded and reopened, partitions are added, and a cursor and a queue work through all of it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import millstream
from millstream import PartitionOffset, Record
from millstream.doctor import examine

KEYS = st.sampled_from([None, b"", b"a", b"b", b"key", "text", b"\xff\x00"])
BATCHES = st.lists(KEYS, min_size=1, max_size=8)
PARTITIONS = 3


class PartitionedLogMachine(RuleBasedStateMachine):
    """The model: what was appended, by key, in order, and which numbers of partitions it had."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()
        self.path = Path(self.directory.name) / "store.db"
        self.count = PARTITIONS
        self.number = 0
        self.by_place: dict[PartitionOffset, bytes] = {}
        self.by_key: dict[bytes | None, list[bytes]] = {}
        self.acked: list[bytes] = []
        self.claimed: list[bytes] = []
        self.open()
        self.log.create()
        self.ms.create_queue("work", sources="orders")

    def open(self) -> None:
        self.ms = millstream.open(self.path, durability="relaxed")
        self.log = self.ms.log("orders", partitions=self.count)
        self.cursor: Any = None

    def teardown(self) -> None:
        self.ms.close()
        assert examine(self.path).problems == []
        self.directory.cleanup()

    def value(self) -> bytes:
        self.number += 1
        return b"%d" % self.number

    def note(self, key: Any, value: bytes, place: PartitionOffset) -> None:
        if key is not None:
            assert place.partition == self.log.partition_for(key)
            key = key.encode() if isinstance(key, str) else key
        assert place not in self.by_place
        self.by_place[place] = value
        self.by_key.setdefault(key, []).append(value)

    @rule(key=KEYS)
    def append(self, key: Any) -> None:
        value = self.value()
        self.note(key, value, self.log.append(value, key=key))

    @rule(keys=BATCHES)
    def append_many(self, keys: list[Any]) -> None:
        values = [self.value() for _ in keys]
        places = self.log.append_many(values, keys=keys)
        for key, value, place in zip(keys, values, places, strict=True):
            self.note(key, value, place)

    @rule(keys=BATCHES, fails=st.booleans())
    def append_in_a_transaction(self, keys: list[Any], fails: bool) -> None:
        values = [self.value() for _ in keys]
        with suppress(millstream.errors.EndMoved), self.ms.transaction() as tx:
            one = tx.append(self.log, values[0], key=keys[0])
            rest = tx.append_many(self.log, values[1:], keys=keys[1:])
            if fails:
                tx.append("other", b"x", expect_end=10**9)
        if not fails:
            for key, value, place in zip(keys, values, [one.result, *rest.result], strict=True):
                self.note(key, value, place)

    @rule(n=st.integers(1, 10), acks=st.booleans())
    def take(self, n: int, acks: bool) -> None:
        if self.cursor is None:
            self.cursor = self.log.cursor("reader")
        taken = self.cursor.take(n)
        if acks:
            self.cursor.ack(taken)
            self.acked += [one.value for one in taken]
        else:
            self.cursor.reset()

    @rule(n=st.integers(1, 10))
    def claim(self, n: int) -> None:
        queue = self.ms.queue("work")
        messages = queue.claim(n)
        queue.ack(messages)
        self.claimed += [one.value for one in messages]

    @rule()
    def fold(self) -> None:
        self.ms.fold()

    @rule()
    def reopen(self) -> None:
        self.ms.close()
        self.open()

    @rule()
    def add_partition(self) -> None:
        self.count += 1
        self.log.add_partitions(self.count)

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        found: list[Record] = list(self.log.read())
        places = {PartitionOffset(one.partition, one.offset): one.value for one in found}
        assert places == self.by_place
        assert len(found) == len(places) == len(self.log)
        assert len(set(self.acked)) == len(self.acked)
        assert len(set(self.claimed)) == len(self.claimed)

    @invariant()
    def it_is_listed_as_one(self) -> None:
        found = {one.name: one.partitions for one in self.ms.logs() if one.name != "queue:work"}
        assert found.pop("orders") == self.count
        assert set(found) <= {"other"}
        assert sum(len(one) for one in self.ms.logs() if one.partitions) == len(self.by_place)

    @invariant()
    def keys_stay_in_order(self) -> None:
        if self.count != PARTITIONS:
            return  # a key may have moved
        found: dict[bytes | None, list[bytes]] = {}
        for one in self.log.read():
            found.setdefault(one.key, []).append(one.value)
        by_key = {key: values for key, values in found.items() if key is not None}
        assert by_key == {key: some for key, some in self.by_key.items() if key is not None}


TestPartitionedLog = PartitionedLogMachine.TestCase
