"""`millstream log retention`: show and set the rules by which a log deletes records."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import msgspec
import typer

from millstream import Log, Retention
from millstream.cli.command import Consent
from millstream.cli.declared import Declared, Fields
from millstream.cli.display import Printed, plural, size, span

_RULES = {
    "age_ms": "delete older records, such as 7d.",
    "bytes": "keep this many bytes, such as 1GiB.",
    "count": "keep this many records.",
    "consumed": "delete records that every cursor and queue has passed.",
}


def retention(
    log: Log,
    fields: Annotated[Fields, Declared(Retention, _RULES)],
    consent: Consent,
    keep_all: Annotated[bool, typer.Option("--keep-all", help="Remove all rules.")] = False,
    enforce: Annotated[
        bool, typer.Option("--enforce", help="Delete now, instead of within seconds.")
    ] = False,
) -> Printed:
    """Show or set the rules by which a log deletes records.

    A record is deleted as soon as one rule allows it. The rules that are given replace all rules of
    the log, as `log.retain` does in Python.
    """
    before = log.retention()
    rules = Retention(**fields) if fields or keep_all else before
    if rules != before:
        if rules:
            consent.ask(
                f"Let log {log.name!r} delete records by the rule: {rules_text(rules)}, "
                f"instead of: {rules_text(before)}?"
            )
        log.retain(
            age=None if rules.age_ms is None else timedelta(milliseconds=rules.age_ms),
            bytes=rules.bytes,
            count=rules.count,
            consumed=rules.consumed,
        )
    facts = {"log": log.name, "retention": msgspec.to_builtins(rules)}
    if not enforce:
        return Printed(facts, rules_text(rules))
    deleted = log.enforce_retention()
    summary = f"{plural(deleted, 'record')} deleted"
    return Printed({**facts, "deleted": deleted}, rules_text(rules), summary)


def rules_text(rules: Retention) -> str:
    """Return the rules of a log as one line."""
    texts = []
    if rules.age_ms is not None:
        texts.append(f"age {span(rules.age_ms)}")
    if rules.bytes is not None:
        texts.append(f"bytes {size(rules.bytes)}")
    if rules.count is not None:
        texts.append(f"count {rules.count:,}")
    if rules.consumed:
        texts.append("consumed")
    return ", ".join(texts) or "keep all"
