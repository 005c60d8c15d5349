# Generated from src/millstream/aio/signature.py by `make generate`: change that file, not this one.

"""Signatures as threads hold them: calls of tasks to chain, to gather, and to put later."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import Any, Generic, Literal, NamedTuple, TypeVar, overload

from msgspec import Raw

from millstream.command import Transact
from millstream.embedded.steps import TaskStep
from millstream.errors import InvalidInput
from millstream.header import HeaderValue
from millstream.jobs.chores import CHORES, ExpireGroup, do_later, make_chores
from millstream.jobs.continuation import (
    GROUP_LOG,
    MEMBERS_MAX,
    Continuation,
    FollowingCall,
    GroupPart,
    OnFailure,
    check_on_failure,
)
from millstream.jobs.definition import TaskDefinition
from millstream.limits import Limits
from millstream.log.commands import SetMetadata
from millstream.queue.commands import SpecifyQueue
from millstream.queue.put_commands import put_batch
from millstream.threads.gathered import GatheredJobs
from millstream.threads.job_store import JobStore

R = TypeVar("R")
S = TypeVar("S")
M = TypeVar("M")


class FirstJob(NamedTuple):
    """The job with which a chain begins, or a member of a group."""

    queue: str
    arguments: bytes
    headers: dict[str, HeaderValue]


class Signature(Generic[R]):
    """A call of a task that is not put yet, and the calls that follow it.

    `R` is the result of the last call.
    """

    def __init__(
        self,
        store: JobStore,
        task: TaskDefinition,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        priority: int | None = None,
    ) -> None:
        self.store = store
        self.tasks = [task]
        """The tasks of the chain, in order."""
        self._args, self._kwargs = args, kwargs
        self._priority = priority
        self._followers: list[FollowingCall] = []

    def __repr__(self) -> str:
        return f"Signature({' -> '.join(task.name for task in self.tasks)})"

    def __call__(self) -> Any:
        """Refuse a call: a signature is put, not called."""
        raise InvalidInput(
            "a signature is put with .put(), or in a transaction with tx.put(signature)"
        )

    def then(self, follower: Signature[S]) -> Signature[S]:
        """Return the chain in which a call follows, with the result as its first argument."""
        if not isinstance(follower, Signature):
            raise InvalidInput(f"a call of a task follows, as in f.s(), not {follower!r:.100}")
        chain: Signature[S] = Signature(
            self.store, self.tasks[0], self._args, self._kwargs, self._priority
        )
        chain.tasks = [*self.tasks, *follower.tasks]
        chain._followers = [*self._followers, follower.as_follower(), *follower._followers]
        return chain

    def as_follower(self) -> FollowingCall:
        """Return the first call of this chain as a call that follows another."""
        task = self.tasks[0]
        if task.options.is_unique:
            raise InvalidInput(
                f"task {task.name!r} is unique, so it can only be the first of a chain"
            )
        arguments = Raw(task.arguments.encode_after(self._args, self._kwargs))
        priority = self._priority if self._priority is not None else task.options.priority
        return FollowingCall(
            task=task.name,
            queue=task.options.queue,
            first=task.arguments.first,
            arguments=arguments,
            priority=priority,
            limit_key=task.limit_key,
        )

    def put(self) -> GatheredJobs[R]:
        """Put the chain, and return the handle of its last result."""
        return _put(self)

    def put_step(self, args: tuple[Any, ...], kwargs: dict[str, Any], limits: Limits) -> TaskStep:
        """Return the steps of a put in a transaction; for `tx.put`."""
        membership = GroupPart(_new_log(), 0, 1, is_callback=True)
        steps = _queue_steps(self.store, self.tasks)
        steps += _describe(membership, self.store.results_s, limits, is_chain=True)
        first = self._first_job(membership)
        return TaskStep(steps, _put_all(first.queue, [first], limits), _log_of(membership))

    def _first_job(self, membership: GroupPart) -> FirstJob:
        """Return the first job of the chain, as a member of a group."""
        task = self.tasks[0]
        encoded = task.arguments.encode(self._args, self._kwargs)
        headers = Continuation(self._followers, membership).headers(
            task.headers_of(encoded, self._priority)
        )
        return FirstJob(task.options.queue, encoded, headers)


class JobGroup(Generic[R]):
    """Calls to put together; `R` is the result of the callback, or the list of all results."""

    def __init__(
        self,
        members: Iterable[Signature[Any]],
        *,
        on_failure: OnFailure,
        then: Signature[R] | None,
    ) -> None:
        self._members = list(members)
        self._on_failure = check_on_failure(on_failure)
        self._then = then
        if not 1 <= len(self._members) <= MEMBERS_MAX:
            raise InvalidInput(
                f"a group has from 1 to {MEMBERS_MAX:,} members, not {len(self._members):,}"
            )
        for member in [*self._members, *([] if then is None else [then])]:
            if not isinstance(member, Signature):
                raise InvalidInput(
                    f"a member is a call of a task, as in f.s(1), not {member!r:.100}"
                )
            if member.tasks[0].options.is_unique:
                raise InvalidInput(
                    f"task {member.tasks[0].name!r} is unique: a group would wait for a job that was "
                    "dropped"
                )
        if then is not None and len(then.tasks) > 1:
            raise InvalidInput("the callback of a group is one call, not a chain")
        if then is not None:
            _check_callback_key(then.tasks[0])
        self.store = self._members[0].store

    def __call__(self) -> Any:
        """Refuse a call: a group is put, not called."""
        raise InvalidInput("a group is put with .put(), or in a transaction with tx.put(group)")

    def put(self) -> GatheredJobs[R]:
        """Put all members in one commit, and return the handle of the group."""
        return _put(self)

    def put_step(self, args: tuple[Any, ...], kwargs: dict[str, Any], limits: Limits) -> TaskStep:
        """Return the steps of a put in a transaction; for `tx.put`."""
        callback = None if self._then is None else self._then.as_follower()
        log, size = _new_log(), len(self._members)
        tasks = [task for member in self._members for task in member.tasks]
        tasks += [] if self._then is None else self._then.tasks
        memberships = [
            GroupPart(log, index, size, self._on_failure, callback) for index in range(size)
        ]
        first_jobs: dict[str, list[FirstJob]] = {}
        for member, membership in zip(self._members, memberships, strict=True):
            job = member._first_job(membership)
            first_jobs.setdefault(job.queue, []).append(job)
        puts = [_put_all(queue, jobs, limits) for queue, jobs in first_jobs.items()]
        before = [
            *_queue_steps(self.store, tasks),
            *_describe(memberships[0], self.store.results_s, limits),
            *puts[:-1],
        ]
        return TaskStep(before, puts[-1], _log_of(memberships[0]))


@overload
def gather(
    members: Iterable[Signature[M]], *, on_failure: Literal["fail"] = "fail", then: None = None
) -> JobGroup[list[M]]: ...
@overload
def gather(
    members: Iterable[Signature[Any]], *, on_failure: OnFailure, then: None = None
) -> JobGroup[list[Any]]: ...
@overload
def gather(
    members: Iterable[Signature[Any]], *, on_failure: OnFailure = "fail", then: Signature[R]
) -> JobGroup[R]: ...
def gather(
    members: Iterable[Signature[Any]],
    *,
    on_failure: OnFailure = "fail",
    then: Signature[Any] | None = None,
) -> JobGroup[Any]:
    """Return a group of calls. `put` puts all members in one commit; `then` is called with the list of results.

    With `on_failure="fail"` the group fails with its first failed member, and the callback is not put.
    With "collect" the list has an object with `kind`, `message` and `trace` for a failed member.
    """
    return JobGroup(members, on_failure=on_failure, then=then)


def _check_callback_key(task: TaskDefinition) -> None:
    key = task.limit_key
    if key is not None and key.parameter == task.arguments.first:
        raise InvalidInput(
            f"the callback {task.name!r} has limits by {key.path!r}, but this parameter takes the list "
            "of results: name another parameter as the key"
        )


def _new_log() -> str:
    return f"{GROUP_LOG}{secrets.token_hex(12)}"


def _describe(
    membership: GroupPart, keep_s: float, limits: Limits, *, is_chain: bool = False
) -> list[Any]:
    """Return the steps that note the shape of a group in the metadata of its log, and expire the log."""
    shape = {
        "size": membership.size,
        "on_failure": membership.on_failure,
        "has_callback": membership.callback is not None,
        "is_chain": is_chain,
    }
    expire = do_later(ExpireGroup(membership.log, keep_s), keep_s, limits)
    return [SetMetadata(membership.log, "group", shape), expire]


def _log_of(membership: GroupPart) -> Callable[[Any], str]:
    return lambda _answer: membership.log.removeprefix(GROUP_LOG)


def _put_all(queue: str, jobs: list[FirstJob], limits: Limits) -> Any:
    """Return the command that puts jobs into a queue."""
    command, _ = put_batch(
        queue,
        [job.arguments for job in jobs],
        keys=None,
        headers=[job.headers for job in jobs],
        delay=None,
        at=None,
        limits=limits,
    )
    return command


def _queue_steps(store: JobStore, tasks: Iterable[TaskDefinition]) -> list[Any]:
    steps: list[Any] = [] if store.has_made(CHORES) else [make_chores()]
    queues = {task.options.queue: task.options for task in tasks}
    for name, options in queues.items():
        spec = store.missing_spec(options)
        if spec is not None:
            steps.append(SpecifyQueue(name, spec))
    return steps


def _put(call: Signature[Any] | JobGroup[Any]) -> GatheredJobs[Any]:
    ms = call.store.opened()
    step = call.put_step((), {}, ms.session.limits)
    answers = ms.session.execute(Transact([*step.before, step.command]))
    return GatheredJobs(ms, step.read(answers[-1]))
