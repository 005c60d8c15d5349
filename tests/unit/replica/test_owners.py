"""Who may append to a log, and how that changes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from millstream import Millstream
from millstream.errors import (
    Fenced,
    InvalidInput,
    NotFound,
    NotOwner,
)
from millstream.replica import commands as r
from tests.unit.replica.stores import (
    copy,
    fill,
)


def test_a_log_is_handed_over_and_taken_over(ms: Millstream, other: Millstream) -> None:
    fill(ms, 5)
    copy(ms, other)
    here, there = (one.session.execute(r.GetStoreId()) for one in (ms, other))
    found = ms.log("a").hand_over(there)
    assert (found.store, found.epoch, found.here) == (there, 1, False)
    with pytest.raises(NotOwner):
        ms.log("a").append(b"x")
    with pytest.raises(NotOwner):
        ms.log("a").hand_over(here)
    assert other.session.execute(r.AdoptOwner("a", there, 1))
    assert not other.session.execute(r.AdoptOwner("a", there, 1))
    assert other.log("a").owner().here
    assert other.log("a").append(b"x") == 9
    with pytest.raises(Fenced):
        other.session.execute(r.AdoptOwner("a", here, 0))
    assert ms.log("a").take_over().epoch == 2
    assert ms.log("a").take_over().epoch == 2
    assert ms.log("a").append(b"y") == 9


def test_owners_that_cannot_be(ms: Millstream) -> None:
    with pytest.raises(NotFound):
        ms.log("a").owner()
    with pytest.raises(NotFound):
        ms.log("a").take_over()
    fill(ms, 1)
    with pytest.raises(InvalidInput):
        ms.log("a").hand_over("")
    with pytest.raises(InvalidInput):
        ms.log("a").hand_over(ms.log("a").owner().store)
    assert ms.log("a").owner().epoch == 0


def test_a_copy_refuses_appends_and_says_who_may(ms: Millstream, other: Millstream) -> None:
    fill(ms, 5)
    copy(ms, other)
    log, owner = other.log("a"), ms.log("a").owner()
    assert log.owner() == replace(owner, here=False)
    with pytest.raises(NotOwner) as caught:
        log.append(b"x")
    assert (caught.value.owner, caught.value.epoch, caught.value.log) == (owner.store, 0, "a")
    with pytest.raises(NotOwner):
        log.append_many([b"x", b"y"])
    with pytest.raises(NotOwner):
        log.stage()
    tx = other.transaction()
    tx.append("b", b"never")
    tx.append("a", b"x")
    with pytest.raises(NotOwner), tx:
        pass
    with pytest.raises(NotOwner):
        log.truncate(before=1_000, past_end=True)
    assert other.log("b").info() is None
    assert log.truncate(before=3) == 3
    log.cursor("r").ack(3)
