"""What survives kill -9 of a server under load. After all kills:

- what was acknowledged to a client is there, at the offset that it was told;
- what a client repeated under its producer's sequence, not knowing its outcome, is there once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from websockets.exceptions import WebSocketException

import millstream
from millstream import Producer
from millstream.log.commands import Append
from millstream.server.serving import Serving
from tests.unit.server.talking import batch, talking

pytestmark = [pytest.mark.crash, pytest.mark.slow]

CLIENTS = 8
KILLS = 6
IN_FLIGHT = 4


class Place:
    """Where the server is now; it moves with every restart."""

    def __init__(self) -> None:
        self.socket_url = ""
        self.is_over = False
        self.acknowledged = 0
        self.moved = threading.Condition()


@contextmanager
def serving(directory: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    command = [sys.executable, "-m", "millstream", "serve", "store.db", "--port", "0", "--json"]
    with subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())["socket"]


class Client(threading.Thread):
    """Appends batches under its own sequence, and begins again where it had no answer."""

    def __init__(self, name: str, place: Place) -> None:
        super().__init__(name=name, daemon=True)
        self.place = place
        self.told: dict[int, int] = {}

    def run(self) -> None:
        while not self.place.is_over:
            url = self.place.socket_url
            try:
                self._talk()
            except (OSError, EOFError, WebSocketException):
                with self.place.moved:
                    self.place.moved.wait_for(
                        lambda url=url: self.place.is_over or self.place.socket_url != url, 60
                    )

    def _talk(self) -> None:
        server: Serving = self.place  # type: ignore[assignment]
        with talking(server) as talk:
            while not self.place.is_over:
                first = len(self.told)
                talk.send(*[(n, self._append(n)) for n in range(first, first + IN_FLIGHT)])
                for _ in range(IN_FLIGHT):
                    for number, offset in talk.answers(1).items():
                        assert isinstance(offset, int), offset
                        self.told[number] = offset
                    if len(self.told) == first + IN_FLIGHT:
                        break
                with self.place.moved:
                    self.place.acknowledged += IN_FLIGHT
                    self.place.moved.notify_all()

    def _append(self, number: int) -> Append:
        values = [f"{self.name}/{number}/{index}" for index in range(3)]
        return Append("events", batch(values), producer=Producer(self.name, number))


def test_nothing_acknowledged_is_lost_and_nothing_is_there_twice(tmp_path: Path) -> None:
    seed = int(os.environ["MILLSTREAM_SEED"])
    print(f"replay with MILLSTREAM_SEED={seed}")
    chance, place = random.Random(seed), Place()
    clients = [Client(f"client-{number}", place) for number in range(CLIENTS)]
    for round_number in range(KILLS):
        with serving(tmp_path) as (process, url):
            with place.moved:
                place.socket_url = url
                goal = place.acknowledged + chance.randrange(1, 600)
                place.moved.notify_all()
            if round_number == 0:
                for client in clients:
                    client.start()
            with place.moved:
                assert place.moved.wait_for(lambda goal=goal: place.acknowledged >= goal, 60)
            process.send_signal(signal.SIGKILL)
    with place.moved:
        place.is_over = True
        place.moved.notify_all()
    for client in clients:
        client.join(60)
    check(tmp_path / "store.db", clients)


def check(path: Path, clients: list[Client]) -> None:
    with millstream.open(path) as ms:
        found = [record.text for record in ms.log("events").read()]
    assert len(found) == len(set(found)), "something is there twice"
    for client in clients:
        assert client.told
        for number, offset in client.told.items():
            expected = [f"{client.name}/{number}/{index}" for index in range(3)]
            assert found[offset : offset + 3] == expected
