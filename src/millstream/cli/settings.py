"""The settings of a queue: options, and the form in the output."""

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
    "max_attempts": "the maximum number of attempts, after which a message fails.",
    "lease": "DURATION: how long a claim holds.",
    "lease_max": "DURATION: the longest lease that a consumer may ask for.",
    "backoff": "WAITS: the delay before a retry: 5s, or 1s,10s,1m, or 1s*2 to double it each time.",
    "delay": "DURATION: how long every message is delayed.",
    "priority_by": "HEADER: the header with the priority, 0 to 9; 9 goes first.",
    "priority_step": "DURATION: a level of priority counts as much as this long a wait.",
    "group_by": "HEADER: the header with the message's group; _key for its key.",
    "group_in_flight": "most messages of a group in flight; 1: in order; 0: unlimited, shared fairly.",
    "group_order": "keep the order of a group with one message in flight.",
    "group_rate": "claims per second of one group; 0: unlimited.",
    "group_burst": "most claims of one group at once after a pause; 0: those of one second.",
    "max_in_flight": "the maximum number of messages in flight; 0: unlimited.",
    "rate": "claims per second; 0: unlimited.",
    "burst": "most claims at once after a pause; 0: those of one second.",
    "dedup_by": "HEADER: the header with the id by which repeats are dropped; or _key.",
    "dedup_window": "DURATION: how long the ids of messages are remembered.",
    "dedup_while": "STATE: drop repeats while the first message is waiting, or running too; or STATE,STATE.",
    "done_retention": "DURATION: how long ended messages are remembered.",
    "bucket_exponent": "10^N claims are stored together.",
    "dead_letter": "LOG: also publish failed messages to this log.",
    "changes": "LOG: append each change of a message's state to this log.",
    "keep_payloads": "keep the payloads of done messages.",
    "lossy": "let logs delete records that the queue has not routed.",
    "description": "TEXT: the purpose of the queue.",
    "router": "NAME: who routes the queue: 'spark', or '' for the queue itself.",
}
SETTINGS = Declared(QueueSpec, _HELPS)
CHANGES = Declared(QueueSpec, _HELPS, show_defaults=False)

_NEEDS = {
    "priority_step": "priority_by",
    "group_in_flight": "group_by",
    "group_order": "group_by",
    "group_rate": "group_by",
    "group_burst": "group_rate",
    "burst": "rate",
    "dedup_window": "dedup_by",
    "dedup_while": "dedup_by",
}
"""Settings that have no effect without another setting."""


def changes_of(spec: QueueSpec, fields: Fields) -> Fields:
    """Return the fields to change; refuse a field without effect.

    A lease longer than the maximum raises the maximum, unless a maximum is given.
    """
    if "lease" in fields:
        fields = {"lease_max": max(spec.lease_max, fields["lease"]), **fields}
    new = replace(spec, **fields)
    for name, needed in _NEEDS.items():
        if name in fields and not getattr(new, needed):
            flag, needed_flag = DeclaredField(name, str).flag, DeclaredField(needed, str).flag
            raise typer.BadParameter(f"{flag} has no effect without {needed_flag}")
    return fields


def parse_start(text: str) -> Fields:
    """Parse the start of routing: latest, earliest, an offset, or a time."""
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
    """Return the settings for the handling of messages, as names and texts."""
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
        ("changes", spec.changes),
    ]


def _priorities_text(spec: QueueSpec) -> str:
    if not spec.priority_by:
        return ""
    return f"{_by(spec.priority_by)}, a level counts as {span(spec.priority_step_ms)} of waiting"


def _groups_text(spec: QueueSpec) -> str:
    if not spec.group_by:
        return ""
    how = f"up to {spec.group_in_flight:,} of each in flight"
    if spec.ordered:
        how = "one of each at a time, in order"
    elif spec.group_in_flight == 1:
        how = "one of each at a time, in any order"
    elif not spec.group_in_flight:
        how = "shared fairly"
    pace = f", {_pace_text(spec.group_rate, spec.group_burst)} each" if spec.group_rate else ""
    return f"{_by(spec.group_by)}, {how}{pace}"


def _caps_text(spec: QueueSpec) -> str:
    caps = [f"{spec.max_in_flight:,} in flight"] if spec.max_in_flight else []
    if spec.rate:
        caps.append(_pace_text(spec.rate, spec.burst))
    return ", ".join(caps)


def _pace_text(rate: float, burst: int) -> str:
    return per_second(rate) + (f", up to {burst:,} at once" if burst else "")


def _repeats_text(spec: QueueSpec) -> str:
    if not spec.dedup_by:
        return ""
    if spec.dedup_while:
        short = {"waiting": "waits", "running": "waits or runs"}
        states = short.get(spec.dedup_while) or f"is {spec.dedup_while.replace(',', ' or ')}"
        return f"{_by(spec.dedup_by)}, dropped while the first message {states}"
    return f"{_by(spec.dedup_by)}, dropped within {span(spec.dedup_window_ms)}"


def _by(name: str) -> str:
    return "by key" if name == KEY else f"by header {name}"
