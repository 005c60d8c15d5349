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
from millstream.testing import Probe, SimulatedClock
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


def test_a_process_that_is_hidden_is_not_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimulatedClock()
    holder = make_holder(clock)

    def refuse(*_: object, **__: object) -> str:
        raise PermissionError

    monkeypatch.setattr("pathlib.Path.read_text", refuse)
    assert not is_dead(holder, clock)


# Instances that are gone.


def dead_holder(served: Served) -> str:
    """The holder of a process that has ended."""
    boot, space, _, _, number = make_holder(served.clock).split("/")
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    return "/".join([boot, space, str(child.pid), "1", number])


def states(served: Served) -> dict[str, str]:
    return {
        one.name: "alive" if one.is_alive else "silent" if one.is_silent else "free"
        for one in served.ms.instances()
    }


def test_an_instance_whose_lease_ran_out_is_silent_until_it_comes_back(served: Served) -> None:
    first = served.take("one")
    assert states(served) == {"one": "alive"}
    served.clock.advance(30)
    assert states(served) == {"one": "silent"}
    served.clock.advance(23 * 3600)
    assert states(served) == {"one": "silent"}
    second = served.take("one")
    assert states(served) == {"one": "alive"}
    served.ask(c.FreeInstance("one", first))
    assert states(served) == {"one": "alive"}
    served.ask(c.FreeInstance("one", second))
    assert states(served) == {"one": "free"}


def test_the_background_frees_an_instance_whose_process_is_dead(served: Served) -> None:
    served.take("dead", dead_holder(served))
    served.take("own")
    served.take("elsewhere", "other boot/1/1/1/x")
    Probe(served.ms).upkeep()
    assert states(served) == {"dead": "free", "own": "alive", "elsewhere": "alive"}


def test_users_of_a_process_that_died_leave_after_five_seconds(served: Served) -> None:
    at = "dead", served.take("dead", dead_holder(served))
    served.join("hall", "ann", at)
    Probe(served.ms).upkeep()
    served.clock.advance(4.999)
    Probe(served.ms).upkeep()
    assert served.users("hall") == {"ann": 0}
    served.clock.advance(0.001)
    Probe(served.ms).upkeep()
    assert served.users("hall") == {}
    assert served.told("hall") == [("joined", "ann"), ("left", "ann")]


def test_an_operator_removes_an_instance_that_is_silent(served: Served) -> None:
    at = "one", served.take("one")
    served.send("hall", message("chat"))
    served.ask(c.NoteWatermarks(*at, [Watermark("hall", 0)]))
    with pytest.raises(Locked, match="is alive"):
        served.ms.remove_instance("one")
    served.clock.advance(61)
    assert served.ask(c.SweepRooms()) == 0
    assert served.ms.remove_instance("one")
    assert not served.ms.remove_instance("one")
    assert not served.ms.remove_instance("nobody")
    assert states(served) == {"one": "free"}
    assert served.ask(c.SweepRooms()) == 1
    assert served.ms.log("room:hall").cursors() == []


# Watermarks.


def test_the_name_of_an_instance_is_checked(served: Served) -> None:
    for name in ("", "x" * 129, "a\nb"):
        with pytest.raises(InvalidName):
            served.take(name)


def test_watermarks_only_move_forwards_and_never_past_the_end(served: Served) -> None:
    at = "one", served.take("one")
    served.send("hall", *[message("chat", n) for n in range(5)])
    for offset, floor in ((2, 2), (1, 2), (9, 5)):
        served.ask(c.NoteWatermarks(*at, [Watermark("hall", offset), Watermark("nowhere", 1)]))
        (info,) = served.ms.log("room:hall").cursors()
        assert (info.name, info.floor) == (f"instance:one#{at[1]}", floor)
    with pytest.raises(Fenced):
        served.ask(c.NoteWatermarks("one", at[1] - 1, [Watermark("hall", 5)]))
