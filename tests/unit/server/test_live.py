"""`/live`: figures once per second, from one collector, for every watcher."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest

from millstream.embedded.status import CommitTimes, Flow, flow_between
from millstream.embedded.totals import Totals
from millstream.server.auth.register import Registrar
from millstream.server.observe import health, live
from millstream.server.observe.live import HEARTBEAT, Live, commit_times
from millstream.server.rest.live import endpoint
from millstream.server.rest.routing import Paths
from millstream.server.serving import running
from millstream.server.settings import Settings
from millstream.testing import SimulatedClock
from tests.unit.server.guarded import Guarded, guarded, in_loop

TICK_S = 0.005
FIELDS = {
    *("time", "rates", "depth", "oldest_age_s", "commit_ms", "logs", "queues", "rooms"),
    *("connections", "health"),
}


def told(events: bytes) -> list[dict[str, Any]]:
    """The documents in what was sent."""
    found = []
    for event in events.decode().strip().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in event.splitlines() if line[0] != ":")
        if "data" in lines:
            found.append(json.loads(lines["data"]))
            assert lines["id"] == str(found[-1]["time"])
    return found


async def some(watching: AsyncGenerator[bytes, None], wanted: int) -> list[dict[str, Any]]:
    """The next figures."""
    found: list[dict[str, Any]] = []
    while len(found) < wanted:
        found += told(await anext(watching))
    return found


def quick(at: Guarded) -> Live:
    at.core.live.tick_s = TICK_S
    return at.core.live


def with_live(core: Any) -> list[Any]:
    return [Paths(core, list(endpoint))]


@pytest.fixture(autouse=True)
def _prompt_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop is never late: on a busy machine it would be a warning of its own."""

    async def no_lag_s() -> float:
        return 0.0

    monkeypatch.setattr(health, "loop_lag_s", no_lag_s)


# Rules.


def test_rates_are_differences_over_time() -> None:
    before, after = Totals(published=10, claimed=5, done=1), Totals(published=30, claimed=5, done=4)
    assert flow_between(before, after, 2.0) == Flow(published=10.0, claimed=0.0, acked=1.5)
    assert flow_between(before, after, 0.0) == Flow()


def test_times_of_commits_are_those_between_two_counts() -> None:
    bounds = (0.001, 0.002, 0.005, math.inf)
    before = list(zip(bounds, (100, 100, 100, 100), strict=True))
    after = list(zip(bounds, (100, 200, 200, 200), strict=True))
    assert commit_times(before, after) == CommitTimes(1.5, 1.99)
    assert commit_times(after, after) == CommitTimes()
    beyond = list(zip(bounds, (100, 200, 200, 400), strict=True))
    assert commit_times(after, beyond) == CommitTimes(5.0, 5.0)


# The collector.


def test_figures_say_what_happens() -> None:
    async def test() -> None:
        clock = SimulatedClock()
        async with guarded(Settings(), clock=clock) as at, aclosing(quick(at).watch()) as watching:
            (first,) = await some(watching, 1)
            assert set(first) == FIELDS
            assert first["rates"] == {"published": 0.0, "claimed": 0.0, "acked": 0.0}
            at.ms.log("orders").append_many([b"1", b"2"])
            at.ms.create_queue("mail").put(b"x")
            clock.advance(7)
            found = await some(watching, 1)
            while not found[-1]["rates"]["published"]:
                found = await some(watching, 1)
            last = found[-1]
            assert (last["logs"], last["queues"], last["depth"]) == (1, 1, 1)
            assert last["oldest_age_s"] >= 7
            assert last["commit_ms"]["p50"] > 0
            assert last["health"] == "healthy"

    in_loop(test)


def test_nothing_is_collected_before_anybody_watches() -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            assert at.core.live.collecting is None
            assert at.core.live.history() == []
            assert at.core.store.watch.followers == ()

    in_loop(test)


def test_all_watchers_are_told_the_same_by_one_collector() -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            found = quick(at)
            watching = [found.watch() for _ in range(50)]
            heard = await asyncio.gather(*(anext(one) for one in watching))
            collecting = found.collecting
            assert len({told(event)[0]["time"] for event in heard}) == 1
            assert len(at.core.store.watch.followers) == 1
            for one in watching:
                await one.aclose()
            assert found.watchers == 0
            assert found.collecting is collecting

    in_loop(test)


def test_the_collector_goes_on_for_a_while_and_then_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "KEPT", 3)

    async def test() -> None:
        async with guarded(Settings()) as at:
            found = quick(at)
            async with aclosing(found.watch()) as watching:
                await some(watching, 1)
            assert found.collecting is not None
            await found.collecting
            assert at.core.store.watch.followers == ()
            async with aclosing(found.watch()) as watching:
                await some(watching, 1)
                assert not found.collecting.done()

    in_loop(test)


def test_what_was_told_is_sent_first_and_only_what_was_not_seen() -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            found = quick(at)
            async with aclosing(found.watch()) as watching:
                seen = await some(watching, 3)
            kept = found.history()
            assert [one.time for one in kept[:3]] == [one["time"] for one in seen]
            async with aclosing(found.watch()) as again:
                assert told(await anext(again))[:3] == seen
            async with aclosing(found.watch(seen[1]["time"])) as resumed:
                assert told(await anext(resumed))[0] == seen[2]

    in_loop(test)


def test_what_is_older_than_five_minutes_is_not_sent() -> None:
    async def test() -> None:
        clock = SimulatedClock()
        async with guarded(Settings(), clock=clock) as at:
            found = quick(at)
            async with aclosing(found.watch()) as watching:
                await some(watching, 3)
                clock.advance(live.KEPT + 1)
                now_ms = clock.wall_ms()
                assert all(one.time >= now_ms for one in found.history())

    in_loop(test)


def test_a_watcher_that_reads_nothing_holds_up_nobody_and_costs_no_more() -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            found = quick(at)
            async with aclosing(found.watch()) as slow, aclosing(found.watch()) as fast:
                await some(slow, 1)
                seen = await some(fast, 20)
                assert len(found.history()) <= live.KEPT
                assert {one["time"] for one in seen[1:]} <= {
                    one["time"] for one in told(await anext(slow))
                }

    in_loop(test)


def test_a_silent_collector_does_not_look_like_a_dead_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "SILENCE_S", 0.01)

    async def test() -> None:
        async with guarded(Settings()) as at:
            at.core.live.tick_s = 1_000
            async with aclosing(at.core.live.watch()) as watching:
                await some(watching, 1)
                assert await anext(watching) == HEARTBEAT

    in_loop(test)


def test_a_store_that_does_not_answer_is_critical_and_still_told() -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            at.ms.log("orders").append(b"x")
            async with aclosing(quick(at).watch()) as watching:
                await some(watching, 1)
                await asyncio.to_thread(at.core.store.close)
                found = await some(watching, 1)
                while found[-1]["health"] != "critical":
                    found = await some(watching, 1)
                assert found[-1]["logs"] == 1

    in_loop(test)


def test_a_server_that_stops_ends_what_is_watched() -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            watching = quick(at).watch()
            await some(watching, 1)
            at.core.closing.set()
            async with aclosing(watching):
                assert [event async for event in watching if event != HEARTBEAT][1:] == []

    in_loop(test)


# Over HTTP.


def test_it_needs_the_right_to_read_the_store() -> None:
    async def test() -> None:
        async with guarded(extra=with_live) as at:
            quick(at)
            assert (await at.ask("GET", "/live")).status_code == 401
            other = at.token("log:admin", name="a")
            reader = at.token("store:read", name="b")
            at.let_tokens_age()
            for path in ("/live", "/live/history"):
                assert (await at.ask("GET", path, bearer=other)).status_code == 403
            answer = await at.ask("GET", "/live?seconds=0", bearer=reader)
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert answer.headers["cache-control"] == "no-store"
            assert set(told(answer.content)[0]) == FIELDS
            wanted = {"permissions": ["store:read"]}
            made = await at.ask("POST", "/tickets", bearer=reader, json=wanted)
            ticket = made.json()["ticket"]
            answer = await at.ask("GET", f"/live?seconds=0&ticket={ticket}")
            assert answer.status_code == 200
            history = (await at.ask("GET", "/live/history", bearer=reader)).json()
            assert set(history[0]) == FIELDS

    in_loop(test)


def test_a_head_is_answered_at_once() -> None:
    async def test() -> None:
        async with guarded(Settings(), extra=with_live) as at:
            answer = await at.ask("HEAD", "/live")
            assert answer.status_code == 200
            assert at.core.live.collecting is None

    in_loop(test)


def test_history_is_left_out_if_it_is_not_wanted() -> None:
    async def test() -> None:
        clock = SimulatedClock()
        async with guarded(Settings(), clock=clock, extra=with_live) as at:
            quick(at)
            await at.ask("GET", "/live?seconds=0")
            before = at.core.live.history()[-1].time
            clock.advance(60)
            answer = await at.ask("GET", "/live?seconds=0&history=false")
            assert all(one["time"] > before + 50_000 for one in told(answer.content))

    in_loop(test)


def test_a_revoked_token_watches_no_longer() -> None:
    async def test() -> None:
        async with guarded(extra=with_live) as at:
            quick(at)
            token = at.token("store:read", name="b")
            at.let_tokens_age()
            asked = asyncio.create_task(at.ask("GET", "/live", bearer=token))
            while not at.core.live.watchers:
                await asyncio.sleep(0)
            Registrar(at.ms).revoke("b")
            at.let_tokens_age()
            assert (await asked).status_code == 200
            assert at.core.live.watchers == 0

    in_loop(test)


def test_a_real_client_hears_it_leaves_and_the_server_stops_in_time(tmp_path: Path) -> None:
    with running(tmp_path / "store.db", Settings(port=0), durability="relaxed") as server:
        with httpx.stream("GET", f"{server.url}/live", timeout=60) as answer:
            first = next(answer.iter_lines())
            assert first.startswith("id: ")
        core = server.core
        assert core is not None
        with httpx.stream("GET", f"{server.url}/live", timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.stop()
            list(lines)  # it ends, rather than being cut
    assert core.live.watchers == 0
