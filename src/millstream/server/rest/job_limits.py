"""Limits per key over REST: list the keys that have limits of their own, and change them.

As for jobs, the permissions have the noun `job`: `job:read:QUEUE` shows limits, and `job:write:QUEUE`
changes them.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from millstream.aio.stored_jobs import StoredJobs
from millstream.jobs.key_limits import PER_MINUTE_MAX, PER_MINUTE_MIN, KeyLimit
from millstream.queue.model.spec import IN_FLIGHT_MAX
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import Endpoints
from millstream.server.rest.jobs import on_jobs


class KeyLimitBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """The limits of one key; without both limits, the limits of the task hold again."""

    queue: Annotated[str, Meta(min_length=1, max_length=255)]
    """The queue of the task."""
    key: str
    """The key, as in the arguments of the jobs."""
    running: Annotated[int, Meta(ge=1, le=IN_FLIGHT_MAX)] | None = None
    """Most jobs of the key that run at a time; null: as the task says."""
    per_minute: Annotated[float, Meta(ge=PER_MINUTE_MIN, le=PER_MINUTE_MAX)] | None = None
    """Most jobs of the key that start in a minute; null: as the task says."""


class KeyLimitList(Struct, kw_only=True):
    """The keys with limits of their own."""

    limits: list[KeyLimit]
    """By queue and key."""


endpoint = Endpoints("jobs")


@endpoint("GET /jobs/limits")
async def list_key_limits(ask: Ask) -> KeyLimitList:
    """List the keys that have limits of their own, instead of the limits of their task.

    Needs `job:read` on a queue; keys of other queues are left out.
    """
    stored = StoredJobs(on_jobs(ask, "read"))
    return KeyLimitList(limits=await stored.limits(await stored.limited_queues()))


@endpoint("PUT /jobs/limits", errors=(404,))
async def limit_key(ask: Ask, body: KeyLimitBody) -> KeyLimitList:
    """Give one key limits of its own, from now on; without limits, remove them.

    Needs `job:write` on the queue.
    """
    stored = StoredJobs(on_jobs(ask, "write"))
    if body.running is None and body.per_minute is None:
        await stored.remove_limit(body.key, queues=[body.queue])
    else:
        await stored.limit(
            body.key, running=body.running, per_minute=body.per_minute, queues=[body.queue]
        )
    return KeyLimitList(limits=await stored.limits([body.queue]))
