"""A worker whose server goes away, for longer than its session has patience, goes on afterwards."""

from __future__ import annotations

import threading

import millstream
from millstream import Message
from tests.unit.remote.proxy import Proxy

PATIENCE_S = 60
AWAY_S = 1.0
"""Several times as long as the session tries to reach its server."""


def away(proxy: Proxy) -> None:
    proxy.takes_nobody = True
    proxy.cut()
    threading.Event().wait(AWAY_S)
    proxy.heal()


def test_an_idle_worker_waits_for_its_server(proxy: Proxy) -> None:
    handled = threading.Semaphore(0)
    with millstream.open(proxy.url, retry_for=0.1) as ms:
        queue = ms.queue("jobs", max_attempts=3)
        with queue.worker(lambda message: handled.release()):
            away(proxy)
            with millstream.open(f"http://127.0.0.1:{proxy.target}") as other:
                other.queue("jobs").put_many([b"x"] * 5)
            for _ in range(5):
                assert handled.acquire(timeout=PATIENCE_S)


def test_what_was_handled_meanwhile_is_acknowledged_afterwards(proxy: Proxy) -> None:
    begun, go = threading.Event(), threading.Event()
    count = 0

    def handle(message: Message) -> None:
        nonlocal count
        count += 1
        begun.set()
        go.wait(PATIENCE_S)

    with millstream.open(proxy.url, retry_for=0.1) as ms:
        queue = ms.queue("jobs", max_attempts=3, lease=30)
        queue.put(b"x")
        worker = queue.worker(handle).start()
        assert begun.wait(PATIENCE_S)
        proxy.takes_nobody = True
        proxy.cut()
        go.set()  # it ends while nobody can be told
        threading.Event().wait(AWAY_S)
        proxy.heal()
        while worker.stats.done == 0:
            threading.Event().wait(0.01)
            assert not worker.join(0)
        worker.stop()
        assert worker.join(PATIENCE_S)
        assert count == 1
        info = queue.info()
        assert info is not None
        assert (info.done, info.in_flight) == (1, 0)


def test_leases_that_ended_meanwhile_are_handled_again(proxy: Proxy) -> None:
    attempts: list[int] = []
    begun, go = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        attempts.append(message.attempt)
        begun.set()
        go.wait(PATIENCE_S)

    with millstream.open(proxy.url, retry_for=0.1) as ms:
        queue = ms.queue("jobs", max_attempts=100, lease=0.3)
        queue.put(b"x")
        worker = queue.worker(handle).start(drain=True)
        assert begun.wait(PATIENCE_S)
        away(proxy)
        go.set()
        assert worker.join(PATIENCE_S)
        assert attempts == list(range(1, len(attempts) + 1))
        assert len(attempts) >= 2  # more if we are so slow that another lease ends
        info = queue.info()
        assert info is not None
        assert (info.done, info.in_flight, info.available) == (1, 0, 0)


def test_a_worker_that_is_stopped_while_its_server_is_away_ends(proxy: Proxy) -> None:
    handled = threading.Event()
    with millstream.open(proxy.url, retry_for=0.1) as ms:
        queue = ms.queue("jobs", max_attempts=3)
        queue.put(b"x")
        worker = queue.worker(lambda message: handled.set()).start()
        while worker.stats.done == 0:
            handled.wait(PATIENCE_S)
        proxy.takes_nobody = True
        proxy.cut()
        threading.Event().wait(0.3)
        worker.stop()
        assert worker.join(PATIENCE_S)  # it has nothing to tell the server
