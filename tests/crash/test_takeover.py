"""A writer on object storage is killed at random, and one of two standbys takes over by itself.

Promises, however often (`MILLSTREAM_TAKEOVERS`, 3 by default; `make faults` has 50):

- No append that was acknowledged is missing, and every record is one that was sent.
- No message of a queue is acknowledged twice.
- A standby serves without anything being told to it, and two that wait do not end each other.
"""

from __future__ import annotations

import os
import random
import threading
from contextlib import ExitStack
from queue import SimpleQueue

import pytest

import millstream
from millstream.bench.objects import BUCKET, object_server, variables
from millstream.bench.server_program import ServerProgram, served
from millstream.errors import Fenced, MillstreamError
from tests.kit.objects import ObjectProxy

pytestmark = [pytest.mark.requires("s3"), pytest.mark.crash, pytest.mark.slow]

PLACE = f"s3://{BUCKET}/shop"
STANDBYS = 2
TAKEOVERS = int(os.environ.get("MILLSTREAM_TAKEOVERS", "3"))


class Client(threading.Thread):
    """Appends and acknowledges until its server is gone, and remembers what was answered."""

    def __init__(self, url: str, first: int, enough: int) -> None:
        super().__init__(daemon=True)
        self._url, self._number, self._enough = url, first, enough
        self.reached = threading.Event()
        self.acknowledged: list[int] = []
        self.done: list[int] = []
        self.start()

    @property
    def is_enough(self) -> bool:
        """Whether the server lived for as long as it was meant to."""
        return len(self.acknowledged) >= self._enough

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
        serve = SimpleQueue[ServerProgram]()
        waiting = {stack.enter_context(served(PLACE, on_serving=serve.put))}
        while sum(client.is_enough for client in clients) < TAKEOVERS:
            serving = serve.get()
            waiting.remove(serving)
            while len(waiting) < STANDBYS:
                standby = served(PLACE, "--standby", on_serving=serve.put)
                waiting.add(stack.enter_context(standby))
            for standby in waiting:
                standby.await_said("waiting for the lease")
            # On a machine that stands still for seconds, a standby may take over unasked.
            number = len(clients) * 1_000_000
            clients.append(client := Client(serving.url(), number, chance.randrange(5, 40)))
            client.reached.wait()
            serving.kill()
            client.join()
        with millstream.open(serve.get().url()) as ms:
            found = [int(record.value) for record in ms.log("orders").read()]
    acknowledged = [number for client in clients for number in client.acknowledged]
    done = [number for client in clients for number in client.done]
    print(f"{len(clients)} servers, {len(acknowledged)} acknowledged, {len(done)} done")
    assert len(set(found)) == len(found)
    assert set(acknowledged) <= set(found)
    assert len(found) <= len(acknowledged) + len(clients)
    assert len(set(done)) == len(done)


class Stall:
    """Holds up every request of a proxy from a certain one on, as if its client stood still."""

    def __init__(self, method: str, name: str) -> None:
        self._method, self._name = method, name
        self.began, self._over = threading.Event(), threading.Event()

    def __call__(self, method: str, path: str) -> None:
        if method == self._method and self._name in path:
            self.began.set()
        if self.began.is_set():
            self._over.wait()

    def end(self) -> None:
        self._over.set()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("opens", [False, True], ids=["before it opened", "while it opened"])
def test_a_standby_that_stood_still_once_it_had_the_lease_waits_again(opens: bool) -> None:
    stall = Stall("PUT", "/manifest/" if opens else "/probe/")
    with object_server() as server, variables(server), ExitStack() as stack:
        serve = SimpleQueue[ServerProgram]()
        first = stack.enter_context(served(PLACE, on_serving=serve.put))
        assert serve.get() is first
        proxy = stack.enter_context(ObjectProxy(server))
        proxy.script = stall
        with variables(proxy.address):
            still = stack.enter_context(served(PLACE, "--standby", on_serving=serve.put))
        still.await_said("waiting for the lease")
        first.kill()
        stall.began.wait()
        other = stack.enter_context(served(PLACE, "--standby", on_serving=serve.put))
        assert serve.get() is other
        with millstream.open(other.url()) as ms:
            ms.log("orders").append(b"a")
            stall.end()
            still.await_said("another server was faster")
            if opens:  # it has fenced the other one, and noticed afterwards that it must not
                with pytest.raises(MillstreamError):
                    ms.log("orders").append(b"never")
            else:
                ms.log("orders").append(b"b")
        other.process.wait(60) if opens else other.kill()
        assert serve.get() is still
        with millstream.open(still.url()) as ms:
            assert ms.log("orders").get(0).value == b"a"
            ms.log("orders").append(b"c")


def test_a_server_whose_bucket_was_taken_ends_or_follows_as_told() -> None:
    with object_server() as server, variables(server), ExitStack() as stack:
        first = stack.enter_context(served(PLACE))
        first.url()
        second = stack.enter_context(served(PLACE, "--on-fenced", "follow"))
        url = second.url()
        assert first.process.wait(60) == 1
        with millstream.open(url) as ms:
            ms.log("orders").append(b"second")
            third = stack.enter_context(served(PLACE))
            with millstream.open(third.url()) as other:
                assert other.log("orders").append(b"third") == 1
            while True:
                with pytest.raises(MillstreamError) as refused:
                    ms.log("orders").append(b"never")
                if refused.type is Fenced:
                    break
            assert ms.log("orders").get(0).value == b"second"
