"""A writer on object storage is killed at random, and a standby takes over by itself.

Promises, however often (`MILLSTREAM_TAKEOVERS`, 3 by default):

- No append that was acknowledged is missing, and every record is one that was sent.
- No message of a queue is acknowledged twice.
- The standby serves without anything being told to it.
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
from contextlib import ExitStack, contextmanager

import pytest

import millstream
from millstream.errors import Fenced, MillstreamError
from millstream.testing.objects import BUCKET, object_server, variables

pytestmark = [pytest.mark.requires("s3"), pytest.mark.crash, pytest.mark.slow]

TAKEOVERS = int(os.environ.get("MILLSTREAM_TAKEOVERS", "3"))


@contextmanager
def started(*options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "millstream", "--store", f"s3://{BUCKET}/shop", "serve"]
    with subprocess.Popen(
        [*command, "--port", "0", "--json", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def address_of(process: subprocess.Popen[str]) -> str:
    """Where a server is, once it serves."""
    assert process.stdout is not None
    assert process.stderr is not None
    line = process.stdout.readline()
    assert line, f"the server ended instead of serving: {process.stderr.read()}"
    return str(json.loads(line)["rest"])


class Client(threading.Thread):
    """Appends and acknowledges until its server is gone, and remembers what was answered."""

    def __init__(self, url: str, first: int, enough: int) -> None:
        super().__init__(daemon=True)
        self._url, self._number, self._enough = url, first, enough
        self.reached = threading.Event()
        self.acknowledged: list[int] = []
        self.done: list[int] = []
        self.start()

    def run(self) -> None:
        try:
            with millstream.open(self._url, retry_for=0.2) as ms:
                self._work(ms)
        except MillstreamError:
            pass  # it was killed: the last append may be stored, or not
        finally:
            self.reached.set()

    def _work(self, ms: millstream.Millstream) -> None:
        log = ms.log("orders")
        jobs = ms.queue("jobs", sources=["orders"], start="earliest")
        while True:
            log.append(b"%d" % self._number)
            self.acknowledged.append(self._number)
            self._number += 1
            if len(self.acknowledged) == self._enough:
                self.reached.set()
            if self._number % 4 == 0:
                claimed = jobs.claim(2)
                jobs.ack(claimed)
                self.done += [int(message.value) for message in claimed]


@pytest.mark.timeout(120 + 40 * TAKEOVERS)
def test_what_was_acknowledged_survives_every_takeover() -> None:
    chance = random.Random(os.environ["MILLSTREAM_SEED"])
    clients: list[Client] = []
    with object_server() as server, variables(server), ExitStack() as stack:
        serving = stack.enter_context(started())
        for turn in range(TAKEOVERS):
            url = address_of(serving)
            standby = stack.enter_context(started("--standby"))
            client = Client(url, turn * 1_000_000, chance.randrange(5, 40))
            clients.append(client)
            client.reached.wait()
            serving.send_signal(signal.SIGKILL)
            client.join()
            serving = standby
        with millstream.open(address_of(serving)) as ms:
            found = [int(record.value) for record in ms.log("orders").read()]
    acknowledged = [number for client in clients for number in client.acknowledged]
    done = [number for client in clients for number in client.done]
    assert all(len(client.acknowledged) >= 5 for client in clients)
    assert len(set(found)) == len(found)
    assert set(acknowledged) <= set(found)
    assert len(found) <= len(acknowledged) + TAKEOVERS
    assert len(set(done)) == len(done)


def test_a_server_whose_bucket_was_taken_ends_or_follows_as_told() -> None:
    with object_server() as server, variables(server), ExitStack() as stack:
        first = stack.enter_context(started())
        address_of(first)
        second = stack.enter_context(started("--on-fenced", "follow"))
        url = address_of(second)
        assert first.wait(60) == 1
        with millstream.open(url) as ms:
            ms.log("orders").append(b"second")
            third = stack.enter_context(started())
            with millstream.open(address_of(third)) as other:
                assert other.log("orders").append(b"third") == 1
            while True:
                with pytest.raises(MillstreamError) as refused:
                    ms.log("orders").append(b"never")
                if refused.type is Fenced:
                    break
            assert ms.log("orders").get(0).value == b"second"
