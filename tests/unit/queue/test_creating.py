"""Queues are made in so many words; what is put to one that is not there is refused."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from millstream import Item, Millstream, Producer
from millstream.errors import Conflict, InvalidName, NotFound
from millstream.queue.commands import SpecifyQueue
from millstream.queue.model.spec import QueueSpec
from millstream.testing import Probe
from tests.unit.queue.conftest import Reopen, counts, values

LATER = datetime(2100, 1, 1, tzinfo=UTC)
PUTS: dict[str, Any] = {
    "one": lambda queue: queue.put(b"x"),
    "with a producer": lambda queue: queue.put(b"x", producer=Producer("p", sequence=1)),
    "with a delay": lambda queue: queue.put(b"x", delay=5),
    "at a time": lambda queue: queue.put(b"x", at=LATER),
    "with a priority": lambda queue: queue.put(b"x", priority=1),
    "with a group": lambda queue: queue.put(b"x", group="g"),
    "with an id": lambda queue: queue.put(b"x", dedup="d"),
    "many": lambda queue: queue.put_many([b"x", b"y"]),
    "many items": lambda queue: queue.put_many([Item(b"x", headers={"a": 1})]),
    "many with a delay": lambda queue: queue.put_many([b"x"], delay=5),
    "many at a time": lambda queue: queue.put_many([b"x"], at=LATER),
    "none": lambda queue: queue.put_many([]),
}


@pytest.mark.parametrize("put", PUTS.values(), ids=PUTS)
@pytest.mark.parametrize("was_there", [False, True], ids=["never there", "deleted"])
def test_a_put_needs_its_queue(ms: Millstream, put: Any, was_there: bool) -> None:
    if was_there:
        ms.create_queue("mail").put(b"before")
        assert ms.queue("mail").delete()
    with pytest.raises(NotFound, match=r"no queue 'mail'.*create_queue.*queue create") as caught:
        put(ms.queue("mail"))
    assert caught.value.name == "mail"
    assert [log.name for log in ms.logs()] == []


def test_a_transaction_puts_to_a_queue_and_needs_it(ms: Millstream) -> None:
    def place_order() -> None:
        with ms.transaction() as tx:
            tx.append("orders", b"order")
            tx.put("mail", b"letter")

    with pytest.raises(NotFound, match="create_queue"):
        place_order()
    assert ms.log("orders").end_offset() == 0

    mail = ms.create_queue("mail")
    with ms.transaction() as tx:
        tx.append("orders", b"order")
        first = tx.put(mail, b"letter", key="k", headers={"kind": "bill"})
        tx.put_many("mail", [b"second", b"third"])
    assert first.result == 0
    found = mail.claim(10)
    assert values(found) == [b"letter", b"second", b"third"]
    assert (found[0].key, dict(found[0].headers)) == (b"k", {"kind": "bill"})


@pytest.mark.parametrize("log", ["queue:mail", "queue-later:mail"])
def test_an_inbox_takes_nothing_without_its_queue(ms: Millstream, log: str) -> None:
    with pytest.raises(NotFound, match="no queue 'mail'"):
        ms.log(log).append(b"x")
    with pytest.raises(NotFound, match="no queue 'mail'"), ms.log(log).stage() as stage:
        stage.append(b"x")
    with pytest.raises(NotFound, match="no queue 'mail'"), ms.transaction() as tx:
        tx.append(log, b"x")


@pytest.mark.parametrize(
    "name", ["n" * 243, "ö" * 243, "\U0001f40b" * 243], ids=["n", "ö", "whale"]
)
def test_everything_works_with_the_longest_name(reopen: Reopen, name: str) -> None:
    ms = reopen()
    queue = ms.create_queue(name, priority_by="p", dead_letter="dead")
    queue.put(b"a")
    queue.put(b"b", priority=3)
    queue.put(b"c", delay=0.001)
    queue.put_many([b"d"], at=LATER)
    with ms.transaction() as tx:
        tx.put(queue, b"e")
    assert sorted(values(queue.claim(10))) == [b"a", b"b", b"e"]
    assert [info.name for info in ms.queues()] == [name]
    queue = reopen().queue(name)
    queue.ack(queue.peek(10, state="in_flight"))
    assert counts(queue)["done"] == 3
    assert queue.delete()


@pytest.mark.parametrize("length", [0, 244, 250, 255, 256])
def test_a_name_that_is_too_long_is_refused_at_the_first_moment(
    ms: Millstream, length: int
) -> None:
    with pytest.raises(InvalidName, match=f"queue name has 1 to 243 characters, not {length}"):
        ms.queue("n" * length)
    with pytest.raises(InvalidName):
        ms.create_queue("n" * length)
    with pytest.raises(InvalidName):
        ms.session.execute(SpecifyQueue("n" * length, QueueSpec()))


def test_a_handle_touches_nothing(ms: Millstream) -> None:
    queue = ms.queue("mail")
    assert not queue.exists()
    assert list(ms.queues()) == list(ms.logs()) == []


def test_a_queue_is_made_with_every_default(ms: Millstream) -> None:
    queue = ms.create_queue("mail")
    queue.put(b"x")
    assert queue.info().spec.lease == 30  # type: ignore[union-attr]
    assert values(queue.claim()) == [b"x"]


def test_what_is_there_already_becomes_what_is_asked_for(ms: Millstream) -> None:
    queue = ms.create_queue("mail", lease=30, rate=5, description="letters")
    queue.put_many([b"a", b"b", b"c"])
    held = queue.claim(1)
    again = ms.create_queue("mail", lease=60, max_attempts=2, backoff=[1, 2])
    spec = again.info().spec  # type: ignore[union-attr]
    assert (spec.lease, spec.max_attempts, spec.backoff.waits) == (60, 2, (1, 2))
    assert (spec.rate, spec.description) == (0, "")  # not named: the default
    queue.ack(held)
    assert counts(queue) == {"available": 2, "done": 1}


@pytest.mark.embedded
def test_to_make_it_again_writes_nothing(ms: Millstream) -> None:
    ms.create_queue("mail", sources=["a", "b"], lease=30)
    before = Probe(ms).store.state.seq
    ms.create_queue("mail", sources=("a", "b"), lease=30.0)
    assert Probe(ms).store.state.seq == before


def test_what_never_changes_is_told_with_both_values(ms: Millstream) -> None:
    queue = ms.create_queue("mail", start="latest", lease=30)
    with pytest.raises(Conflict, match=r"start is 'latest'.*'earliest'") as caught:
        ms.create_queue("mail", start="earliest", lease=60)
    assert caught.value.fields == {"start": ["latest", "earliest"]}
    assert queue.info().spec.lease == 30  # type: ignore[union-attr]  # all of it, or nothing
    with pytest.raises(Conflict, match=r"start_ms is None.* 7") as caught:
        queue.alter(start_ms=7)
    assert caught.value.fields == {"start_ms": [None, 7]}


def test_what_changes_only_while_nothing_waits_is_told_with_both_values(ms: Millstream) -> None:
    queue = ms.create_queue("mail", group_by="tenant")
    queue.put(b"x", group="g")
    (held,) = queue.claim()
    with pytest.raises(Conflict, match=r"group_by is 'tenant'.*0 wait, 1 is in flight") as caught:
        ms.create_queue("mail", priority_by="level")
    assert caught.value.fields == {"group_by": ["tenant", ""], "priority_by": ["", "level"]}
    queue.ack(held)
    ms.create_queue("mail", priority_by="level")
    queue.put(b"y", priority=1)
    assert values(queue.claim()) == [b"y"]


def test_a_queue_that_was_made_again_stays_so(reopen: Reopen) -> None:
    reopen().create_queue("mail", lease=5)
    ms = reopen()
    ms.create_queue("mail", lease=7)
    assert reopen().queue("mail").info().spec.lease == 7  # type: ignore[union-attr]


def test_many_make_it_at_once(ms: Millstream) -> None:
    failures: list[Exception] = []
    gate = threading.Barrier(8)

    def deploy(number: int) -> None:
        gate.wait()
        try:
            for step in range(5):
                ms.create_queue("mail", lease=30 + (number + step) % 3).put(b"x")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=deploy, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(ms.queue("mail").claim(100)) == 40
