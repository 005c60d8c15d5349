"""Lossy queues: a log may forget what they have not looked at, and that is counted."""

from __future__ import annotations

from millstream import Millstream

from .conftest import values


def test_a_log_forgets_what_a_lossy_queue_has_not_routed(ms: Millstream) -> None:
    queue = ms.queue("jobs", sources="events", lossy=True)
    log = ms.log("events")
    for value in (b"a", b"b", b"c"):
        log.append(value)
    log.truncate(before=2)
    log.enforce_retention()
    assert values(queue.claim(5)) == [b"c"]
    info = queue.info()
    assert info is not None
    assert info.lost == 2


def test_what_a_lossy_queue_holds_is_kept(ms: Millstream) -> None:
    queue = ms.queue("jobs", sources="events", lossy=True)
    log = ms.log("events")
    log.append_many([b"a", b"b"])
    held = queue.claim(2)
    log.truncate(before=2)
    log.enforce_retention()
    queue.nack(held, delay=0)
    assert values(queue.claim(2)) == [b"a", b"b"]


def test_other_queues_lose_nothing(ms: Millstream) -> None:
    careful = ms.queue("careful", sources="events")
    ms.queue("careless", sources="events", lossy=True)
    log = ms.log("events")
    log.append_many([b"a", b"b"])
    log.truncate(before=2)
    log.enforce_retention()
    assert values(careful.claim(5)) == [b"a", b"b"]
