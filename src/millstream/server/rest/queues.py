"""Queues over REST: list, create, alter, pause, purge, redrive and delete them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from millstream.aio.queue import Queue
from millstream.errors import InvalidInput
from millstream.format.ids import split_id
from millstream.queue import commands as c
from millstream.queue.model.backoff import Backoff
from millstream.queue.model.group_limits import GroupLimit
from millstream.queue.model.message import QueueInfo, messages_of
from millstream.queue.model.spec import IN_FLIGHT_MAX, QueueSpec, no_queue, spec_of
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import Endpoints, Reply
from millstream.server.rest.logs import Existed, Page, RemovedCount, checked_after

ClaimId = Annotated[str, Meta(pattern="^[0-9]{1,19}$")]


class BackoffBody(
    Backoff, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=False
):
    """The delay after the n-th attempt: fixed, growing by a factor up to a maximum, or from a
    list."""


class SpecBody(
    QueueSpec, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=False
):
    """The spec of a queue; a field that is left out has its default."""

    backoff: BackoffBody | float | list[float] = BackoffBody()  # type: ignore[assignment]
    """Or seconds: the same delay after each attempt, or a list of delays."""


class ChangesBody(SpecBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a queue's spec to change; the rest of the spec stays."""


class QueueShown(QueueInfo, frozen=True, kw_only=True):
    """A queue with its counts and its complete spec."""

    spec: SpecBody


class QueuePage(Struct, kw_only=True):
    """Queues in the order of their names."""

    queues: list[QueueShown]
    after: str | None
    """Pass this as `after` for the next page; null: this is the last page."""


class PurgeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which messages to delete."""

    state: Literal["available", "failed"] = "available"


class RedriveBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which failed messages to redrive."""

    where: str | None = None
    """A filter over headers."""
    claims: Annotated[list[ClaimId], Meta(max_length=c.REDRIVE_PER_COMMIT)] | None = None
    """Instead of a filter: the claim ids of the messages, as a peek shows them."""
    limit: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    rate: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    """Messages per second that become available; default: all at once."""
    dry_run: bool = False


class LimitBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """The limits of one group."""

    group: str
    """The name of the group."""
    in_flight: Annotated[int, Meta(ge=0, le=IN_FLIGHT_MAX)] | None = None
    """Most messages of the group in flight; 0 is any number, null the queue's own limit."""
    rate: Annotated[float, Meta(ge=0)] | None = None
    """Claims per second of the group; 0 is any number, null the queue's own limit."""


class GroupLimitsShown(Struct, kw_only=True):
    """The groups with limits of their own."""

    limits: list[LimitBody]
    """The limits of each group, in the order of the names."""


endpoint = Endpoints("queues")


@endpoint("GET /queues")
async def list_queues(ask: Ask, query: Page) -> QueuePage:
    """List queues in the order of their names."""
    infos = await ask.execute(c.ListQueues(checked_after(query.after), query.limit))
    after = infos[-1].name if len(infos) == query.limit else None
    return QueuePage(queues=[_shown(info) for info in infos], after=after)


@endpoint("GET /queues/{queue}", errors=(404,))
async def get_queue(ask: Ask, queue: str) -> QueueShown:
    """Show the spec and the counts of a queue."""
    info = await ask.execute(c.DescribeQueue(queue))
    if info is None:
        raise no_queue(queue)
    return _shown(info)


def _shown(info: QueueInfo) -> QueueShown:
    return msgspec.convert(info, QueueShown, from_attributes=True)


@endpoint(
    "PUT /queues/{queue}",
    description="The queue existed and now has the given spec",
    also={201: "The queue was created"},
    body_optional=True,
    errors=(404, 409),
)
async def specify_queue(ask: Ask, queue: str, body: SpecBody) -> Reply[QueueShown]:
    """Create a queue, or give an existing queue the spec in the body.

    The body is the complete spec: a field that is left out has its default. PATCH changes single
    fields instead. The answer is 409 if a field differs that cannot be altered now; `fields`
    in the answer has both values. An invalid filter is reported by line and column.
    """
    made = await Queue(ask, queue).specify(spec_of(**_named_fields(ask, body)))
    return Reply(await get_queue(ask, queue), 201 if made else 200)


@endpoint("PATCH /queues/{queue}", errors=(404, 409))
async def alter_queue(ask: Ask, queue: str, body: ChangesBody) -> QueueShown:
    """Change some fields of a queue's spec."""
    await Queue(ask, queue).alter(**_named_fields(ask, body))
    return await get_queue(ask, queue)


def _named_fields(ask: Ask, body: SpecBody) -> dict[str, Any]:
    """Return the fields that the body names, with the types of a spec."""
    named = msgspec.json.decode(ask.data, type=dict[str, Raw]) if ask.data else {}
    fields = {name: getattr(body, name) for name in named}
    if isinstance(fields.get("backoff"), BackoffBody):
        fields["backoff"] = Backoff(**msgspec.structs.asdict(fields["backoff"]))
    return fields


@endpoint("DELETE /queues/{queue}")
async def delete_queue(ask: Ask, queue: str) -> Existed:
    """Delete a queue with its messages and its inbox; its sources stay."""
    return Existed(deleted=await ask.execute(c.DeleteQueue(queue)))


@endpoint("POST /queues/{queue}/pause", errors=(404,))
async def pause_queue(ask: Ask, queue: str) -> QueueShown:
    """Pause a queue: no message can be claimed, new messages still arrive."""
    await ask.execute(c.PauseQueue(queue, True))
    return await get_queue(ask, queue)


@endpoint("POST /queues/{queue}/resume", errors=(404,))
async def resume_queue(ask: Ask, queue: str) -> QueueShown:
    """Resume a paused queue: messages can be claimed again."""
    await ask.execute(c.PauseQueue(queue, False))
    return await get_queue(ask, queue)


@endpoint("GET /queues/{queue}/group-limits", errors=(404,))
async def list_group_limits(ask: Ask, queue: str) -> GroupLimitsShown:
    """List the groups of a queue that have limits of their own."""
    limits = await ask.execute(c.ListGroupLimits(queue))
    return GroupLimitsShown(
        limits=[
            LimitBody(group=name, in_flight=limit.in_flight, rate=limit.rate)
            for name, limit in limits.items()
        ]
    )


@endpoint("PUT /queues/{queue}/group-limits", errors=(404,))
async def limit_group(ask: Ask, queue: str, body: LimitBody) -> GroupLimitsShown:
    """Give one group limits of its own, instead of the queue's; without limits, remove them."""
    await ask.execute(c.LimitGroup(queue, body.group, GroupLimit(body.in_flight, body.rate)))
    return await list_group_limits(ask, queue)


@endpoint("POST /queues/{queue}/purge", body_optional=True, errors=(404,))
async def purge_queue(ask: Ask, queue: str, body: PurgeBody) -> RemovedCount:
    """Delete all messages in a state, available or failed."""
    return RemovedCount(count=await ask.execute(c.PurgeQueue(queue, body.state)))


@endpoint("POST /queues/{queue}/redrive", body_optional=True, errors=(404,))
async def redrive_queue(ask: Ask, queue: str, body: RedriveBody) -> RemovedCount:
    """Redrive failed messages: they become available again, under new claim ids."""
    await get_queue(ask, queue)
    if body.claims is not None:
        return RemovedCount(count=await _redrive_claims(ask, queue, body))
    count = await Queue(ask, queue).redrive(
        body.where, limit=body.limit, rate=body.rate, dry_run=body.dry_run
    )
    return RemovedCount(count=count)


async def _redrive_claims(ask: Ask, queue: str, body: RedriveBody) -> int:
    """Redrive the named messages in one commit; return how many were failed."""
    if body.where is not None or body.limit is not None:
        raise InvalidInput("a redrive takes either 'claims', or a filter and a limit; not both")
    chosen = list(dict.fromkeys(int(claim) for claim in body.claims or ()))
    command = c.RedriveClaims(queue, chosen, body.rate)
    if not body.dry_run:
        return await ask.execute(command)
    ask.principal.check(command)
    return sum([await is_failed(ask, queue, claim_id) for claim_id in chosen])


async def is_failed(ask: Ask, queue: str, claim_id: int) -> bool:
    """Whether a message is failed now."""
    after = claim_id - 1 if split_id(claim_id)[1] else -1
    lots = await ask.execute(c.PeekMessages(queue, "failed", 1, after))
    return any(message.claim_id == claim_id for message in messages_of(lots))
