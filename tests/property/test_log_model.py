"""Logs and cursors against a model in plain Python, through every road that bytes can take.

The machine appends, truncates, reads, acknowledges, seeks, deletes, folds with tiny limits, closes
and opens again, and does each through either of two handles on the same file. The model is a list
per log. Promises:

- Reads answer what was appended, at the offsets that were given out, through either handle.
- Acknowledgements, floors and metadata are what was last committed; a cursor delivers in order
  exactly what is not acknowledged.
- Neither a fold, nor a reopen, nor a failed transaction changes anything that can be seen.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

import millstream
from millstream import Cursor, Headers, Item, Limits, Log, Millstream, Producer, Record
from millstream.errors import EndMoved, OutOfRange, OutOfSequence, Truncated
from millstream.testing import SimulatedClock
from tests.records import HEADERS, VALUES

LOGS = ("a", "b", "ab")
CURSORS = ("c", "d")
HANDLES = st.integers(0, 1)
OFFSETS = st.integers(0, 30)
KEYS = st.none() | st.binary(max_size=3)
TIMESTAMPS = st.none() | st.integers(0, 2**40)
ITEMS = st.builds(Item, VALUES, KEYS, HEADERS, st.just(None))
BATCHES = st.lists(ITEMS, max_size=6) | st.lists(ITEMS, min_size=20, max_size=20)
LIMITS = st.builds(
    Limits,
    inline_bytes_max=st.sampled_from([0, 40, 2_048]),
    fold_slice_deltas=st.sampled_from([1, 3, 256]),
    fold_deltas_min=st.sampled_from([1, 5, 10_000]),
    tail_deltas_max=st.sampled_from([3, 10_000]),
    entities_cached_max=st.sampled_from([1, 10_000]),
    read_bytes_max=st.sampled_from([1, 100, 10_000]),
    group_operations_max=st.just(8),
    producer_sequences_kept=st.just(3),
)


@dataclass
class ModelCursor:
    """A cursor as the store has it."""

    floor: int
    acked: set[int] = field(default_factory=set)
    """Acknowledged at or above the floor."""

    def ack(self, positions: set[int]) -> None:
        self.acked |= {n for n in positions if n >= self.floor}
        while self.floor in self.acked:
            self.acked.remove(self.floor)
            self.floor += 1

    def floor_above(self, start: int) -> int:
        """Where the floor is seen: what was truncated counts as acknowledged."""
        floor = max(self.floor, start)
        while floor in self.acked:
            floor += 1
        return floor


@dataclass
class ModelLog:
    """A log as a list."""

    start: int = 0
    records: list[Item] = field(default_factory=list)
    """Those from `start` on."""
    metadata: dict[str, Any] = field(default_factory=dict)
    cursors: dict[str, ModelCursor] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)
    """Sequence of the one producer → the offset that its append got."""

    @property
    def end(self) -> int:
        return self.start + len(self.records)

    def truncate(self, before: int) -> int:
        gone = max(0, min(before, self.end) - self.start)
        if before > self.start:
            self.records, self.start = self.records[before - self.start :], before
        return gone


def seen(record: Record) -> Item:
    return Item(record.value, record.key, record.headers.pairs())


def expected(item: Item) -> Item:
    return Item(item.value, item.key, Headers(item.headers or {}).pairs())


class LogMachine(RuleBasedStateMachine):
    """Two handles on one file, and what they should show."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.clock = SimulatedClock()
        self.model: dict[str, ModelLog] = {}
        self.handles: list[Millstream] = []

    @initialize(limits=LIMITS)
    def open_both(self, limits: Limits) -> None:
        self.limits = limits
        self.handles = [self.open(), self.open()]

    def open(self) -> Millstream:
        path = Path(self.directory.name) / "model.db"
        return millstream.open(path, limits=self.limits, clock=self.clock, durability="relaxed")

    def teardown(self) -> None:
        for handle in self.handles:
            handle.close()
        self.directory.cleanup()

    def log(self, handle: int, name: str) -> tuple[Log, ModelLog]:
        """A log, and its model; one that does not exist reads as an empty one."""
        return self.handles[handle].log(name), self.model.get(name, ModelLog())

    def made(self, name: str) -> ModelLog:
        return self.model.setdefault(name, ModelLog())

    # Appending.

    @rule(
        handle=HANDLES,
        name=st.sampled_from(LOGS),
        item=ITEMS,
        timestamp=TIMESTAMPS,
        expect=st.none() | st.integers(-1, 1),
    )
    def append(
        self, handle: int, name: str, item: Item, timestamp: int | None, expect: int | None
    ) -> None:
        log, model = self.log(handle, name)
        expect_end = None if expect is None else model.end + expect

        def call() -> int:
            return log.append(
                item.value,
                key=item.key,
                headers=item.headers,
                timestamp=timestamp,
                expect_end=expect_end,
            )

        if expect:
            with pytest.raises(EndMoved):
                call()
            return
        assert call() == model.end
        self.made(name).records.append(item)
        record = log.get(self.model[name].end - 1)
        assert record is not None
        assert record.timestamp == (self.clock.wall_ms() if timestamp is None else timestamp)

    @rule(handle=HANDLES, name=st.sampled_from(LOGS), items=BATCHES, columns=st.booleans())
    def append_many(self, handle: int, name: str, items: list[Item], columns: bool) -> None:
        log, model = self.log(handle, name)
        first = model.end
        if columns:
            found = log.append_many(
                [item.value for item in items],
                keys=[item.key for item in items],
                headers=[item.headers for item in items],
            )
        else:
            found = log.append_many(items)

        assert found == range(first, first + len(items))
        if items:
            self.made(name).records.extend(items)

    @rule(handle=HANDLES, name=st.sampled_from(LOGS), back=st.integers(-2, 4))
    def produce(self, handle: int, name: str, back: int) -> None:
        log, _ = self.log(handle, name)
        model = self.model.get(name, ModelLog())
        last = max(model.sent, default=-1)
        sequence = max(0, last + 1 - back)
        item = Item(str(sequence).encode())

        def call() -> int:
            return log.append(item.value, producer=Producer("p", sequence))

        if model.sent and sequence not in model.sent and sequence != last + 1:
            with pytest.raises(OutOfSequence):
                call()
        elif sequence in model.sent:
            assert call() == model.sent[sequence]
        else:
            model = self.made(name)
            assert call() == model.end
            model.sent[sequence] = model.end
            model.records.append(item)
            for old in sorted(model.sent)[:-3]:
                del model.sent[old]

    # Forgetting.

    @rule(handle=HANDLES, name=st.sampled_from(LOGS), before=OFFSETS)
    def truncate(self, handle: int, name: str, before: int) -> None:
        log, _ = self.log(handle, name)
        model = self.made(name) if before else self.model.get(name, ModelLog())

        assert log.truncate(before=before, past_end=True) == model.truncate(before)

    @rule(handle=HANDLES, name=st.sampled_from(LOGS))
    def delete(self, handle: int, name: str) -> None:
        log, _ = self.log(handle, name)

        assert log.delete() == (self.model.pop(name, None) is not None)

    @rule(handle=HANDLES, name=st.sampled_from(LOGS))
    def drop_bytes(self, handle: int, name: str) -> None:
        self.handles[handle].log(name).enforce_retention()

    # Reading.

    @rule(handle=HANDLES, name=st.sampled_from(LOGS), start=OFFSETS, length=st.integers(-1, 12))
    def read(self, handle: int, name: str, start: int, length: int) -> None:
        log, model = self.log(handle, name)
        stop = min(start + length, model.end)
        if start < model.start and start < stop:
            with pytest.raises(Truncated):
                list(log.read(start, start + length))
            return
        found = list(log.read(start, start + length))

        assert [record.offset for record in found] == [*range(start, stop)]
        assert [seen(record) for record in found] == [
            expected(model.records[n - model.start]) for n in range(start, stop)
        ]

    @rule(handle=HANDLES, name=st.sampled_from(LOGS), offset=st.integers(-1, 31))
    def get(self, handle: int, name: str, offset: int) -> None:
        log, model = self.log(handle, name)
        record = log.get(offset)

        if model.start <= offset < model.end:
            assert record is not None
            assert seen(record) == expected(model.records[offset - model.start])
        else:
            assert record is None

    # Metadata.

    @rule(
        handle=HANDLES,
        name=st.sampled_from(LOGS),
        key=st.sampled_from("kl"),
        value=st.none() | st.integers(0, 3) | st.lists(st.integers(0, 3), max_size=2),
    )
    def set_metadata(self, handle: int, name: str, key: str, value: Any) -> None:
        self.handles[handle].log(name).metadata[key] = value
        self.made(name).metadata[key] = value

    @rule(handle=HANDLES, name=st.sampled_from(LOGS), key=st.sampled_from("kl"))
    def delete_metadata(self, handle: int, name: str, key: str) -> None:
        log, model = self.log(handle, name)
        if key in model.metadata:
            del log.metadata[key]
            del model.metadata[key]
        else:
            with pytest.raises(KeyError):
                del log.metadata[key]

    # Cursors: each rule opens one, as a process that has just started would.

    def cursor(self, handle: int, name: str, cursor: str) -> tuple[Cursor, ModelCursor]:
        log, _ = self.log(handle, name)
        model = self.made(name)
        found = model.cursors.setdefault(cursor, ModelCursor(model.start))
        return log.cursor(cursor), found

    @rule(
        handle=HANDLES,
        name=st.sampled_from(LOGS),
        cursor=st.sampled_from(CURSORS),
        n=st.integers(0, 8),
        chosen=st.sets(st.integers(0, 7), max_size=8),
    )
    def take_and_ack(self, handle: int, name: str, cursor: str, n: int, chosen: set[int]) -> None:
        reader, state = self.cursor(handle, name, cursor)
        model = self.model[name]
        taken = reader.take(n)

        waiting = [k for k in range(model.start, model.end) if k >= state.floor]
        assert [r.offset for r in taken] == [k for k in waiting if k not in state.acked][:n]
        some = [record for index, record in enumerate(taken) if index in chosen]
        reader.ack(some)
        state.ack({record.offset for record in some})
        assert reader.floor() == state.floor_above(model.start)
        for record in taken:
            assert reader.is_acked(record.offset) == (record in some)

    @rule(
        handle=HANDLES,
        name=st.sampled_from(LOGS),
        cursor=st.sampled_from(CURSORS),
        positions=st.sets(OFFSETS, min_size=1, max_size=6),
    )
    def ack_anything(self, handle: int, name: str, cursor: str, positions: set[int]) -> None:
        reader, state = self.cursor(handle, name, cursor)
        if max(positions) >= self.model[name].end:
            with pytest.raises(OutOfRange):
                reader.ack(positions)
        else:
            reader.ack(positions)
            state.ack(positions)

    @rule(handle=HANDLES, name=st.sampled_from(LOGS), cursor=st.sampled_from(CURSORS), to=OFFSETS)
    def ack_up_to(self, handle: int, name: str, cursor: str, to: int) -> None:
        reader, state = self.cursor(handle, name, cursor)
        if to > self.model[name].end:
            with pytest.raises(OutOfRange):
                reader.ack_up_to(to)
        else:
            reader.ack_up_to(to)
            state.ack(set(range(to)))

    @rule(handle=HANDLES, name=st.sampled_from(LOGS), cursor=st.sampled_from(CURSORS), to=OFFSETS)
    def seek(self, handle: int, name: str, cursor: str, to: int) -> None:
        reader, state = self.cursor(handle, name, cursor)
        if to > self.model[name].end:
            with pytest.raises(OutOfRange):
                reader.seek(to)
        else:
            reader.seek(to)
            state.floor, state.acked = to, set()

    @rule(handle=HANDLES, name=st.sampled_from(LOGS), cursor=st.sampled_from(CURSORS))
    def delete_cursor(self, handle: int, name: str, cursor: str) -> None:
        log, model = self.log(handle, name)

        assert log.delete_cursor(cursor) == (model.cursors.pop(cursor, None) is not None)

    # Transactions.

    @rule(
        handle=HANDLES,
        source=st.sampled_from(LOGS),
        into=st.sampled_from(LOGS),
        items=st.lists(ITEMS, min_size=1, max_size=4),
        before=st.none() | OFFSETS,
        fails=st.sampled_from(["no", "first", "last"]),
    )
    def transaction(
        self,
        handle: int,
        source: str,
        into: str,
        items: list[Item],
        before: int | None,
        fails: str,
    ) -> None:
        reader, state = self.cursor(handle, source, "c")
        taken = reader.take(2)

        def call() -> Any:
            with self.handles[handle].transaction() as tx:
                if fails == "first":
                    tx.append("never", b"", expect_end=1)
                tx.ack(reader, taken)
                first = tx.append_many(into, items)
                tx.append(into, items[0].value, key=items[0].key, headers=items[0].headers)
                tx.set_metadata(into, "k", 9)
                if before is not None:
                    tx.truncate(into, before=before, past_end=True)
                if fails == "last":
                    tx.append("never", b"", expect_end=1)
            return first.result

        if fails != "no":
            with pytest.raises(EndMoved):
                call()
            return
        model = self.made(into)
        assert call() == model.end
        state.ack({record.offset for record in taken})
        model.records += [*items, items[0]]
        model.metadata["k"] = 9
        if before is not None:
            model.truncate(before)

    # What must change nothing.

    @rule(handle=HANDLES)
    def fold(self, handle: int) -> None:
        self.handles[handle].fold()

    @rule(handle=HANDLES)
    def reopen(self, handle: int) -> None:
        self.handles[handle].close()
        self.handles[handle] = self.open()

    @rule()
    def reopen_both(self) -> None:
        for handle in self.handles:
            handle.close()
        self.handles = [self.open(), self.open()]

    @rule(seconds=st.integers(1, 100))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @precondition(lambda self: self.model)
    @rule(handle=HANDLES, data=st.data())
    def everything_is_as_expected(self, handle: int, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model)))
        log, model = self.log(handle, name)

        assert [seen(record) for record in log.read()] == [expected(r) for r in model.records]
        assert dict(log.metadata) == model.metadata
        assert {info.name for info in log.cursors()} == set(model.cursors)
        for info in log.cursors():
            state = model.cursors[info.name]
            floor = state.floor_above(model.start)
            acked = {k for start, stop in info.ranges for k in range(start, stop)}
            assert info.floor == floor
            assert acked == {k for k in state.acked if k >= floor}
            assert info.lag == model.end - floor - len(acked)

    @invariant()
    def both_see_the_same_logs(self) -> None:
        for handle in self.handles:
            assert {i.name: (i.start_offset, i.end_offset) for i in handle.logs()} == {
                name: (model.start, model.end) for name, model in self.model.items()
            }


TestLogModel = LogMachine.TestCase
TestLogModel.settings = hypothesis.settings(
    stateful_step_count=40,
    max_examples=max(30, hypothesis.settings().max_examples // 4),
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)
