"""A process that works on the queue `jobs` of a store, for tests that stop or kill it."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import millstream
from millstream import Message


def say(text: object) -> None:
    """One line to whoever started this process, whole even if many threads write."""
    os.write(1, f"{text}\n".encode())


def count(message: Message) -> None:
    """Say the number that was begun."""
    say(message.text)


def record(message: Message, tx: Any) -> None:
    """Say the number, and append it to a log together with the acknowledgement."""
    say(message.text)
    tx.append("results", message.value)


async def count_async(message: Message) -> None:
    """The same as a coroutine."""
    say(message.text)


def until_stopped(message: Message) -> None:
    """Work until the worker has been told to stop."""
    say(message.text)
    while not worker.stopping:
        threading.Event().wait(0.001)


HANDLERS = {one.__name__: one for one in (count, record, count_async, until_stopped)}

if __name__ == "__main__":
    path, handler, concurrency, batch = sys.argv[1:]
    with millstream.open(path) as ms:
        worker = ms.queue("jobs").worker(
            HANDLERS[handler], concurrency=int(concurrency), batch=int(batch)
        )
        stats = worker.run()
    say(f"ended {stats.done} {stats.retried} {stats.failed} {stats.lost} {stats.running}")
