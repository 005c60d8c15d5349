"""How a worker runs a task of Django: finds the function, sends signals, and tends connections."""

from __future__ import annotations

import logging
from asyncio import CancelledError
from importlib import import_module
from inspect import iscoroutinefunction
from traceback import format_exception
from typing import Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections, reset_queries
from django.utils import timezone

from millstream.django.backend_options import BackendOptions
from millstream.django.framework import base, normalize_json, signals
from millstream.django.result_ids import ID_HEADER
from millstream.jobs.context import JobContext
from millstream.jobs.definition import TaskDefinition
from millstream.queue.model.message import Reject, Retry

_logger = logging.getLogger("millstream.django")

_Status = base.TaskResultStatus


def name_of_task(task: Any) -> str:
    """Return the name by which jobs name a task of Django: `module:function`."""
    return f"{task.func.__module__}:{task.func.__qualname__}"


def task_by_name(name: str) -> Any:
    """Import a task of Django; None for a name that leads to no task."""
    module, _, path = name.partition(":")
    try:
        target: Any = import_module(module)
        for attribute in path.split("."):
            target = getattr(target, attribute)
    except (ImportError, AttributeError, ValueError):
        return None
    except Exception:  # the module of a user raised an error: the job stays waiting
        _logger.exception("task_import_failed task=%s", name)
        return None
    return target if isinstance(target, base.Task) else None


class DjangoTasks(dict[str, TaskDefinition]):
    """The tasks of a worker, by name. The first job of a task imports the task."""

    def __init__(self, backend: type, alias: str, options: BackendOptions) -> None:
        super().__init__()
        self._backend = backend
        self._alias = alias
        self._options = options

    def get(self, name: str, default: Any = None) -> Any:
        """Return the definition of a task; the default if it cannot be imported."""
        if name not in self:
            task = task_by_name(name)
            if task is None:
                return default
            self[name] = self._define(task, name)
        return self[name]

    def _define(self, task: Any, name: str) -> TaskDefinition:
        attempt = DjangoAttempt(self._backend, self._alias, task, self._options)
        run = attempt.run_async if iscoroutinefunction(task.func) else attempt.run
        queue = f"{self._options.queue_prefix}{task.queue_name}"
        definition: TaskDefinition = self._options.definition(run, name, queue)
        return definition


class DjangoAttempt:
    """Runs the function of one task."""

    def __init__(self, backend: type, alias: str, task: Any, options: BackendOptions) -> None:
        self._backend = backend
        self._alias = alias
        self._task = task
        self._options = options

    def run(self, job: JobContext, /, *args: Any, **kwargs: Any) -> Any:
        """Run a plain function, on a thread of the worker."""
        _tend_connections()
        result = self._begin(job, args, kwargs)
        try:
            value = normalize_json(self._task.func(*self._arguments(result), **kwargs))
        except BaseException as error:
            self._fail(result, job, error)
            raise
        finally:
            close_old_connections()
        self._succeed(result, value)
        return value

    async def run_async(self, job: JobContext, /, *args: Any, **kwargs: Any) -> Any:
        """Run a coroutine function. Signals and connections belong to the thread of plain code."""
        await sync_to_async(_tend_connections)()
        result = await sync_to_async(self._begin)(job, args, kwargs)
        try:
            value = normalize_json(await self._task.func(*self._arguments(result), **kwargs))
        except BaseException as error:
            await sync_to_async(self._fail)(result, job, error)
            raise
        finally:
            await sync_to_async(close_old_connections)()
        await sync_to_async(self._succeed)(result, value)
        return value

    def _begin(self, job: JobContext, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        now = timezone.now()
        result = base.TaskResult(
            task=self._task,
            id=str(job.headers.get(ID_HEADER, job.id)),
            status=_Status.RUNNING,
            enqueued_at=None,
            started_at=now,
            last_attempted_at=now,
            finished_at=None,
            args=list(args),
            kwargs=kwargs,
            backend=self._alias,
            errors=[],
            worker_ids=["millstream"] * job.attempt,
        )
        signals.task_started.send_robust(self._backend, task_result=result)
        return result

    def _arguments(self, result: Any) -> list[Any]:
        if self._task.takes_context:
            return [base.TaskContext(task_result=result), *result.args]
        return list(result.args)

    def _succeed(self, result: Any, value: Any) -> None:
        self._end(result, _Status.SUCCESSFUL, _return_value=value)

    def _fail(self, result: Any, job: JobContext, error: BaseException) -> None:
        """Send the signal of a task that will not be tried again."""
        if job.attempt < self._options.max_attempts and self._is_retried(error):
            return
        kind = type(error)
        path = f"{kind.__module__}.{kind.__qualname__}"
        text = "".join(format_exception(error))
        error_of_task = base.TaskError(exception_class_path=path, traceback=text)
        self._end(result, _Status.FAILED, errors=[error_of_task])

    def _is_retried(self, error: BaseException) -> bool:
        if isinstance(error, Reject):
            return False
        return isinstance(error, (Retry, CancelledError, *self._options.retry_on))

    def _end(self, result: Any, status: Any, **fields: Any) -> None:
        for name, value in {"status": status, "finished_at": timezone.now(), **fields}.items():
            object.__setattr__(result, name, value)  # as the backends of Django change results
        signals.task_finished.send_robust(self._backend, task_result=result)


def _tend_connections() -> None:
    """Do what Django does before a request: drop broken connections and the log of queries."""
    reset_queries()
    close_old_connections()
