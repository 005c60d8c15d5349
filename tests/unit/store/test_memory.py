"""The memory engine breaks its promises only as it is told to."""

from __future__ import annotations

import pytest

from millstream.engine.commit import Commit, Row
from millstream.engine.memory.engine import MemoryEngine
from millstream.errors import InvalidInput, OutcomeUnknown, WriteFailed
from millstream.format.keys import payload
from millstream.testing import Crash, Faults, Torn

ONE: Row = (payload(1), b"one")
TWO: Row = (payload(2), b"two")


def write(engine: MemoryEngine, *rows: Row) -> None:
    with engine.write() as writer:
        writer.commit(Commit(rows))


@pytest.mark.parametrize("step", ["begin", "put", "commit", "sent"])
def test_a_crash_before_a_commit_is_durable_leaves_nothing_of_it(step: str) -> None:
    faults = Faults()
    engine = MemoryEngine(faults=faults)
    write(engine, ONE)
    faults.on(step, Crash())
    with pytest.raises(Crash):
        write(engine, TWO)
    assert engine.survivors() == [ONE]


def test_a_crash_after_a_commit_is_durable_leaves_all_of_it() -> None:
    faults = Faults()
    engine = MemoryEngine(faults=faults)
    faults.on("committed", Crash())
    with pytest.raises(Crash):
        write(engine, ONE, TWO)
    assert engine.survivors() == [ONE, TWO]


def test_a_crashed_engine_can_only_be_opened_again() -> None:
    faults = Faults()
    engine = MemoryEngine(faults=faults)
    write(engine, ONE)
    faults.on("read", Crash())
    with pytest.raises(Crash), engine.read():
        pass
    with pytest.raises(Crash):
        write(engine, TWO)
    with pytest.raises(Crash):
        engine.last_seq()

    again = engine.reopen()
    write(again, TWO)
    assert again.survivors() == [ONE, TWO]
    assert engine.survivors() == [ONE]


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("fault", [Torn, Crash])
def test_a_commit_whose_answer_is_lost_is_wholly_there_or_wholly_not(
    fault: type[Torn] | type[Crash], kept: bool
) -> None:
    faults = Faults()
    engine = MemoryEngine(faults=faults)
    write(engine, ONE)
    faults.on("sent", fault(kept=kept))
    with engine.write() as writer, pytest.raises((OutcomeUnknown, Crash)):
        writer.commit(Commit([TWO], deletes=[payload(1)]))
    assert engine.survivors() == ([TWO] if kept else [ONE])


def test_a_write_after_an_unknown_outcome_is_a_mistake_of_the_caller() -> None:
    faults = Faults()
    engine = MemoryEngine(faults=faults)
    faults.on("sent", Torn(kept=True))
    with pytest.raises(OutcomeUnknown):
        write(engine, ONE)
    with pytest.raises(AssertionError):
        write(engine, TWO)


def test_a_plain_failure_leaves_nothing_and_the_engine_goes_on() -> None:
    faults = Faults()
    engine = MemoryEngine(faults=faults)
    faults.on("commit", WriteFailed("the disk is full"))
    with pytest.raises(WriteFailed):
        write(engine, ONE)
    write(engine, TWO)
    assert engine.survivors() == [TWO]


def test_a_loss_of_power_takes_the_last_commits_that_were_not_synced() -> None:
    engine = MemoryEngine(durability="relaxed")
    write(engine, ONE)
    engine.sync()
    write(engine, TWO)
    with engine.write() as writer:
        writer.commit(Commit(deletes=[payload(1)]))

    assert engine.survivors() == [TWO]
    assert engine.survivors(lost=1) == [ONE, TWO]
    assert engine.survivors(lost=2) == [ONE]
    with pytest.raises(InvalidInput):
        engine.reopen(lost=3)


def test_with_full_durability_no_commit_can_be_lost() -> None:
    engine = MemoryEngine()
    write(engine, ONE)
    with pytest.raises(InvalidInput):
        engine.reopen(lost=1)


def test_faults_strike_the_nth_step_of_a_name_or_one_step_of_all() -> None:
    faults = Faults()
    engine = MemoryEngine(faults=faults)
    write(engine, ONE)
    assert faults.steps == ["begin", "put", "commit", "sent", "committed"]

    faults.on("begin", WriteFailed("second"), nth=2)
    write(engine, ONE)
    with pytest.raises(WriteFailed, match="second"):
        write(engine, ONE)
    faults.at(len(faults.steps) + 1, WriteFailed("at the put"))
    with pytest.raises(WriteFailed, match="at the put"):
        write(engine, TWO)
    write(engine, TWO)
    assert engine.survivors() == [ONE, TWO]
