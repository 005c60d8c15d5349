"""`millstream log retention`: which records a log deletes by itself."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from msgspec.structs import replace

from millstream import Log, Retention
from millstream.cli.command import Consent
from millstream.cli.declared import Declared, Fields
from millstream.cli.display import Printed, plural, size, span

_RULES = {
    "age_ms": "delete what is older, such as 7d.",
    "bytes": "keep this much, such as 1GiB.",
    "count": "keep so many records.",
    "consumed": "delete what every cursor and queue on it has passed.",
}


def retention(
    log: Log,
    given: Annotated[Fields, Declared(Retention, _RULES)],
    consent: Consent,
    keep_all: Annotated[bool, typer.Option("--keep-all", help="Drop all rules first.")] = False,
    enforce: Annotated[
        bool, typer.Option("--enforce", help="Delete now, not within seconds.")
    ] = False,
) -> Printed:
    """Show or set what a log deletes by itself.

    A record goes as soon as one rule allows it. A rule that is given replaces the one of its kind; the others stay.
    """
    before = log.retention()
    rules = replace(Retention() if keep_all else before, **given)
    if rules != before:
        if rules:
            consent.ask(f"Let log {log.name!r} delete records by the rule: {rules_text(rules)}?")
        log.retain(
            age=None if rules.age_ms is None else rules.age_ms / 1000,
            bytes=rules.bytes,
            count=rules.count,
            consumed=rules.consumed,
        )
    facts = {"log": log.name, "retention": msgspec.to_builtins(rules)}
    if not enforce:
        return Printed(facts, rules_text(rules))
    gone = log.enforce_retention()
    told = f"{plural(gone, 'record')} deleted"
    return Printed({**facts, "deleted": gone}, rules_text(rules), told)


def rules_text(rules: Retention) -> str:
    """What a log deletes by itself, on one line."""
    found = []
    if rules.age_ms is not None:
        found.append(f"age {span(rules.age_ms)}")
    if rules.bytes is not None:
        found.append(f"bytes {size(rules.bytes)}")
    if rules.count is not None:
        found.append(f"count {rules.count:,}")
    if rules.consumed:
        found.append("consumed")
    return ", ".join(found) or "keep all"
