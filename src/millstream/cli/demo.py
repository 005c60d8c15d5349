"""`millstream demo`: run every part in a temporary directory, and check each step.

A step is a function. The user sees its lines up to `return`, so that the shown code is the code
that ran.
"""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import chdir
from importlib.util import find_spec
from textwrap import dedent
from typing import Annotated

import typer

import millstream
from millstream import Message, Producer, Retry
from millstream.cli.command import AsJson
from millstream.cli.display import PrintedLine, json_text, report
from millstream.errors import MillstreamError

KILL_AFTER_S = 0.5
WRITER = "from millstream.cli.demo import write_until_killed as w; w()"


def demo(
    serve: Annotated[
        bool,
        typer.Option("--serve", help="Run two servers with activity, until Ctrl-C."),
    ] = False,
    port: Annotated[
        int,
        typer.Option(
            "--port", "-p", metavar="N", min=0, max=65_534, help="The first server's port; 0: any."
        ),
    ] = 8080,
    json: AsJson = False,
) -> None:
    """Demonstrate all parts in a few seconds. With --serve: in a browser.

    Works in a temporary directory. Without --serve the executed code is shown.
    """
    if serve:
        if find_spec("uvicorn") is None:
            raise typer.BadParameter("the servers need packages: pip install 'millstream[server]'")
        from millstream.cli.showcase import show

        show(port=port, json=json)
        return
    steps = []
    with tempfile.TemporaryDirectory(prefix="millstream-demo-") as directory, chdir(directory):
        for step in STEPS:
            started = time.perf_counter()
            is_possible = step is not server or find_spec("uvicorn") is not None
            outcome = step() if is_possible else "left out; pip install 'millstream[server]'"
            took_ms = round((time.perf_counter() - started) * 1000)
            title = f"{step.__name__}: {step.__doc__}"
            code = _code(step)
            steps.append({"step": step.__name__, "code": code, "outcome": outcome, "ms": took_ms})
            if json:
                continue
            for text, style in (
                (title, "bold"),
                *((f"    {line}", "cyan") for line in code.splitlines()),
                (f"  → {outcome}  ({took_ms:,} ms)", "green"),
                ("", ""),
            ):
                PrintedLine(text, style).show()
            sys.stdout.flush()
    if json:
        report(json_text(steps))


def _code(step: Callable[[], str]) -> str:
    """Return the code of a step, without its signature, docstring and return statement."""
    body = inspect.getsource(step).partition('"""\n')[2]
    return dedent(body.partition("    return ")[0]).rstrip()


def _checked(is_right: bool, outcome: str) -> str:
    if not is_right:
        raise MillstreamError(f"the demonstration failed where it should show: {outcome}")
    return outcome


def log() -> str:
    """Records at offsets that never change, durable when append returns."""
    with millstream.open("demo.db") as ms:
        orders = ms.log("orders")
        offset = orders.append({"id": 1, "total": 42}, key="ada")
        orders.append_many([{"id": n} for n in range(2, 10_001)])
        first_order = orders.get(offset)
        count = sum(1 for _ in orders.read())
    return _checked(
        first_order is not None
        and first_order.json() == {"id": 1, "total": 42}
        and count == 10_000,
        f"{count:,} records in two commits; offset {offset} is {first_order and first_order.json()}",
    )


def repeat() -> str:
    """A record that a producer sends twice is stored once."""
    with millstream.open("demo.db") as ms:
        first = ms.log("orders").append({"id": 10_001}, producer=Producer("shop", 1))
        again = ms.log("orders").append({"id": 10_001}, producer=Producer("shop", 1))
    return _checked(first == again == 10_000, f"both times offset {first}")


def cursor() -> str:
    """A reader resumes where it was, and may acknowledge in any order."""
    with millstream.open("demo.db") as ms:
        billing = ms.log("orders").cursor("billing")
        records = billing.take(6)
        billing.ack([records[4], records[1], records[0], records[5]])
    with millstream.open("demo.db") as ms:
        again = [record.offset for record in ms.log("orders").cursor("billing").take(4)]
    return _checked(again == [2, 3, 6, 7], f"after reopening come offsets {again}")


def queue() -> str:
    """Each message to one consumer at a time, until it is acknowledged."""
    with millstream.open("demo.db") as ms:
        mail = ms.create_queue("mail", max_attempts=3, backoff=0, priority_by="priority")
        mail.put("a newsletter")
        mail.put("a password reset", priority=9)
        (urgent,) = mail.claim(lease=30)
        mail.ack(urgent)
        (newsletter,) = mail.claim()
        mail.nack(newsletter, reason="the mail server is busy")
        info = mail.info()
    return _checked(
        urgent.text == "a password reset" and info.done == 1,
        f"first {urgent.text!r}, which is done; {newsletter.text!r} is tried again",
    )


def worker() -> str:
    """Runs a function for every message; a failed message is tried again."""
    attempts = []

    def send(message: Message) -> None:
        attempts.append(message.text)
        if len(attempts) == 1:
            raise Retry("still busy")

    with millstream.open("demo.db") as ms:
        stats = ms.queue("mail").worker(send).run(drain=True)
    return _checked(stats.done == 1, f"{stats.done} done, {stats.retried} retried: {attempts}")


def transaction() -> str:
    """Acknowledge, append and SQL in one atomic commit."""
    with millstream.open("demo.db") as ms:
        invoices = ms.log("orders").cursor("invoices")
        (order,) = invoices.take(1)
        with ms.transaction() as tx:
            tx.sql("CREATE TABLE invoice (id INTEGER PRIMARY KEY)")
            tx.sql("INSERT INTO invoice VALUES (?)", [order.json()["id"]])
            tx.append("invoices", {"order": order.json()["id"]})
            tx.ack(invoices, order)
        count, floor = len(ms.log("invoices")), invoices.info().floor
    return _checked((count, floor) == (1, 1), "one invoice, one acknowledged order, one commit")


def server() -> str:
    """A server makes the store available to other machines, with the same API."""
    from millstream.server.serving import running
    from millstream.server.settings import Settings

    # $ millstream serve demo.db
    with running("demo.db", Settings(port=0)) as at, millstream.open(at.url) as ms:
        offset = ms.log("orders").append({"id": 10_002})
        ms.queue("mail").put("a letter from afar")
        (message,) = ms.queue("mail").pop()
    return _checked(offset == 10_001, f"appended at offset {offset}, popped {message.text!r}")


def fork() -> str:
    """A log that shares the records of another log; nothing is copied."""
    with millstream.open("demo.db") as ms:
        orders = ms.log("orders")
        trial = orders.fork("trial")
        trial.append({"id": "only a trial"})
        ends = orders.end_offset(), trial.end_offset()
        merged = trial.merge()
    return _checked(
        merged.adopted == 1, f"they end at {ends}; the merge brings {merged.adopted} back"
    )


def sync() -> str:
    """Two stores exchange missing records."""
    with millstream.open("demo.db") as ms:
        first = ms.sync("copy.db", create=True)  # $ millstream sync copy.db --create
        again = ms.sync("copy.db")
    return _checked(
        first.pushed > 10_000 and again.pushed == 0,
        f"{first.pushed:,} records pushed; the second time {again.pushed}",
    )


def kill() -> str:
    """A process is killed in the middle; no acknowledged record is lost."""
    heard = killed_writer()
    with millstream.open("demo.db") as ms:
        numbers = [record.json()["number"] for record in ms.log("survivor").read()]
    return _checked(
        0 < len(heard) <= len(numbers) and numbers == list(range(len(numbers))),
        f"kill -9 after {len(heard):,} acknowledged appends; {len(numbers):,} numbers, 0 lost",
    )


def truncate() -> str:
    """Old records are deleted, by hand or by rules; offsets stay the same."""
    with millstream.open("demo.db") as ms:
        orders = ms.log("orders")
        orders.truncate(before=100)
        orders.retain(count=5_000)
        orders.enforce_retention()
        start, count = orders.start_offset(), len(orders)
    return _checked(count == 5_000, f"{count:,} records are left, from offset {start:,} on")


def doctor() -> str:
    """Verify all checksums and invariants of the file."""
    from millstream.doctor import examine

    report = examine("demo.db")
    return _checked(report.healthy, f"{report.records:,} records in {report.logs} logs: healthy")


STEPS = log, repeat, cursor, queue, worker, transaction, server, fork, sync, kill, truncate, doctor


def killed_writer() -> list[bytes]:
    """Start a process that appends, kill it after a moment, and return the acknowledged offsets."""
    command = [sys.executable, "-c", WRITER]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        heard = writer.stdout.readline()
        time.sleep(KILL_AFTER_S)
        writer.send_signal(signal.SIGKILL)
        heard += writer.stdout.read()
    return heard[: heard.rfind(b"\n") + 1].split()


def write_until_killed() -> None:
    """Append records one by one, and print each offset when the record is durable."""
    with millstream.open("demo.db") as ms:
        for number in range(sys.maxsize):
            os.write(1, b"%d\n" % ms.log("survivor").append({"number": number}))
