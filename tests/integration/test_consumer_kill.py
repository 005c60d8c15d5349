"""A consumer goes on while its server is killed with -9 over and over: every message is done once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import millstream
from tests.unit.remote.proxy import Proxy, proxied

MESSAGES = 600
KILLS = 2
LEASE_S = 3.0


class KilledServer:
    """A server behind a proxy, so that its clients find the next server at the same address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = self._start()
        self.port = self._read_port()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "millstream", "serve", "store.db", "--port", "0", "--json"]
        return subprocess.Popen(
            command, cwd=self._folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def _read_port(self) -> int:
        assert self._process.stdout is not None
        url: str = json.loads(self._process.stdout.readline())["rest"]
        return int(url.rpartition(":")[2].strip("/"))

    def kill_and_restart(self, proxy: Proxy) -> None:
        self.end()
        proxy.takes_nobody = True
        proxy.cut()
        self._process = self._start()
        proxy.target = self._read_port()
        proxy.heal()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def served(folder: Path) -> Iterator[tuple[KilledServer, Proxy]]:
    server = KilledServer(folder)
    try:
        with proxied(server.port) as proxy:
            yield server, proxy
    finally:
        server.end()


@pytest.mark.crash
def test_every_message_is_done_once_although_the_server_is_killed(tmp_path: Path) -> None:
    seen: set[int] = set()
    kills = 0
    with served(tmp_path) as (server, proxy), millstream.open(proxy.url, retry_for=60) as ms:
        queue = ms.create_queue("jobs", lease=LEASE_S, max_attempts=100, backoff=0)
        queue.put_many(range(MESSAGES))
        while queue.info().done < MESSAGES:
            # A restart may take longer than a lease: such messages come again.
            with queue.consumer(prefetch=32, timeout=LEASE_S) as consumer:
                for message in consumer:
                    seen.add(message.json())
                    consumer.ack(message)
                    if kills < KILLS and len(seen) > (kills + 1) * MESSAGES // (KILLS + 1):
                        kills += 1
                        server.kill_and_restart(proxy)
        info = queue.info()
        assert (info.done, info.failed, info.in_flight) == (MESSAGES, 0, 0)
    assert (len(seen), kills) == (MESSAGES, KILLS)
