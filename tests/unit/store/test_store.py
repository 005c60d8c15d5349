"""The store as a whole: what its parts promise each other."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream
from millstream.command import Sql, Transact
from millstream.embedded.rules import operation
from millstream.engine.protocol import Shortage
from millstream.errors import (
    Closed,
    ConstraintViolation,
    CorruptionError,
    DiskFull,
    InvalidInput,
    MillstreamError,
    OutcomeUnknown,
    Poisoned,
    Recovering,
    WriteFailed,
)
from millstream.format import keys
from millstream.format.packing import pack_single
from millstream.limits import Limits
from millstream.log import commands as c
from millstream.store.commit.recovery import PAUSE_S_MAX
from millstream.store.commit.ticket import Ticket
from millstream.store.commit.transaction import WriteTransaction, _outside
from millstream.store.store import Store
from millstream.testing import Faults, MemoryEngine, Probe, SimulatedClock, Torn, memory_store
from millstream.threads.database import Millstream

PATIENCE_S = 60


def store_of(ms: Millstream) -> Store:
    return Probe(ms).store


def record(value: bytes) -> Any:
    return pack_single(value, key=None, headers=None, timestamp=None, limits=Limits())


def together(store: Store, *commands: Any) -> list[Ticket[Any]]:
    """Run commands in one group; the tickets, answered."""
    answered = threading.Semaphore(0)
    tickets = [Ticket(operation(command), lambda _: answered.release()) for command in commands]
    store.submit(tickets)
    for _ in tickets:
        assert answered.acquire(timeout=PATIENCE_S)
    return tickets


# The application's own tables.


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "s.db"
    with millstream.open(path) as ms, ms.transaction() as tx:
        tx.sql("CREATE TABLE mine (x UNIQUE)")
        tx.sql("INSERT INTO mine VALUES (1)")
        tx.append("a", b"zero")
    return path


def rows(path: Path) -> list[int]:
    connection = apsw.Connection(str(path))
    found = [row[0] for row in connection.execute("SELECT x FROM mine ORDER BY x")]
    connection.close()
    return found


def test_a_transaction_of_statements_only_is_committed(path: Path) -> None:
    with millstream.open(path) as ms, ms.transaction() as tx:
        tx.sql("INSERT INTO mine VALUES (2)")
    assert rows(path) == [1, 2]


def test_a_statement_that_is_refused_undoes_the_rest_of_its_transaction_only(path: Path) -> None:
    with millstream.open(path) as ms:
        tickets = together(
            store_of(ms),
            c.Append("a", record(b"one" * 2_000)),
            Transact(
                [
                    Sql("INSERT INTO mine VALUES (2)", []),
                    c.Append("a", record(b"never" * 2_000)),
                    Sql("INSERT INTO mine VALUES (1)", []),
                ]
            ),
            c.Append("a", record(b"two" * 2_000)),
        )
        errors = [type(ticket.error) for ticket in tickets]
        assert errors == [type(None), ConstraintViolation, type(None)]
    assert rows(path) == [1]
    with millstream.open(path) as ms:
        values = [found.value for found in ms.log("a").read()]
        assert values == [b"zero", b"one" * 2_000, b"two" * 2_000]


def test_a_statement_that_rolls_the_transaction_back_spoils_no_other_operation(path: Path) -> None:
    """SQLite ends the whole transaction then: nothing of the group may be written on its own."""
    with millstream.open(path) as ms:
        tickets = together(
            store_of(ms),
            c.Append("a", record(b"one" * 2_000)),
            Transact([Sql("INSERT OR ROLLBACK INTO mine VALUES (1)", [])]),
            c.Append("a", record(b"two" * 2_000)),
        )
        assert isinstance(tickets[1].error, MillstreamError)
        acknowledged = sum(ticket.error is None for ticket in (tickets[0], tickets[2]))
        if not any(isinstance(ticket.error, OutcomeUnknown) for ticket in tickets):
            assert len(list(ms.log("a").read())) == 1 + acknowledged
    with millstream.open(path) as ms:
        assert [found.offset for found in ms.log("a").read()] == list(range(1 + acknowledged))
    assert rows(path) == [1]


# Handles that have ended.


def fail_for_good(ms: Millstream, faults: Faults) -> None:
    """A commit fails, and then something acknowledged is not found."""
    faults.on("sent", Torn(kept=False))
    faults.on("recover", CorruptionError("commit 7 is missing", what="delta", where=7))
    with pytest.raises(OutcomeUnknown):
        ms.log("a").append(b"y")
    with pytest.raises(Poisoned, match="commit 7 is missing"):
        ms.log("a").append(b"z")


def test_whoever_waits_on_a_handle_that_is_poisoned_is_told() -> None:
    faults = Faults()
    ms = memory_store(MemoryEngine(faults=faults))
    log = ms.log("a")
    log.append(b"x")
    told: list[BaseException] = []

    def wait() -> None:
        try:
            log.wait(99)
        except MillstreamError as error:
            told.append(error)

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    while not Probe(ms).waiting():
        pass
    fail_for_good(ms, faults)
    waiter.join(PATIENCE_S)
    assert [type(error) for error in told] == [Poisoned]
    ms.close()


ASKED: dict[str, Callable[[Millstream], Any]] = {
    "append": lambda ms: ms.log("a").append(b"x"),
    "read": lambda ms: list(ms.log("a").read()),
    "info": lambda ms: ms.log("a").info(),
    "logs": lambda ms: list(ms.logs()),
    "wait": lambda ms: ms.log("a").wait(99),
    "fold": lambda ms: ms.fold(),
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
def test_a_closed_handle_refuses(ask: Callable[[Millstream], Any]) -> None:
    ms = memory_store()
    ms.log("a").append(b"x")
    ms.close()
    ms.close()
    with pytest.raises(Closed):
        ask(ms)


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
def test_a_poisoned_handle_refuses_and_can_be_closed(ask: Callable[[Millstream], Any]) -> None:
    faults = Faults()
    ms = memory_store(MemoryEngine(faults=faults))
    ms.log("a").append(b"x")
    fail_for_good(ms, faults)
    with pytest.raises(Poisoned):
        ask(ms)
    assert store_of(ms).condition == "poisoned"
    ms.close()


# Handles that recover.


def unattended(**options: Any) -> tuple[Millstream, MemoryEngine, Faults, SimulatedClock]:
    """A store whose background thread never starts: callers alone make it recover."""
    faults, clock = Faults(), SimulatedClock()
    engine = MemoryEngine(faults=faults)
    ms = memory_store(engine, clock=clock, **options)
    Probe(ms).pause_keeper()
    return ms, engine, faults, clock


@pytest.mark.parametrize("kept", [True, False])
def test_after_an_unknown_outcome_the_next_write_recovers_and_goes_on(kept: bool) -> None:
    ms, _, faults, _ = unattended()
    log = ms.log("a")
    log.append(b"x")
    faults.on("sent", Torn(kept=kept))
    with pytest.raises(OutcomeUnknown):
        log.append(b"y")
    assert store_of(ms).condition == "recovering"
    assert [record.value for record in log.read()] == [b"x"]
    assert log.append(b"z") == 1 + kept
    assert store_of(ms).condition == "usable"
    assert [record.value for record in log.read()] == [b"x", b"y", b"z"][:: 1 if kept else 2]
    assert ms.fold() >= 0


def test_while_it_cannot_recover_writes_are_refused_and_reads_go_on() -> None:
    ms, _, faults, clock = unattended()
    log = ms.log("a")
    log.append(b"x")
    faults.on("sent", Torn(kept=False))
    for nth in (1, 2):
        faults.on("recover", WriteFailed("the disk still fails"), nth=nth)
    with pytest.raises(OutcomeUnknown):
        log.append(b"y")
    for tries in (1, 2):
        with pytest.raises(Recovering, match="an earlier write failed") as refused:
            log.append(b"refused")
        assert refused.value.retry
        with pytest.raises(Recovering):
            ms.fold()  # before the pause is over: it is not tried again
        assert faults.steps.count("recover") == tries
        assert [record.value for record in log.read()] == [b"x"]
        clock.advance(PAUSE_S_MAX)
    assert log.append(b"z") == 1
    ms.close()


def test_the_background_recovers_without_being_asked() -> None:
    faults = Faults()
    ms = memory_store(MemoryEngine(faults=faults))
    ms.log("a").append(b"x")
    faults.on("sent", Torn(kept=False))
    with pytest.raises(OutcomeUnknown):
        ms.log("a").append(b"y")
    while store_of(ms).condition != "usable":
        os.sched_yield()
    assert ms.log("a").append(b"z") == 1
    ms.close()


def test_a_commit_that_is_missing_afterwards_ends_the_handle() -> None:
    ms, engine, faults, _ = unattended()
    ended: list[MillstreamError] = []
    store_of(ms).listeners.add(poison=ended.append)
    ms.log("a").append(b"x")
    before = engine.reopen()
    ms.log("a").append(b"acknowledged")
    faults.on("sent", Torn(kept=False))
    with pytest.raises(OutcomeUnknown):
        ms.log("a").append(b"y")
    engine._image = before._image  # the disk has lost it
    with pytest.raises(Poisoned, match="was acknowledged, and the last one on disk is"):
        ms.log("a").append(b"z")
    assert [type(one) for one in ended] == [Poisoned]
    ms.close()


# A full disk.


def test_with_little_room_publishing_is_refused_and_the_rest_goes_on() -> None:
    ms, engine, _, _ = unattended()
    log = ms.log("a")
    log.append_many([b"x", b"y"])
    cursor = log.cursor("c")
    engine.short = Shortage("/disk", 10_000, 16_000)
    assert store_of(ms).condition == "disk_full"
    for publish in (
        lambda: log.append(b"z"),
        lambda: log.append_many([b"z"] * 9),
    ):
        with pytest.raises(DiskFull, match="10,000 bytes are free") as refused:
            publish()
        assert refused.value.retry
    cursor.ack([0])
    log.truncate(before=1)
    assert [record.value for record in log.read()] == [b"y"]
    engine.short = None
    assert log.append(b"z") == 2
    assert store_of(ms).condition == "usable"


def test_a_refusal_for_want_of_room_meets_only_those_who_publish() -> None:
    ms, engine, _, _ = unattended()
    ms.log("a").append(b"x")
    engine.short = Shortage("/disk", 10_000, 16_000)
    tickets = together(
        store_of(ms),
        c.CreateLog("b"),
        c.Append("a", record(b"y")),
        Transact([c.CreateLog("c"), c.Append("a", record(b"y"))]),
        c.CreateLog("d"),
    )
    errors = [type(ticket.error) for ticket in tickets]
    assert errors == [type(None), DiskFull, DiskFull, type(None)]
    assert [info.name for info in ms.logs()] == ["a", "b", "d"]


def test_with_hardly_any_room_nothing_is_written_and_reads_go_on() -> None:
    ms, engine, _, _ = unattended()
    log = ms.log("a")
    log.append(b"x")
    engine.short = Shortage("/disk", 1_000, 16_000)
    with pytest.raises(DiskFull):
        log.truncate(before=1)
    with pytest.raises(DiskFull):
        log.append(b"y")
    assert [record.value for record in log.read()] == [b"x"]
    engine.short = None
    assert log.append(b"y") == 1


def test_a_fold_that_fails_at_the_end_does_not_keep_a_store_from_closing() -> None:
    faults = Faults()
    engine = MemoryEngine(faults=faults)
    ms = memory_store(engine, limits=Limits(fold_deltas_min=2))
    Probe(ms).pause_keeper()
    for _ in range(9):
        ms.log("a").append(b"x")
    faults.on("commit", WriteFailed("the disk is full"))
    ms.close()
    with pytest.raises(Closed):
        engine.last_seq()
    with memory_store(engine.reopen()) as again:
        assert again.log("a").end_offset() == 9


def test_damage_in_a_delta_is_named_when_the_store_is_opened() -> None:
    engine = MemoryEngine()
    with memory_store(engine) as ms:
        ms.log("a").append(b"x")
    engine.corrupt(keys.delta(engine.reopen().last_seq()))
    with pytest.raises(millstream.errors.CorruptionError):
        memory_store(engine.reopen())


def test_a_refused_operation_gives_its_ids_back_and_commits_nothing() -> None:
    engine = MemoryEngine()
    ms = memory_store(engine)
    store = store_of(ms)
    first = store.run(lambda tx: tx.take_ids(1))
    commits = engine.commits

    def refuse(tx: WriteTransaction) -> None:
        tx.take_ids(5_000)
        tx.take_entity_id()
        raise InvalidInput("no")

    with pytest.raises(InvalidInput):
        store.run(refuse)
    assert engine.commits == commits
    assert store.run(lambda tx: tx.take_ids(1)) == first + 1
    ms.close()


@given(
    st.lists(st.binary(max_size=3)),
    st.lists(st.tuples(st.binary(max_size=3), st.binary(max_size=3)), max_size=9),
)
def test_the_rows_outside_ranges_are_those_in_none_of_them(
    found: list[bytes], ranges: list[tuple[bytes, bytes]]
) -> None:
    rows = [(key, b"") for key in found]
    expected = [row for row in rows if not any(a <= row[0] < b for a, b in ranges)]
    assert _outside(rows, ranges) == expected
