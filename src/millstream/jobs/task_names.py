"""Names of tasks: a job names its function by a text that stays the same in every process."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

from millstream.errors import InvalidInput
from millstream.log.model.names import check_text

NAME_CHARS_MAX = 200


def task_name_of(function: Any, name: str | None) -> str:
    """Return the name of a task: the given name, or `module:function`.

    Without a name, refuse a function that another process could not import.
    """
    if not callable(function) or inspect.isclass(function):
        raise InvalidInput(
            f"a task is a function or a coroutine function, not {function!r:.100}; write @jobs.task "
            "above `def`"
        )
    if name is not None:
        return check_task_name(name)
    path = getattr(function, "__qualname__", "")
    if "<lambda>" in path or "<locals>" in path or not path:
        kind = "a lambda" if path.endswith("<lambda>") else f"the local function {path!r}"
        raise InvalidInput(
            f"{kind} cannot be a task: a worker in another process could not import it; define the "
            "function at the top of a module, or give the task a name=..."
        )
    return check_task_name(f"{_module_of(function)}:{path}")


def check_task_name(name: object) -> str:
    """Return a valid name of a task: text of 1 to 200 characters without control characters."""
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_CHARS_MAX:
        raise InvalidInput(
            f"the name of a task is text of 1 to {NAME_CHARS_MAX} characters, not {name!r:.100}"
        )
    check_text("the name of a task", name)
    if not name.isprintable():
        raise InvalidInput(
            f"the name of a task has no line breaks or other control characters, as in {name!r:.100}"
        )
    return name


def _module_of(function: Any) -> str:
    """Return the name by which other processes import a function's module."""
    module: str = getattr(function, "__module__", None) or "?"
    if module != "__main__":
        return module
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    file = getattr(main, "__file__", None)
    return Path(file).stem if file else module
