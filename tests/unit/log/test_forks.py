"""Forks and owners by the nouns, over an open file and over a server."""

from __future__ import annotations

import pytest

from millstream import Millstream
from millstream.errors import AlreadyExists, ForkDetected, InvalidInput, NotFound, NotOwner
from millstream.record import Merged


def test_a_fork_goes_its_own_way_and_comes_back(ms: Millstream) -> None:
    log = ms.log("orders")
    log.append_many([b"0", b"1"])
    fork = log.fork("trial")
    assert (fork.parent(), log.parent()) == ("orders", None)
    assert fork.append(b"2") == 2
    assert [record.value for record in fork.read()] == [b"0", b"1", b"2"]
    assert len(log) == 2
    assert fork.merge() == Merged(parent="orders", adopted=1, start=0, end=3)
    assert [record.value for record in log.read()] == [b"0", b"1", b"2"]
    log.append(b"3")
    fork.append(b"x")
    with pytest.raises(ForkDetected) as caught:
        fork.merge()
    assert caught.value.offset == 3
    assert fork.merge(on_fork="rebase").end == 5


def test_what_cannot_be_forked_or_merged(ms: Millstream) -> None:
    with pytest.raises(NotFound):
        ms.log("nowhere").fork()
    with pytest.raises(NotFound):
        ms.log("nowhere").parent()
    log = ms.log("orders")
    log.append(b"0")
    with pytest.raises(AlreadyExists):
        log.fork("orders")
    with pytest.raises(InvalidInput):
        log.fork("\x00")
    with pytest.raises(InvalidInput):
        log.merge()
    with pytest.raises(InvalidInput):
        log.fork().merge(on_fork="force")


def test_who_owns_a_log(ms: Millstream) -> None:
    log = ms.log("orders")
    log.append(b"0")
    here = log.owner()
    assert (here.epoch, here.here, len(here.store)) == (0, True, 16)
    there = log.hand_over("elsewhere")
    assert (there.store, there.epoch, there.here) == ("elsewhere", 1, False)
    with pytest.raises(NotOwner) as caught:
        log.append(b"1")
    assert caught.value.owner == "elsewhere"
    assert log.fork("mine").append(b"1") == 1
    assert log.take_over().store == here.store
    assert log.append(b"1") == 1


def test_a_message_that_fails_does_so_though_its_letter_cannot_be_written(ms: Millstream) -> None:
    ms.log("dead").append(b"before")
    queue = ms.queue("q", dead_letter="dead", max_attempts=1)
    ms.log("dead").hand_over("elsewhere")
    queue.put(b"x")
    queue.fail(queue.claim(), reason="no")
    assert len(ms.log("dead")) == 1
    assert queue.info().failed == 1
