"""Options that several commands share: a dataclass whose fields are options, taken as one parameter.

    @takes(Settings)
    def create(queue: QueueName, given: Settings) -> None: ...

The command line sees the fields in the place of `given`; the command gets them as one value.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import MISSING, Field, fields
from typing import Annotated, Any, get_type_hints

from typer.models import OptionInfo

Command = Callable[..., None]


def takes(kind: type, *, show_defaults: bool = True) -> Callable[[Command], Command]:
    """Let a command take the fields of a dataclass as options, in one parameter of that type.

    A command for which an absent option means something else does not show the defaults.
    """

    def decorate(command: Command) -> Command:
        hints = get_type_hints(command, include_extras=True)
        (place,) = (name for name, hint in hints.items() if hint is kind)
        names = [field.name for field in fields(kind)]

        @functools.wraps(command)
        def run(**given: Any) -> None:
            chosen = kind(**{name: given.pop(name) for name in names})
            command(**given, **{place: chosen})

        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                one
                for parameter in inspect.signature(command).parameters.values()
                for one in (
                    _options(kind, show_defaults=show_defaults)
                    if parameter.name == place
                    else [_named(parameter.name, hints[parameter.name], parameter.default)]
                )
            ]
        )
        return run

    return decorate


def _options(kind: type, *, show_defaults: bool) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        hint = hints[field.name]
        if not show_defaults:
            info = copy(next(one for one in hint.__metadata__ if isinstance(one, OptionInfo)))
            info.show_default = False
            hint = Annotated[hint.__origin__, info]
        yield _named(field.name, hint, _default(field))


def _default(field: Field[Any]) -> Any:
    return inspect.Parameter.empty if field.default is MISSING else field.default


def _named(name: str, hint: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=default)
