"""`millstream log retention`: what a log may forget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.config import DEFAULT_STORE, AsJson, StorePath, Yes, opened
from millstream.cli.confirm import confirm
from millstream.cli.read import existing

if TYPE_CHECKING:
    from millstream.record import Retention


def retention(
    log: Annotated[str, typer.Argument(metavar="LOG", help="The log.")],
    store: StorePath = Path(DEFAULT_STORE),
    age: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Forget what is older, such as 7d.")
    ] = None,
    bytes: Annotated[
        str | None, typer.Option("--bytes", metavar="SIZE", help="Keep this much, such as 1GiB.")
    ] = None,
    count: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Keep so many records.")
    ] = None,
    consumed: Annotated[
        bool | None,
        typer.Option(
            "--consumed/--no-consumed", help="Forget what every cursor and queue on it has passed."
        ),
    ] = None,
    keep_all: Annotated[bool, typer.Option("--keep-all", help="Drop all rules first.")] = False,
    enforce: Annotated[
        bool, typer.Option("--enforce", help="Forget now, not within seconds.")
    ] = False,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Show or set what a log may forget; a record goes as soon as one rule allows it.

    A rule that is given replaces the one of its kind; the others stay.
    """
    from millstream.cli import display
    from millstream.cli.arguments import parse_duration, parse_size
    from millstream.record import Retention

    age_s = None if age is None else parse_duration(age)
    size = None if bytes is None else parse_size(bytes)
    with opened(store) as ms:
        found = existing(ms, log)
        rules = Retention() if keep_all else found.retention()
        rules = _changed(rules, age_s=age_s, size=size, count=count, consumed=consumed)
        if rules != found.retention():
            if rules:
                confirm(f"Let {log!r} forget by the rule: {display.rules(rules)}?", yes=yes)
            found.retain(
                age=None if rules.age_ms is None else rules.age_ms / 1000,
                bytes=rules.bytes,
                count=rules.count,
                consumed=rules.consumed,
            )
        gone = found.enforce_retention() if enforce else None
    if json:
        import msgspec

        facts = {"log": log, "retention": msgspec.to_builtins(rules)}
        display.say_json(facts if gone is None else {**facts, "forgotten": gone})
        return
    display.say(display.rules(rules))
    if gone is not None:
        display.say(f"{display.plural(gone, 'record')} forgotten")


def _changed(
    rules: Retention,
    *,
    age_s: float | None,
    size: int | None,
    count: int | None,
    consumed: bool | None,
) -> Retention:
    from msgspec.structs import replace

    from millstream.record import to_ms

    if age_s is not None:
        rules = replace(rules, age_ms=to_ms(age_s))
    if size is not None:
        rules = replace(rules, bytes=size)
    if count is not None:
        rules = replace(rules, count=count)
    if consumed is not None:
        rules = replace(rules, consumed=consumed)
    return rules
