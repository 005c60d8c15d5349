"""`millstream queue claim`, `ack` and others: single messages, by hand or from a script.

A claim is written CLAIM_ID:ATTEMPT, as `claim` prints it.
"""

from __future__ import annotations

import sys
from base64 import b64encode
from typing import Annotated, Any

import typer
from msgspec.structs import asdict

from millstream import Fate, Message, Queue
from millstream.cli.arguments import duration, parse_headers
from millstream.cli.command import AsJson
from millstream.cli.display import (
    FactSheet,
    Printed,
    Table,
    json_text,
    plural,
    safe,
    say,
    silence,
    span,
    time_of,
)
from millstream.cli.output import Output
from millstream.errors import Conflict, MillstreamError
from millstream.queue.model.message import named_message
from millstream.record import wall_ms_of


def _claim_id(text: str) -> int:
    claim_id = text.partition(":")[0]
    if not claim_id.isdecimal():
        raise typer.BadParameter(f"a claim id must be a number, not {text!r}")
    return int(claim_id)


Claims = Annotated[
    list[str], typer.Argument(metavar="CLAIM...", help="CLAIM_ID:ATTEMPT, as `claim` prints them.")
]
Id = Annotated[int, typer.Argument(metavar="ID", min=0, help="The id that `put --json` printed.")]
Count = Annotated[int, typer.Option("--count", "-n", metavar="N", min=0, help="Most messages.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="The reason; kept with the attempt.")]
Instead = Annotated[float | None, duration("Instead of the queue's setting.")]
Wait = Annotated[float | None, duration("How long to wait for the first message.")]


def claim(
    queue: Queue,
    output: Output,
    count: Count = 1,
    lease: Instead = None,
    wait: Wait = None,
    consumer: Annotated[
        str | None, typer.Option(metavar="NAME", help="The consumer; kept with the attempt.")
    ] = None,
    acked: Annotated[
        list[str] | None,
        typer.Option("--ack", metavar="CLAIM", help="Acknowledge this claim in the same commit."),
    ] = None,
) -> None:
    """Claim messages for the length of a lease. Prints claim, key and value."""
    messages = queue.claim(
        count,
        lease=lease,
        wait=wait,
        consumer=consumer,
        ack=[_parse_claim(queue, text) for text in acked or []],
    )
    _hand_out(messages, output, "they stay claimed until their leases end")


def pop(queue: Queue, output: Output, count: Count = 1, wait: Wait = None) -> None:
    """Take messages, each at most once: a printed message is done."""
    messages = queue.pop(count, wait=wait)
    _hand_out(messages, output, "they are done and will not be delivered again")


def _hand_out(messages: list[Message], output: Output, consequence: str) -> None:
    """Print messages; raise if the output is closed, because the messages are taken."""
    for number, message in enumerate(messages):
        try:
            output.print(message)
            sys.stdout.flush()
        except BrokenPipeError:
            silence()
            unseen = plural(len(messages) - number, "message")
            raise MillstreamError(
                f"the output was closed before {unseen} could be printed; {consequence}"
            ) from None


def ack(queue: Queue, claims: Claims) -> Printed:
    """Acknowledge claims atomically: the work is done."""
    chosen = [_parse_claim(queue, text) for text in claims]
    queue.ack(chosen)
    return _ended(queue, len(chosen), "acknowledged")


def nack(queue: Queue, claims: Claims, delay: Instead = None, reason: Reason = "") -> Printed:
    """Return claims for another attempt. Messages without attempts left fail."""
    chosen = [_parse_claim(queue, text) for text in claims]
    queue.nack(chosen, delay=delay, reason=reason)
    return _ended(queue, len(chosen), "given back")


def fail(queue: Queue, claims: Claims, reason: Reason = "") -> Printed:
    """Fail messages now, even if they have attempts left."""
    chosen = [_parse_claim(queue, text) for text in claims]
    queue.fail(chosen, reason=reason)
    return _ended(queue, len(chosen), "failed")


def renew(queue: Queue, claims: Claims, lease: Instead = None) -> Printed:
    """Renew the leases of claims atomically."""
    chosen = [_parse_claim(queue, text) for text in claims]
    until = queue.renew(chosen, lease=lease)
    return Printed(
        {"queue": queue.name, "count": len(chosen), "until": until},
        f"{plural(len(chosen), 'message')} renewed, until {time_of(until)}",
    )


def peek(
    queue: Queue,
    output: Output,
    count: Count = 10,
    state: Annotated[
        str, typer.Option(metavar="STATE", help="available, delayed, in_flight, done or failed.")
    ] = "available",
    after: Annotated[
        int | None,
        typer.Option(parser=_claim_id, metavar="CLAIM_ID", help="Continue after this message."),
    ] = None,
) -> None:
    """Print messages in a state without claiming them. Prints claim, key and value.

    For delayed messages: id, due time, key and value. `queue cancel` takes the id.
    """
    peeked_state: Any = state.replace("-", "_")  # the store checks it
    for message in queue.peek(count, state=peeked_state, after=-1 if after is None else after):
        output.print(message, is_delayed=peeked_state == "delayed")


def message(
    queue: Queue,
    id: Id,
) -> Printed:
    """Show the state of a message that was put."""
    return _shown_fate(queue, id, queue.message(id))


def _shown_fate(queue: Queue, id: int, fate: Fate) -> Printed:
    notes = {name: _note_text(getattr(fate, name)) for name in ("result", "error", "progress")}
    named = {"until": fate.until, "reason": fate.reason, "claim id": fate.claim_id}
    named |= {name: text for name, text in notes.items() if text is not None}
    if fate.is_cancel_requested:
        named["cancel requested"] = True
    pairs = [("state", fate.state), ("attempts", fate.attempts), *named.items()]
    return Printed({"queue": queue.name, "id": id, **asdict(fate), **notes}, FactSheet(pairs))


def _note_text(note: bytes | None) -> str | None:
    """Return a result, an error or a progress as text; bytes that are no text in base64."""
    if note is None:
        return None
    try:
        return note.decode()
    except UnicodeDecodeError:
        return f"base64:{b64encode(note).decode()}"


def cancel(
    queue: Queue,
    id: Id,
    running: Annotated[
        bool, typer.Option("--running", help="Ask the consumer of a message in flight to stop.")
    ] = False,
) -> Printed:
    """Cancel a message that waits. It may be delayed or scheduled; no consumer gets it.

    Fails if the message is in flight, has ended, or is unknown.
    """
    outcome = queue.cancel(id, running=running)
    if outcome == "requested":
        return Printed(
            {"queue": queue.name, "id": id, "cancelled": False, "requested": True},
            f"the consumer of message {id} is asked to stop",
        )
    if not outcome:
        state = queue.message(id).state
        raise Conflict(
            f"message {id} of queue {queue.name!r} cannot be cancelled: its state is {state!r}; only "
            "a message that waits or is delayed can be cancelled",
            name=queue.name,
            id=id,
        )
    return Printed({"queue": queue.name, "id": id, "cancelled": True}, f"message {id} cancelled")


def wait(
    queue: Queue, id: Id, timeout: Annotated[float | None, duration("How long to wait.")] = None
) -> Printed:
    """Wait until a message has ended: done, failed or cancelled.

    Fails if the message has not ended after the timeout.
    """
    fate = queue.wait(id, timeout=timeout)
    if fate is None:
        raise MillstreamError(f"message {id} of queue {queue.name!r} has not ended yet")
    return _shown_fate(queue, id, fate)


def attempts(
    queue: Queue,
    claim: Annotated[
        int,
        typer.Argument(
            parser=_claim_id, metavar="CLAIM_ID", help="As `claim` and `peek` print it."
        ),
    ],
) -> Printed:
    """List the attempts at a message."""
    tries = queue.attempts(claim)
    rows = [
        (
            number,
            attempt.claimed,
            attempt.consumer,
            attempt.ended and span(wall_ms_of(attempt.ended) - wall_ms_of(attempt.claimed)),
            attempt.outcome,
            attempt.reason.partition("\n")[0],
        )
        for number, attempt in enumerate(tries, start=1)
    ]
    return Printed(
        [{"attempt": number, **asdict(attempt)} for number, attempt in enumerate(tries, start=1)],
        Table(
            ("attempt", "claimed", "consumer", "took", "outcome", "reason"),
            rows,
            none="no attempts",
        ),
    )


def replace(
    queue: Queue,
    claim: Annotated[
        int,
        typer.Argument(
            parser=_claim_id, metavar="CLAIM_ID", help="As `peek --state failed` prints it."
        ),
    ],
    value: Annotated[
        str | None,
        typer.Argument(metavar="VALUE", help="The new value; default: all of stdin."),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", metavar="TEXT", help="The new key.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header, as for `put`."),
    ] = None,
) -> Printed:
    """Replace a failed message. The new message can be claimed at once.

    The new message keeps the attempts of the failed one, but neither its key nor its headers.
    """
    data = sys.stdin.buffer.read() if value is None else value
    new = queue.replace(claim, data, key=key, headers=parse_headers(header or []))
    return Printed(
        {"queue": queue.name, "replaced": claim, "id": new},
        f"message {claim} replaced; its id is {new} now",
    )


def records(queue: Queue, json: AsJson = False) -> None:
    """Print a queue as the records of OpenData-Queue's RFC.

    Prints key and value in hex, and a description; as JSON, one object per record.
    """
    for record in queue.records():
        key, value, description = record.key.hex(), record.value.hex(), record.describe()
        if json:
            say(json_text({"key": key, "value": value, "description": description}))
        else:
            say(f"{key}\t{value}\t{safe(description)}")


def _parse_claim(queue: Queue, text: str) -> Message:
    """Parse CLAIM_ID:ATTEMPT into a message with enough fields to end the attempt."""
    claim_id, colon, attempt = text.partition(":")
    if not (colon and claim_id.isdecimal() and attempt.isdecimal()):
        raise typer.BadParameter(f"a claim must be CLAIM_ID:ATTEMPT, not {text!r}")
    return named_message(queue.name, int(claim_id), int(attempt))


def _ended(queue: Queue, count: int, how: str) -> Printed:
    data = {"queue": queue.name, "count": count, "outcome": how}
    return Printed(data, f"{plural(count, 'message')} {how}")
