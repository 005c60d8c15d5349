"""A task as coroutines hold it: a function that can also be put into a queue as a job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial, update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar

from millstream.aio.job import Job
from millstream.aio.job_store import JobStore
from millstream.aio.signature import Signature
from millstream.embedded.steps import TaskStep
from millstream.errors import InvalidInput, NotFound
from millstream.jobs.context import CURRENT
from millstream.jobs.definition import TaskDefinition
from millstream.jobs.job_ids import job_id_of
from millstream.limits import Limits
from millstream.numbers import checked_numbers
from millstream.queue.commands import SpecifyQueue
from millstream.queue.put_commands import put_batch, put_one, reported
from millstream.record import Seconds

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")

Call = tuple[Any, ...] | Mapping[str, Any]
"""The arguments of a job in a batch: a tuple by position, or a mapping by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PutOptions:
    """How a job is put."""

    delay: Seconds | None = None
    at: datetime | int | None = None
    priority: int | None = None


PLAIN = PutOptions()
NO_NAMES: Mapping[str, Any] = {}


@checked_numbers
class Task(Generic[P, R, C]):
    """A function that runs as jobs. A call of the task is a plain call of the function."""

    def __init__(
        self, jobs: JobStore, definition: TaskDefinition, options: PutOptions = PLAIN
    ) -> None:
        self._jobs = jobs
        self._options = options
        self.definition = definition
        """The function, name and options, for workers."""
        update_wrapper(self, definition.function)

    @property
    def task_name(self) -> str:
        """The name of this task in stored jobs."""
        return self.definition.name

    def __repr__(self) -> str:
        return f"Task({self.task_name!r})"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """Call the function here and now. A function with a context needs a running job."""
        if self.definition.context_parameter is None:
            return self.definition.function(*args, **kwargs)  # type: ignore[no-any-return]
        context = kwargs.pop(self.definition.context_parameter, None) or CURRENT.get(None)
        if context is None and self.definition.needs_context:
            raise InvalidInput(
                f"task {self.task_name!r} wants the context of a job: call it inside of a job, or "
                f"call {self.task_name.partition(':')[2] or 'the function'}.definition.function with one"
            )
        return self.definition.call(args, kwargs, context)  # type: ignore[arg-type, no-any-return]

    def using(
        self,
        *,
        delay: Seconds | None = None,
        at: datetime | int | None = None,
        priority: int | None = None,
    ) -> Task[P, R, C]:
        """Return the same task with other options for its puts, also in a transaction."""
        if delay is not None and at is not None:
            raise InvalidInput("a job is put with a delay, or at a time, not both")
        options = replace(
            self._options,
            delay=delay if at is None else None,
            at=at,
            priority=self._options.priority if priority is None else priority,
        )
        return Task(self._jobs, self.definition, options)

    async def put(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Put a job, and return its handle. The job is durable when the call returns."""
        return await self._put(self.definition.arguments.encode(args, kwargs), self._options)

    async def put_in(self, delay: Seconds, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Put a job that starts after a delay."""
        encoded = self.definition.arguments.encode(args, kwargs)
        return await self._put(encoded, replace(self._options, delay=delay, at=None))

    async def put_at(self, when: datetime | int, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Put a job that starts at a time: an aware datetime, or milliseconds since 1970."""
        encoded = self.definition.arguments.encode(args, kwargs)
        return await self._put(encoded, replace(self._options, at=when, delay=None))

    async def put_many(self, calls: Iterable[Call]) -> list[Job[R]]:
        """Put a job per call in one commit. A call is a tuple of arguments, or a mapping by name."""
        encode = self.definition.arguments.encode
        values = [
            encode(call, NO_NAMES) if type(call) is tuple else encode(*_arguments_of(call))
            for call in calls
        ]
        if self.definition.options.is_unique:
            return [await self._put(encoded, self._options) for encoded in values]
        if not values:
            return []
        ms = await self._jobs.opened()
        command, count = put_batch(
            self.definition.options.queue,
            values,
            keys=None,
            headers=self.definition.headers_of_many(values, self._options.priority),
            delay=self._options.delay,
            at=self._options.at,
            limits=ms.session.limits,
        )
        assert command is not None
        try:
            first = await ms.session.execute(command)
        except NotFound:
            await self._jobs.make_queue(self.definition.options)
            first = await ms.session.execute(command)
        queue, kind = await self._jobs.queue_of(self.definition), self.definition.result
        return [Job(queue, put_id, kind) for put_id in range(first, first + count)]

    async def _put(self, encoded: bytes, options: PutOptions) -> Job[R]:
        ms = await self._jobs.opened()
        command = self._command(encoded, options, ms.session.limits)
        try:
            return await self._execute(command)
        except NotFound:
            await self._jobs.make_queue(self.definition.options)
            return await self._execute(command)

    async def _execute(self, command: Any) -> Job[R]:
        ms = await self._jobs.opened()
        queue = await self._jobs.queue_of(self.definition)
        if not self.definition.options.is_unique:
            put_id = await ms.session.execute(command)
            return Job(queue, put_id, self.definition.result)
        answer = await ms.session.execute(reported(queue.name, command))
        kind = self.definition.result
        return Job(queue, answer.id or 0, kind, was_duplicate=answer.repeated)

    def _command(self, encoded: bytes, options: PutOptions, limits: Limits) -> Any:
        definition = self.definition
        return put_one(
            definition.options.queue,
            encoded,
            key=None,
            headers=definition.headers_of(encoded, options.priority),
            priority=None,
            group=None,
            dedup=definition.unique_key(encoded),
            delay=options.delay,
            at=options.at,
            producer=None,
            limits=limits,
        )

    def s(self, *args: Any, **kwargs: Any) -> Signature[R]:
        """Return a call of this task, to chain or to gather.

        The first argument of a call that follows another is the result of the call before: leave it
        out. The arguments are checked by `then`, or when the chain or the group is put.
        """
        return Signature(self._jobs, self.definition, args, kwargs, self._options.priority)

    def put_step(self, args: tuple[Any, ...], kwargs: dict[str, Any], limits: Limits) -> TaskStep:
        """Return the steps of a put in a transaction; for `tx.put`."""
        command = self._command(
            self.definition.arguments.encode(args, kwargs), self._options, limits
        )
        options = self.definition.options
        spec = self._jobs.missing_spec(options)
        before = [] if spec is None else [SpecifyQueue(options.queue, spec)]
        return TaskStep(before, command, partial(job_id_of, options.queue))


def _arguments_of(call: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return the arguments of a call in a batch, by position and by name."""
    if isinstance(call, Mapping):
        return (), call
    if isinstance(call, tuple):
        return call, NO_NAMES
    raise InvalidInput(
        "put_many takes a tuple of arguments or a mapping for each job, "
        f"as in f.put_many([(1,), (2,)]), not {call!r:.100}"
    )
