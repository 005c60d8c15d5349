"""Turns: so many at once, each given back once, whoever comes and goes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from millstream.server.auth.query_turns import Turns
from tests.unit.server.guarded import in_loop


def looped(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        in_loop(test)

    run.__name__ = test.__name__
    return run


async def free(turns: Turns, most: int) -> bool:
    """Whether all turns are there again."""
    holding = [asyncio.create_task(turns.__aenter__()) for _ in range(most + 1)]
    await asyncio.sleep(0)
    found = [task.done() for task in holding] == [True] * most + [False]
    for _ in holding:
        turns.end()
    await asyncio.gather(*holding)
    return found


@looped
async def test_only_so_many_run_at_once() -> None:
    turns, running, most = Turns(2), 0, 0

    async def run() -> None:
        nonlocal running, most
        async with turns:
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1

    await asyncio.gather(*(run() for _ in range(20)))
    assert most == 2
    assert await free(turns, 2)


@looped
async def test_a_look_goes_before_coroutines_that_wait() -> None:
    turns, order = Turns(1), list[str]()

    async def run(name: str) -> None:
        async with turns:
            order.append(name)

    async def look(name: str) -> None:
        async with turns.for_looks:
            order.append(name)

    async with turns:
        waiting = [asyncio.create_task(run(name)) for name in ("a", "b")]
        waiting += [asyncio.create_task(look(name)) for name in ("first look", "second look")]
        await asyncio.sleep(0)
        assert order == []
    await asyncio.gather(*waiting)
    assert order == ["first look", "second look", "a", "b"]
    assert await free(turns, 1)


@pytest.mark.parametrize("end", ["before it is granted", "after", "granted as it is cancelled"])
def test_a_coroutine_that_is_cancelled_takes_no_turn_with_it(end: str) -> None:
    async def test() -> None:
        turns = Turns(1)
        await turns.__aenter__()
        waiting = asyncio.create_task(turns.__aenter__())
        await asyncio.sleep(0)
        if end == "after":
            turns.end()  # the coroutine has not run yet
        waiting.cancel()
        if end == "granted as it is cancelled":
            turns.end()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        if end == "before it is granted":
            turns.end()
        assert await free(turns, 1)

    in_loop(test)
