"""Reading while a commit takes records away, and has not told so yet."""

from __future__ import annotations

import threading

from millstream.replica.commands import SetAside
from millstream.store.faults import Faults
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


def test_a_read_beside_a_commit_that_takes_its_records_away_finds_them_or_the_new_end() -> None:
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
