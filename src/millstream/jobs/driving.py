"""Driving: procedures that need answers of a store, written once for threads and coroutines.

A procedure is a generator. It yields a command, and gets the answer of the store; an error of the
store is raised inside of the procedure.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

from millstream.command import Command

T = TypeVar("T")
Steps = Generator[Command[Any], Any, T]
Execute = Callable[[Command[Any]], Any]
AsyncExecute = Callable[[Command[Any]], Awaitable[Any]]


def drive(steps: Steps[T], execute: Execute) -> T:
    """Run a procedure on a thread, and return its answer."""
    try:
        command = next(steps)
        while True:
            try:
                answer = execute(command)
            except Exception as error:  # the procedure decides
                command = steps.throw(error)
            else:
                command = steps.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


async def drive_async(steps: Steps[T], execute: AsyncExecute) -> T:
    """Run a procedure in a coroutine, and return its answer."""
    try:
        command = next(steps)
        while True:
            try:
                answer = await execute(command)
            except Exception as error:  # the procedure decides
                command = steps.throw(error)
            else:
                command = steps.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
