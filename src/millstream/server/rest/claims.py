"""Claims over REST: claim and pop messages, and end attempts (ack, nack, fail, renew).

A claim is shown as the text "CLAIM_ID:ATTEMPT", because JSON numbers cannot hold its 64 bits.
"""

from __future__ import annotations

import asyncio
import re
from datetime import datetime
from typing import Annotated

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from millstream.errors import InvalidInput, LeaseLost
from millstream.queue import commands as c
from millstream.queue.model.message import messages_of
from millstream.queue.model.note import Result
from millstream.queue.rules.claims import CLAIM_MAX
from millstream.queue.runs import joined_claims
from millstream.record import optional_ms
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import Endpoints
from millstream.server.rest.messages import MessagePage
from millstream.server.rest.payload import Delay, Wait, show_message

CLAIMS_MAX = 10_000
"""Most claims in one request."""

_TOKEN = re.compile(r"([0-9]{1,20}):([0-9]{1,10})")

Token = Annotated[str, Meta(pattern=f"^{_TOKEN.pattern}$")]
Tokens = Token | list[Token]
ResultsByToken = dict[Token, bytes]
Count = Annotated[int, Meta(ge=1, le=CLAIM_MAX)]
Lease = Annotated[float, Meta(gt=0, le=1e12)]


class PopBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """How many messages to pop, and how long to wait."""

    n: Count = 1
    wait: Wait | None = None
    """Seconds to wait for the first message, if the queue is empty."""


class ResultFields(Struct, forbid_unknown_fields=True, kw_only=True):
    """The results of acknowledged claims: of one claim as JSON or base64, of several by claim."""

    result: Raw | UnsetType = UNSET
    """The result of the only claim, as JSON."""
    result_base64: bytes | None = None
    """The result of the only claim, as bytes."""
    results: ResultsByToken = {}
    """Results by claim, in base64."""


class ErrorFields(Struct, forbid_unknown_fields=True, kw_only=True):
    """Why the attempts end: a reason in words, and an error as JSON or base64."""

    reason: str = ""
    """Why, in words."""
    error: Raw | UnsetType = UNSET
    """An error as JSON, up to 64 KiB; the text is stored with each message."""
    error_base64: bytes | None = None
    """An error as bytes, instead of `error`."""


class ClaimBody(PopBody, forbid_unknown_fields=True, kw_only=True):
    """How many messages to claim; `ack` acknowledges earlier claims in the same commit."""

    lease: Lease | None = None
    """Seconds; default: the queue's spec."""
    consumer: str | None = None
    ack: list[Token] = []
    results: ResultsByToken = {}
    """Results of acknowledged claims, by claim, in base64."""
    group_runs: bool = False
    """Whether the answer may hold several messages of an ordered group, in order. The group waits until
    the attempts at all of them have ended."""


class AckBody(ResultFields, forbid_unknown_fields=True, kw_only=True):
    """Claims to acknowledge, atomically; with `each`, every claim whose lease still holds."""

    claims: Tokens
    each: bool = False


class NackBody(ErrorFields, forbid_unknown_fields=True, kw_only=True):
    """Claims to give back, so that the messages are tried again."""

    claims: Tokens
    each: bool = False
    delay: Delay | None = None
    """Seconds until the next attempt; default: the queue's backoff."""


class FailBody(ErrorFields, forbid_unknown_fields=True, kw_only=True):
    """Claims whose messages are given up."""

    claims: Tokens
    each: bool = False


class RenewBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Claims whose leases are renewed."""

    claims: Tokens
    each: bool = False
    lease: Lease | None = None
    """Seconds from now; default: the queue's spec."""


class ProgressBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Claims whose progress is stored, and the progress as JSON or base64."""

    claims: Tokens
    progress: Raw | UnsetType = UNSET
    """The progress as JSON, up to 64 KiB."""
    progress_base64: bytes | None = None
    """The progress as bytes, instead of `progress`."""


class Finished(Struct, kw_only=True):
    """How many attempts were ended; with `each`, also the claims whose leases were lost."""

    count: int
    lost: list[str]


class RenewedClaims(Struct, kw_only=True):
    """When the leases end; with `each`, also the claims whose leases were lost."""

    until: datetime | None
    lost: list[str]


endpoint = Endpoints("claims")


@endpoint("POST /queues/{queue}/claims", body_optional=True, errors=(404, 409, 410))
async def claim_messages(ask: Ask, queue: str, body: ClaimBody) -> MessagePage:
    """Claim messages for the length of a lease; `wait` waits for the first message."""
    command = c.ClaimMessages(
        queue=queue,
        count=body.n,
        lease_ms=optional_ms(body.lease),
        consumer=ask.principal.name if body.consumer is None else body.consumer,
        wait_ms=ask.wait_ms(body.wait) or None,
        acked=runs_of(body.ack),
        results=_by_claim(body.results),
        group_runs=body.group_runs,
    )
    return await _messages(ask, command)


@endpoint("POST /queues/{queue}/pop", body_optional=True, errors=(404, 410))
async def pop_messages(ask: Ask, queue: str, body: PopBody) -> MessagePage:
    """Claim and acknowledge messages in one commit: each message is delivered at most once."""
    wait_ms = ask.wait_ms(body.wait) or None
    command = c.ClaimMessages(
        queue=queue,
        count=body.n,
        lease_ms=None,
        consumer=ask.principal.name,
        wait_ms=wait_ms,
        acked=[],
        pop=True,
    )
    return await _messages(ask, command)


async def _messages(ask: Ask, command: c.ClaimMessages) -> MessagePage:
    if command.wait_ms:
        lots = await ask.unless_over(command) or []
    else:
        lots = await ask.execute(command)
    return MessagePage(messages=[show_message(message) for message in messages_of(lots)])


@endpoint("POST /queues/{queue}/ack", errors=(404, 409))
async def ack_claims(ask: Ask, queue: str, body: AckBody) -> Finished:
    """Acknowledge messages as done.

    Repeating the request succeeds. After the lease has ended the answer is `LeaseLost`.
    """
    runs = runs_of(body.claims)
    results = results_of(body, body.claims)
    return await _finish(ask, c.FinishClaims(queue, runs, "ack", each=body.each, results=results))


@endpoint("POST /queues/{queue}/nack", errors=(404, 409))
async def nack_claims(ask: Ask, queue: str, body: NackBody) -> Finished:
    """Give messages back, to be tried again after the queue's backoff or a delay.

    A message without attempts left fails."""
    runs = runs_of(body.claims)
    delay_ms, error = optional_ms(body.delay), error_of(body)
    return await _finish(
        ask,
        c.FinishClaims(
            queue=queue,
            claims=runs,
            outcome="nack",
            delay_ms=delay_ms,
            reason=body.reason,
            each=body.each,
            error=error,
        ),
    )


@endpoint("POST /queues/{queue}/fail", errors=(404, 409))
async def fail_claims(ask: Ask, queue: str, body: FailBody) -> Finished:
    """Fail messages now, even if they have attempts left."""
    runs = runs_of(body.claims)
    error = error_of(body)
    return await _finish(
        ask,
        c.FinishClaims(
            queue=queue,
            claims=runs,
            outcome="fail",
            reason=body.reason,
            each=body.each,
            error=error,
        ),
    )


async def _finish(ask: Ask, command: c.FinishClaims) -> Finished:
    lost = tokens_of(await ask.execute(command))
    return Finished(count=sum(count for _, count, _ in command.claims) - len(lost), lost=lost)


@endpoint("POST /queues/{queue}/renew", errors=(404, 409))
async def renew_claims(ask: Ask, queue: str, body: RenewBody) -> RenewedClaims:
    """Renew the leases of claims."""
    runs, lease_ms = runs_of(body.claims), optional_ms(body.lease)
    if not body.each:
        end = await ask.execute(c.RenewClaims(queue, runs, lease_ms))
        return RenewedClaims(until=end.until, lost=[])
    claims = claims_of(body.claims)
    answers = await asyncio.gather(
        *(
            ask.execute(c.RenewClaims(queue, [(claim_id, 1, attempt)], lease_ms))
            for claim_id, attempt in claims
        ),
        return_exceptions=True,
    )
    lost, until = [], []
    for (claim_id, attempt), answer in zip(claims, answers, strict=True):
        if isinstance(answer, LeaseLost):
            lost.append(f"{claim_id}:{attempt}")
        elif isinstance(answer, BaseException):
            raise answer
        else:
            until.append(answer.until)
    return RenewedClaims(until=min(until, default=None), lost=lost)


@endpoint("POST /queues/{queue}/progress", errors=(404, 409))
async def note_progress(ask: Ask, queue: str, body: ProgressBody) -> Finished:
    """Store how far the work on claims has come; `GET /queues/{queue}/messages/{id}` shows it."""
    progress = _given(body.progress, body.progress_base64, "progress")
    if progress is None:
        raise InvalidInput("'progress' or 'progress_base64' is missing")
    runs = runs_of(body.claims)
    await ask.execute(c.NoteProgress(queue, runs, progress))
    return Finished(count=sum(count for _, count, _ in runs), lost=[])


def results_of(fields: ResultFields, claims: str | list[str]) -> list[Result]:
    """Return the results of acknowledged claims, by claim id."""
    result = _given(fields.result, fields.result_base64, "result")
    if result is None:
        return _by_claim(fields.results)
    named = claims_of(claims)
    if len(named) != 1 or fields.results:
        raise InvalidInput(
            f"'result' is the result of one claim, and {len(named):,} are named: give 'results', an "
            "object with the result of each claim in base64"
        )
    return [(named[0][0], result)]


def error_of(fields: ErrorFields) -> bytes | None:
    """Return the error of attempts, or None."""
    return _given(fields.error, fields.error_base64, "error")


def _given(text: Raw | UnsetType, data: bytes | None, name: str) -> bytes | None:
    if isinstance(text, UnsetType):
        return data
    if data is not None:
        raise InvalidInput(f"'{name}' and '{name}_base64' exclude each other: give one of them")
    return bytes(text)


def _by_claim(results: dict[str, bytes]) -> list[Result]:
    return [(_claim_of(token)[0], result) for token, result in results.items()]


def claims_of(tokens: str | list[str]) -> list[tuple[int, int]]:
    """Return claim ids and attempts from their tokens, each once, in order."""
    chosen = [tokens] if isinstance(tokens, str) else tokens
    if len(chosen) > CLAIMS_MAX:
        raise InvalidInput(f"a request names up to {CLAIMS_MAX:,} claims, not {len(chosen):,}")
    return sorted({_claim_of(token) for token in chosen})


def _claim_of(token: str) -> tuple[int, int]:
    match = _TOKEN.fullmatch(token)
    if match is None or int(match[1]) >= 2**63:
        raise InvalidInput(
            f"a claim must be 'CLAIM_ID:ATTEMPT', as a claim returned it, not {token!r}"
        )
    return int(match[1]), int(match[2])


def runs_of(tokens: str | list[str]) -> list[c.Run]:
    """Join claims into the fewest runs of adjacent claim ids with the same attempt."""
    return joined_claims(claims_of(tokens))


def tokens_of(runs: list[c.Run]) -> list[str]:
    """Return claims as the tokens that clients know."""
    return [f"{first + i}:{attempt}" for first, count, attempt in runs for i in range(count)]
