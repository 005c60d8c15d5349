"""What clients see of a server that is killed and comes back, again and again. In the end:

- every append that returned is there, at the offset that it returned;
- nothing is there twice, although every append without an answer was repeated;
- nobody was told that something failed which had happened.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import millstream
from millstream import Producer
from millstream.errors import CannotOpen, OutcomeUnknown

pytestmark = [pytest.mark.crash, pytest.mark.slow]

CLIENTS = 8
KILLS = 4
PATIENCE_S = 120


@contextmanager
def serving(folder: Path, port: int) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    command = [sys.executable, "-m", "millstream", "serve", "store.db", "--json", "--port"]
    with subprocess.Popen([*command, str(port)], cwd=folder, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())["rest"]
        finally:
            process.kill()


class Client(threading.Thread):
    """Appends under its own sequence; what has no answer is repeated until it has one."""

    def __init__(self, name: str, url: str) -> None:
        super().__init__(name=name, daemon=True)
        self.url = url
        self.told: list[int] = []
        self.error: BaseException | None = None
        self.is_over = False

    def run(self) -> None:
        try:
            with millstream.open(self.url, retry_for=PATIENCE_S) as ms:
                while not self.is_over:
                    self._append(ms)
        except BaseException as error:
            self.error = error

    def _append(self, ms: millstream.Millstream) -> None:
        number = len(self.told)
        values = [f"{self.name}/{number}/{index}" for index in range(3)]
        try:
            offsets = ms.log("events").append_many(values, producer=Producer(self.name, number))
        except (OutcomeUnknown, CannotOpen):
            return  # the same again, under the same sequence
        self.told.append(offsets.start)


def test_every_append_is_there_once_whatever_became_of_the_server(tmp_path: Path) -> None:
    seed = int(os.environ["MILLSTREAM_SEED"])
    print(f"seed {seed}")
    chance = random.Random(seed)
    clients: list[Client] = []
    port = 0
    for kill in range(KILLS + 1):
        with serving(tmp_path, port) as (process, url):
            port = int(url.rpartition(":")[2])
            if not clients:
                clients = [Client(f"client{n}", url) for n in range(CLIENTS)]
                for client in clients:
                    client.start()
            goals = [len(client.told) + chance.randrange(3, 30) for client in clients]
            for client, goal in zip(clients, goals, strict=True):
                while len(client.told) < goal:
                    assert client.error is None, client.error
                    assert process.poll() is None
                    threading.Event().wait(0.005)
            if kill == KILLS:
                for client in clients:
                    client.is_over = True
                for client in clients:
                    client.join(PATIENCE_S)
                    assert client.error is None, client.error
            process.kill()
            process.wait()
    with millstream.open(tmp_path / "store.db") as ms:
        stored = [record.value.decode() for record in ms.log("events").read()]
    assert len(stored) == len(set(stored))
    for client in clients:
        for number, offset in enumerate(client.told):
            expected = [f"{client.name}/{number}/{index}" for index in range(3)]
            assert stored[offset : offset + 3] == expected
    assert len(stored) == 3 * sum(len(client.told) for client in clients)
