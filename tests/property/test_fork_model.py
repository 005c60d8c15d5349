"""Forks against a model in which every fork is a plain copy.

Whatever is forked, appended, truncated, merged, set aside, deleted, folded and dropped: each log reads as
its own copy would, and its hash is that of its records. Cursors and a queue read on meanwhile: what they
have acknowledged is what they were given, and in the end they have seen all that is in the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from millstream import Message, Millstream
from millstream.errors import Conflict, ForkDetected, InvalidInput
from millstream.format import keys
from millstream.limits import Limits
from millstream.log.rules.retention import tend
from millstream.replica import chain
from millstream.replica import commands as r
from millstream.replica.chain import Chain
from millstream.testing import MemoryEngine, Probe, SimulatedClock, memory_store
from tests.property.examples import examples

LIMITS = Limits(inline_bytes_max=60, fold_slice_deltas=3, tail_deltas_max=20)


@dataclass(eq=False)
class Copy:
    """A log, as if forking copied."""

    name: str
    start: int = 0
    end: int = 0
    values: dict[int, bytes] = field(default_factory=dict)
    parent: Copy | None = None
    point: int = 0
    merged: int = 0
    gone: bool = False
    is_aside: bool = False
    """Whether the log was set aside: it belongs to the log that has its former name, for good."""
    read: dict[int, bytes] = field(default_factory=dict)
    """What its cursor was given, at the offsets that it acknowledged."""

    def append(self, values: list[bytes]) -> None:
        for value in values:
            self.values[self.end] = value
            self.end += 1

    def truncate(self, before: int) -> None:
        if before > self.start:
            self.start = before
            self.end = max(self.end, before)
            self.values = {at: value for at, value in self.values.items() if at >= before}

    def copied(self, name: str) -> Copy:
        return Copy(name, self.start, self.end, dict(self.values), self, self.end)


class Forks(RuleBasedStateMachine):
    """Every rule does the same to the store and to the model."""

    logs = Bundle("logs")

    @initialize(target=logs)
    def begin(self) -> Any:
        self.clock = SimulatedClock()
        self.engine = MemoryEngine()
        self.copies: list[Copy] = []
        self.ms = self.opened()
        self.made = 0
        self.done: set[bytes] = set()
        self.held: list[Message] = []
        self.ms.queue("q", sources=["a", "b"], start="earliest", lease=36_000)
        found = []
        for name in ("a", "b"):
            self.ms.log(name).append_many([b"%s%d" % (name.encode(), n) for n in range(3)])
            copy = Copy(name)
            copy.append([b"%s%d" % (name.encode(), n) for n in range(3)])
            self.copies.append(copy)
            found.append(copy)
        return multiple(*found)

    def opened(self) -> Millstream:
        ms = memory_store(self.engine, clock=self.clock, limits=LIMITS)
        Probe(ms).pause_keeper()
        return ms

    @rule(log=logs, count=st.integers(1, 4), size=st.sampled_from([1, 100]))
    def append(self, log: Copy, count: int, size: int) -> None:
        if log.gone:
            return
        self.clock.advance(1)
        self.made += 1
        values = [b"%d." % self.made * size + b"%d" % n for n in range(count)]
        if count == 1:
            assert self.ms.log(log.name).append(values[0]) == log.end
        else:
            self.ms.log(log.name).append_many(values)
        log.append(values)

    @rule(target=logs, log=logs)
    def fork(self, log: Copy) -> Any:
        if log.gone:
            return multiple()
        self.made += 1
        name = f"f{self.made}"
        self.ms.log(log.name).fork(name)
        return self.known(log.copied(name))

    def known(self, copy: Copy) -> Copy:
        self.copies.append(copy)
        return copy

    @rule(log=logs, before=st.integers(0, 30))
    def truncate(self, log: Copy, before: int) -> None:
        if not log.gone:
            self.ms.log(log.name).truncate(before=before, past_end=True)
            log.truncate(before)

    @rule(log=logs)
    def delete(self, log: Copy) -> None:
        if not log.gone:
            self.ms.log(log.name).delete()
            log.gone = True

    @rule(target=logs, log=logs, back=st.integers(0, 6))
    def set_aside(self, log: Copy, back: int) -> Any:
        at = log.end - back
        if log.gone or at < log.start:
            return multiple()
        name = self.ms.session.execute(r.SetAside(log.name, at, 0)).fork
        return self.known(self.aside(log, at, name))

    @rule(log=logs, count=st.integers(1, 5))
    def read(self, log: Copy, count: int) -> None:
        if log.gone:
            return
        cursor = self.ms.log(log.name).cursor("r")
        found = cursor.take(count)
        cursor.ack(found)
        log.read |= {record.offset: record.value for record in found}

    @rule(count=st.integers(1, 6), keep=st.integers(0, 2))
    def work(self, count: int, keep: int) -> None:
        messages = self.ms.queue("q").claim(count)
        self.held += messages[:keep]
        self.finish(messages[keep:])

    @rule()
    def finish_held(self) -> None:
        held, self.held = self.held, []
        self.finish(held)

    def finish(self, messages: list[Message]) -> None:
        lost = self.ms.queue("q").finish_each(messages, "ack")
        self.done |= {message.value for message in messages if message not in lost}

    def teardown(self) -> None:
        """The queue has worked on everything in its logs, once it has come to their end."""
        if not hasattr(self, "copies"):
            return
        self.finish_held()
        while messages := self.ms.queue("q").claim(100):
            self.finish(messages)
        for copy in self.copies:
            if copy.name in ("a", "b") and not copy.gone:
                assert set(copy.values.values()) <= self.done

    def aside(self, log: Copy, at: int, name: str) -> Copy:
        made = log.copied(name)
        made.point, made.is_aside = at, True
        for child in self.copies:
            if child.parent is log and child.point > at:
                if child.is_aside:
                    child.point = at
                else:
                    child.parent = made
        log.point = min(log.point, at)
        log.merged = min(log.merged, at)
        log.end = at
        log.values = {offset: value for offset, value in log.values.items() if offset < at}
        return made

    @rule(target=logs, log=logs, on_fork=st.sampled_from(["refuse", "longest", "rebase"]))
    def merge(self, log: Copy, on_fork: str) -> Any:
        parent = log.parent
        if log.gone or (parent is not None and self.lost(log)):
            return multiple()
        ask = self.ms.log(log.name)
        if parent is None:
            with pytest.raises(InvalidInput):
                ask.merge(on_fork=on_fork)
            return multiple()
        position = max(log.point, log.merged)
        moved = parent.end != log.point or log.merged > log.point
        at = self.first_difference(log, parent, position)
        forked = moved and position < log.end and at is not None
        if forked and on_fork == "refuse":
            with pytest.raises(ForkDetected):
                ask.merge()
            return multiple()
        try:
            found = ask.merge(on_fork=on_fork)
        except Conflict as error:
            if "has passed" not in error.message or on_fork != "longest" or not forked:
                raise
            return multiple()
        made = None
        if not moved:
            self.adopt(log, parent)
        elif at is None:
            self.copy(log, parent, max(position, min(log.end, parent.end)))
        elif forked and on_fork == "rebase":
            self.copy(log, parent, max(position, log.start))
        elif forked and log.end > parent.end:
            made = self.known(self.aside(parent, at, found.set_aside or ""))
            if at > log.point:
                self.copy(log, parent, at)
            else:
                self.adopt(log, parent)
        if parent.start < log.start <= parent.end:
            parent.truncate(log.start)
        assert found.end == parent.end
        return multiple() if made is None else made

    def first_difference(self, log: Copy, parent: Copy, start: int) -> int | None:
        if start < max(log.start, parent.start):
            return start
        for at in range(start, min(log.end, parent.end)):
            if log.values[at] != parent.values[at]:
                return at
        return None

    def copy(self, log: Copy, parent: Copy, start: int) -> None:
        parent.append([log.values[at] for at in range(start, log.end)])
        log.merged = log.end

    def adopt(self, log: Copy, parent: Copy) -> None:
        if log.is_aside:  # its records cannot lie in its parent: the parent gets copies of them
            self.copy(log, parent, log.point)
            return
        for at in range(log.point, log.end):
            if at in log.values:
                parent.values[at] = log.values[at]
        parent.end = log.point = log.end
        if log.start > parent.start:
            parent.truncate(log.start)

    def lost(self, log: Copy) -> bool:
        """Whether something happened to a parent that the model does not follow."""
        parent = log.parent
        assert parent is not None
        return parent.gone or parent.start > log.point or log.start > max(log.point, log.merged)

    @rule()
    def fold(self) -> None:
        self.ms.fold()

    @rule()
    def drop(self) -> None:
        store = Probe(self.ms).store
        start, stop = keys.range_of(keys.prefix(keys.HEAD))
        heads = store.look(lambda state, snapshot: state.find(start, stop, snapshot, limit=999))
        for key in heads:
            while tend(store, keys.number(key)):
                pass

    @rule()
    def reopen(self) -> None:
        self.engine = self.engine.reopen()
        self.ms = self.opened()

    @rule(log=logs)
    def hash(self, log: Copy) -> None:
        if log.gone:
            return
        found = self.ms.session.execute(r.SummarizeLog(log.name))
        assert found is not None
        whole = Chain(found.base)
        while whole.end < found.end:
            ask = r.SendBlocks(log.name, whole.end, found.end, 10**6)
            for block in self.ms.session.execute(ask).blocks:
                whole.extend(block)
        assert whole.digest() == found.digest

    @invariant()
    def each_reads_as_its_copy(self) -> None:
        living = {copy.name: copy for copy in getattr(self, "copies", ()) if not copy.gone}
        if not living:
            return
        assert {info.name for info in self.ms.logs()} == set(living)
        for name, copy in living.items():
            log = self.ms.log(name)
            assert (log.start_offset(), log.end_offset()) == (copy.start, copy.end)
            assert {record.offset: record.value for record in log.read()} == copy.values
            if log.cursors():
                cursor = log.cursor("r")
                for offset, value in copy.values.items():
                    assert not cursor.is_acked(offset) or copy.read[offset] == value


def test_forks_read_as_copies_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "PIECE_RECORDS_MAX", 4)
    run_state_machine_as_test(
        Forks, settings=settings(max_examples=examples(60), stateful_step_count=25)
    )
