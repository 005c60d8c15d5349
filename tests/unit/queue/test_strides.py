"""Strides: the short way of a plain queue comes to the same end as the rules, also for many at once."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from msgspec.structs import replace

from millstream import Millstream
from millstream.embedded.session import EmbeddedSession, open_store
from millstream.errors import CorruptionError, InvalidInput, LeaseLost
from millstream.log.reading.recent import Columns
from millstream.queue.commands import ClaimRouted, FinishClaims, Run
from millstream.queue.model.grants import Granted
from millstream.queue.model.message import Message, messages_of
from millstream.queue.rules import claims, endings
from millstream.queue.rules.arrivals import Newcomers, place_arrived
from millstream.queue.rules.claims import Claiming
from millstream.queue.rules.stride import stride
from millstream.queue.service import payloads
from millstream.queue.service.payloads import read_granted, read_grants
from millstream.store.commit.ticket import Ticket
from millstream.store.store import Store
from millstream.testing import MemoryEngine, Probe, SimulatedClock
from millstream.threads.queue import Queue
from tests.unit.queue.conftest import counts, values

pytestmark = pytest.mark.embedded

LEASE_S = 10


def start(clock: SimulatedClock | None = None) -> Millstream:
    store = open_store(MemoryEngine(), clock=clock or SimulatedClock())
    Probe(store).pause_keeper()
    return Millstream(EmbeddedSession(store))


def facts(queue: Queue) -> list[Any]:
    """Everything that can be asked about a queue and its messages, but for when they were routed."""
    states = ("available", "in_flight", "done", "failed")
    messages = [message for state in states for message in queue.peek(1_000, state=state)]
    info = queue.info()
    assert info is not None
    info = replace(info, in_per_second=0.0)
    attempts = [queue.attempts(message) for message in messages]
    return [info, messages, attempts, list(queue.records())]


def work(seed: int) -> tuple[Millstream, Queue, list[Any]]:
    """A worker's day: what it does, and what comes of it, is the same for a seed."""
    chance, clock = random.Random(seed), SimulatedClock()
    ms = start(clock)
    queue = ms.queue("q", bucket_exponent=1, lease=LEASE_S, backoff=5, max_attempts=3)
    held: list[Message] = []
    seen: list[Any] = []
    for step in range(60):
        luck = chance.random()
        if luck < 0.12:
            for number in range(chance.choice([1, 1, 2, 5])):
                queue.put(b"%d/%d" % (step, number))
        elif luck < 0.2:
            queue.put_many([b"%d.%d" % (step, i) for i in range(chance.randint(1, 25))])
        elif luck < 0.8:
            done = chance.choice([held, held[:1], held[1:], held[::2], held + held[:1], []])
            kept = [message for message in held if message not in done]
            try:
                found = queue.claim(chance.choice([0, 1, 1, 3, 10]), consumer="w", ack=done)
            except LeaseLost as error:
                seen.append(error.data)
                held = []
                continue
            seen.append(found)
            held = kept + found
        elif luck < 0.88 and held:
            message = held.pop(chance.randrange(len(held)))
            seen.append(queue.finish_each(message, chance.choice(["ack", "nack", "fail"])))
        elif luck < 0.94:
            clock.advance(chance.choice([0.5, 4, LEASE_S]))
        else:
            ms.fold()
    return ms, queue, seen


def test_what_has_come_is_placed_by_the_claim_itself_or_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arrived: list[tuple[bool, Newcomers | None]] = []

    def noted(*args: Any, **options: Any) -> tuple[bool, Newcomers | None]:
        arrived.append(place_arrived(*args, **options))
        return arrived[-1]

    monkeypatch.setattr("millstream.queue.rules.stride.place_arrived", noted)
    for seed in range(5):
        work(seed)
    caught = [one for _, one in arrived if one is not None]
    assert any(one.total > 1 for one in caught)
    assert any(one.total == 1 for one in caught)
    assert len(caught) < len(arrived)


@pytest.mark.parametrize("seed", range(40))
def test_with_and_without_strides_everything_is_the_same(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.queue.rules.endings.random.random", lambda: 0.5)
    strode = []

    def counted(*args: Any, **more: Any) -> Granted | None:
        found = stride(*args, **more)
        strode.append(found is not None)
        return found

    def noted(*args: Any, **options: Any) -> tuple[bool, Newcomers | None]:
        arrived.append(place_arrived(*args, **options))
        return arrived[-1]

    arrived: list[tuple[bool, Newcomers | None]] = []
    monkeypatch.setattr("millstream.queue.rules.stride.place_arrived", noted)
    monkeypatch.setattr(claims, "place_arrived", noted)
    monkeypatch.setattr(claims, "stride", counted)
    monkeypatch.setattr(endings, "stride", counted)
    ms, queue, seen = work(seed)
    assert any(strode)
    assert arrived
    monkeypatch.setattr(claims, "stride", lambda *_, **__: None)
    monkeypatch.setattr(endings, "stride", lambda *_, **__: None)
    other, plain, expected = work(seed)
    assert seen == expected
    assert facts(queue) == facts(plain)
    for one, name in ((ms, "q"), (other, "q")):
        one.log("something else").append(name)
        one.fold()
    assert facts(queue) == facts(plain)


def test_what_strides_have_done_is_there_after_opening_again() -> None:
    engine, clock = MemoryEngine(), SimulatedClock()
    store = open_store(engine, clock=clock)
    ms = Millstream(EmbeddedSession(store))
    queue = ms.queue("q", bucket_exponent=1)
    queue.put_many([b"%d" % n for n in range(30)])
    held: list[Message] = []
    for _ in range(17):
        held = queue.claim(1, ack=held)
    again = Millstream(EmbeddedSession(open_store(engine, clock=clock))).queue("q")
    assert again.info() == queue.info()
    assert counts(again) == {"available": 13, "in_flight": 1, "done": 16}
    assert again.peek(10, state="in_flight") == held
    again.ack(held)
    assert values(again.claim(2)) == [b"17", b"18"]


def test_a_lease_that_is_over_is_noticed_before_anything_is_claimed() -> None:
    clock = SimulatedClock()
    queue = start(clock).queue("q", lease=LEASE_S)
    queue.put_many([b"0", b"1", b"2"])
    first = queue.claim(1)
    clock.advance(1)
    second = queue.claim(1)
    clock.advance(LEASE_S - 1)
    with pytest.raises(LeaseLost):
        queue.claim(1, ack=first)
    (again,) = queue.claim(1, ack=second)
    assert (again.value, again.attempt) == (b"0", 2)


# Many at once.


def ask_at_once(ms: Millstream, operations: list[Claiming]) -> list[Ticket[Granted]]:
    """Operations that are committed together."""
    over = threading.Semaphore(0)
    tickets = [Ticket(operation, lambda _: over.release()) for operation in operations]
    Probe(ms).store.submit(tickets)
    for _ in tickets:
        assert over.acquire(timeout=60)
    return tickets


def claiming(count: int = 1, *, acked: list[Run] | None = None, consumer: str = "w") -> Claiming:
    return Claiming(ClaimRouted("q", count, None, consumer, [], acked or []))


def granted(tickets: list[Ticket[Granted]]) -> list[list[Run]]:
    assert all(ticket.error is None for ticket in tickets)
    return [
        [(grant.claim_id, grant.count, grant.attempt) for grant in ticket.result.grants]
        for ticket in tickets
    ]


@pytest.fixture
def ready() -> Millstream:
    """A store with a queue "q" of 30 messages, all routed."""
    ms = start()
    queue = ms.queue("q", bucket_exponent=1, lease=LEASE_S)
    queue.put_many([b"%d" % n for n in range(30)])
    queue.peek(30)
    return ms


def strides_of(ms: Millstream, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many were claimed by each stride from now on."""
    found: list[int] = []

    def counted(*args: Any, **more: Any) -> Granted | None:
        answer = stride(*args, **more)
        found.append(0 if answer is None else answer.count)
        return answer

    monkeypatch.setattr("millstream.queue.rules.stride.stride", counted)
    return found


def test_claims_of_many_are_one_stride(ready: Millstream, monkeypatch: pytest.MonkeyPatch) -> None:
    strides = strides_of(ready, monkeypatch)
    first = granted(ask_at_once(ready, [claiming(n) for n in (1, 3, 1, 2)]))
    assert strides == [7]
    assert [[count for _, count, _ in runs] for runs in first] == [[1], [3], [1], [2]]
    ids = [claim_id + i for runs in first for claim_id, count, _ in runs for i in range(count)]
    assert len(set(ids)) == 7
    ask_at_once(ready, [claiming(acked=runs) for runs in first[:3]])
    assert strides == [7, 3]
    assert counts(ready.queue("q")) == {"available": 20, "in_flight": 5, "done": 5}


def test_only_who_comes_late_is_told_so(ready: Millstream) -> None:
    (good,), (lost,) = granted(ask_at_once(ready, [claiming(), claiming()]))
    ready.queue("q").ack(ready.queue("q").peek(2, state="in_flight")[1])
    stale = (lost[0], 1, 7)
    operations = [claiming(acked=[good]), claiming(acked=[stale]), claiming()]
    one, two, three = ask_at_once(ready, operations)
    assert isinstance(two.error, LeaseLost)
    assert len(granted([one, three])) == 2
    assert counts(ready.queue("q")) == {"available": 26, "in_flight": 2, "done": 2}


def test_only_who_asks_for_nonsense_is_refused(ready: Millstream) -> None:
    one, two, three = ask_at_once(ready, [claiming(), claiming(10**9), claiming()])
    assert isinstance(two.error, InvalidInput)
    assert len(granted([one, three])) == 2


def test_those_who_differ_are_not_mixed(ready: Millstream) -> None:
    operations = [claiming(consumer="v"), claiming(consumer="w"), claiming(consumer="v")]
    granted(ask_at_once(ready, operations))
    queue = ready.queue("q")
    held = queue.peek(3, state="in_flight")
    assert [queue.attempts(message)[0].consumer for message in held] == ["v", "w", "v"]


def test_who_asks_for_more_than_there_is_gets_the_rest(ready: Millstream) -> None:
    found = granted(ask_at_once(ready, [claiming(25), claiming(25)]))
    assert [sum(count for _, count, _ in runs) for runs in found] == [25, 5]


@pytest.mark.parametrize("count", [0, -1])
def test_a_run_of_nothing_is_joined_with_nobodys(ready: Millstream, count: int) -> None:
    ((good,),) = granted(ask_at_once(ready, [claiming(3)]))
    nonsense = (good[0] + 3, count, 1)
    one, two = ask_at_once(ready, [claiming(acked=[good]), claiming(acked=[nonsense])])
    assert len(granted([one])) == 1
    assert isinstance(two.error, InvalidInput)
    assert counts(ready.queue("q")) == {"available": 26, "in_flight": 1, "done": 3}


@pytest.mark.parametrize("together", [True, False])
def test_the_records_of_claims_made_at_once_are_those_of_each(
    together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folded = []
    for joins in (together, False):
        if not joins:
            monkeypatch.setattr(Claiming, "run_all", lambda *_: None)
        ms = start()
        queue = ms.queue("q", bucket_exponent=1, lease=LEASE_S)
        queue.put_many([b"%d" % n for n in range(30)])
        queue.peek(30)
        first = granted(ask_at_once(ms, [claiming(n) for n in (1, 1, 3, 1)]))
        ask_at_once(ms, [claiming(acked=runs) for runs in first[:3]])
        ms.log("something else").append(b"")
        ms.fold()
        folded.append(facts(queue))
    assert folded[0] == folded[1]
    assert sum(record.key[1] == 5 for record in folded[0][-1]) == 9


@pytest.mark.parametrize("wrong", [{"delay_ms": -5}, {"reason": 5}])
def test_what_comes_with_an_acknowledgement_is_checked(
    ready: Millstream, wrong: dict[str, Any]
) -> None:
    ((run,),) = granted(ask_at_once(ready, [claiming()]))
    with pytest.raises(InvalidInput):
        ready.session.execute(FinishClaims("q", [run], "ack", **wrong))
    assert counts(ready.queue("q")) == {"available": 29, "in_flight": 1}


# What many have claimed together is read together.


@pytest.fixture
def two_logs() -> Millstream:
    """A store with a queue "q" on two logs, of eight messages each, with keys and headers."""
    ms = start()
    for name in ("a", "b"):
        some = range(8)
        ms.log(name).append_many(
            [f"{name}{n}".encode() for n in some],
            keys=[f"k{n}" if n % 2 else None for n in some],
            headers=[{"n": n} if n % 3 else {} for n in some],
        )
    queue = ms.queue("q", sources=["a", "b"], start="earliest", lease=LEASE_S)
    queue.peek(16)
    return ms


def read_of(ms: Millstream, tickets: list[Ticket[Granted]], read: Any) -> list[list[Message]]:
    store = Probe(ms).store
    return [messages_of(read(store, "q", ticket.result)) for ticket in tickets]


@pytest.mark.parametrize("sizes", [[1] * 16, [1, 1], [3, 1, 4], [1, 2, 1], [9, 7]])
def test_what_is_read_together_is_what_each_would_read(
    two_logs: Millstream, sizes: list[int]
) -> None:
    tickets = ask_at_once(two_logs, [claiming(size) for size in sizes])
    assert {ticket.result.deal for ticket in tickets} == {tickets[0].result.deal} != {None}
    each = read_of(
        two_logs, tickets, lambda store, queue, one: read_grants(store, queue, one.grants)
    )
    together = read_of(two_logs, tickets, read_granted)
    assert together == each
    assert [len(messages) for messages in together] == sizes
    found = [message.text for messages in together for message in messages]
    assert sorted(found) == [f"{name}{n}" for name in "ab" for n in range(8)][: len(found)]


def test_who_cannot_read_does_not_keep_the_others_from_reading(
    two_logs: Millstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    tickets = ask_at_once(two_logs, [claiming(), claiming(), claiming()])
    read = payloads.recent_columns

    def damaged(store: Store, log_id: int, name: str, *, start: int, stop: int) -> list[Columns]:
        if start == 1:
            raise CorruptionError("damaged", what="row", where=1)
        return read(store, log_id, name, start=start, stop=stop)

    def none(*_: Any, **__: Any) -> list[Any]:
        raise CorruptionError("damaged", what="row", where=1)

    monkeypatch.setattr(payloads, "recent_row", lambda *_: None)
    monkeypatch.setattr(payloads, "recent_columns", damaged)
    monkeypatch.setattr(payloads, "recent_rows", none)
    store = Probe(two_logs).store
    for index in (0, 2):
        (message,) = messages_of(read_granted(store, "q", tickets[index].result))
        assert message.text == f"a{index}"
    assert read_granted(store, "q", tickets[1].result) == []
    assert [message.offset for message in two_logs.queue("q").failed()] == [1]
