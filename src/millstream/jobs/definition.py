"""The definition of a task: function, name, options and parameters."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar, get_args, get_type_hints

from millstream.errors import InvalidInput
from millstream.header import HeaderValue
from millstream.jobs.arguments import Arguments
from millstream.jobs.context import JobContext
from millstream.jobs.continuation import TASK_HEADER
from millstream.jobs.key_limits import KEY_HEADER, LimitKey, check_parameter
from millstream.jobs.options import PRIORITY_HEADER, TaskOptions
from millstream.jobs.results import ResultType
from millstream.queue.model.spec import PRIORITY_MAX

R = TypeVar("R")
Pending = Coroutine[Any, Any, R]
"""The answer of a call of a coroutine function."""


class TaskDefinition:
    """A function that runs as jobs. Holds no store: workers and callers share it."""

    def __init__(self, function: Callable[..., Any], name: str, options: TaskOptions) -> None:
        self.function = function
        self.name = name
        self.options = options
        self.context_parameter = _context_parameter(function, name)
        self._parameters = dict(inspect.signature(function).parameters)
        self._context_at = _position_of(self.context_parameter, self._parameters)
        context = self._parameters.pop(self.context_parameter or "", None)
        self.needs_context = context is not None and context.default is context.empty
        """Whether a call needs the context of a job."""
        self.arguments = Arguments(function, name, self.context_parameter)
        self.is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(
            function
        )
        self.is_generator = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(
            function
        )
        self.result = ResultType(None if self.is_generator else function)
        self._headers: dict[str, HeaderValue] = {TASK_HEADER: name}
        if options.priority is not None:
            self._headers[PRIORITY_HEADER] = options.priority
        self._check_key()
        self.limit_key = self._limit_key()
        """Where the arguments have the key of the limits; None for a task without limits."""

    def headers_of(self, encoded: bytes, priority: int | None = None) -> dict[str, HeaderValue]:
        """Return the headers of a job by its encoded arguments; `priority` replaces the task's."""
        headers = self.headers_with(priority)
        if self.limit_key is None or not (key := self.limit_key.of(encoded)):
            return headers
        return {**headers, KEY_HEADER: key}

    def headers_of_many(
        self, calls: list[bytes], priority: int | None
    ) -> list[dict[str, HeaderValue]]:
        """Return the headers of jobs by their encoded arguments; equal headers are one object."""
        headers = self.headers_with(priority)
        if self.limit_key is None:
            return [headers] * len(calls)
        names = self.limit_key.of_many(calls)
        by_key = {key: {**headers, KEY_HEADER: key} if key else headers for key in set(names)}
        return [by_key[key] for key in names]

    def headers_with(self, priority: int | None) -> dict[str, HeaderValue]:
        """Return the headers of every job; `priority` replaces the priority of the task."""
        if priority is None:
            return self._headers
        if not 0 <= priority <= PRIORITY_MAX:
            raise InvalidInput(
                f"task {self.name!r}: priority is from 0 to {PRIORITY_MAX}, not {priority}"
            )
        return {**self._headers, PRIORITY_HEADER: priority}

    def unique_key(self, encoded: bytes) -> str | None:
        """Return the key of a unique job for the encoded arguments, or None for a task without a key."""
        if not self.options.is_unique:
            return None
        encoded = self.arguments.canonical(encoded, self.options.unique_by)
        return f"{self.name} {hashlib.blake2b(encoded, digest_size=16).hexdigest()}"

    def call(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], context: JobContext | None
    ) -> Any:
        """Call the function, with the context if a parameter asks for the context."""
        if self.context_parameter is None:
            return self.function(*args, **kwargs)
        at = self._context_at
        if at is not None and at <= len(args):
            return self.function(*args[:at], context, *args[at:], **kwargs)
        return self.function(*args, **{**kwargs, self.context_parameter: context})

    def _limit_key(self) -> LimitKey | None:
        if self.options.limits is None:
            return None
        key, parameters = self.options.limits.key, self._parameters
        check_parameter(self.name, key, parameters)
        default = parameters[key.parameter].default
        if default is inspect.Parameter.empty:
            return key
        return LimitKey(key.path, key.of_default(default))

    def _check_key(self) -> None:
        parameter_names = list(self._parameters)
        for name in self.options.unique_by:
            if name not in parameter_names:
                raise InvalidInput(
                    f"task {self.name!r}: unique_by names {name!r}, which is no parameter of it; it "
                    f"has {', '.join(parameter_names) or 'none'}"
                )


def _context_parameter(function: Callable[..., Any], task: str) -> str | None:
    """Return the name of the parameter that is annotated with the context."""
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError):
        return None  # `Arguments` explains the wrong annotation
    names = [name for name, hint in hints.items() if _is_context(hint) and name != "return"]
    if len(names) > 1:
        raise InvalidInput(
            f"task {task!r}: one parameter is the context, not {' and '.join(names)}"
        )
    return names[0] if names else None


def _is_context(hint: Any) -> bool:
    return hint is JobContext or set(get_args(hint)) == {JobContext, type(None)}


def _position_of(name: str | None, parameters: Mapping[str, inspect.Parameter]) -> int | None:
    """Return the position of a parameter; None for a parameter that takes no argument by position."""
    if name is None or parameters[name].kind is inspect.Parameter.KEYWORD_ONLY:
        return None
    return list(parameters).index(name)
