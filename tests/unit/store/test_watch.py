"""The watch: the thread that looks for other processes, and when it ends."""

from __future__ import annotations

import threading
from time import monotonic

from millstream.store.watch import REST_S, Watch

PATIENCE_S = 60


class Looks:
    """What the thread does while it looks: it waits until the test lets it go on."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.goes_on = threading.Semaphore(0)
        self.threads: list[int] = []

    def __call__(self, stop: threading.Event) -> None:
        """One look."""
        self.threads.append(threading.get_ident())
        self.begun.release()
        self.goes_on.acquire()

    def await_one(self) -> None:
        """Until the thread looks."""
        assert self.begun.acquire(timeout=PATIENCE_S)


def wake() -> None:
    """Nothing is woken here."""


def test_waits_that_follow_one_another_share_a_thread() -> None:
    looks = Looks()
    watch = Watch(looks)
    for _ in range(5):
        watch.add(b"key", wake)
        looks.await_one()
        watch.remove(b"key", wake)
        looks.goes_on.release()
    assert len(set(looks.threads)) == 1
    watch.close()


def test_waits_that_are_over_before_the_thread_has_noticed_them_start_no_other() -> None:
    looks = Looks()
    watch = Watch(looks)
    watch.add(b"key", wake)
    looks.await_one()
    watch.remove(b"key", wake)
    looks.goes_on.release()
    [thread] = [one for one in threading.enumerate() if one.ident == looks.threads[0]]
    began_s = last_s = monotonic()
    longest_s = 0.0
    while monotonic() - began_s < 3 * REST_S:
        watch.add(b"key", wake)
        watch.remove(b"key", wake)
        longest_s, last_s = max(longest_s, monotonic() - last_s), monotonic()
        thread.join(REST_S / 100)
        if longest_s > REST_S / 2:
            break  # we were so slow that the thread may have ended for lack of a waiter
        assert thread.is_alive()
    watch.close()


def test_a_thread_ends_that_nobody_needs() -> None:
    looks = Looks()
    watch = Watch(looks)
    watch.add(b"key", wake)
    looks.await_one()
    [thread] = [one for one in threading.enumerate() if one.ident == looks.threads[0]]
    watch.remove(b"key", wake)
    looks.goes_on.release()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    watch.add(b"key", wake)
    looks.await_one()
    looks.goes_on.release()
    watch.close()
    looks.goes_on.release()


def test_a_thread_that_rests_ends_when_the_watch_is_closed() -> None:
    looks = Looks()
    watch = Watch(looks)
    watch.add(b"key", wake)
    looks.await_one()
    watch.remove(b"key", wake)
    looks.goes_on.release()
    watch.close()
    assert looks.threads[0] not in {thread.ident for thread in threading.enumerate()}


def test_without_a_waiter_nothing_is_looked_for() -> None:
    looks = Looks()
    watch = Watch(looks)
    watch.add(b"key", wake)
    looks.await_one()
    watch.remove(b"key", wake)
    looks.goes_on.release()
    assert not looks.begun.acquire(timeout=0.05)
    watch.close()


def test_a_commit_wakes_the_waiters_of_its_entities_and_of_their_type() -> None:
    watch, woken = Watch(None), list[str]()
    watch.add(b"\x01\x0aone", lambda: woken.append("one"))
    watch.add(b"\x01\x0atwo", lambda: woken.append("two"))
    watch.add(b"\x01\x0a", lambda: woken.append("any"))

    watch.notify([b"\x01\x0aone"])

    assert woken == ["one", "any"]
    watch.close()
