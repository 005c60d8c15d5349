"""Several copies of one log, in any order of writing, truncating, changing hands, forking and meeting.

- While it runs, whoever owns the log can append and nobody else; no offset of the owner's log changes.
- In the end all copies meet, and are the same: records, start, owner, metadata.
- No record is lost: whatever was appended is in the log or in a fork, unless it was there to be seen
  in a copy that was truncated past it.
- Each store has a cursor and a queue, which read on whatever happens. What they have acknowledged is
  what they were given; and in the end they have worked on every record that is in the log.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream import Message, Millstream
from millstream.errors import Conflict, Fenced, ForkDetected, MillstreamError, NotOwner
from millstream.replica import chain
from millstream.replica.commands import GetStampedMetadata, SummarizeLog, Summary
from millstream.store.state import instance
from millstream.testing import SimulatedClock, memory_store
from tests.property.examples import examples
from tests.unit.replica.copies import Cut, through, values

STORES = 3
LOG = "x"
PIECE = 2
"""Records of a piece: few, so that bases move and chains are compared at many marks."""

stores = st.integers(0, STORES - 1)
directions = st.sampled_from(["both", "both", "pull", "push"])


class Replicas(RuleBasedStateMachine):
    """Stores that meet now and then."""

    @initialize(first=stores)
    def begin(self, first: int) -> None:
        names = iter("abc")
        self.patches = ExitStack()
        self.patches.enter_context(patch.object(chain, "PIECE_RECORDS_MAX", PIECE))
        fixed = SimpleNamespace(
            token_hex=lambda _: next(names)
        )  # who wins a tie is not left to chance
        self.patches.enter_context(patch.object(instance, "secrets", fixed))
        self.clock = SimulatedClock()
        self.stores = [memory_store(clock=self.clock) for _ in range(STORES)]
        self.appended: set[bytes] = set()
        self.forgotten: set[bytes] = set()
        """What somebody truncated, having seen it."""
        self.forks: list[tuple[Millstream, str]] = []
        self.acked: list[dict[int, bytes]] = [{} for _ in self.stores]
        """Of each store's cursor, what it was given at the offsets that it acknowledged."""
        self.done: list[set[bytes]] = [set() for _ in self.stores]
        self.held: list[list[Message]] = [[] for _ in self.stores]
        for ms in self.stores:
            ms.queue("q", sources=[LOG], start="earliest", lease=36_000)
        self.append(first, 3)

    def teardown(self) -> None:
        if not hasattr(self, "stores"):
            return
        try:
            self.meet()
        finally:
            self.patches.close()
            for ms in self.stores:
                ms.close()

    # What is done to a copy.

    @rule(at=stores, count=st.integers(1, 4))
    def append(self, at: int, count: int) -> None:
        log = self.stores[at].log(LOG)
        new = [b"%d" % (len(self.appended) + n) for n in range(count)]
        exists, owns = log.info() is not None, self.owns(at)
        if exists and not owns:
            with pytest.raises(NotOwner):
                log.append_many(new)
            return
        if not exists and any(ms.log(LOG).info() is not None for ms in self.stores):
            return  # it would be another log of the same name
        end = log.end_offset()
        offsets = log.append_many(new) if count > 1 else [log.append(new[0])]
        assert list(offsets) == list(range(end, end + count))
        self.appended |= set(new)

    @rule(at=stores, share=st.integers(0, 12), drop=st.booleans())
    def truncate(self, at: int, share: int, drop: bool) -> None:
        log = self.stores[at].log(LOG)
        if log.info() is None:
            return
        before = log.start_offset() + (len(log) * share) // 10
        if not self.owns(at):
            before = min(before, log.end_offset())
        self.forgotten |= {r.value for r in log.read(log.start_offset(), before)}
        log.truncate(before=before, past_end=True)
        if drop:
            log.enforce_retention()

    @rule(at=stores)
    def take_over(self, at: int) -> None:
        if self.stores[at].log(LOG).info() is not None:
            self.stores[at].log(LOG).take_over()
            assert self.owns(at)

    @rule(at=stores, to=stores)
    def hand_over(self, at: int, to: int) -> None:
        if at != to and self.stores[at].log(LOG).info() is not None and self.owns(at):
            self.stores[at].log(LOG).hand_over(self.stores[to].store_id())
            assert not self.owns(at)

    @rule(at=stores, key=st.sampled_from("kl"), value=st.none() | st.integers(0, 3))
    def set_metadata(self, at: int, key: str, value: int | None) -> None:
        log = self.stores[at].log(LOG)
        self.clock.advance(0.001)
        if log.info() is None:
            return
        if value is None:
            log.metadata.pop(key, None)
        else:
            log.metadata[key] = value

    @rule(at=stores, count=st.integers(1, 6), skip=st.integers(0, 2))
    def read(self, at: int, count: int, skip: int) -> None:
        log = self.stores[at].log(LOG)
        if log.info() is None:
            return
        cursor = log.cursor("r")
        for record in cursor.take(count)[skip:]:
            cursor.ack(record)
            self.acked[at][record.offset] = record.value

    @rule(at=stores, count=st.integers(1, 6), keep=st.integers(0, 3))
    def work(self, at: int, count: int, keep: int) -> None:
        messages = self.stores[at].queue("q").claim(count)
        assert not self.done[at] & {message.value for message in messages}
        self.held[at] += messages[:keep]
        self.finish(at, messages[keep:])

    @rule(at=stores)
    def finish_held(self, at: int) -> None:
        held, self.held[at] = self.held[at], []
        self.finish(at, held)

    def finish(self, at: int, messages: list[Message]) -> None:
        queue = self.stores[at].queue("q")
        lost = queue.finish_each(messages, "ack")
        self.done[at] |= {message.value for message in messages if message not in lost}

    @rule(at=stores)
    def fold(self, at: int) -> None:
        self.stores[at].fold()

    @rule(at=stores)
    def fork(self, at: int) -> None:
        ms = self.stores[at]
        if ms.log(LOG).info() is None or len(self.forks) > 2:
            return
        fork = ms.log(LOG).fork()
        new = b"%d" % len(self.appended)
        fork.append(new)
        self.appended.add(new)
        self.forks.append((ms, fork.name))

    @precondition(lambda self: self.forks)
    @rule(data=st.data(), on_fork=st.sampled_from(["refuse", "rebase"]))
    def merge(self, data: st.DataObject, on_fork: Any) -> None:
        ms, name = data.draw(st.sampled_from(self.forks))
        before = values(ms, LOG)
        try:
            ms.log(name).merge(on_fork=on_fork)
        except (Conflict, NotOwner, MillstreamError):
            assert values(ms, LOG) == before
            return
        assert values(ms, LOG)[: len(before)] == before

    # Copies meet.

    @rule(one=stores, other=stores, direction=directions)
    def sync(self, one: int, other: int, direction: Any) -> None:
        if one == other:
            return
        own, peer = self.stores[one], self.stores[other]
        try:
            own.sync(peer, direction=direction)
        except ForkDetected as error:
            self.check_difference(own, peer, error.offset)
        except Fenced:
            pass
        except Conflict as error:
            self.check_reason(error)

    def check_reason(self, error: Conflict) -> None:
        """Readers are no reason not to converge."""
        assert "fork it to keep" in error.message or "meanwhile" in error.message

    @rule(one=stores, other=stores, cut_at=st.integers(1, 12), after=st.booleans())
    def sync_cut_off(self, one: int, other: int, cut_at: int, after: bool) -> None:
        if one == other:
            return
        own, line = through(self.stores[one])
        line.cut_at, line.cut_after = cut_at, after
        try:
            own.sync(self.stores[other])
        except (Cut, Fenced, ForkDetected):
            pass
        except Conflict as error:
            self.check_reason(error)

    def check_difference(self, own: Millstream, peer: Millstream, offset: int) -> None:
        found = [
            {record.offset: record.value for record in ms.log(LOG).read()} for ms in (own, peer)
        ]
        start = max(ms.log(LOG).start_offset() for ms in (own, peer))
        for at in range(start, offset):
            assert found[0].get(at) == found[1].get(at)

    # What always holds.

    @invariant()
    def every_value_is_where_it_was_put(self) -> None:
        if not hasattr(self, "stores"):
            return
        for ms in self.stores:
            log = ms.log(LOG)
            assert len(list(log.read())) == len(log)

    @invariant()
    def what_is_acknowledged_was_given(self) -> None:
        if not hasattr(self, "stores"):
            return
        for ms, acked in zip(self.stores, self.acked, strict=True):
            log = ms.log(LOG)
            if log.info() is None or not log.cursors():
                continue
            cursor = log.cursor("r")
            for record in log.read():
                if cursor.is_acked(record.offset):
                    assert acked[record.offset] == record.value

    def owns(self, at: int) -> bool:
        log = self.stores[at].log(LOG)
        return log.info() is not None and log.owner().here

    def meet(self) -> None:
        """Everybody meets everybody, until nothing is new."""
        for _ in range(8):
            news = False
            for one in range(STORES):
                for other in range(one):
                    news = self.meeting(self.stores[one], self.stores[other]) or news
            if not news:
                break
        self.check_same()
        self.check_nothing_lost()
        for at in range(STORES):
            self.check_readers(at)

    def meeting(self, own: Millstream, peer: Millstream) -> bool:
        try:
            return bool(own.sync(peer, on_fork="longest").logs)
        except Conflict as error:
            if "fork it to keep" not in error.message:
                raise
            stale = min((own, peer), key=lambda ms: pair(summary(ms)))
            stale.log(LOG).fork()
            stale.log(LOG).delete()
            self.acked[self.stores.index(stale)] = {}
            return True

    def check_same(self) -> None:
        found = [summary(ms) for ms in self.stores]
        assert len({(s.start, s.end, s.digest, s.owner, s.epoch, s.metadata) for s in found}) == 1
        assert len({one.timestamp_ms for one in found}) == 1
        assert len({tuple(values(ms, LOG)) for ms in self.stores}) == 1
        stamped = [ms.session.execute(GetStampedMetadata(LOG)) for ms in self.stores]
        assert all(one == stamped[0] for one in stamped)

    def check_readers(self, at: int) -> None:
        """Each reads to the end, and has then seen everything that there is."""
        log = self.stores[at].log(LOG)
        cursor = log.cursor("r")
        while found := cursor.take(100):
            cursor.ack(found)
            self.acked[at] |= {record.offset: record.value for record in found}
        self.finish_held(at)
        while found_too := self.stores[at].queue("q").claim(100):
            self.finish(at, found_too)
        for record in log.read():
            assert self.acked[at][record.offset] == record.value
            assert record.value in self.done[at]

    def check_nothing_lost(self) -> None:
        kept = {
            value for ms in self.stores for info in ms.logs() for value in values(ms, info.name)
        }
        assert self.appended - kept <= self.forgotten


def summary(ms: Millstream) -> Summary:
    found = ms.session.execute(SummarizeLog(LOG))
    assert found is not None
    return found


def pair(found: Summary) -> tuple[int, str]:
    return found.epoch, found.owner


Replicas.TestCase.settings = settings(
    max_examples=examples(60),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
test_copies_converge = Replicas.TestCase
