"""`millstream demo --serve`: two servers on one file, with activity to show.

A producer, workers with some failing messages, and a painter on the shared canvas run as child
processes. A child ends with its standard input, so that no child outlives the program.
"""

from __future__ import annotations

import logging
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import millstream
from millstream import Message, Millstream, Retry
from millstream.cli.display import FactSheet, Printed
from millstream.errors import MillstreamError

ROOM = "canvas"
WIDTH, HEIGHT, SHAPES = 1600, 900, 12
"""The size of the canvas, and the number of rectangles on it."""

ORDERS_PER_TURN_MAX = 6
TURN_S = 0.2
SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOP_S = 10.0
"""How long children may take to end by themselves."""


def show(*, port: int, json: bool) -> None:
    """Start all processes, print the addresses, and wait for Ctrl-C."""
    with (
        tempfile.TemporaryDirectory(prefix="millstream-demo-") as directory,
        _Children() as children,
    ):
        file = Path(directory, "demo.db")
        _prepare(file)
        servers = [children.start("serve", file, number) for number in (port, port and port + 1)]
        urls = [_line_of(server) for server in servers]
        workers = [
            children.start(role, urls[url])
            for role, url in (("produce", 0), ("work", 0), ("work", 1), ("paint", 1))
        ]
        for worker in workers:
            _line_of(worker)
        places = {
            f"{name} {number}": f"{url}{path}"
            for name, path in (("dashboard", "/"), ("canvas", "/demo/canvas"))
            for number, url in enumerate(urls, 1)
        }
        summary = (
            "two servers on one file, a producer, workers and a painter; Ctrl-C ends them all",
            FactSheet([*places.items(), ("in a terminal", f"millstream top -s {urls[0]}")]),
        )
        Printed({"servers": urls, **places}, *summary).show(as_json=json)
        sys.stdout.flush()
        _wait_for_signal()


def _wait_for_signal() -> None:
    """Wait for Ctrl-C, or for a SIGTERM."""
    over = threading.Event()
    handlers = {number: signal.signal(number, lambda *_: over.set()) for number in SIGNALS}
    try:
        while not over.wait(1.0):
            pass
    finally:
        for number, before in handlers.items():
            signal.signal(number, before)


class _Children:
    """Processes that run during a block.

    Processes do not share a session: Ctrl-C reaches only the parent, and the parent ends its
    children.
    """

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> _Children:
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes; the servers last, so that no worker waits for a server."""
        for process in reversed(self._started):
            assert process.stdin is not None
            process.stdin.close()
        deadline_s = time.perf_counter() + STOP_S
        for process in self._started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline_s - time.perf_counter()))
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def start(self, role: str, *arguments: object) -> subprocess.Popen[bytes]:
        """Start a process, which prints a line when ready."""
        process = subprocess.Popen(
            [sys.executable, "-m", "millstream.cli.showcase", role, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._started.append(process)
        return process


def _line_of(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().decode().strip()
    if not line:
        raise MillstreamError("a process of the demonstration did not start; see its error above")
    return line


def _prepare(file: Path) -> None:
    with millstream.open(file) as ms:
        ms.create_queue("invoices", sources=["orders"], max_attempts=3, backoff=1.0)
        ms.create_queue("mail", priority_by="priority", max_attempts=2, backoff=2.0)
        ms.create_queue("reminders")
        ms.room(ROOM).specify(retained=["shape"])


# The child processes.


def serve(path: str, port: str) -> None:
    """Run a server; on any free port if the port is in use."""
    from millstream.server.listen.ports import CannotListen
    from millstream.server.serving import Serving
    from millstream.server.settings import Settings

    try:
        serving = Serving(path, Settings(port=int(port)))
    except CannotListen:
        serving = Serving(path, Settings(port=0))
    _at_end_of_input(serving.stop)
    serving.run(on_ready=lambda: _say(serving.url))


def produce(url: str) -> None:
    """Produce orders in waves, letters, and delayed reminders."""
    chance = random.Random(1)
    with _opened(url) as ms:
        orders, mail, reminders = ms.log("orders"), ms.queue("mail"), ms.queue("reminders")
        for turn in _turns(TURN_S):
            wave = 1 + math.sin(turn * TURN_S / 10)
            count = round(wave * ORDERS_PER_TURN_MAX / 2)
            if count:
                orders.append_many([_order(chance) for _ in range(count)])
            if turn % 4 == 0:
                mail.put({"to": "ada", "subject": f"letter {turn}"}, priority=chance.randrange(10))
            if turn % 25 == 0:
                reminders.put({"about": f"order {turn}"}, delay=20)


def _order(chance: random.Random) -> dict[str, object]:
    customer = chance.choice(["ada", "grace", "edsger", "nobody"])
    return {"customer": customer, "amount": chance.randrange(1, 200)}


def work(url: str) -> None:
    """Run workers for all queues; some invoices fail."""
    logging.disable(logging.ERROR)  # the dashboard shows the failures
    with _opened(url) as ms, ExitStack() as running:
        for name, handler in (("invoices", _bill), ("mail", _deliver), ("reminders", _deliver)):
            worker = ms.queue(name).worker(handler, concurrency=2)
            thread = threading.Thread(target=worker.run, daemon=True)
            thread.start()
            running.callback(worker.stop)
        for _ in _turns(1.0):
            pass


def _bill(message: Message) -> None:
    order = message.json()
    time.sleep(order["amount"] / 2_000)
    if order["customer"] == "nobody" and order["amount"] < 40:
        raise ValueError("there is no such customer")
    if order["amount"] % 17 == 0 and message.attempt == 1:
        raise Retry("the bank does not answer")


def _deliver(message: Message) -> None:
    time.sleep(0.1)


def paint(url: str) -> None:
    """Move rectangles on the shared canvas."""
    with _opened(url) as ms:
        room = ms.room(ROOM, user="painter")
        for turn in _turns(TURN_S):
            key = f"demo-{turn // 10 % SHAPES}"
            angle = turn * TURN_S / 3
            x = WIDTH / 2 + math.cos(angle) * (WIDTH / 2 - 160)
            y = HEIGHT / 2 + math.sin(1.7 * angle) * (HEIGHT / 2 - 120)
            shape = {"x": round(x - 60), "y": round(y - 40), "w": 120, "h": 80, "by": "painter"}
            pointer = {"x": round(x), "y": round(y)}
            room.send("shape", shape, key=key)
            room.send("pointer", pointer)


ROLES: dict[str, Callable[..., None]] = {
    "serve": serve,
    "produce": produce,
    "work": work,
    "paint": paint,
}


@contextmanager
def _opened(url: str) -> Iterator[Millstream]:
    """Open a server's store, tell the parent, and end with the standard input."""
    _at_end_of_input(lambda: os._exit(0))
    with millstream.open(url) as ms:
        _say("at work")
        yield ms


def _turns(pause_s: float) -> Iterator[int]:
    """Yield numbers, with a pause after each."""
    for turn in range(sys.maxsize):
        yield turn
        time.sleep(pause_s)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _at_end_of_input(end: Callable[[], object]) -> None:
    def listen() -> None:
        sys.stdin.read()
        end()

    threading.Thread(target=listen, daemon=True).start()


if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
