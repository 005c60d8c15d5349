"""A scrub beside random work gives no false alarm: rows are written, folded, replaced and deleted while it reads.

Each step of the scrub reads a few rows only, so that everything happens between two steps of one pass. A row
that is damaged meanwhile is found all the same.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream import Millstream
from millstream.embedded.session import EmbeddedSession, open_over
from millstream.engine import scrub as scrubs
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.errors import MillstreamError
from millstream.format import keys
from millstream.testing import Probe, SimulatedClock

LOGS = 6
STEPS = 400
VFS = ("unix", None)
"""Without checksums of pages, and as a store is made by default."""


class Work:
    """Random operations on one store."""

    def __init__(self, ms: Millstream, clock: SimulatedClock, chance: random.Random) -> None:
        self.ms, self._clock, self._chance = ms, clock, chance
        self._probe = Probe(ms)
        self._forks = 0
        self._doings: list[Callable[[], object]] = [
            self.append,
            self.append,
            self.append_many,
            self.append_large,
            self.append_keys,
            self.truncate,
            self.delete,
            self.put,
            self.claim,
            self.claim,
            self.read,
            self.fork,
            self.set_metadata,
            self._probe.upkeep,
            ms.fold,
        ]

    def __call__(self) -> None:
        """Do one of them."""
        self._clock.advance(self._chance.random())
        self._chance.choice(self._doings)()

    def _log(self) -> str:
        return f"log-{self._chance.randrange(LOGS)}"

    def append(self) -> None:
        self.ms.log(self._log()).append(self._chance.randbytes(self._chance.randrange(200)))

    def append_many(self) -> None:
        count, size = self._chance.randrange(1, 60), self._chance.randrange(300)
        self.ms.log(self._log()).append_many([self._chance.randbytes(size)] * count)

    def append_large(self) -> None:
        self.ms.log(self._log()).append(
            self._chance.randbytes(self._chance.randrange(2_000, 20_000))
        )

    def append_keys(self) -> None:
        """An entry that is too large to ride in its delta, with a payload that is not."""
        log, size = self.ms.log(self._log()), self._chance.randrange(1, 4_000)
        log.append(b"small", key=self._chance.randbytes(size))

    def truncate(self) -> None:
        log = self.ms.log(self._log())
        start, end = log.start_offset(), log.end_offset()
        log.truncate(before=self._chance.randint(start, end))

    def delete(self) -> None:
        if self._chance.random() < 0.2:
            self.ms.log(self._log()).delete()

    def put(self) -> None:
        for _ in range(self._chance.randrange(1, 30)):
            group = str(self._chance.randrange(4)) if self._chance.random() < 0.5 else None
            self.ms.queue("jobs").put(self._chance.randbytes(50), group=group)

    def claim(self) -> None:
        queue = self.ms.queue("jobs")
        for message in queue.claim(self._chance.randrange(1, 20), wait=0):
            self._chance.choice([queue.ack, queue.nack, lambda _: None])(message)

    def read(self) -> None:
        log = self.ms.log(self._log())
        cursor = log.cursor("reader")
        cursor.ack([record for record in log.read() if self._chance.random() < 0.5])

    def fork(self) -> None:
        self._forks += 1
        if self._forks < 8:
            self.ms.log(self._log()).fork(f"fork-{self._forks}")

    def set_metadata(self) -> None:
        self.ms.log(self._log()).metadata["of"] = self._chance.randrange(9)


def store_in(path: Path, clock: SimulatedClock, vfs: str | None) -> Millstream:
    def make() -> SqliteEngine:
        return SqliteEngine(path, vfs=vfs, durability="relaxed", clock=clock)

    return Millstream(EmbeddedSession(open_over(make, clock=clock)))


@pytest.mark.parametrize("vfs", VFS)
@pytest.mark.parametrize("seed", range(6))
def test_steps_between_random_operations_find_nothing(
    tmp_path: Path, seed: int, vfs: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, chance = SimulatedClock(), random.Random(seed)
    ms = store_in(tmp_path / "s.db", clock, vfs)
    with ms:
        work, store = Work(ms, clock, chance), Probe(ms).store
        Probe(ms).pause_keeper()
        ms.queue("jobs", sources="log-0", group_by="g")
        for step in range(STEPS):
            try:
                work()
            except MillstreamError:
                pass  # such as a log that was deleted
            monkeypatch.setattr(scrubs, "ROWS_MAX", chance.randrange(1, 40))
            clock.advance(scrubs.PASS_S if chance.random() < 0.1 else scrubs.FIRST_S)
            store.scrub.turn()
            assert ms.stats()["scrub_findings"] == [], f"seed {seed}, step {step}"
        assert ms.stats()["scrub_age_s"] is not None, "no pass has ended"


@pytest.mark.parametrize("seed", range(2))
def test_passes_beside_writers_and_folds_find_nothing_but_the_damage(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, chance = SimulatedClock(), random.Random(seed)
    monkeypatch.setattr(scrubs, "ROWS_MAX", 7)
    ms = store_in(tmp_path / "s.db", clock, "unix")
    with ms:
        ms.queue("jobs", sources="log-0", group_by="g")
        still = ms.log("still")
        still.append_many([b"x"] * 10)
        ms.log("log-0").append(b"")
        ms.fold()
        work, probe, stop = Work(ms, clock, chance), Probe(ms), threading.Event()

        def keep_working() -> None:
            while not stop.is_set():
                try:
                    work()
                except MillstreamError:
                    pass

        worker = threading.Thread(target=keep_working)
        worker.start()
        try:
            for _ in range(10):
                probe.store.scrub.pass_over()
                assert ms.stats()["scrub_findings"] == [], f"seed {seed}"
        finally:
            stop.set()
            worker.join()
        still_id = int(probe.store.seen(keys.log_name("still")))
        (entry,) = [key for key in probe.rows(keys.ENTRY) if keys.pair(key)[0] == still_id]
        probe.damage(entry)
        probe.store.scrub.pass_over()
        (finding,) = ms.stats()["scrub_findings"]
        assert finding.startswith(f"the entry of log {still_id} that ends with offset 9")
