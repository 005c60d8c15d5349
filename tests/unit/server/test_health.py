"""`/health`: what is looked at, and who is told."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from millstream.engine.protocol import Shortage
from millstream.limits import Limits, MiB
from millstream.rooms import commands as c
from millstream.rooms.backlog import OwnPlace
from millstream.rooms.model import RoomMessage, Watermark
from millstream.rooms.settings import RoomSettings
from millstream.server.observe import health
from millstream.server.observe.health import (
    ADVICE,
    Check,
    Checkup,
    Health,
    advised,
    check_disk,
    check_lag,
    check_stats,
)
from millstream.server.settings import Settings
from millstream.testing import MemoryEngine, SimulatedClock
from tests.unit.server.guarded import guarded, in_loop


@pytest.fixture(autouse=True)
def _prompt_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop is never late: on a busy machine it would be a warning of its own."""

    async def no_lag_s() -> float:
        return 0.0

    monkeypatch.setattr(health, "loop_lag_s", no_lag_s)


def statuses(found: Health) -> dict[str, str]:
    return {check.name: check.status for check in found.checks}


def test_without_a_token_only_the_status_is_told() -> None:
    async def test() -> None:
        async with guarded() as at:
            answer = await at.ask("GET", "/health")
            assert (answer.status_code, answer.json()) == (200, {"status": "healthy"})
            other = await at.ask("GET", "/health", bearer=at.token("log:admin", name="a"))
            assert other.json() == {"status": "healthy"}
            at.let_tokens_age()
            told = await at.ask("GET", "/health", bearer=at.token("store:read", name="b"))
            names = {check["name"] for check in told.json()["checks"]}
            assert names == {"event_loop", "store", "upkeep", "fold"}
            assert (await at.ask("GET", "/health", bearer="ms_wrong_token")).status_code == 401

    in_loop(test)


def test_every_check_has_advice() -> None:
    names = {"store", "upkeep", "fold", "disk", "event_loop", "queues", "rooms", "instances"}
    assert {*ADVICE} >= names
    assert advised(Check("disk", "warning")).advice == ADVICE["disk"]
    assert advised(Check("disk", "healthy")).advice == ""


def test_a_closed_store_is_critical() -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            await at.core.close()
            answer = await at.ask("GET", "/health")
            assert answer.status_code == 503
            assert answer.json()["status"] == "critical"

    in_loop(test)


def test_a_poisoned_store_is_critical() -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            at.core.store._poison(OSError("the disk"))
            answer = await at.ask("GET", "/health")
            assert (answer.status_code, answer.json()["status"]) == (503, "critical")
            (check,) = [one for one in answer.json()["checks"] if one["name"] == "store"]
            assert "what is lost" in check["detail"]
            assert "millstream doctor" in check["advice"]
            others = [one for one in answer.json()["checks"] if one["status"] == "healthy"]
            assert {one["advice"] for one in others} == {""}

    in_loop(test)


def test_a_store_that_takes_no_writes_is_critical_and_says_why() -> None:
    async def test() -> None:
        clock = SimulatedClock()
        async with guarded(Settings(), clock=clock) as at:
            engine = at.core.store.engine
            assert isinstance(engine, MemoryEngine)
            engine.short = Shortage("/disk", 7, 16)
            assert "7 bytes are free" in (await store_check(at)).detail
            engine.short = None
            at.core.store.recovery.begin("injected", seq=0)
            assert "an earlier write failed (injected)" in (await store_check(at)).detail
            at.core.store.recovery.end()
            assert (await store_check(at)).status == "healthy"

    async def store_check(at: Any) -> Check:
        (found,) = [
            one
            for one in (await Checkup(at.core.session, at.core.settings).health()).checks
            if one.name == "store"
        ]
        return found

    in_loop(test)


def test_a_finding_is_kept_for_a_second() -> None:
    async def test() -> None:
        clock = SimulatedClock()
        async with guarded(Settings(), clock=clock) as at:
            checkup = Checkup(at.core.session, at.core.settings)
            first = await checkup.health()
            clock.advance(0.9)
            assert await checkup.health() is first
            clock.advance(0.1)
            assert await checkup.health() is not first

    in_loop(test)


def test_a_message_that_waits_for_long_is_a_warning_if_asked_for() -> None:
    async def test() -> None:
        clock = SimulatedClock()
        async with guarded(Settings(queue_age_s_max=60), clock=clock) as at:
            at.ms.queue("mail", max_attempts=3).put(b"x")
            checkup = Checkup(at.core.session, at.core.settings)
            assert statuses(await checkup.health())["queues"] == "healthy"
            clock.advance(61)
            found = await checkup.health()
            assert found.status == statuses(found)["queues"] == "warning"
            assert "'mail'" in found.checks[-1].detail

    in_loop(test)


@pytest.mark.parametrize(
    ("free", "status"), [(50 * MiB, "critical"), (500 * MiB, "warning"), (5_000 * MiB, "healthy")]
)
def test_a_disk_that_fills_up_is_told(tmp_path: Path, free: int, status: str) -> None:
    async def test() -> None:
        asked: list[Path] = []

        def disk_free(place: Path) -> int:
            asked.append(place)
            return free

        async with guarded(Settings(), path=tmp_path / "a.db") as at:
            found = await Checkup(at.core.session, at.core.settings, disk_free=disk_free).health()
            assert found.status == statuses(found)["disk"] == status
            assert asked == [tmp_path]
            assert (await Checkup(at.core.session, at.core.settings).health()).status in (
                "healthy",
                "warning",
                "critical",
            )

    in_loop(test)
    assert check_disk(free).status == status


@pytest.mark.parametrize(
    ("change", "name", "status"),
    [
        ({}, "fold", "healthy"),
        ({"unfolded_commits": 5_000}, "fold", "warning"),
        ({"unfolded_bytes": 9 * MiB}, "fold", "warning"),
        ({"unfolded_entities": 20_001}, "fold", "warning"),
        ({"unfolded_commits": 20_000}, "fold", "critical"),
        ({}, "upkeep", "healthy"),
        ({"last_upkeep_failure": "it broke"}, "upkeep", "warning"),
    ],
)
def test_what_the_store_says_of_itself(change: dict[str, Any], name: str, status: str) -> None:
    healthy = {"unfolded_commits": 1, "unfolded_bytes": 1, "unfolded_entities": 1}
    stats = {**healthy, "last_upkeep_failure": None, **change}
    found = {check.name: check for check in check_stats(stats, Limits())}
    assert found[name].status == status


@pytest.mark.parametrize(("lag_s", "status"), [(0, "healthy"), (1, "warning"), (9, "critical")])
def test_a_loop_that_is_late_is_told(lag_s: float, status: str) -> None:
    assert check_lag(lag_s).status == status


# Rooms.


def room_check(found: Health) -> Check:
    (check,) = (one for one in found.checks if one.name == "rooms")
    return check


def test_a_room_that_this_server_does_not_keep_up_with_is_told() -> None:
    async def test() -> None:
        clock = SimulatedClock()
        async with guarded(Settings(), clock=clock) as at:
            places = {"hall": 0}
            at.core.checkup.own_place = lambda: OwnPlace("own", places)
            at.ms.session.execute(c.SendToRoom("hall", [RoomMessage("chat")] * 2))
            clock.advance(2)
            assert statuses(await at.core.checkup.health())["rooms"] == "healthy"
            clock.advance(10)
            found = await at.core.checkup.health()
            check = room_check(found)
            assert (found.status, check.status) == ("warning", "warning")
            assert "'hall'" in check.detail
            assert "2 messages" in check.detail
            places["hall"] = 2
            clock.advance(10)
            assert statuses(await at.core.checkup.health())["rooms"] == "healthy"

    in_loop(test)


def test_a_poller_that_is_stuck_stays_critical_until_it_goes_on_or_has_no_listener() -> None:
    async def test() -> None:
        clock = SimulatedClock()
        async with guarded(Settings(), clock=clock) as at:
            ask, checkup = at.ms.session.execute, at.core.checkup
            places = {"hall": 0, "yard": 0}
            checkup.own_place = lambda: OwnPlace("own", places)
            for room in places:
                ask(c.SpecifyRoom(room, RoomSettings(ttl=5.0)))
                ask(c.SendToRoom(room, [RoomMessage("chat")]))
            for _ in range(120):  # messages come, and expire
                clock.advance(10)
                ask(c.SendToRoom("hall", [RoomMessage("chat")]))
                ask(c.SweepRooms())
                found = await checkup.health()
            assert room_check(found).status == "critical"
            assert "and 1 more" in room_check(found).detail
            del places["yard"]
            clock.advance(1)
            assert "more" not in room_check(await checkup.health()).detail
            places["hall"] = 121
            clock.advance(1)
            assert room_check(await checkup.health()).status == "healthy"

    in_loop(test)


def test_another_server_that_is_stuck_is_a_warning_until_it_comes_back_or_is_removed() -> None:
    async def test() -> None:
        clock = SimulatedClock()
        async with guarded(Settings(), clock=clock) as at:
            ask = at.ms.session.execute
            taken = ask(c.TakeInstance("other", "elsewhere"))
            ask(c.SendToRoom("hall", [RoomMessage("chat")] * 6_000))
            ask(c.NoteWatermarks("other", taken.generation, [Watermark("hall", 0)]))
            clock.advance(29)
            assert (await at.core.checkup.health()).status == "healthy"
            for seconds in (1, 600, 3_600):
                clock.advance(seconds)
                found = await at.core.checkup.health()
                (check,) = (one for one in found.checks if one.name == "instances")
                assert (found.status, check.status) == ("warning", "warning")
                assert "'other' has given no sign of life" in check.detail
                assert "millstream room remove-instance" in check.advice
            taken = ask(c.TakeInstance("other", "elsewhere"))
            clock.advance(1)
            assert (await at.core.checkup.health()).status == "healthy"
            clock.advance(30)
            assert (await at.core.checkup.health()).status == "warning"
            assert ask(c.RemoveInstance("other"))
            clock.advance(1)
            assert (await at.core.checkup.health()).status == "healthy"

    in_loop(test)


def test_the_dashboard_has_words_for_every_check() -> None:
    page = files("millstream").joinpath("web/dashboard/health.js").read_text()
    titles = page.partition("const TITLES = {")[2].partition("};")[0]
    assert set(re.findall(r"^  (\w+):", titles, re.MULTILINE)) == set(ADVICE)
