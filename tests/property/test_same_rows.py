"""A write is a value: what one store commits, applied to another engine, leaves the same rows.

A long random history (appends small and large, groups of callers, folds, retention, forks, merges, ends
set aside, cursors, queues of every order, claims and how they end, cancelled messages, purges,
deletions, reopenings) runs
on a store whose engine hands on every commit. Promises:

- Applied in order to an empty engine, of the same kind or another, these values leave every row as it
  is in the first, byte for byte: also if the values were spooled.
- A store opened over these rows reads as the first one does.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from millstream import Limits, Message, Millstream
from millstream.bench.disk import recorded
from millstream.embedded.rules import operation
from millstream.embedded.session import EmbeddedSession, open_store
from millstream.engine.protocol import Engine
from millstream.errors import Conflict, InvalidInput, MillstreamError, NotFound
from millstream.format import keys
from millstream.format.packing import pack_single
from millstream.log.commands import Append
from millstream.log.rules.retention import tend
from millstream.replica import commands as r
from millstream.store.commit import draft
from millstream.store.commit.ticket import Ticket
from millstream.store.store import Store
from millstream.testing import SimulatedClock
from tests.conformance.kits import ENGINES, all_rows, apply

LOGS = ("a", "b", "c")
QUEUES: dict[str, dict[str, Any]] = {
    "plain": {"sources": ["a", "b"], "start": "earliest"},
    "groups": {"sources": ["c"], "start": "earliest", "group_by": "g"},
    "urgent": {"sources": ["b"], "start": "earliest", "priority_by": "p"},
    "short": {"sources": ["a"], "start": "earliest", "done_retention": 0, "max_attempts": 2},
    "unique": {"sources": ["b"], "dedup_by": "p", "dedup_window": 20},
    "alone": {"sources": ["c"], "dedup_by": "g", "dedup_while": "running"},
}
LIMITS = Limits(
    inline_bytes_max=60,
    fold_slice_deltas=5,
    fold_deltas_min=20,
    tail_deltas_max=30,
    entities_cached_max=20,
)
STEPS = 150


class History:
    """One store, and what it does next, by a random number generator."""

    def __init__(self, engine: Engine, chance: random.Random) -> None:
        self.engine, self.chance = engine, chance
        self.clock = SimulatedClock()
        self.held: list[tuple[str, Message]] = []
        self.forks = 0
        self.store, self.ms = self.opened()

    def opened(self) -> tuple[Store, Millstream]:
        store = open_store(self.engine, limits=LIMITS, clock=self.clock)
        store.pause_keeper()  # what is done in the background is done by steps of this history
        return store, Millstream(EmbeddedSession(store))

    def step(self) -> None:
        do: Callable[[], object] = self.chance.choice(
            [
                *[self.append, self.together, self.put] * 3,
                *[self.claim, self.finish] * 4,
                *(self.fold, self.truncate, self.retain, self.drop, self.read_on, self.pass_time),
                *(self.fork, self.merge, self.set_aside, self.delete, self.alter, self.transact),
                *(self.cancel, self.report),
            ]
        )
        with suppress(Conflict, NotFound, InvalidInput):
            do()

    def log(self) -> str:
        names = [*LOGS, *(f"fork {n}" for n in range(self.forks))]
        return self.chance.choice(names)

    def value(self) -> bytes | None:
        if self.chance.random() < 0.1:
            return None
        return self.chance.randbytes(self.chance.choice((0, 3, 40, 100, 3_000)))

    def headers(self) -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = [("g", self.chance.choice("xyz"))]
        found.append(("p", self.chance.randrange(3)))
        return found + self.chance.choice([[], [], [("g", b"\xff")], [("b", b"x")]])

    def append(self) -> None:
        log, count = self.ms.log(self.log()), self.chance.choice((1, 1, 1, 7, 40))
        if count == 1:
            log.append(self.value(), headers=self.headers())
        else:
            log.append_many(
                [self.value() for _ in range(count)], headers=[self.headers() for _ in range(count)]
            )

    def together(self) -> None:
        """Several callers in one commit, one of which fails."""
        tickets: list[Ticket[Any]] = []
        for n in range(self.chance.randrange(2, 9)):
            packed = pack_single(
                self.value(), key=None, headers=self.headers(), timestamp=None, limits=LIMITS
            )
            command = Append(self.log(), packed, expect_end=10**9 if n == 1 else None)
            tickets.append(Ticket(operation(command), lambda _: None))
        with self.store.hold():
            self.store.committer.commit_group(tickets)

    def put(self) -> None:
        self.ms.queue(self.chance.choice(list(QUEUES))).put(
            self.value(), headers=self.headers(), delay=self.chance.choice((0, 0, 5))
        )

    def claim(self) -> None:
        name = self.chance.choice(list(QUEUES))
        count = self.chance.choice((1, 3, 20))
        claimed = self.ms.queue(name).claim(count, lease=30)
        self.held += [(name, message) for message in claimed]

    def finish(self) -> None:
        self.chance.shuffle(self.held)
        some, self.held = self.held[:6], self.held[6:]
        for name, message in some:
            queue = self.ms.queue(name)
            end = self.chance.choice((queue.ack, queue.ack, queue.ack, queue.nack, queue.fail))
            end([message])

    def cancel(self) -> None:
        queue = self.ms.queue(self.chance.choice(list(QUEUES)))
        waiting = queue.peek(30, state=self.chance.choice(("available", "delayed")))
        for message in self.chance.sample(waiting, min(3, len(waiting))):
            queue.cancel(message if message.id is None else message.id)

    def report(self) -> None:
        queue = self.ms.queue(self.chance.choice(list(QUEUES)))
        queue.put(self.value(), headers=self.headers(), detail=True)

    def fold(self) -> None:
        self.ms.fold()

    def truncate(self) -> None:
        log = self.ms.log(self.log())
        log.truncate(before=self.chance.randint(0, log.end_offset()))

    def retain(self) -> None:
        log = self.ms.log(self.log())
        log.retain(count=self.chance.randrange(1, 30))
        log.enforce_retention()

    def drop(self) -> None:
        """What the background does for logs and queues."""
        self.store.tend()
        with self.engine.read() as snapshot:
            rows = snapshot.scan(*keys.range_of(keys.prefix(keys.HEAD)), limit=99)
        for key, _ in rows:
            while tend(self.store, keys.number(key)):
                pass

    def read_on(self) -> None:
        cursor = self.ms.log(self.log()).cursor("reader")
        records = cursor.take(self.chance.randrange(1, 9))
        for record in self.chance.sample(records, len(records) // 2):
            cursor.ack(record)

    def pass_time(self) -> None:
        self.clock.advance(self.chance.choice((1, 10, 60, 3_600)))

    def fork(self) -> None:
        if self.forks < 4:
            self.ms.log(self.log()).fork(f"fork {self.forks}")
            self.forks += 1

    def merge(self) -> None:
        self.ms.log(f"fork {self.chance.randrange(4)}").merge(
            on_fork=self.chance.choice(("refuse", "rebase"))
        )

    def set_aside(self) -> None:
        log = self.ms.log(self.chance.choice(LOGS))
        at = self.chance.randint(log.start_offset(), log.end_offset())
        self.ms.session.execute(r.SetAside(log.name, at, 0))

    def delete(self) -> None:
        if self.chance.random() < 0.5:
            self.ms.log(self.log()).delete()
        else:
            name = self.chance.choice(list(QUEUES))
            self.ms.queue(name).delete()
            self.held = [one for one in self.held if one[0] != name]
            self.ms.create_queue(name, **QUEUES[name])

    def alter(self) -> None:
        queue = self.ms.queue(self.chance.choice(list(QUEUES)))
        queue.redrive() if self.chance.random() < 0.7 else queue.purge()
        self.ms.log(self.chance.choice(LOGS)).metadata["k"] = self.chance.randrange(99)

    def transact(self) -> None:
        with self.ms.transaction() as tx:
            tx.append("a", self.value())
            tx.append("b", self.value(), headers=self.headers())
            tx.put("plain", self.value())


def seen(ms: Millstream) -> list[Any]:
    """What readers see of logs and queues."""
    logs = [(one.name, [(x.offset, x.value) for x in ms.log(one.name).read()]) for one in ms.logs()]
    return [logs, list(ms.queues())]


LOCAL = ["sqlite", "memory"]


@hypothesis.settings(max_examples=15)
@hypothesis.given(
    seed=st.integers(0, 2**32),
    kinds=st.tuples(st.sampled_from(LOCAL), st.sampled_from(LOCAL)),
    spools=st.booleans(),
)
def test_the_same_values_leave_the_same_rows(
    seed: int, kinds: tuple[str, str], spools: bool
) -> None:
    live_through(seed, kinds, spools)


@pytest.mark.requires("s3")
@hypothesis.settings(max_examples=4)
@hypothesis.given(
    seed=st.integers(0, 2**32),
    kinds=st.sampled_from([("slatedb", "sqlite"), ("memory", "slatedb")]),
    spools=st.booleans(),
)
def test_rows_on_object_storage_are_the_same_rows(
    seed: int, kinds: tuple[str, str], spools: bool
) -> None:
    live_through(seed, kinds, spools)


def live_through(seed: int, kinds: tuple[str, str], spools: bool) -> None:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        if spools:
            patch.setattr(draft, "MEMORY_BYTES_MAX", 500)
            patch.setattr(draft, "SPOOLED_BYTES_MIN", 10)
        folders = [Path(name, one) for one in ("first", "second")]
        for folder in folders:
            folder.mkdir()
        inner, second = (ENGINES[k].make(f) for k, f in zip(kinds, folders, strict=True))
        history = History(
            recorded(inner, lambda commit: apply(second, commit)), random.Random(seed)
        )
        for queue, settings in QUEUES.items():
            history.ms.create_queue(queue, **settings)
        for number in range(STEPS):
            history.step()
            if number % 25 == 0:
                assert all_rows(second) == all_rows(inner)
        history.fold()
        assert all_rows(second) == all_rows(inner)

        expected = seen(history.ms)
        history.store.close()
        other = open_store(second, limits=LIMITS, clock=history.clock)
        assert seen(Millstream(EmbeddedSession(other))) == expected
        other.close()


def test_a_value_that_was_kept_can_be_applied_later(tmp_path: Path) -> None:
    """A subscriber may keep values, also spooled ones, for as long as it likes."""
    kept: list[Any] = []
    engine = recorded(ENGINES["memory"].make(tmp_path), kept.append)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draft, "MEMORY_BYTES_MAX", 500)
        store = open_store(engine, limits=LIMITS, clock=SimulatedClock())
        ms = Millstream(EmbeddedSession(store))
        for number in range(30):
            ms.log("a").append_many([b"%d" % number * 500] * 20)
        ms.fold()
    second = ENGINES["memory"].make(tmp_path)
    for commit in kept:
        apply(second, commit)
    assert all_rows(second) == all_rows(engine)
    store.close()


def test_a_commit_that_failed_is_not_handed_on(tmp_path: Path) -> None:
    kept: list[Any] = []
    store = open_store(recorded(ENGINES["memory"].make(tmp_path), kept.append))
    before = len(kept)
    packed = pack_single(b"x", key=None, headers=None, timestamp=None, limits=LIMITS)
    with pytest.raises(MillstreamError):
        store.run(operation(Append("a", packed, expect_end=5)))
    assert len(kept) == before
    store.close()
