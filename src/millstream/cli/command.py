"""Commands: turn a function into a command with options, an open store and printed output.

    @command(queue, "queue pause mail")
    def pause(queue: Queue) -> Printed: ...

A parameter of type `Millstream` adds the options that name a store, and gets the open store. A
parameter of type `Log`, `Queue` or `Room` also adds an argument for its name, and gets the existing
object. A dataclass adds an option per field. `Declared` fields add options made from a struct. A
command that returns `Printed` has `--json`.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import typer

from millstream import Log, Millstream, Queue, Room
from millstream.cli.advice import EXIT_UNUSABLE
from millstream.cli.declared import Declared
from millstream.cli.display import Printed, PrintedLine
from millstream.cli.names import LogName, QueueName, RoomName
from millstream.cli.place import StorePlace, existing_log, existing_queue, existing_room

Function = TypeVar("Function", bound=Callable[..., Any])

_NOUNS: dict[Any, tuple[Any, Callable[[Millstream, str], Any]]] = {
    Log: (LogName, existing_log),
    Queue: (QueueName, existing_queue),
    Room: (RoomName, existing_room),
}
_OPENED = (StorePlace, Millstream, *_NOUNS)
"""The parameter types that need the options of a store."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True)
class Consent:
    """Whether the user agrees to a loss of data."""

    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False

    def ask(self, question: str) -> None:
        """Return if the user agrees, else end the command; without a terminal, --yes is
        required."""
        if self.yes:
            return
        if not sys.stdin.isatty():
            message = f"error: there is no terminal to ask on: {question} Use --yes"
            PrintedLine(message, "red", note=True).show()
            raise typer.Exit(EXIT_UNUSABLE)
        if not typer.confirm(question, err=True):
            typer.echo("nothing was changed", err=True)
            raise typer.Exit(1)


def command(
    app: typer.Typer,
    *examples: str,
    name: str | None = None,
    create: bool = False,
    file_only: bool = False,
) -> Callable[[Function], Function]:
    """Register a function as a command, with examples for its help.

    With `create` the command may create the store. With `file_only` it refuses a server.
    """

    def decorate(function: Function) -> Function:
        lines = "\n".join(f"  millstream {example}" for example in examples)
        epilog = f"\b\nExamples:\n{lines}" if examples else None
        only = examples[0].split()[0] if file_only else ""
        app.command(name, epilog=epilog)(_expanded(function, create=create, file_only=only))
        return function

    return decorate


def _expanded(function: Callable[..., Any], *, create: bool, file_only: str) -> Callable[..., None]:
    """Return the function as typer sees it: every parameter is an argument or an option."""
    hints = get_type_hints(function, include_extras=True)
    answers = hints.get("return") is Printed
    shown: list[inspect.Parameter] = []
    last: list[inspect.Parameter] = []
    groups: dict[str, tuple[Any, list[str]]] = {}
    for parameter in inspect.signature(function).parameters.values():
        name, hint = parameter.name, hints[parameter.name]
        if hint in _NOUNS:
            shown.append(_keyword(name, _NOUNS[hint][0], parameter.default))
        if (options := _options_of(hint)) is None:
            shown.append(_keyword(name, hint, parameter.default))
        else:
            groups[name] = hint, [option.name for option in options]
            (last if hint in _OPENED else shown).extend(options)
    if answers:
        last.append(_keyword("json", AsJson, False))
    # Parse the remaining options first: a typing error must not open, or create, a store.
    in_order = sorted(groups.items(), key=lambda group: group[1][0] in _OPENED)

    @functools.wraps(function)
    def run(**typed: Any) -> None:
        as_json = typed.pop("json") if answers else False
        with ExitStack() as stack:
            for name, (hint, names) in in_order:
                value = _value_of(hint, {option: typed.pop(option) for option in names})
                if hint is not StorePlace and hint in _OPENED:
                    if file_only:
                        value.home(file_only)
                    value = stack.enter_context(value.opened(create=create))
                typed[name] = _NOUNS[hint][1](value, typed[name]) if hint in _NOUNS else value
            answer = function(**typed)
        if answers:
            answer.show(as_json=as_json)

    groups_declared = (_declared(hint) for hint, _ in groups.values())
    run.declared = [each for each in groups_declared if each]  # type: ignore[attr-defined]
    run.__signature__ = inspect.Signature([*shown, *last])  # type: ignore[attr-defined]
    return run


def _options_of(hint: Any) -> list[inspect.Parameter] | None:
    """Return the options of a parameter type; None if the parameter is itself an option."""
    if declared := _declared(hint):
        return [_keyword(name, option, default) for name, option, default in declared.options()]
    kind = StorePlace if hint in _OPENED else hint
    return list(_of_dataclass(kind)) if is_dataclass(kind) else None


def _value_of(hint: Any, typed: dict[str, Any]) -> Any:
    if declared := _declared(hint):
        return declared.fields(typed)
    return (StorePlace if hint in _OPENED else hint)(**typed)


def _declared(hint: Any) -> Declared | None:
    return next((extra for extra in get_args(hint)[1:] if isinstance(extra, Declared)), None)


def _of_dataclass(kind: Any) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield _keyword(field.name, hints[field.name], default)


def _keyword(name: str, hint: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=default)
