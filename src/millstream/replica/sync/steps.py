"""Steps of a sync: what it asks of the two stores, one round at a time, without I/O.

A sync is written once, as a generator that yields rounds of questions and is sent their answers.
`drive` asks them on the caller's thread; `aio` has the same for coroutines. The questions of one
round go to different stores and do not depend on each other, so that one store can read while the
other one writes.
"""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar

from msgspec import Struct

from millstream.command import Command
from millstream.replica.sync.peer import Peer

T = TypeVar("T")

Side = Literal["own", "peer"]


class Ask(Struct, frozen=True):
    """One question to one of the stores."""

    side: Side
    command: Command[Any]


Steps = Generator[list[Ask], list[Any], T]
"""Yields rounds, is sent their answers, and gives a `T` in the end. If a question is answered by an
error, that is thrown in, the first question's first."""


def ask(side: Side, command: Command[T]) -> Steps[T]:
    """A round of one question."""
    (answer,) = yield [Ask(side, command)]
    found: T = answer
    return found


def drive(steps: Steps[T], own: Peer, peer: Peer) -> T:
    """Take the steps, on this thread; the second question of a round on another one."""
    sides = {"own": own, "peer": peer}

    def answer(question: Ask) -> Any:
        return sides[question.side].execute(question.command)

    try:
        questions = next(steps)
        with ThreadPoolExecutor(1, thread_name_prefix="millstream-sync") as beside:
            while True:
                try:
                    later = [beside.submit(answer, one) for one in questions[1:]]
                    try:
                        answers = [answer(questions[0])]
                    finally:
                        # Whatever happens, nothing of this round goes on behind our back.
                        done = [future.exception() for future in later]
                    for error in done:
                        if error is not None:
                            raise error
                    answers += [future.result() for future in later]
                except Exception as error:
                    questions = steps.throw(error)
                else:
                    questions = steps.send(answers)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        steps.close()
