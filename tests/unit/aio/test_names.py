"""Whoever knows the sync surface knows the async one: the same names, with the same parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import millstream
from millstream import aio
from millstream.aio import worker as tasks
from millstream.threads.worker import Worker

pytestmark = pytest.mark.embedded

TWINS = [
    (millstream.Millstream, aio.Millstream),
    (millstream.Transaction, aio.Transaction),
    (millstream.Log, aio.Log),
    (millstream.Cursor, aio.Cursor),
    (millstream.PartitionedLog, aio.PartitionedLog),
    (millstream.PartitionedCursor, aio.PartitionedCursor),
    (millstream.Stage, aio.Stage),
    (millstream.LogConsumer, aio.LogConsumer),
    (millstream.Queue, aio.Queue),
    (millstream.QueueConsumer, aio.QueueConsumer),
    (millstream.LogProducer, aio.LogProducer),
    (millstream.PartitionedProducer, aio.PartitionedProducer),
    (millstream.QueueProducer, aio.QueueProducer),
    (millstream.AppendHandle, aio.AppendHandle),
    (millstream.PartitionedHandle, aio.PartitionedHandle),
    (millstream.PutHandle, aio.PutHandle),
    (millstream.Room, aio.Room),
    (Worker, tasks.Worker),
    (millstream.Jobs, aio.Jobs),
    (millstream.Task, aio.Task),
    (millstream.Job, aio.Job),
    (millstream.JobWorker, aio.JobWorker),
    (millstream.GatheredJobs, aio.GatheredJobs),
    (millstream.Signature, aio.Signature),
    (millstream.JobGroup, aio.JobGroup),
]
NOT_AWAITED = {
    (aio.AppendHandle, "block"),
    (aio.AppendHandle, "done"),
    (aio.AppendHandle, "gathering"),
    (aio.AppendHandle, "index"),
    (aio.AppendHandle, "is_reported"),
    (aio.AppendHandle, "message"),
    (aio.AppendHandle, "result"),
    (aio.PartitionedHandle, "block"),
    (aio.PartitionedHandle, "done"),
    (aio.PartitionedHandle, "gathering"),
    (aio.PartitionedHandle, "index"),
    (aio.PartitionedHandle, "is_reported"),
    (aio.PartitionedHandle, "message"),
    (aio.PartitionedHandle, "result"),
    (aio.PutHandle, "block"),
    (aio.PutHandle, "done"),
    (aio.PutHandle, "gathering"),
    (aio.PutHandle, "index"),
    (aio.PutHandle, "is_reported"),
    (aio.PutHandle, "message"),
    (aio.PutHandle, "result"),
    (aio.Job, "id"),
    (aio.Job, "was_duplicate"),
    (aio.JobWorker, "start"),
    (aio.JobWorker, "stats"),
    (aio.JobWorker, "stop"),
    (aio.JobWorker, "stopping"),
    (aio.JobWorker, "unknown_tasks"),
    (aio.Jobs, "bind"),
    (aio.Jobs, "bound_to"),
    (aio.Jobs, "current"),
    (aio.Jobs, "every"),
    (aio.JobGroup, "put_step"),
    (aio.Jobs, "has_made"),
    (aio.Jobs, "missing_spec"),
    (aio.Jobs, "task"),
    (aio.Jobs, "worker"),
    (aio.Queue, "consumer"),
    (aio.Queue, "session"),
    (aio.QueueConsumer, "lost"),
    (aio.QueueConsumer, "stop"),
    (aio.QueueConsumer, "stopping"),
    (aio.Signature, "as_follower"),
    (aio.Signature, "put_step"),
    (aio.Signature, "then"),
    (aio.Task, "put_step"),
    (aio.Task, "s"),
    (aio.Task, "task_name"),
    (aio.Task, "using"),
    (aio.Millstream, "begin"),
    (aio.Millstream, "log"),
    (aio.Millstream, "room"),
    (aio.Millstream, "session"),
    (aio.Millstream, "transaction"),
    (aio.Log, "consumer"),
    (aio.Log, "metadata"),
    (aio.LogConsumer, "lost"),
    (aio.LogConsumer, "stop"),
    (aio.LogConsumer, "stopping"),
    (aio.PartitionedLog, "consumer"),
    (aio.Log, "producer"),
    (aio.PartitionedCursor, "by_partition"),
    (aio.PartitionedLog, "metadata"),
    (aio.PartitionedLog, "partition"),
    (aio.PartitionedLog, "partition_for"),
    (aio.PartitionedLog, "partitions"),
    (aio.PartitionedLog, "producer"),
    (aio.Queue, "producer"),
    (aio.Queue, "worker"),
    (aio.Room, "log"),
    (tasks.Worker, "start"),
    (tasks.Worker, "stats"),
    (tasks.Worker, "stop"),
    (tasks.Worker, "stopping"),
}


def public_names(kind: type) -> list[str]:
    return [name for name in dir(kind) if not name.startswith("_")]


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


EACH_NAME = pytest.mark.parametrize(
    ("sync", "twin", "name"),
    [(sync, twin, name) for sync, twin in TWINS for name in public_names(sync)],
    ids=lambda part: part if isinstance(part, str) else part.__name__,
)


@EACH_NAME
def test_a_name_has_its_twin_with_the_same_parameters(sync: type, twin: type, name: str) -> None:
    assert hasattr(twin, name)
    own, other = getattr(sync, name), getattr(twin, name)
    if callable(own):
        assert parameters(other) == parameters(own)


@EACH_NAME
def test_what_asks_the_store_is_awaited_or_iterated(sync: type, twin: type, name: str) -> None:
    other = inspect.unwrap(getattr(twin, name))
    waits = inspect.iscoroutinefunction(other) or inspect.isasyncgenfunction(other)
    assert waits == (twin is not aio.Transaction and (twin, name) not in NOT_AWAITED)


@pytest.mark.parametrize(("sync", "twin"), TWINS)
def test_the_twin_has_no_name_of_its_own(sync: type, twin: type) -> None:
    assert set(public_names(twin)) - set(public_names(sync)) <= {"len"}


def test_opening_takes_the_same_parameters() -> None:
    assert parameters(aio.open) == parameters(millstream.open)


def test_context_managers_are_async() -> None:
    for kind in (
        aio.Millstream,
        aio.Transaction,
        aio.Stage,
        aio.LogConsumer,
        aio.QueueConsumer,
        tasks.Worker,
    ):
        assert not hasattr(kind, "__enter__")
        assert hasattr(kind, "__aenter__")
