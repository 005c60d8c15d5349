"""A Millstream process beside an application: it prints the messages of a queue as they come."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec

import millstream

PROGRAM = """
import sys
import msgspec
import millstream

with millstream.open(sys.argv[1], adopt=True) as ms:
    queue = ms.create_queue("emails")
    print("ready", flush=True)
    while True:
        for message in queue.pop(100, wait=60):
            key = None if message.key is None else message.key.decode()
            facts = [message.value.decode(), key, dict(message.headers)]
            print(msgspec.json.encode(facts).decode(), flush=True)
"""


class InboxReader:
    """The messages that a process takes from the queue `emails`, in order."""

    def __init__(self, lines: IO[str]) -> None:
        self._lines = lines

    def next(self) -> tuple[Any, str | None, dict[str, Any]]:
        """Wait for the next message: its value, key and headers."""
        value, key, headers = msgspec.json.decode(self._lines.readline())
        return value, key, headers

    def values(self, count: int) -> list[Any]:
        """Wait for messages, and return their values as JSON."""
        return [msgspec.json.decode(self.next()[0]) for _ in range(count)]


@contextmanager
def inbox_reader(path: Path) -> Iterator[InboxReader]:
    """Run the process while the block runs; it adopts the database."""
    source = str(Path(millstream.__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path)],
        env={**os.environ, "PYTHONPATH": source},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield InboxReader(process.stdout)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
