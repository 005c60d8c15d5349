"""The OPTIONS of a backend in the setting `TASKS`, checked when Django makes the backend."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from millstream.errors import InvalidInput
from millstream.jobs.options import ATTEMPTS, RESULTS_S
from millstream.record import Seconds
from millstream.threads.jobs import Jobs

DJANGO_PRIORITY_MIN, DJANGO_PRIORITY_MAX = -100, 100
PRIORITY_MAX = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    """The options of one backend."""

    store: str
    """The path of the store, or the address of a server."""
    database: str = "default"
    """The database whose transaction an enqueue waits for, if the store is another file."""
    queue_prefix: str = "tasks."
    """The beginning of the names of queues: tasks of queue `default` are in `tasks.default`."""
    keep_results: Seconds = RESULTS_S
    """How long ended tasks and their results are kept."""
    max_attempts: int = ATTEMPTS
    """Attempts at a task whose worker died, or that raised an exception of `retry_on`."""
    retry_on: tuple[type[BaseException], ...] = ()
    """Exceptions after which a task is tried again."""
    timeout: Seconds | None = None
    """How long one attempt may take."""

    def definition(self, function: Any, task: str, queue: str) -> Any:
        """Return the definition of a task for workers; wrong options raise `InvalidInput`."""
        jobs = Jobs(self.store, keep_results=self.keep_results)
        decorate = jobs.task(
            name=task,
            queue=queue,
            retry_on=self.retry_on,
            max_attempts=self.max_attempts,
            timeout=self.timeout,
        )
        return decorate(function).definition


def backend_options(alias: str, params: Mapping[str, Any]) -> BackendOptions:
    """Return the checked options of a backend. Raises `ImproperlyConfigured`."""
    names = [field.name for field in fields(BackendOptions)]
    for name in params:
        if name not in names:
            raise _wrong(alias, f"has no option {name!r}; the options are {', '.join(names)}")
    if not isinstance(params.get("store"), str | os.PathLike):
        raise _wrong(alias, "needs the option 'store', as in 'OPTIONS': {'store': 'jobs.db'}")
    values = {**params, "store": os.fspath(params["store"])}
    values["retry_on"] = _exceptions(alias, params.get("retry_on", ()))
    options = BackendOptions(**values)
    try:
        options.definition(_never, "check", f"{options.queue_prefix}default")
    except (InvalidInput, TypeError) as error:
        raise _wrong(alias, str(error).replace("task 'check'", "has a wrong option")) from error
    return options


def millstream_priority(priority: int) -> int:
    """Return the priority of a job, from 0 to 9, for a priority of Django, from -100 to 100."""
    span = DJANGO_PRIORITY_MAX - DJANGO_PRIORITY_MIN
    return (priority - DJANGO_PRIORITY_MIN) * PRIORITY_MAX // span


def database_of_store(store: str, databases: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the alias of the SQLite database that is the file of the store, or None.

    `databases` are the settings of each database by its alias.
    """
    if "://" in store:
        return None
    file = Path(store).resolve()
    for alias, database in databases.items():
        is_sqlite = str(database.get("ENGINE", "")).endswith("sqlite3")
        name = str(database.get("NAME", ""))
        if is_sqlite and name and ":memory:" not in name and Path(name).resolve() == file:
            return alias
    return None


def _exceptions(alias: str, classes_or_names: Any) -> tuple[type[BaseException], ...]:
    """Return exception classes that are given as classes, or as texts such as `shop.errors.Busy`."""
    names: Iterable[Any] = (
        [classes_or_names] if isinstance(classes_or_names, str | type) else classes_or_names
    )
    classes = []
    for name in names:
        try:
            kind = import_string(name if "." in name else f"builtins.{name}")
        except TypeError:
            kind = name
        except ImportError as error:
            raise _wrong(alias, f"names {name!r} in 'retry_on': {error}") from error
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise _wrong(alias, f"names {name!r} in 'retry_on', which is no exception class")
        classes.append(kind)
    return tuple(classes)


def _never() -> None:
    """Stand in for the function of a task, to check options."""


def _wrong(alias: str, problem: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(f"the backend {alias!r} of TASKS {problem}")
