"""Limits per key: how many jobs of a task with the same key run at a time and start per minute.

The key is an argument of the job, or a part of one (`"order.customer"`). It is a header of the job's
message, and the queue of the task groups its messages by this header. So the commit of a claim keeps
the limits, with any number of workers. Jobs of a key keep no order: a job that waits for its next
attempt holds up no other job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, TypedDict

import msgspec
from msgspec import UNSET, Struct

from millstream.errors import InvalidInput
from millstream.queue.model.group_limits import GroupLimit
from millstream.queue.model.routing_marks import GROUP_CHARS_MAX
from millstream.queue.model.spec import IN_FLIGHT_MAX

KEY_HEADER = "job-key"
"""The header with the key of a job."""

FIELDS = ("key", "running", "per_minute", "burst")
PER_MINUTE_MIN, PER_MINUTE_MAX = 0.001, 1e9


class LimitsOfTask(TypedDict, total=False):
    """The limits of a task as users write them."""

    key: str
    """The parameter whose argument is the key, or a part of the argument: "order.customer"."""
    running: int
    """The most jobs of a key that run at a time."""
    per_minute: float
    """The most jobs of a key that start in a minute, evenly spread."""
    burst: int
    """The most jobs of a key that start at once after a pause, if `per_minute` allows them."""


class LimitKey(Struct, frozen=True, omit_defaults=True):
    """Where the key of a job is in its arguments."""

    path: str
    default: str = ""
    """The key of a job whose arguments lack it: the default of the parameter."""

    @property
    def parameter(self) -> str:
        """The parameter that holds the key."""
        return self.path.partition(".")[0]

    def of(self, encoded: bytes) -> str:
        """Return the key of a job by its encoded arguments; empty for a job without a key."""
        parameter, _, inner_path = self.path.partition(".")
        return self._key_in(_decoder(parameter).decode(encoded).value, inner_path)

    def of_many(self, calls: Sequence[bytes]) -> list[str]:
        """Return the keys of jobs by their encoded arguments."""
        parameter, _, inner_path = self.path.partition(".")
        decoded = map(_decoder(parameter).decode, calls)
        if inner_path:
            return [self._key_in(call.value, inner_path) for call in decoded]
        values = [call.value for call in decoded]
        if set(map(type, values)) <= {str}:
            return values
        return [self._key_in(value, inner_path) for value in values]

    def _key_in(self, value: Any, inner_path: str) -> str:
        if type(value) is str and not inner_path:
            return value
        return self.default if value is UNSET else key_text(_part(value, inner_path))

    def of_default(self, default: Any) -> str:
        """Return the key of a job that leaves the default of the parameter."""
        value = msgspec.json.decode(msgspec.json.encode(default))
        return key_text(_part(value, self.path.partition(".")[2]))


class KeyLimits(Struct, frozen=True):
    """The limits of a task, checked. 0 is any number."""

    key: LimitKey
    running: int = 0
    per_minute: float = 0.0
    burst: int = 0

    def settings(self) -> dict[str, Any]:
        """Return the settings of the task's queue that keep the limits."""
        return {
            "group_by": KEY_HEADER,
            "group_order": False,
            "group_in_flight": self.running,
            "group_rate": self.per_minute / 60,
            "group_burst": self.burst,
        }


class KeyLimit(Struct, frozen=True, kw_only=True):
    """The limits of one key, instead of the limits of the task. None: as the task says."""

    key: str
    """The key, as in the arguments of the jobs."""
    queue: str
    """The queue of the task."""
    running: int | None = None
    """Most jobs of the key that run at a time."""
    per_minute: float | None = None
    """Most jobs of the key that start in a minute."""


def key_text(value: Any) -> str:
    """Return a key as the text by which the queue groups jobs: text unchanged, other types as JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()


def limits_of(task: str, limits: Mapping[str, Any] | None) -> KeyLimits | None:
    """Return the limits that a user wrote at a decorator; an error names the task and the field."""
    if limits is None:
        return None
    if not isinstance(limits, Mapping):
        raise InvalidInput(
            f"task {task!r}: limits is a dictionary such as "
            f'{{"key": "customer", "running": 2}}, not {limits!r:.100}'
        )
    for name in limits:
        if name not in FIELDS:
            raise InvalidInput(f"task {task!r}: limits has no field {name!r:.100}{_hint(name)}")
    key = limits.get("key")
    if not isinstance(key, str) or not all(part.strip() for part in key.split(".")):
        raise InvalidInput(
            f"task {task!r}: limits needs a key, the name of a parameter such as 'customer', or of a "
            f"part of it such as 'order.customer', not {key!r:.100}"
        )
    where = f"task {task!r}: "
    running = check_running(limits.get("running"), where)
    per_minute = check_per_minute(limits.get("per_minute"), where)
    if running is None and per_minute is None:
        raise InvalidInput(f"task {task!r}: limits needs running, per_minute, or both")
    burst = limits.get("burst")
    if burst is not None and per_minute is None:
        raise InvalidInput(f"task {task!r}: burst has no effect without per_minute")
    if burst is not None and not _is_whole(burst, IN_FLIGHT_MAX):
        raise InvalidInput(f"task {task!r}: burst is a whole number from 1, not {burst!r:.100}")
    return KeyLimits(LimitKey(key), running or 0, per_minute or 0.0, burst or 0)


def check_running(running: Any, where: str = "") -> int | None:
    """Return a valid number of running jobs, or None."""
    if running is None:
        return None
    if _is_whole(running, IN_FLIGHT_MAX):
        return int(running)
    raise InvalidInput(
        f"{where}running is a whole number of jobs from 1 to {IN_FLIGHT_MAX:,}, not {running!r:.100}"
    )


def check_per_minute(per_minute: Any, where: str = "") -> float | None:
    """Return a valid number of jobs per minute, or None."""
    if per_minute is None:
        return None
    is_number = isinstance(per_minute, int | float) and not isinstance(per_minute, bool)
    if not (is_number and PER_MINUTE_MIN <= per_minute <= PER_MINUTE_MAX):
        raise InvalidInput(
            f"{where}per_minute is a number of jobs above 0, such as 60 or 0.5, not {per_minute!r:.100}"
        )
    return float(per_minute)


def check_parameter(task: str, key: LimitKey, parameters: Iterable[str]) -> None:
    """Refuse a key that is no parameter of the task."""
    names = list(parameters)
    if key.parameter in names:
        return
    close = get_close_matches(key.parameter, names, 1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise InvalidInput(
        f"task {task!r}: the key of its limits is {key.path!r}, but {key.parameter!r} is no parameter "
        f"of it; it has {', '.join(names) or 'none'}{hint}"
    )


def limit_of(key: Any, running: Any, per_minute: Any) -> tuple[str, GroupLimit]:
    """Return the name of a key, and its limits for the queue; refuse limits that name nothing."""
    name = checked_key(key)
    running, per_minute = check_running(running), check_per_minute(per_minute)
    if running is None and per_minute is None:
        raise InvalidInput(
            f"the limits of key {name!r} need running, per_minute, or both; to remove them, call "
            "remove_limit"
        )
    return name, GroupLimit(running, None if per_minute is None else per_minute / 60)


def checked_key(key: Any) -> str:
    """Return the name of a key that can have limits of its own."""
    try:
        name = key_text(msgspec.json.decode(msgspec.json.encode(key)))
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"a key with limits of its own is text, or another value of JSON, not {key!r:.100}: {error}"
        ) from None
    if not 1 <= len(name) <= GROUP_CHARS_MAX:
        raise InvalidInput(
            f"a key with limits of its own has from 1 to {GROUP_CHARS_MAX} characters, not {name!r:.100}"
        )
    return name


def limit_shown(key: str, queue: str, limit: GroupLimit) -> KeyLimit:
    """Return the limits of a key as users see them."""
    per_minute = None if limit.rate is None else round(limit.rate * 60, 6)
    return KeyLimit(key=key, queue=queue, running=limit.in_flight, per_minute=per_minute)


def _is_whole(number: Any, maximum: int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= maximum


def _hint(name: Any) -> str:
    close = get_close_matches(str(name), FIELDS, 1)
    return f": did you mean {close[0]!r}?" if close else f"; it has {', '.join(FIELDS)}"


def _part(value: Any, path: str) -> Any:
    """Return the part of a JSON value at a path; None for a path that leads nowhere."""
    for name in path.split(".") if path else ():
        value = value.get(name) if isinstance(value, dict) else None
    return value


@lru_cache(maxsize=1_024)
def _decoder(parameter: str) -> msgspec.json.Decoder[Any]:
    """Return a decoder of the argument of a parameter."""
    shape = msgspec.defstruct("KeyOnly", [("value", Any, UNSET)], rename={"value": parameter})
    return msgspec.json.Decoder(shape)
