"""`millstream demo`: every part at work on a temporary store, each step checked as it goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from millstream.threads.database import Millstream

SINGLES = 500
BATCH_RECORDS = 1_000
BATCHES = 100
KILL_AFTER_S = 0.7

WRITER = "import sys; from millstream.cli.demo import write_until_killed as w; w(sys.argv[1])"


def demo() -> None:
    """Show everything at work, in a few seconds, on a temporary store."""
    from millstream.cli import display

    rows = []
    with tempfile.TemporaryDirectory(prefix="millstream-demo-") as directory:
        path = Path(directory, "demo.db")
        for title, step in STEPS:
            if sys.stderr.isatty():
                sys.stderr.write(f"\r\x1b[K{title} …")
                sys.stderr.flush()
            started = time.perf_counter()
            outcome = step(path)
            rows.append((title, outcome, f"{(time.perf_counter() - started) * 1000:,.0f} ms"))
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    display.say_table(("step", "what happened", "time"), rows, numbers=("time",))


def write_until_killed(path: str) -> None:
    """Append one record after the other, and say each offset once it is durable."""
    with _open(Path(path)) as ms:
        log = ms.log("survivor")
        number = 0
        while True:
            offset = log.append({"number": number})
            os.write(1, b"%d\n" % offset)
            number += 1


def _append_single(path: Path) -> str:
    with _open(path) as ms:
        orders = ms.log("orders")
        seconds = _timed(
            lambda: [orders.append({"id": i}, key=f"order-{i}") for i in range(SINGLES)]
        )
        _check(orders.end_offset() == SINGLES, "a record is missing")
    return f"{SINGLES} records in {SINGLES} synced commits, {SINGLES / seconds:,.0f} per second"


def _append_batches(path: Path) -> str:
    with _open(path) as ms:
        events = ms.log("events")
        batch = [b"x" * 100] * BATCH_RECORDS
        seconds = _timed(lambda: [events.append_many(batch) for _ in range(BATCHES)])
        count = BATCHES * BATCH_RECORDS
        _check(len(events) == count, "a batch is missing")
    return f"{count:,} records in {BATCHES} synced commits, {count / seconds:,.0f} per second"


def _read(path: Path) -> str:
    with _open(path) as ms:
        seconds = _timed(lambda: _check(sum(1 for _ in ms.log("events").read()) > 0, "no records"))
        order = ms.log("orders").get(7)
        _check(order is not None and order.json() == {"id": 7}, "record 7 is not what was written")
        count = len(ms.log("events"))
    return f"{count:,} records, {count / seconds:,.0f} per second; offset 7 is {{'id': 7}}"


def _repeat(path: Path) -> str:
    from millstream.record import Producer

    with _open(path) as ms:
        orders = ms.log("orders")
        first = orders.append({"id": SINGLES}, producer=Producer("shop", 1))
        again = orders.append({"id": SINGLES}, producer=Producer("shop", 1))
        _check(first == again == orders.end_offset() - 1, "a repeat was stored")
    return f"the same append twice under one sequence: both times offset {first}, stored once"


def _acknowledge(path: Path) -> str:
    with _open(path) as ms:
        cursor = ms.log("orders").cursor("billing")
        records = cursor.take(6)
        for index in (4, 1, 0, 5):
            cursor.ack(records[index])
    with _open(path) as ms:
        cursor = ms.log("orders").cursor("billing")
        again = [record.offset for record in cursor.take(4)]
        _check(again == [2, 3, 6, 7], f"redelivered {again}")
    return "offsets 4, 1, 0, 5 acknowledged; after reopening come 2, 3, 6, 7"


def _kill(path: Path) -> str:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    heard = writer.stdout.readline()
    time.sleep(KILL_AFTER_S)
    writer.send_signal(signal.SIGKILL)
    heard += writer.stdout.read()
    writer.stdout.close()
    writer.wait()
    acknowledged = heard[: heard.rfind(b"\n") + 1].split()
    with _open(path) as ms:
        found = [record.json()["number"] for record in ms.log("survivor").read()]
        _check(found == list(range(len(found))), "records are not in order")
        _check(len(found) >= len(acknowledged) > 0, "an acknowledged record is lost")
    return f"kill -9 after {len(acknowledged):,} acknowledged appends; {len(found):,} found, 0 lost"


def _transact(path: Path) -> str:
    with _open(path) as ms:
        cursor = ms.log("orders").cursor("invoices")
        with ms.transaction() as tx:
            tx.sql("CREATE TABLE invoice (id INTEGER PRIMARY KEY)")
        for record in cursor.take(3):
            with ms.transaction() as tx:
                tx.sql("INSERT INTO invoice VALUES (?)", [record.json()["id"]])
                tx.append("invoices", {"order": record.json()["id"]})
                tx.ack(cursor, record)
        try:
            with ms.transaction() as tx:
                tx.sql("INSERT INTO invoice VALUES (99)")
                tx.append("invoices", {"order": 99})
                raise LookupError("changed my mind")
        except LookupError:
            pass
        count, floor = len(ms.log("invoices")), cursor.info().floor
        _check((count, floor) == (3, 3), "a transaction was not all or nothing")
    return "ack, append and SQL in one commit, three times; a fourth was abandoned without trace"


def _forget(path: Path) -> str:
    with _open(path) as ms:
        orders, events = ms.log("orders"), ms.log("events")
        gone = orders.truncate(before=100)
        before = len(events)
        events.retain(count=5_000)
        events.enforce_retention()
        forgotten = before - len(events)
        _check(orders.start_offset() == 100 and len(events) == 5_000, "the wrong records are gone")
    return f"truncated {gone}, retention of 5,000 let {forgotten:,} go; offsets stay as they were"


def _fold(path: Path) -> str:
    with _open(path) as ms:
        folded = ms.fold()
        left = ms.stats()["unfolded_commits"]
    return f"{folded:,} commits moved into their records, {left} left"


def _examine(path: Path) -> str:
    from millstream.doctor import examine

    report = examine(path)
    _check(report.healthy, "; ".join(problem.message for problem in report.problems))
    rows = sum(report.rows.values())
    return f"{rows:,} rows, {report.logs} logs, {report.records:,} records: healthy"


STEPS: tuple[tuple[str, Callable[[Path], str]], ...] = (
    ("append", _append_single),
    ("append batches", _append_batches),
    ("read", _read),
    ("repeat", _repeat),
    ("cursor", _acknowledge),
    ("kill", _kill),
    ("transaction", _transact),
    ("forget", _forget),
    ("fold", _fold),
    ("doctor", _examine),
)


def _open(path: Path) -> Millstream:
    import millstream

    return millstream.open(path)


def _timed(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def _check(true: bool, otherwise: str) -> None:
    if not true:
        typer.echo(f"error: {otherwise}", err=True)
        raise typer.Exit(1)
