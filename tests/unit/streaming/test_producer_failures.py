"""Producers over a store that fails, a store that is closed, and a process that forks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from millstream import Millstream
from millstream.errors import (
    CannotOpen,
    Closed,
    Fenced,
    MillstreamError,
    OutcomeUnknown,
    WriteFailed,
)
from millstream.testing import Faults, MemoryEngine, Pause, Torn, memory_store


class Unreliable:
    """A session whose next commands fail as a test says, and which notes its commands."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.limits, self.clock = session.limits, session.clock
        self.errors: list[Exception] = []
        """The errors of the next commands."""
        self.executes = True
        """Whether a failing command is executed, and only its answer is lost."""
        self.commands: list[Any] = []

    def execute(self, command: Any) -> Any:
        self.commands.append(command)
        if not self.errors:
            return self._session.execute(command)
        if self.executes:
            self._session.execute(command)
        raise self.errors.pop(0)

    def close(self) -> None:
        self._session.close()


@pytest.fixture
def store() -> Iterator[Millstream]:
    with memory_store() as ms:
        yield ms


@pytest.fixture
def session(store: Millstream) -> Unreliable:
    return Unreliable(store.session)


def error_of(handle: Any) -> MillstreamError | None:
    try:
        handle.offset()
    except MillstreamError as error:
        return error
    return None


@pytest.mark.parametrize("executes", [False, True])
def test_a_block_with_an_unknown_outcome_is_stored_once(
    store: Millstream, session: Unreliable, executes: bool
) -> None:
    session.errors = [OutcomeUnknown("the answer was lost") for _ in range(3)]
    session.executes = executes
    with Millstream(session).log("orders").producer() as producer:
        handles = [producer.append(b"%d" % number) for number in range(100)]
        assert [handle.offset() for handle in handles] == [*range(100)]
    assert len(store.log("orders")) == 100
    assert len({command.producer for command in session.commands[:4]}) == 1


@pytest.mark.parametrize("executes", [False, True])
def test_partitions_and_messages_for_later_are_stored_once(
    store: Millstream, session: Unreliable, executes: bool
) -> None:
    ms = Millstream(session)
    log, queue = ms.log("spread", partitions=3), ms.create_queue("jobs")
    log.create()
    session.executes = executes
    with log.producer(linger=60) as producer:
        for number in range(30):
            producer.append(b"%d" % number, key=b"%d" % number)
        session.errors = [OutcomeUnknown("the answer was lost")]
        producer.flush()
    with queue.producer(linger=60) as putting:
        for number in range(30):
            putting.put(b"%d" % number, delay=60 if number % 2 else None)
        session.errors = [OutcomeUnknown("the answer was lost")]
        putting.flush()
    assert len(store.log("spread", partitions=3)) == 30
    assert store.queue("jobs").info().delayed == 15
    assert len(store.queue("jobs").claim(100)) == 15


def test_a_failure_that_passes_is_not_seen(store: Millstream, session: Unreliable) -> None:
    session.errors, session.executes = [WriteFailed("for now"), WriteFailed("for now")], False
    with Millstream(session).log("orders").producer() as producer:
        assert producer.append(b"a").offset() == 0
    assert len(store.log("orders")) == 1


def test_no_message_after_a_failed_one_is_stored(store: Millstream, session: Unreliable) -> None:
    producer = Millstream(session).log("orders").producer(linger=60, in_flight=8, retry_for=0)
    assert producer.append(b"stored").offset() == 0
    session.errors, session.executes = [OutcomeUnknown("the answer was lost")], True
    handles = [producer.append(b"%d" % number) for number in range(8)]
    with pytest.raises(OutcomeUnknown):
        handles[0].offset()
    errors = [error_of(handle) for handle in handles]
    unknown = [error for error in errors if isinstance(error, OutcomeUnknown)]
    assert all(isinstance(error, OutcomeUnknown | WriteFailed) for error in errors)
    assert errors[: len(unknown)] == unknown
    assert len(store.log("orders")) == 1 + len(unknown)
    with pytest.raises(WriteFailed, match="earlier message"):
        producer.append(b"late")
    producer.close()  # every handle was asked


def test_leaving_the_block_tells_of_a_failed_store(session: Unreliable) -> None:
    session.errors, session.executes = [WriteFailed("the disk is gone")], False

    def work() -> None:
        with Millstream(session).log("orders").producer(retry_for=0) as producer:
            producer.append(b"a")

    with pytest.raises(WriteFailed, match="the disk is gone"):
        work()


@pytest.mark.parametrize("name", [None, "till"])
def test_a_producer_of_a_store_that_another_process_took_over_ends(
    session: Unreliable, name: str | None
) -> None:
    session.executes = False
    session.errors = [Fenced("another process has opened the store", epoch=4) for _ in range(2)]
    producer = Millstream(session).log("orders").producer(name=name)
    with pytest.raises(Fenced, match="another process"):
        producer.append(b"a").offset()
    producer.close()
    assert len(session.commands) == 1


def test_an_error_of_another_kind_leaves_the_outcome_unknown(session: Unreliable) -> None:
    session.errors = [RuntimeError("a bug")]
    with Millstream(session).log("orders").producer(retry_for=0) as producer:
        handle = producer.append(b"a")
        with pytest.raises(OutcomeUnknown, match="RuntimeError: a bug"):
            handle.offset()


def test_torn_commits_of_an_engine_are_repeated() -> None:
    faults = Faults()
    for nth, kept in ((2, True), (4, False), (6, True)):
        faults.on("sent", Torn(kept=kept), nth=nth)
    with memory_store(MemoryEngine(faults=faults)) as ms:
        with ms.log("orders").producer(in_flight=10) as producer:
            for number in range(200):
                producer.append(b"%d" % number)
        values = [record.value for record in ms.log("orders").read()]
    assert values == [b"%d" % number for number in range(200)]


def test_messages_gather_while_a_commit_is_on_its_way() -> None:
    faults = Faults()
    with memory_store(MemoryEngine(faults=faults)) as ms, Pause() as pause:
        ms.log("orders").append(b"first")
        faults.on("sent", pause)
        with ms.log("orders").producer(linger=0) as producer:
            producer.append(b"on its way")
            pause.wait_until_reached()
            handles = [producer.append(b"%d" % number) for number in range(100)]
            assert not any(handle.done for handle in handles)
            for timeout in (0, -1):
                with pytest.raises(TimeoutError):
                    handles[0].offset(timeout=timeout)
            pause.release()
            assert [handle.offset() for handle in handles] == [*range(2, 102)]
        blocks = [len(block) for block in ms.log("orders").read_blocks()]
    assert sum(blocks) == 102
    assert max(blocks) == 100


def test_a_closed_store_closes_its_producers() -> None:
    ms = memory_store()
    producer = ms.log("orders").producer(linger=60)
    handle = producer.append(b"a")
    ms.close()
    with pytest.raises(Closed):
        handle.offset()
    with pytest.raises(Closed):
        producer.append(b"b")
    producer.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_process_cannot_use_the_producer_of_its_parent(store: Millstream) -> None:
    with store.log("orders").producer(linger=60) as producer:
        handle = producer.append(b"parent")
        child = os.fork()
        if child == 0:
            os._exit(_child(producer, handle))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert handle.offset() == 0
    assert len(store.log("orders")) == 1


def _child(producer: Any, handle: Any) -> int:
    """Return 0 if the child is refused as it should be."""
    for call in (lambda: producer.append(b"child"), handle.offset):
        try:
            call()
        except CannotOpen:
            continue
        return 1
    producer.close()
    return 0
