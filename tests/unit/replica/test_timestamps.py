"""The timestamp of a log: when it was last changed, in whichever copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millstream import Millstream
from millstream.errors import InvalidInput
from millstream.replica.commands import AdoptState
from millstream.testing import SimulatedClock
from tests.unit.replica.lattice import LogState, merge


def timestamp(ms: Millstream, log: str = "x") -> int:
    info = ms.log(log).info()
    assert info is not None
    return info.timestamp


CHANGES: dict[str, Callable[[Any], Any]] = {
    "append": lambda log: log.append(b"1"),
    "truncate": lambda log: log.truncate(before=1),
    "truncate past the end": lambda log: log.truncate(before=9, past_end=True),
    "set metadata": lambda log: log.metadata.update(k=1),
    "delete metadata": lambda log: log.metadata.pop("before"),
    "retention": lambda log: (log.retain(count=1), log.enforce_retention()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_moves_it(a: Millstream, clock: SimulatedClock, change: str) -> None:
    a.log("x").append_many([b"0"] * 3)
    a.log("x").metadata["before"] = 1
    before = timestamp(a)
    clock.advance(5)
    CHANGES[change](a.log("x"))
    assert timestamp(a) == before + 5_000
    clock.advance(5)
    a.log("x").truncate(before=0)
    a.fold()
    assert timestamp(a) == before + 5_000


@pytest.mark.parametrize("direction", ["both", "pull", "push"])
@pytest.mark.parametrize("change", CHANGES)
def test_the_later_one_counts_after_a_sync(
    a: Millstream, b: Millstream, clock: SimulatedClock, change: str, direction: Any
) -> None:
    a.log("x").append_many([b"0"] * 3)
    a.log("x").metadata["before"] = 1
    written = timestamp(a)
    clock.advance(100)
    b.sync(a)
    assert timestamp(a) == timestamp(b) == written
    CHANGES[change](a.log("x"))
    changed = timestamp(a)
    assert changed == written + 100_000
    clock.advance(100)
    expected = merge(LogState(timestamp=timestamp(a)), LogState(timestamp=timestamp(b)))
    one, other = (b, a) if direction == "pull" else (a, b)
    one.sync(other, direction=direction)
    assert timestamp(a) == timestamp(b) == expected.timestamp == changed
    assert a.sync(b).logs == b.sync(a).logs == []


def test_a_change_of_a_copy_travels_back(
    a: Millstream, b: Millstream, c: Millstream, clock: SimulatedClock
) -> None:
    a.log("x").append_many([b"0"] * 3)
    b.sync(a)
    clock.advance(7)
    b.log("x").metadata["k"] = 1
    clock.advance(7)
    c.sync(b)
    a.sync(c)
    assert timestamp(a) == timestamp(b) == timestamp(c)


def test_a_fork_has_that_of_its_parent(a: Millstream, clock: SimulatedClock) -> None:
    a.log("x").append(b"0")
    clock.advance(7)
    a.log("x").fork("y")
    assert timestamp(a, "y") == timestamp(a, "x")
    clock.advance(7)
    a.log("y").append(b"1")
    a.log("y").merge()
    assert timestamp(a, "x") == timestamp(a, "y")


def test_a_time_that_none_can_be_is_refused(a: Millstream) -> None:
    a.log("x").append(b"0")
    for wrong in (-1, 2**60):
        with pytest.raises(InvalidInput):
            a.session.execute(AdoptState("x", timestamp_ms=wrong))
    before = timestamp(a, "x")
    a.session.execute(AdoptState("x", timestamp_ms=0))
    assert timestamp(a, "x") == before
