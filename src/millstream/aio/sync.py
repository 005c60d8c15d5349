"""Sync for coroutines: the steps of a sync are taken between two sessions, once or for good."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any, TypeVar

from millstream.aio.concurrency import Beside
from millstream.aio.runtime import Event, Future
from millstream.command import AsyncSession
from millstream.errors import MillstreamError
from millstream.replica.sync.follow import WAIT_MS, Pace, WaitForChange, watched_parties
from millstream.replica.sync.outcome import Options, Outcome, Tell
from millstream.replica.sync.steps import Party, Question, Steps, TrafficMeter
from millstream.replica.sync.sync import sync_steps

T = TypeVar("T")


async def drive(steps: Steps[T], own: AsyncSession, peer: AsyncSession, meter: TrafficMeter) -> T:
    """Run the steps of a sync; send the requests of a round concurrently."""

    async def execute(question: Question) -> Any:
        if question.party == "local":
            return await own.execute(question.command)
        answer = await peer.execute(question.command)
        meter.note(question.command, answer)
        return answer

    try:
        questions = next(steps)
        async with Beside() as beside:
            while True:
                calls = [partial(execute, question) for question in questions]
                try:
                    answers = await beside.answers(calls)
                except Exception as error:
                    questions = steps.throw(error)
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
    """Sync two stores; raise the first error of a log after all other logs are done.

    The error carries the outcome of the other logs.
    """
    outcome, errors = await sync_round(own, peer, options, tell)
    if errors:
        errors[0].data["outcome"] = outcome
        raise errors[0]
    return outcome


async def sync_round(
    own: AsyncSession,
    peer: AsyncSession,
    options: Options,
    tell: Tell | None = None,
    *,
    look_behind: bool = True,
) -> tuple[Outcome, list[MillstreamError]]:
    """The same, with the errors of logs beside the outcome."""
    options.check()
    meter = TrafficMeter()
    began_s = own.clock.seconds()
    steps = sync_steps(options, tell, look_behind=look_behind)
    outcome, errors = await drive(steps, own, peer, meter)
    outcome.bytes = meter.bytes
    outcome.seconds = own.clock.seconds() - began_s
    return outcome, errors


async def follow(
    own: AsyncSession,
    peer: AsyncSession,
    options: Options,
    *,
    tell: Tell | None = None,
    stop: Event | None = None,
) -> AsyncIterator[Outcome]:
    """Sync, then again after every change; gives the first outcome, and each that has something new.

    A log that cannot be brought together is told in the outcome, and tried again in every round.
    """
    stop = stop or Event()
    sessions: dict[Party, AsyncSession] = {"local": own, "peer": peer}
    watched = watched_parties(options)
    pace = Pace()
    first = True
    waits: dict[Party, Future[int]] = {}
    async with Beside(stop) as beside:
        sequences = {side: await sessions[side].execute(WaitForChange(0, 0)) for side in watched}
        while not stop.is_set():
            outcome, _ = await sync_round(own, peer, options, tell, look_behind=first)
            first = False
            if pace.tells(outcome):
                yield outcome
            await beside.pause(pace.seconds)
            moved = False
            while not moved and not stop.is_set():
                for side in watched:
                    if side not in waits:
                        wait = WaitForChange(sequences[side], WAIT_MS)
                        waits[side] = beside.begin(partial(sessions[side].execute, wait))
                await beside.first(waits.values())
                for side in [side for side, waiting in waits.items() if waiting.done()]:
                    sequence = waits.pop(side).result()
                    moved = moved or sequence > sequences[side]
                    sequences[side] = sequence
