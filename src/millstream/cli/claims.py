"""`millstream queue claim` and what follows it: single messages, by hand or from a script.

A claim is written CLAIM_ID:ATTEMPT, as `claim` prints it.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from msgspec.structs import asdict

from millstream import Message, Queue
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
from millstream.errors import MillstreamError
from millstream.queue.model.message import named_message
from millstream.record import wall_ms_of


def _claim_id(text: str) -> int:
    claim_id = text.partition(":")[0]
    if not claim_id.isdecimal():
        raise typer.BadParameter(f"a claim id is a number, not {text!r}")
    return int(claim_id)


Claims = Annotated[
    list[str], typer.Argument(metavar="CLAIM...", help="CLAIM_ID:ATTEMPT, as `claim` prints them.")
]
Count = Annotated[int, typer.Option("--count", "-n", metavar="N", min=0, help="At most so many.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why; kept with the attempt.")]
Instead = Annotated[float | None, duration("Instead of what the queue says.")]
Wait = Annotated[float | None, duration("Wait so long for the first message.")]


def claim(
    queue: Queue,
    output: Output,
    count: Count = 1,
    lease: Instead = None,
    wait: Wait = None,
    consumer: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who claims; kept with the attempt.")
    ] = None,
    acked: Annotated[
        list[str] | None,
        typer.Option("--ack", metavar="CLAIM", help="Acknowledge this in the same commit."),
    ] = None,
) -> None:
    """Claim messages for a while: prints claim, key and value."""
    messages = queue.claim(
        count,
        lease=lease,
        wait=wait,
        consumer=consumer,
        ack=[_parse_claim(queue, text) for text in acked or []],
    )
    _hand_out(messages, output, "they are claimed until their lease ends")


def pop(queue: Queue, output: Output, count: Count = 1, wait: Wait = None) -> None:
    """Take messages, each at most once: they are done as they are printed."""
    messages = queue.pop(count, wait=wait)
    _hand_out(messages, output, "they are done, and will not come again")


def _hand_out(messages: list[Message], output: Output, otherwise: str) -> None:
    """Print messages; if their reader goes away meanwhile, that is an error: they are taken."""
    for number, message in enumerate(messages):
        try:
            output.print(message)
            sys.stdout.flush()
        except BrokenPipeError:
            silence()
            unseen = plural(len(messages) - number, "message")
            raise MillstreamError(
                f"the output was closed before {unseen} could be printed; {otherwise}"
            ) from None


def ack(queue: Queue, claims: Claims) -> Printed:
    """The work is done: acknowledge claims, all or none."""
    chosen = [_parse_claim(queue, text) for text in claims]
    queue.ack(chosen)
    return _ended(queue, len(chosen), "acknowledged")


def nack(queue: Queue, claims: Claims, delay: Instead = None, reason: Reason = "") -> Printed:
    """Try claims again later; without attempts left they fail."""
    chosen = [_parse_claim(queue, text) for text in claims]
    queue.nack(chosen, delay=delay, reason=reason)
    return _ended(queue, len(chosen), "given back")


def fail(queue: Queue, claims: Claims, reason: Reason = "") -> Printed:
    """Give up on claims, whatever attempts are left."""
    chosen = [_parse_claim(queue, text) for text in claims]
    queue.fail(chosen, reason=reason)
    return _ended(queue, len(chosen), "failed")


def renew(queue: Queue, claims: Claims, lease: Instead = None) -> Printed:
    """Go on with claims: their lease begins again, all or none."""
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
        str, typer.Option(metavar="STATE", help="available, in_flight, done or failed.")
    ] = "available",
    after: Annotated[
        int | None,
        typer.Option(parser=_claim_id, metavar="CLAIM_ID", help="Go on behind this one."),
    ] = None,
) -> None:
    """Print messages in a state, without claiming them."""
    for message in queue.peek(
        count, state=state.replace("-", " "), after=-1 if after is None else after
    ):
        output.print(message)


def message(
    queue: Queue,
    id: Annotated[
        int, typer.Argument(metavar="ID", min=0, help="The number that `put --json` has told.")
    ],
) -> Printed:
    """Show what became of a message that was put."""
    fate = queue.message(id)
    named = {"until": fate.until, "reason": fate.reason, "claim id": fate.claim_id}
    pairs = [("state", fate.state), ("attempts", fate.attempts), *named.items()]
    return Printed({"queue": queue.name, "id": id, **asdict(fate)}, FactSheet(pairs))


def attempts(
    queue: Queue,
    claim: Annotated[
        int, typer.Argument(parser=_claim_id, metavar="CLAIM_ID", help="The message.")
    ],
) -> Printed:
    """Show how the attempts at a message went."""
    tries = queue.attempts(claim)
    rows = [
        (
            number,
            one.claimed,
            one.consumer,
            one.ended and span(wall_ms_of(one.ended) - wall_ms_of(one.claimed)),
            one.outcome,
            one.reason.partition("\n")[0],
        )
        for number, one in enumerate(tries, start=1)
    ]
    return Printed(
        [{"attempt": number, **asdict(one)} for number, one in enumerate(tries, start=1)],
        Table(
            ("attempt", "claimed", "consumer", "took", "outcome", "reason"),
            rows,
            none="no attempts",
        ),
    )


def replace(
    queue: Queue,
    claim: Annotated[
        int, typer.Argument(parser=_claim_id, metavar="CLAIM_ID", help="The failed message.")
    ],
    value: Annotated[
        str | None,
        typer.Argument(metavar="VALUE", help="What takes its place; without it, all of stdin."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", metavar="TEXT", help="Its key.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header, as `put` takes it."),
    ] = None,
) -> Printed:
    """Put another message in the place of one that has failed; it can be claimed at once.

    It keeps the attempts that were made, and nothing else of the failed one: key and headers are
    given anew.
    """
    given = sys.stdin.buffer.read() if value is None else value
    new = queue.replace(claim, given, key=key, headers=parse_headers(header or []))
    return Printed(
        {"queue": queue.name, "replaced": claim, "id": new},
        f"message {claim} replaced; it is {new} now",
    )


def records(queue: Queue, json: AsJson = False) -> None:
    """Print a queue as the records of OpenData-Queue's RFC.

    Key and value in hex, and what they say; as JSON one object per record.
    """
    for record in queue.records():
        key, value, said = record.key.hex(), record.value.hex(), record.describe()
        if json:
            say(json_text({"key": key, "value": value, "description": said}))
        else:
            say(f"{key}\t{value}\t{safe(said)}")


def _parse_claim(queue: Queue, text: str) -> Message:
    """A claim from CLAIM_ID:ATTEMPT; enough of a message to end its attempt."""
    claim_id, colon, attempt = text.partition(":")
    if not (colon and claim_id.isdecimal() and attempt.isdecimal()):
        raise typer.BadParameter(f"a claim is CLAIM_ID:ATTEMPT, not {text!r}")
    return named_message(queue.name, int(claim_id), int(attempt))


def _ended(queue: Queue, count: int, how: str) -> Printed:
    data = {"queue": queue.name, "count": count, "outcome": how}
    return Printed(data, f"{plural(count, 'message')} {how}")
