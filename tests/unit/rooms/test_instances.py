"""Instances: a name is held by one process, and watermarks guard what it has not delivered."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from millstream.errors import Fenced, InvalidName, Locked
from millstream.rooms import commands as c
from millstream.rooms.holder import is_dead, make_holder
from millstream.rooms.model import Watermark
from millstream.testing import SimulatedClock
from tests.unit.rooms.serving import Served, message


def test_a_name_is_held_by_one_process(served: Served) -> None:
    served.take("one")
    with pytest.raises(Locked, match="--instance OTHER") as error:
        served.take("one")
    assert error.value.instance == "one"
    served.take("two")


def test_a_lease_that_ran_out_lets_another_process_in(served: Served) -> None:
    first = served.take("one", "elsewhere")
    served.clock.advance(29)
    with pytest.raises(Locked):
        served.take("one")
    served.clock.advance(1)
    second = served.take("one")
    assert second > first
    with pytest.raises(Fenced) as error:
        served.ask(c.RenewInstance("one", first))
    assert error.value.epoch == second


def test_a_lease_that_is_renewed_holds(served: Served) -> None:
    generation = served.take("one")
    for _ in range(5):
        served.clock.advance(20)
        served.ask(c.RenewInstance("one", generation))
    with pytest.raises(Locked):
        served.take("one")
    served.clock.advance(30)
    with pytest.raises(Fenced, match="take the instance again"):
        served.ask(c.RenewInstance("one", generation))


def test_a_name_that_was_freed_can_be_taken_at_once(served: Served) -> None:
    first = served.take("one")
    served.ask(c.FreeInstance("one", first))
    second = served.take("one")
    served.ask(c.FreeInstance("one", first))
    (info,) = served.ask(c.ListInstances())
    assert (info.generation, info.is_alive) == (second, True)


def test_a_holder_whose_process_has_ended_is_replaced_at_once(served: Served) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    own = make_holder(served.clock).split("/")
    with open(f"/proc/{child.pid}/stat", encoding="utf-8") as file:
        started = file.read().rpartition(")")[2].split()[19]
    holder = "/".join([*own[:2], str(child.pid), started, own[4]])
    first = served.take("one", holder)
    with pytest.raises(Locked):
        served.take("one")
    child.communicate(b"\n")
    assert served.take("one") > first


def test_a_process_is_known_by_its_start_not_by_its_number_alone() -> None:
    clock = SimulatedClock()
    holder = make_holder(clock)
    assert not is_dead(holder, clock)
    boot, space, process, started, own = holder.split("/")
    assert process == str(os.getpid())
    assert is_dead("/".join([boot, space, process, started + "1", own]), clock)
    assert not is_dead("/".join(["other boot", space, process, "1", own]), clock)
    assert not is_dead("/".join([boot, "1", process, "1", own]), clock)
    assert not is_dead("a text of somebody else", clock)


def test_the_name_of_an_instance_is_checked(served: Served) -> None:
    for name in ("", "x" * 129, "a\nb"):
        with pytest.raises(InvalidName):
            served.take(name)


def test_watermarks_only_move_forwards_and_never_past_the_end(served: Served) -> None:
    at = "one", served.take("one")
    served.send("hall", *[message("chat", n) for n in range(5)])
    cursor = served.ms.log("room:hall").cursor("instance:one")
    for offset, floor in ((2, 2), (1, 2), (9, 5)):
        served.ask(c.NoteWatermarks(*at, [Watermark("hall", offset), Watermark("nowhere", 1)]))
        (info,) = served.ms.log("room:hall").cursors()
        assert (info.name, info.floor) == (cursor.name, floor)
    with pytest.raises(Fenced):
        served.ask(c.NoteWatermarks("one", at[1] - 1, [Watermark("hall", 5)]))
