"""The settings of a queue as they are typed, and as they are shown."""

from __future__ import annotations

from typing import Any

import typer
from msgspec.structs import replace

from millstream.cli.arguments import parse_past
from millstream.cli.declared import Declared, DeclaredField, Fields
from millstream.cli.display import backoff, per_second, span
from millstream.queue.model.spec import KEY, QueueSpec

_HELPS = {
    "sources": "LOG: a log, or a pattern such as 'orders*'; may be repeated.",
    "filter": "FILTER: only records that match.",
    "max_attempts": "the maximum number of attempts; then a message has failed.",
    "lease": "DURATION: how long a claim holds.",
    "lease_max": "DURATION: the maximum that a consumer may ask for.",
    "backoff": "WAITS: before a retry: 5s, or 1s,10s,1m, or 1s*2 to double each time.",
    "delay": "DURATION: hold every message back.",
    "priority_by": "HEADER: the header that holds a priority, 0 to 9; 9 is the soonest.",
    "priority_step": "DURATION: one level of priority is worth so much waiting.",
    "group_by": "HEADER: the header that names a message's group; _key for its key.",
    "group_in_flight": "of one group at once: 1 keeps its order; 0 is unlimited, shared fairly.",
    "group_rate": "claims per second of one group; 0 is unlimited.",
    "max_in_flight": "the maximum number of messages in flight; 0 is unlimited.",
    "rate": "claims per second; 0 is unlimited.",
    "dedup_by": "HEADER: the header by which repeats are known and dropped; or _key.",
    "dedup_window": "DURATION: how long a message is known for that.",
    "done_retention": "DURATION: how long what is done is known.",
    "bucket_exponent": "10^N claims are stored together.",
    "dead_letter": "LOG: publish failed messages there as well.",
    "keep_payloads": "keep the payloads of what is done.",
    "lossy": "let logs delete what it has not looked at.",
    "description": "TEXT: what it is for.",
    "router": "NAME: who routes it: 'spark', or '' for the queue itself.",
}
SETTINGS = Declared(QueueSpec, _HELPS)
CHANGES = Declared(QueueSpec, _HELPS, show_defaults=False)

_NEEDS = {
    "priority_step": "priority_by",
    "group_in_flight": "group_by",
    "group_rate": "group_by",
    "dedup_window": "dedup_by",
}
"""Settings that mean nothing without another one."""


def changes_of(spec: QueueSpec, given: Fields) -> Fields:
    """What is to change; a field that would mean nothing is refused.

    A lease that is longer than the maximum raises that, unless one is given.
    """
    if "lease" in given:
        given = {"lease_max": max(spec.lease_max, given["lease"]), **given}
    new = replace(spec, **given)
    for name, other in _NEEDS.items():
        if name in given and not getattr(new, other):
            needed, needs = DeclaredField(name, str).flag, DeclaredField(other, str).flag
            raise typer.BadParameter(f"{needed} means nothing without {needs}")
    return given


def parse_start(text: str) -> Fields:
    """Where routing begins: latest, earliest, an offset, or a time."""
    if text.isdecimal():
        return {"start": int(text)}
    if text in ("latest", "earliest"):
        return {"start": text}
    try:
        return {"start_ms": parse_past(text)}
    except typer.BadParameter:
        raise typer.BadParameter(
            f"a queue starts at latest, earliest, an offset, or a time such as 2026-12-24T18:30 or "
            f"15m (ago), not {text!r}"
        ) from None


def spec_facts(spec: QueueSpec) -> list[tuple[str, Any]]:
    """How messages are worked on, for people."""
    return [
        ("attempts", f"up to {spec.max_attempts:,}"),
        ("lease", f"{span(spec.lease_ms)}, up to {span(spec.lease_max_ms)}"),
        ("backoff", backoff(spec.backoff)),
        ("delay", span(spec.delay_ms) if spec.delay_ms else None),
        ("priorities", _priorities_text(spec)),
        ("groups", _groups_text(spec)),
        ("caps", _caps_text(spec)),
        ("repeats", _repeats_text(spec)),
        ("done retention", span(spec.done_retention_s * 1000)),
        ("dead letters", spec.dead_letter),
    ]


def _priorities_text(spec: QueueSpec) -> str:
    if not spec.priority_by:
        return ""
    return f"{_by(spec.priority_by)}, a level is worth {span(spec.priority_step_ms)} of waiting"


def _groups_text(spec: QueueSpec) -> str:
    if not spec.group_by:
        return ""
    how = f"up to {spec.group_in_flight:,} of each in flight"
    if spec.ordered:
        how = "one of each at a time, in order"
    elif not spec.group_in_flight:
        how = "shared fairly"
    pace = f", {per_second(spec.group_rate)} each" if spec.group_rate else ""
    return f"{_by(spec.group_by)}, {how}{pace}"


def _caps_text(spec: QueueSpec) -> str:
    caps = [f"{spec.max_in_flight:,} in flight"] if spec.max_in_flight else []
    if spec.rate:
        caps.append(per_second(spec.rate))
    return ", ".join(caps)


def _repeats_text(spec: QueueSpec) -> str:
    if not spec.dedup_by:
        return ""
    return f"{_by(spec.dedup_by)}, dropped within {span(spec.dedup_window_ms)}"


def _by(name: str) -> str:
    return "by key" if name == KEY else f"by header {name}"
