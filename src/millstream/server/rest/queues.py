"""Queues: what there is, how each stands, its spec, and what is done to it as a whole."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from millstream.aio.queue import Queue
from millstream.errors import InvalidInput
from millstream.format.ids import split_id
from millstream.queue import commands as c
from millstream.queue.model.backoff import Backoff
from millstream.queue.model.message import QueueInfo, messages_of
from millstream.queue.model.spec import QueueSpec, no_queue, spec_of
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import Endpoints, Reply
from millstream.server.rest.logs import Existed, Page, RemovedCount, checked_after

ClaimId = Annotated[str, Meta(pattern="^[0-9]{1,19}$")]


class BackoffBody(
    Backoff, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=False
):
    """The wait after the n-th attempt: fixed, growing by a factor up to a most, or from a list."""


class SpecBody(
    QueueSpec, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=False
):
    """What a queue is; what is left out has its default."""

    backoff: BackoffBody | float | list[float] = BackoffBody()  # type: ignore[assignment]
    """Or seconds: the same wait each time, or one after the other."""


class ChangesBody(SpecBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of a queue's spec that are to change; the others stay."""


class QueueShown(QueueInfo, frozen=True, kw_only=True):
    """How a queue stands, with its whole spec."""

    spec: SpecBody


class QueuePage(Struct, kw_only=True):
    """Queues in the order of their names."""

    queues: list[QueueShown]
    after: str | None
    """Ask with this for the next page; null: there is none."""


class PurgeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which messages to forget."""

    state: Literal["available", "failed"] = "available"


class RedriveBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which failed messages to try again."""

    where: str | None = None
    """A filter over headers."""
    claims: Annotated[list[ClaimId], Meta(max_length=c.REDRIVE_PER_COMMIT)] | None = None
    """Instead of a filter: the claim ids of the messages, as a peek tells them."""
    limit: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    rate: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    """Messages per second that become due; without one, all at once."""
    dry_run: bool = False


endpoint = Endpoints("queues")


@endpoint("GET /queues")
async def list_queues(ask: Ask, query: Page) -> QueuePage:
    """List queues in the order of their names."""
    found = await ask.execute(c.ListQueues(checked_after(query.after), query.limit))
    after = found[-1].name if len(found) == query.limit else None
    return QueuePage(queues=[_shown(info) for info in found], after=after)


@endpoint("GET /queues/{queue}", errors=(404,))
async def get_queue(ask: Ask, queue: str) -> QueueShown:
    """How a queue stands: its spec and its counts."""
    info = await ask.execute(c.DescribeQueue(queue))
    if info is None:
        raise no_queue(queue)
    return _shown(info)


def _shown(info: QueueInfo) -> QueueShown:
    return msgspec.convert(info, QueueShown, from_attributes=True)


@endpoint(
    "PUT /queues/{queue}",
    description="It existed, and is now what the body says",
    also={201: "It was made"},
    body_optional=True,
    errors=(404, 409),
)
async def specify_queue(ask: Ask, queue: str, body: SpecBody) -> Reply[QueueShown]:
    """Make a queue, or make it what the body says.

    The body is the whole spec: what it does not name has its default. A queue that exists with
    another spec is altered; if a field differs that cannot be altered now, it is a conflict, and
    `fields` has both values of each. PATCH changes single fields. A filter that does not parse is
    told by line and column.
    """
    made = await Queue(ask, queue).specify(spec_of(**_given(ask, body)))
    return Reply(await get_queue(ask, queue), 201 if made else 200)


@endpoint("PATCH /queues/{queue}", errors=(404, 409))
async def alter_queue(ask: Ask, queue: str, body: ChangesBody) -> QueueShown:
    """Change some fields of a queue's spec."""
    await Queue(ask, queue).alter(**_given(ask, body))
    return await get_queue(ask, queue)


def _given(ask: Ask, body: SpecBody) -> dict[str, Any]:
    """The fields that the body names, of the types that a spec has."""
    named = msgspec.json.decode(ask.data, type=dict[str, Raw]) if ask.data else {}
    given = {name: getattr(body, name) for name in named}
    if isinstance(given.get("backoff"), BackoffBody):
        given["backoff"] = Backoff(**msgspec.structs.asdict(given["backoff"]))
    return given


@endpoint("DELETE /queues/{queue}")
async def delete_queue(ask: Ask, queue: str) -> Existed:
    """Forget a queue, its messages and its inbox; its sources stay."""
    return Existed(deleted=await ask.execute(c.DeleteQueue(queue)))


@endpoint("POST /queues/{queue}/pause", errors=(404,))
async def pause_queue(ask: Ask, queue: str) -> QueueShown:
    """Hold claims back; messages keep arriving."""
    await ask.execute(c.PauseQueue(queue, True))
    return await get_queue(ask, queue)


@endpoint("POST /queues/{queue}/resume", errors=(404,))
async def resume_queue(ask: Ask, queue: str) -> QueueShown:
    """Let messages be claimed again."""
    await ask.execute(c.PauseQueue(queue, False))
    return await get_queue(ask, queue)


@endpoint("POST /queues/{queue}/purge", body_optional=True, errors=(404,))
async def purge_queue(ask: Ask, queue: str, body: PurgeBody) -> RemovedCount:
    """Forget all messages that are available, or failed."""
    return RemovedCount(count=await ask.execute(c.PurgeQueue(queue, body.state)))


@endpoint("POST /queues/{queue}/redrive", body_optional=True, errors=(404,))
async def redrive_queue(ask: Ask, queue: str, body: RedriveBody) -> RemovedCount:
    """Make failed messages available again, under new claim ids."""
    await get_queue(ask, queue)
    if body.claims is not None:
        return RemovedCount(count=await _redrive_claims(ask, queue, body))
    count = await Queue(ask, queue).redrive(
        body.where, limit=body.limit, rate=body.rate, dry_run=body.dry_run
    )
    return RemovedCount(count=count)


async def _redrive_claims(ask: Ask, queue: str, body: RedriveBody) -> int:
    """Redrive messages that were named, in one commit; how many were failed."""
    if body.where is not None or body.limit is not None:
        raise InvalidInput("a redrive names 'claims', or has a filter and a limit; not both")
    chosen = list(dict.fromkeys(int(one) for one in body.claims or ()))
    command = c.RedriveClaims(queue, chosen, body.rate)
    if not body.dry_run:
        return await ask.execute(command)
    ask.principal.check(command)
    return sum([await is_failed(ask, queue, claim_id) for claim_id in chosen])


async def is_failed(ask: Ask, queue: str, claim_id: int) -> bool:
    """Whether a message is failed now."""
    after = claim_id - 1 if split_id(claim_id)[1] else -1
    found = await ask.execute(c.PeekMessages(queue, "failed", 1, after))
    return any(message.claim_id == claim_id for message in messages_of(found))
