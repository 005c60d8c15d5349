"""Procedures of jobs, as coroutines run them on the store."""

from __future__ import annotations

from typing import TypeVar

from millstream.command import AsyncSession
from millstream.jobs.driving import Steps

T = TypeVar("T")


async def follow(steps: Steps[T], session: AsyncSession) -> T:
    """Run a procedure, and return its answer."""
    try:
        command = next(steps)
        while True:
            try:
                answer = await session.execute(command)
            except Exception as error:  # the procedure decides
                command = steps.throw(error)
            else:
                command = steps.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
