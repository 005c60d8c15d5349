"""Random histories of a store that a follower backs up: any commit is restored as the model has it.

The model has records, rows of the application, messages by state, a cursor, a room, tokens and schedules.
The follower is stopped and started, begins new points, and the write-ahead log is restarted under it.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

import millstream
from millstream import doctor
from millstream.backup.follow import StoreFollower, following
from millstream.backup.place import BackupPlace
from millstream.backup.replay import RestoreMoment
from millstream.backup.restore import restore
from millstream.backup.verify import verify
from millstream.embedded.session import EmbeddedSession, open_file, open_store
from millstream.engine.open import open_engine
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.engine.sqlite.options import SqliteOptions
from millstream.errors import InvalidInput
from millstream.jobs.schedule import ScheduledJob, define
from millstream.server.auth.register import Registrar
from millstream.server.auth.tokens import create_token
from millstream.testing import Probe, SimulatedClock
from millstream.threads.schedules import ScheduleStore
from tests.property.examples import examples

LEASE_S = 3_600
"""Longer than a history, so that a claim stays."""

SMALL = SqliteOptions(wal_bytes_checkpoint=1 << 14, wal_bytes_left=1 << 13, wal_bytes_reset=1 << 16)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from("ab"), st.integers(0, 3_000)),
        st.tuples(st.just("row"), st.integers(0, 9)),
        st.sampled_from([("put",), ("work",), ("hold",), ("fail",), ("read",)]),
        st.tuples(st.just("shape"), st.sampled_from("xy"), st.integers(0, 9)),
        st.tuples(st.sampled_from(["token", "schedule"]), st.sampled_from(["one", "two"])),
        st.sampled_from([("fold",), ("checkpoint",)]),
        st.sampled_from([("step",), ("step",), ("stop",), ("point",)]),
    ),
    min_size=3,
    max_size=25,
)


@dataclass
class State:
    """What the store holds after a commit."""

    logs: dict[str, list[bytes]] = field(default_factory=lambda: {"a": [], "b": []})
    rows: list[int] = field(default_factory=list)
    waiting: int = 0
    held: int = 0
    """Messages that a consumer has claimed."""
    failed: int = 0
    done: int = 0
    position: int = 0
    """The offset up to which the reader has acknowledged log a."""
    sent: int = 0
    shapes: dict[str, int] = field(default_factory=dict)
    """The retained values of the room, by key."""
    tokens: set[str] = field(default_factory=set)
    schedules: set[str] = field(default_factory=set)


class History:
    """A store, its follower, and the state after each commit."""

    def __init__(self, folder: Path) -> None:
        self.path, self.place = folder / "a.db", folder / "backup"
        self.clock = SimulatedClock(1_000_000)
        self.engine = SqliteEngine(self.path, options=SMALL, clock=self.clock)
        self.ms = millstream.Millstream(EmbeddedSession(open_store(self.engine, clock=self.clock)))
        Probe(self.ms).pause_keeper()
        self.state = State()
        self.after: dict[int, State] = {}
        self.covered: set[int] = set()
        self._running: ExitStack | None = None
        self._follower: StoreFollower | None = None
        with self.ms.transaction() as tx:
            tx.sql("CREATE TABLE mine (a INTEGER)")
        self.queue = self.ms.create_queue("jobs", lease=LEASE_S, max_attempts=1)
        self.room = self.ms.room("hall")
        self.room.specify(retained=["shape"])
        self.reader = self.ms.log("a").cursor("reader")
        self.schedules = ScheduleStore(self.ms.session)
        self.note()

    def note(self) -> None:
        """Note the state of the newest commit."""
        seq = Probe(self.ms).store.seq
        if seq not in self.after:
            self.after[seq] = deepcopy(self.state)

    def run(self, step: tuple[object, ...]) -> None:
        self.clock.advance(1)
        match step:
            case ("append", str(log), int(size)):
                value = bytes([len(self.state.logs[log]) % 256]) * size
                self.ms.log(log).append(value)
                self.state.logs[log].append(value)
            case ("row", int(number)):
                with self.ms.transaction() as tx:
                    tx.sql("INSERT INTO mine VALUES (?)", (number,))
                    tx.append("a", b"with a row")
                self.state.rows.append(number)
                self.state.logs["a"].append(b"with a row")
            case ("put",):
                self.queue.put(b"message")
                self.state.waiting += 1
            case ("work" | "hold" | "fail" as outcome,):
                self.work(outcome)
            case ("read",):
                records = self.reader.take(2)
                self.reader.ack(records)
                self.reader.flush()
                self.state.position += len(records)
            case ("shape", str(key), int(number)):
                self.room.send("shape", number, key=key)
                self.state.shapes[key] = number
                self.state.sent += 1
            case ("token", str(name)):
                if name in self.state.tokens:
                    Registrar(self.ms).revoke(name)
                else:
                    create_token(self.ms, name, ["log:read"], clock=self.clock)
                self.state.tokens ^= {name}
            case ("schedule", str(name)):
                if name in self.state.schedules:
                    assert self.schedules.delete(name)
                else:
                    job, now_ms = ScheduledJob("shop:sweep"), self.clock.wall_ms()
                    self.schedules.store(define(name, job, 3_600, now_ms=now_ms))
                self.state.schedules ^= {name}
            case ("fold",):
                self.ms.fold()
            case ("checkpoint",):
                self.engine.checkpoint(Probe(self.ms).hold_commits())
            case ("step",):
                self.follow()
            case ("stop",):
                self.stop()
            case ("point",):
                self.stop()
                self.follow()
        self.note()

    def work(self, outcome: str) -> None:
        """Claim a message; then finish it, fail it, or keep it."""
        claims = self.queue.claim(1)
        if not claims:
            return
        self.state.waiting -= 1
        self.state.held += 1
        self.note()
        if outcome == "hold":
            return
        self.state.held -= 1
        if outcome == "work":
            self.queue.ack(claims)
            self.state.done += 1
        else:
            self.queue.fail(claims, reason="broken")
            self.state.failed += 1

    def follow(self) -> None:
        if self._follower is None:
            self._running = ExitStack()
            engine = cast(SqliteEngine, open_engine(self.path, mode="r"))
            self._running.callback(engine.close)
            opening = following(engine, BackupPlace(self.place), clock=self.clock)
            self._follower = self._running.enter_context(opening)
        self.covered.add(self._follower.step().seq)

    def stop(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = self._follower = None

    def close(self) -> None:
        self.stop()
        self.ms.close()


def restored(target: Path, clock: SimulatedClock) -> State:
    with millstream.Millstream(EmbeddedSession(open_file(target, clock=clock))) as ms:
        info = ms.queue("jobs").info()
        retained = ms.room("hall").retained().values
        return State(
            logs={name: [record.value for record in ms.log(name).read()] for name in "ab"},
            rows=[row[0] for row in ms.sql("SELECT a FROM mine ORDER BY rowid").rows],
            waiting=info.available + info.unrouted + info.delayed,
            held=info.in_flight,
            failed=info.failed,
            done=info.done,
            position=ms.log("a").cursor("reader").position(),
            sent=ms.room("hall").log.end_offset(),
            shapes={value.key: int(value.data) for value in retained if value.key is not None},
            tokens={token.name for token in Registrar(ms).tokens()},
            schedules={schedule.name for schedule in ScheduleStore(ms.session).list()},
        )


@settings(max_examples=examples(30))
@given(steps=STEPS, data=st.data())
def test_any_covered_commit_is_restored_as_it_was(
    steps: list[tuple[object, ...]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        history = History(folder)
        try:
            history.follow()
            for step in steps:
                history.run(step)
            history.follow()
        finally:
            history.close()
        assert verify(history.place).damage == []
        newest = max(history.covered)
        seqs = sorted(seq for seq in history.after if seq <= newest)
        seq = data.draw(st.sampled_from(seqs))
        target = folder / "b.db"
        try:
            restore(history.place, target, at=RestoreMoment(seq=seq))
        except InvalidInput:  # between two chains, or before the first point
            assert seq not in history.covered
            seq = newest
            restore(history.place, target, at=RestoreMoment(seq=seq))
        assert doctor.examine(target).healthy
        assert restored(target, history.clock) == history.after[seq]
