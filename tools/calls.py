"""Counts the calls of Python and C functions that one operation takes on the thread of its caller.

    python tools/calls.py                  the table of all operations
    python tools/calls.py --tree append    every call of one operation, indented by depth

The counts hardly depend on the machine and its load, so they show what a change of the code costs. Each
operation runs many times on a store in memory, and the table has the medians. Functions in C that C
functions call are not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

import millstream
from millstream import aio

VALUE = b"x" * 100
WARM_UPS = 100
TIMES = 200
THREADS = 16
COROUTINES = 32
MEMORY = Path("/dev/shm")

Step = Callable[[], object]
Event = tuple[str, str]
"""The kind of a call, `call` or `c_call`, and the name of its function."""


class CallCounter:
    """The calls of one run of a step; `tree` keeps their order."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.tree: list[tuple[int, Event]] = []
        self._depth = 0

    def note(self, frame: FrameType, kind: str, function: Any) -> None:
        """Handle an event of `sys.setprofile`."""
        if kind == "call":
            code = frame.f_code
            place = f"{Path(code.co_filename).name}:{code.co_firstlineno}"
            self.tree.append((self._depth, (kind, f"{code.co_qualname}  ({place})")))
            self.kinds[kind] += 1
            self._depth += 1
        elif kind == "return":
            self._depth -= 1
        elif kind == "c_call" and function is not sys.setprofile:
            self.tree.append((self._depth, (kind, getattr(function, "__qualname__", "?"))))
            self.kinds[kind] += 1

    def run(self, step: Step) -> None:
        """Run a step, and count its calls."""
        sys.setprofile(self.note)
        try:
            step()
        finally:
            sys.setprofile(None)


@contextmanager
def steps() -> Iterator[dict[str, Step]]:
    """Yield the operations of a store in memory, by name."""
    folder = MEMORY if MEMORY.is_dir() else None
    with (
        tempfile.TemporaryDirectory(dir=folder) as directory,
        millstream.open(Path(directory) / "calls.db") as ms,
    ):
        yield {
            **_log_steps(ms),
            **_queue_steps(ms),
            "begin: select, insert, put": _interactive(ms),
        }


def _log_steps(ms: millstream.Millstream) -> dict[str, Step]:
    log, values = ms.log("records"), [VALUE] * 100
    return {
        "append": lambda: log.append(VALUE),
        "append_many of 100": lambda: log.append_many(values),
    }


def _queue_steps(ms: millstream.Millstream) -> dict[str, Step]:
    puts, claims, both, tens = (ms.create_queue(name, lease=600) for name in ("a", "b", "c", "d"))
    for queue in (claims, both, tens):
        for _ in range(4):
            queue.put_many([VALUE] * 1_000)
    done: list[millstream.Message] = []

    def claim_and_ack_last() -> None:
        done[:] = both.claim(ack=done)

    return {
        "put": lambda: puts.put(VALUE),
        "claim, then ack": lambda: claims.ack(claims.claim()),
        "claim with ack": claim_and_ack_last,
        "claim of 10, then ack": lambda: tens.ack(tens.claim(10)),
    }


def _interactive(ms: millstream.Millstream) -> Step:
    queue = ms.create_queue("orders")
    with ms.begin() as tx:
        tx.sql("CREATE TABLE stock (item TEXT PRIMARY KEY, n INTEGER)")
        tx.sql("INSERT INTO stock VALUES ('apple', 3)")
        tx.sql("CREATE TABLE sold (id INTEGER PRIMARY KEY, item TEXT, n INTEGER)")

    def step() -> None:
        with ms.begin() as tx:
            row = tx.sql("SELECT n FROM stock WHERE item = ?", ("apple",)).one()
            tx.sql("INSERT INTO sold (item, n) VALUES (?, ?)", ("apple", row["n"]))
            tx.put(queue, VALUE)

    return step


def count(step: Step) -> tuple[float, float]:
    """Return the median calls of Python and C functions of a step."""
    for _ in range(WARM_UPS):
        step()
    counters = [CallCounter() for _ in range(TIMES)]
    for counter in counters:
        counter.run(step)
    return (
        median(counter.kinds["call"] for counter in counters),
        median(counter.kinds["c_call"] for counter in counters),
    )


def count_threads() -> float:
    """Return the Python calls per claim with ack, by many threads on one queue."""
    calls = [0] * THREADS
    with tempfile.TemporaryDirectory() as directory, millstream.open(f"{directory}/a.db") as ms:
        queue = ms.create_queue("work", lease=600)
        for _ in range(THREADS * TIMES // 1_000 + 4):
            queue.put_many([VALUE] * 1_000)

        def work(index: int) -> None:
            done: list[millstream.Message] = []
            counter = CallCounter()

            def claim_all() -> None:
                for _ in range(TIMES):
                    done[:] = queue.claim(ack=done)

            counter.run(claim_all)
            calls[index] = counter.kinds["call"]

        threads = [threading.Thread(target=work, args=(index,)) for index in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return sum(calls) / THREADS / TIMES


def count_coroutines() -> float:
    """Return the Python calls per append, by many coroutines on one log."""
    counter = CallCounter()

    async def work(log: aio.Log) -> None:
        for _ in range(TIMES // 4):
            await log.append(VALUE)

    async def work_together(directory: str) -> None:
        async with aio.open(f"{directory}/a.db") as ms:
            log = ms.log("records")
            await asyncio.gather(*(work(log) for _ in range(COROUTINES)))
            sys.setprofile(counter.note)
            try:
                await asyncio.gather(*(work(log) for _ in range(COROUTINES)))
            finally:
                sys.setprofile(None)

    folder = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=folder) as directory:
        asyncio.run(work_together(directory))
    return counter.kinds["call"] / COROUTINES / (TIMES // 4)


def main() -> None:
    """Print the table, or the calls of one operation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tree", metavar="OPERATION", help="print every call of one operation")
    tree = parser.parse_args().tree
    with steps() as operations:
        if tree is not None:
            count(operations[tree])
            counter = CallCounter()
            counter.run(operations[tree])
            for depth, (kind, name) in counter.tree:
                sys.stdout.write(f"{'  ' * depth}{'' if kind == 'call' else '· '}{name}\n")
            return
        sys.stdout.write(f"{'operation':<32}{'Python':>8}{'C':>8}\n")
        for name, step in operations.items():
            python_calls, c_calls = count(step)
            sys.stdout.write(f"{name:<32}{python_calls:>8.0f}{c_calls:>8.0f}\n")
    sys.stdout.write(f"{f'append by {COROUTINES} coroutines':<32}{count_coroutines():>8.1f}\n")
    sys.stdout.write(f"{f'claim with ack by {THREADS} threads':<32}{count_threads():>8.1f}\n")


if __name__ == "__main__":
    main()
