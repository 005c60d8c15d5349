"""Queues: what there is, how each stands, its spec, and what is done to it as a whole."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from millstream.aio.queue import Queue
from millstream.queue import commands as c
from millstream.queue.model.backoff import Backoff
from millstream.queue.model.message import QueueInfo
from millstream.queue.model.spec import QueueSpec, no_queue
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import Answer, Endpoint, Reply
from millstream.server.rest.logs import Existed, Page, Removed, checked_after


class BackoffBody(Backoff, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The wait after the n-th attempt: fixed, growing by a factor up to a most, or from a list."""


class SpecBody(QueueSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a queue is; what is left out has its default."""

    backoff: BackoffBody = BackoffBody()


class ChangesBody(SpecBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of a queue's spec that are to change; the others stay."""


class QueuePage(Struct, kw_only=True):
    """Queues in the order of their names."""

    queues: list[QueueInfo]
    after: str | None
    """Ask with this for the next page; null: there is none."""


class PurgeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which messages to forget."""

    state: Literal["available", "failed"] = "available"


class RedriveBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which failed messages to try again."""

    where: str | None = None
    """A filter over headers."""
    limit: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    rate: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    """Messages per second that become due; without one, all at once."""
    dry_run: bool = False


async def list_queues(ask: Ask) -> QueuePage:
    """A page of queues."""
    page: Page = ask.query
    found = await ask.execute(c.ListQueues(checked_after(page.after), page.limit))
    return QueuePage(queues=found, after=found[-1].name if len(found) == page.limit else None)


async def get_queue(ask: Ask) -> QueueInfo:
    """How a queue stands."""
    name = ask.name("queue")
    info = await ask.execute(c.DescribeQueue(name))
    if info is None:
        raise no_queue(name)
    return info


async def specify_queue(ask: Ask) -> Reply:
    """Make a queue, or make it what the body says."""
    spec = QueueSpec(**_given(ask))
    made = await Queue(ask.session, ask.name("queue")).specify(spec)
    return Reply(await get_queue(ask), 201 if made else 200)


async def alter_queue(ask: Ask) -> QueueInfo:
    """Change some fields of a queue's spec."""
    await Queue(ask.session, ask.name("queue")).alter(**_given(ask))
    return await get_queue(ask)


def _given(ask: Ask) -> dict[str, Any]:
    """The fields that the body names, of the types that a spec has."""
    named = msgspec.json.decode(ask.data, type=dict[str, Raw]) if ask.data else {}
    given = {name: getattr(ask.body, name) for name in named}
    if "backoff" in given:
        given["backoff"] = Backoff(**msgspec.structs.asdict(given["backoff"]))
    return given


async def delete_queue(ask: Ask) -> Existed:
    """Forget a queue and its inbox; its sources stay."""
    return Existed(deleted=await ask.execute(c.DeleteQueue(ask.name("queue"))))


async def pause_queue(ask: Ask) -> QueueInfo:
    """Hold claims back."""
    await ask.execute(c.PauseQueue(ask.name("queue"), True))
    return await get_queue(ask)


async def resume_queue(ask: Ask) -> QueueInfo:
    """Let messages be claimed again."""
    await ask.execute(c.PauseQueue(ask.name("queue"), False))
    return await get_queue(ask)


async def purge_queue(ask: Ask) -> Removed:
    """Forget what is available, or failed."""
    return Removed(count=await ask.execute(c.PurgeQueue(ask.name("queue"), ask.body.state)))


async def redrive_queue(ask: Ask) -> Removed:
    """Make failed messages available again."""
    body: RedriveBody = ask.body
    await get_queue(ask)
    count = await Queue(ask.session, ask.name("queue")).redrive(
        body.where, limit=body.limit, rate=body.rate, dry_run=body.dry_run
    )
    return Removed(count=count)


def _endpoint(**about: Any) -> Endpoint:
    return Endpoint(tag="queues", **about)


ENDPOINTS = (
    _endpoint(
        method="GET",
        path="/queues",
        name="listQueues",
        summary="List queues in the order of their names",
        run=list_queues,
        query=Page,
        answers=(Answer(QueuePage),),
    ),
    _endpoint(
        method="GET",
        path="/queues/{queue}",
        name="getQueue",
        summary="How a queue stands: its spec and its counts",
        run=get_queue,
        answers=(Answer(QueueInfo),),
        errors=(404,),
    ),
    _endpoint(
        method="PUT",
        path="/queues/{queue}",
        name="specifyQueue",
        summary="Make a queue, or make it what the body says",
        detail="The body is the whole spec: what it does not name has its default. A queue that "
        "exists with another spec is altered; if a field differs that cannot be altered now, it is "
        "a conflict, and `fields` has both values of each. PATCH changes single fields. A filter "
        "that does not parse is told by line and column.",
        run=specify_queue,
        body=SpecBody,
        body_optional=True,
        answers=(
            Answer(QueueInfo, "It existed, and is now what the body says"),
            Answer(QueueInfo, "It was made", status=201),
        ),
        errors=(404, 409),
    ),
    _endpoint(
        method="PATCH",
        path="/queues/{queue}",
        name="alterQueue",
        summary="Change some fields of a queue's spec",
        run=alter_queue,
        body=ChangesBody,
        answers=(Answer(QueueInfo),),
        errors=(404, 409),
    ),
    _endpoint(
        method="DELETE",
        path="/queues/{queue}",
        name="deleteQueue",
        summary="Forget a queue, its messages and its inbox; its sources stay",
        run=delete_queue,
        answers=(Answer(Existed),),
    ),
    _endpoint(
        method="POST",
        path="/queues/{queue}/pause",
        name="pauseQueue",
        summary="Hold claims back; messages keep arriving",
        run=pause_queue,
        answers=(Answer(QueueInfo),),
        errors=(404,),
    ),
    _endpoint(
        method="POST",
        path="/queues/{queue}/resume",
        name="resumeQueue",
        summary="Let messages be claimed again",
        run=resume_queue,
        answers=(Answer(QueueInfo),),
        errors=(404,),
    ),
    _endpoint(
        method="POST",
        path="/queues/{queue}/purge",
        name="purgeQueue",
        summary="Forget all messages that are available, or failed",
        run=purge_queue,
        body=PurgeBody,
        body_optional=True,
        answers=(Answer(Removed),),
        errors=(404,),
    ),
    _endpoint(
        method="POST",
        path="/queues/{queue}/redrive",
        name="redriveQueue",
        summary="Make failed messages available again, under new claim ids",
        run=redrive_queue,
        body=RedriveBody,
        body_optional=True,
        answers=(Answer(Removed),),
        errors=(404,),
    ),
)
