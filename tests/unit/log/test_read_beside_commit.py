"""Reading while a commit sets records aside or takes them away, and has not told so yet."""

from __future__ import annotations

import threading

from millstream.engine.memory.faults import Faults
from millstream.log.model.head import Bounds
from millstream.log.reading.reader import entries_of, find_blocks, with_rows
from millstream.replica.commands import SetAside
from millstream.store.state.view import Rows
from millstream.testing import MemoryEngine, Probe, memory_store

LOOKS = 8
"""As many as a read that does not wait would be content with."""


class Paused(Faults):
    """Holds a commit up while another thread reads, until that has looked often or waits."""

    def __init__(self) -> None:
        super().__init__()
        self.armed = threading.Event()
        self.under_way = threading.Event()
        self._looks = threading.Semaphore(0)

    def __call__(self, step: str) -> None:
        super().__call__(step)
        if self.under_way.is_set():
            if step == "read":
                self._looks.release()
        elif step == "sent" and self.armed.is_set():
            self.under_way.set()
            for _ in range(LOOKS):
                if not self._looks.acquire(timeout=0.1):
                    return  # it waits for us


def test_a_read_beside_a_commit_that_sets_its_records_aside_finds_the_old_or_the_new_log() -> None:
    faults = Paused()
    read: list[bytes] = []
    with memory_store(MemoryEngine(faults=faults)) as ms:
        Probe(ms).pause_keeper()
        log = ms.log("a")
        log.append_many([b"0", b"1", b"2", b"3"])

        def reading() -> None:
            faults.under_way.wait()
            read.extend(record.value for record in log.read())

        reader = threading.Thread(target=reading)
        reader.start()
        faults.armed.set()
        ms.session.execute(SetAside("a", 2, 0))
        reader.join()
    assert read in ([b"0", b"1"], [b"0", b"1", b"2", b"3"])


def test_a_read_within_which_a_whole_commit_took_records_away_is_done_again() -> None:
    with memory_store() as ms:
        Probe(ms).pause_keeper()
        log, store = ms.log("a"), Probe(ms).store
        log.append(b"0")
        fork = log.fork("b")
        fork.append(b"1")
        reads = 0

        def read(bounds: Bounds, rows: Rows) -> list[bytes]:
            nonlocal reads
            reads += 1
            entries = list(entries_of(rows, 2, start=0, stop=bounds.end))
            if reads == 1:
                fork.merge()  # the entry of the fork is the parent's entry now
                fork.append(b"2")
            assert len(entries) == bounds.end == reads + 1
            found = find_blocks(rows, 2, "b", start=0, stop=bounds.end, bytes_max=2**20)
            return [record.value for block in found for record in block.records()]

        assert with_rows(store, 2, read) == [b"0", b"1", b"2"]
        assert reads == 2
