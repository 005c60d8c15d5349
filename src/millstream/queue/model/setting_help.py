"""The settings of a queue for users at a prompt: `help(ms.create_queue)` shows every setting."""

from __future__ import annotations

import inspect
from textwrap import fill
from typing import TypeVar

from msgspec import NODEFAULT
from msgspec.structs import FieldInfo, fields

from millstream.queue.model.spec import QueueSettings, QueueSpec

T = TypeVar("T")

WIDTH = 92

MEANINGS = {
    "sources": "logs whose records become messages: names, or patterns with * and ?",
    "filter": "only records that match, such as \"kind = 'refund'\"; put passes without a filter",
    "start": "where to begin in logs that exist: 'latest', 'earliest' or an offset",
    "start_ms": "instead of start: the first record appended at or after this wall time",
    "max_attempts": "the number of attempts until a message has failed",
    "lease": "seconds: how long a claim holds that names no lease of its own",
    "lease_max": "seconds: the longest lease that a consumer may ask for",
    "backoff": "the wait before a retry: seconds, a list of seconds, or a Backoff",
    "delay": "seconds: how long the queue holds back every message",
    "priority_by": "the header that holds a priority, 0 to 9; the higher, the sooner",
    "priority_step": "seconds of waiting that a level of priority is worth",
    "group_by": "the header that names a message's group, or '_key' for the key",
    "group_in_flight": "messages of a group in flight: 1 keeps its order; 0 is any number, fairly",
    "group_order": "whether a group with one message in flight keeps its order",
    "group_rate": "claims per second of each group; 0 is any number",
    "group_burst": "claims of a group at once after a pause; 0: those of one second, at least one",
    "max_in_flight": "messages of the whole queue in flight; 0 is any number",
    "rate": "claims per second of the whole queue; 0 is any number",
    "burst": "claims at once after a pause; 0: those of one second, at least one",
    "dedup_by": "the header by which the queue recognises repeats, or '_key'",
    "dedup_window": "seconds between two appends that count as repeats",
    "dedup_while": "instead of the window: while the first is 'waiting', or 'running' too; or states",
    "done_retention": "seconds for which the queue remembers ended messages; 0: unlimited",
    "keep_payloads": "whether payloads of done messages are kept as long as the messages",
    "bucket_exponent": "10^n claims are stored together; a smaller n suits small queues",
    "dead_letter": "a log to which failed messages are published as well",
    "changes": "a log that gets a record for each change of a message's state",
    "lossy": "whether logs may delete records before the queue has looked at them",
    "description": "a text for people",
    "router": "'spark': a pipeline assigns messages; '': the queue itself does",
}
"""What each setting means, in a line."""


def takes_settings(method: T) -> T:
    """List the settings with their defaults in a method's signature and help."""
    return _with_settings(method, {field.name: _default(field) for field in fields(QueueSpec)})


def takes_changes(method: T) -> T:
    """List the settings in a method's signature and help; settings that are not named stay."""
    return _with_settings(method, {})


def _default(field: FieldInfo) -> object:
    return field.default_factory() if field.default is NODEFAULT else field.default


def _with_settings(method: T, defaults: dict[str, object]) -> T:
    signature = inspect.signature(method)  # type: ignore[arg-type]
    parameters = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    keyword = inspect.Parameter.KEYWORD_ONLY
    settings = [
        inspect.Parameter(name, keyword, default=defaults.get(name, ...), annotation=annotation)
        for name, annotation in QueueSettings.__annotations__.items()
    ]
    method.__signature__ = signature.replace(parameters=parameters + settings)  # type: ignore[attr-defined]
    lines = [
        fill(f"{name}: {meaning}", WIDTH, initial_indent=" " * 12, subsequent_indent=" " * 16)
        for name, meaning in MEANINGS.items()
    ]
    method.__doc__ = "\n".join(
        [(method.__doc__ or "").rstrip(), "", "        Settings:", *lines, ""]
    )
    return method
