# Generated from src/millstream/aio/job_steps.py by `make generate`: change that file, not this one.

"""Procedures of jobs, as threads run them on the store."""

from __future__ import annotations

from typing import TypeVar

from millstream.command import Session
from millstream.jobs.driving import Steps

T = TypeVar("T")


def follow(steps: Steps[T], session: Session) -> T:
    """Run a procedure, and return its answer."""
    try:
        command = next(steps)
        while True:
            try:
                answer = session.execute(command)
            except Exception as error:  # the procedure decides
                command = steps.throw(error)
            else:
                command = steps.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
