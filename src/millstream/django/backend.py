"""The backend of Django's tasks framework: tasks are jobs in the queues of a store.

An enqueue outside of a transaction puts the job at once. An enqueue inside of a transaction of the
SQLite database that is also the store inserts a row into the SQL inbox, so the job exists if and only
if the transaction commits. With another database, the job is put after the commit.
"""

from __future__ import annotations

import threading
from datetime import datetime
from functools import partial
from typing import Any

import msgspec
from django.db import connections, transaction
from django.utils import timezone

from millstream.django.backend_options import (
    backend_options,
    database_of_store,
    millstream_priority,
)
from millstream.django.execution import DjangoTasks, name_of_task
from millstream.django.framework import backends, base, exceptions, signals
from millstream.django.inbox import insert_post
from millstream.django.result_ids import ID_HEADER, ResultId, new_result_id, parse_result_id
from millstream.django.stored_results import (
    StoredTask,
    find_stored,
    next_put_id,
    result_of,
)
from millstream.engine.sqlite.schema import INBOX
from millstream.errors import InvalidInput, NotFound
from millstream.jobs.arguments import has_no_number
from millstream.jobs.continuation import TASK_HEADER
from millstream.jobs.options import PRIORITY_HEADER
from millstream.sql.posts import message_post
from millstream.threads.jobs import Jobs

_FIND_POST = (
    f"SELECT headers, value FROM {INBOX} "
    f"WHERE queue = %s AND json_extract(headers, '$.\"{ID_HEADER}\"') = %s"
)

_stores: dict[tuple[Any, ...], Jobs] = {}
_opening = threading.Lock()


class MillstreamBackend(backends.BaseTaskBackend):  # type: ignore[misc] # Django has no types
    """Puts the tasks of Django into queues, and reads their results."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.settings = backend_options(alias, self.options)
        """The checked options."""
        self.jobs = self._shared_jobs()
        """The jobs of the store; all threads share the object."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Put a task into its queue, and return a result in the state READY."""
        self.validate_task(task)
        result = base.TaskResult(
            task=task,
            id="",
            status=base.TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        arguments = {"args": result.args, "kwargs": result.kwargs}
        value = msgspec.json.encode(arguments)
        if has_no_number(arguments, value):
            raise InvalidInput(
                f"task {name_of_task(task)!r}: an argument has NaN or an infinite number, which JSON "
                "does not have"
            )
        headers = {
            TASK_HEADER: name_of_task(task),
            PRIORITY_HEADER: millstream_priority(task.priority),
        }
        queue = self.queue_of(task.queue_name)
        id = self._put(queue, value, headers, _aware(task.run_after))
        object.__setattr__(result, "id", str(id))  # as the backends of Django change results
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return the present state of a result. Raises `TaskResultDoesNotExist`."""
        id = parse_result_id(result_id)
        prefix = self.settings.queue_prefix
        if id is None or not id.queue.startswith(prefix):
            raise exceptions.TaskResultDoesNotExist(str(result_id)[:100])
        ms = self.jobs.opened()
        # The second look finds a message that was moved from the inbox between the first two.
        stored = find_stored(ms, id) or self._find_post(id) or find_stored(ms, id)
        if stored is None:
            raise exceptions.TaskResultDoesNotExist(str(id))
        return result_of(ms.queue(id.queue), id, stored, self.alias, id.queue[len(prefix) :])

    def queue_of(self, queue_name: str) -> str:
        """Return the name of our queue for a queue of Django."""
        return f"{self.settings.queue_prefix}{queue_name}"

    def make_queue(self, queue: str) -> None:
        """Create a queue of the store, if it does not exist."""
        definition = self.settings.definition(_placeholder, "placeholder", queue)
        self.jobs.make_queue(definition.options)

    # Putting.

    def _put(
        self, queue: str, value: bytes, headers: dict[str, Any], at: datetime | None
    ) -> ResultId:
        """Put a job now, with the transaction of the caller, or after its commit."""
        shared = database_of_store(self.settings.store, connections.settings)
        database = shared or self.settings.database
        if not connections[database].in_atomic_block:
            return ResultId(queue, self._put_now(queue, value, headers, at))
        ms = self.jobs.opened()
        if shared and not ms.queue(queue).exists():
            raise InvalidInput(
                f"queue {queue!r} does not exist, and a transaction of Django cannot create it: run "
                "`manage.py migrate`, or start `manage.py millstream_worker` before the first enqueue"
            )
        id = new_result_id(queue, next_put_id(ms, queue, is_for_later=at is not None))
        named = {**headers, ID_HEADER: str(id)}
        if shared:
            post = message_post(
                queue,
                value,
                key=None,
                headers=named,
                priority=None,
                group=None,
                dedup=None,
                delay=None,
                deliver_at=at,
            )
            insert_post(post, shared)
        else:
            transaction.on_commit(partial(self._put_now, queue, value, named, at), using=database)
        return id

    def _put_now(
        self, queue: str, value: bytes, headers: dict[str, Any], at: datetime | None
    ) -> int:
        messages = self.jobs.opened().queue(queue)
        try:
            return messages.put(value, headers=headers, at=at)
        except NotFound:
            self.make_queue(queue)
            return messages.put(value, headers=headers, at=at)

    def _find_post(self, id: ResultId) -> StoredTask | None:
        """Find a job that is still in the SQL inbox, for the 20 ms until a process moves it."""
        database = database_of_store(self.settings.store, connections.settings)
        if database is None or not id.token:
            return None
        with connections[database].cursor() as cursor:
            cursor.execute(_FIND_POST, (id.queue, str(id)))
            row = cursor.fetchone()
        if row is None:
            return None
        task = msgspec.json.decode(row[0])[TASK_HEADER]
        return StoredTask(task=task, value=bytes(row[1]))

    def _shared_jobs(self) -> Jobs:
        """Return the jobs of the store: Django makes a backend for each thread."""
        settings = self.settings
        with _opening:
            jobs = _stores.get((self.alias, settings))
            if jobs is None:
                jobs = Jobs(settings.store, keep_results=settings.keep_results)
                jobs.tasks = DjangoTasks(type(self), self.alias, settings)
                _stores[self.alias, settings] = jobs
            return jobs


def _placeholder() -> None:
    """Stand in for a task, to make its queue."""


def _aware(when: datetime | None) -> datetime | None:
    """Return a time with a time zone: of Django's, if the project uses naive times."""
    if when is None or timezone.is_aware(when):
        return when
    aware: datetime = timezone.make_aware(when)
    return aware
