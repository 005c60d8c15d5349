"""Sync for coroutines: the same steps, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeVar

from millstream.command import AsyncSession
from millstream.errors import MillstreamError
from millstream.replica.sync.following import WAIT_MS, Pace, WaitForChange, watched_sides
from millstream.replica.sync.outcome import Options, Outcome, Tell, raise_first
from millstream.replica.sync.peer import AsyncPeer
from millstream.replica.sync.steps import Side, Steps
from millstream.replica.sync.sync import sync_steps

T = TypeVar("T")


async def drive(steps: Steps[T], own: AsyncPeer, peer: AsyncPeer) -> T:
    """Take the steps; the questions of one round are asked side by side."""
    sides: dict[str, AsyncPeer] = {"own": own, "peer": peer}
    try:
        questions = next(steps)
        while True:
            answers: list[Any] = await asyncio.gather(
                *(sides[one.side].execute(one.command) for one in questions),
                return_exceptions=True,
            )
            error = next((one for one in answers if isinstance(one, BaseException)), None)
            if isinstance(error, Exception):
                questions = steps.throw(error)
            elif error is not None:
                raise error
            else:
                questions = steps.send(answers)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        steps.close()


async def synced(
    own: AsyncSession, peer: AsyncSession, options: Options, tell: Tell | None = None
) -> Outcome:
    """As `millstream.replica.sync.sync.synced`."""
    outcome, errors = await sync_round(own, peer, options, tell)
    raise_first(outcome, errors)
    return outcome


async def sync_round(
    own: AsyncSession, peer: AsyncSession, options: Options, tell: Tell | None = None
) -> tuple[Outcome, list[MillstreamError]]:
    """As `millstream.replica.sync.sync.sync_round`."""
    options.check()
    ours, theirs = AsyncPeer(own), AsyncPeer(peer)
    began_s = own.clock.seconds()
    outcome, errors = await drive(sync_steps(options, tell), ours, theirs)
    outcome.bytes = theirs.meter.total
    outcome.seconds = own.clock.seconds() - began_s
    return outcome, errors


async def follow(
    own: AsyncSession,
    peer: AsyncSession,
    options: Options,
    *,
    tell: Tell | None = None,
    stop: asyncio.Event | None = None,
) -> AsyncIterator[Outcome]:
    """As `millstream.replica.sync.following.follow`; it also ends when whoever iterates stops."""
    sessions: dict[Side, AsyncSession] = {"own": own, "peer": peer}
    watched = watched_sides(options)
    stopping = asyncio.ensure_future((stop or asyncio.Event()).wait())
    pace = Pace()
    waits: dict[Side, asyncio.Task[int]] = {}
    seen = {side: await sessions[side].execute(WaitForChange(0, 0)) for side in watched}
    try:
        while not stopping.done():
            outcome, _ = await sync_round(own, peer, options, tell)
            if pace.tells(outcome):
                yield outcome
            await asyncio.wait([stopping], timeout=pace.seconds)
            moved = False
            while not moved and not stopping.done():
                for side in watched:
                    if side not in waits:
                        asked = WaitForChange(seen[side], WAIT_MS)
                        waits[side] = asyncio.ensure_future(sessions[side].execute(asked))
                await asyncio.wait([*waits.values(), stopping], return_when=asyncio.FIRST_COMPLETED)
                for side in [side for side, waiting in waits.items() if waiting.done()]:
                    sequence = await waits.pop(side)
                    moved = moved or sequence > seen[side]
                    seen[side] = sequence
    finally:
        for task in (stopping, *waits.values()):
            task.cancel()
        await asyncio.gather(stopping, *waits.values(), return_exceptions=True)
