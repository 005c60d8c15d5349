"""`millstream queue claim` and what follows it: single messages, by hand or from a script.

A claim is written CLAIM_ID:ATTEMPT, as `claim` prints it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.config import DEFAULT_STORE, AsJson, StorePath, existing_queue, opened

if TYPE_CHECKING:
    from millstream.queue.model.message import Message

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")]
Claims = Annotated[
    list[str], typer.Argument(metavar="CLAIM...", help="CLAIM_ID:ATTEMPT, as `claim` prints them.")
]
Count = Annotated[int, typer.Option("--count", "-n", metavar="N", min=0, help="At most so many.")]
MessagesJson = Annotated[bool, typer.Option("--json", help="One JSON object per message.")]
Values = Annotated[bool, typer.Option("--values", help="Values only, as they are, one per line.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why; kept with the attempt.")]
Duration = typer.Option(metavar="DURATION", help="Instead of what the queue says.")


def claim(
    queue: QueueName,
    store: StorePath = Path(DEFAULT_STORE),
    count: Count = 1,
    lease: Annotated[str | None, Duration] = None,
    wait: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Wait so long for the first.")
    ] = None,
    consumer: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who claims; kept with the attempt.")
    ] = None,
    acked: Annotated[
        list[str] | None,
        typer.Option("--ack", metavar="CLAIM", help="Acknowledge this in the same commit."),
    ] = None,
    json: MessagesJson = False,
    values: Values = False,
) -> None:
    """Claim messages for a while, and print them: claim, key and value."""
    from millstream.cli.arguments import parse_duration

    printer = _choose_printer(json=json, values=values)
    finished = [parse_claim(queue, text) for text in acked or []]
    with opened(store) as ms:
        for message in existing_queue(ms, queue).claim(
            count,
            lease=None if lease is None else parse_duration(lease),
            wait=None if wait is None else parse_duration(wait),
            consumer=consumer,
            ack=finished,
        ):
            printer(message)


def ack(
    queue: QueueName, claims: Claims, store: StorePath = Path(DEFAULT_STORE), json: AsJson = False
) -> None:
    """The work is done: acknowledge claims, all or none."""

    chosen = [parse_claim(queue, text) for text in claims]
    with opened(store) as ms:
        existing_queue(ms, queue).ack(chosen)
    _say_ended(queue, len(chosen), "acknowledged", as_json=json)


def nack(
    queue: QueueName,
    claims: Claims,
    store: StorePath = Path(DEFAULT_STORE),
    delay: Annotated[str | None, Duration] = None,
    reason: Reason = "",
    json: AsJson = False,
) -> None:
    """Try claims again later; without attempts left they fail."""
    from millstream.cli.arguments import parse_duration

    chosen = [parse_claim(queue, text) for text in claims]
    delay_s = None if delay is None else parse_duration(delay)
    with opened(store) as ms:
        existing_queue(ms, queue).nack(chosen, delay=delay_s, reason=reason)
    _say_ended(queue, len(chosen), "given back", as_json=json)


def fail(
    queue: QueueName,
    claims: Claims,
    store: StorePath = Path(DEFAULT_STORE),
    reason: Reason = "",
    json: AsJson = False,
) -> None:
    """Give up on claims, whatever attempts are left."""

    chosen = [parse_claim(queue, text) for text in claims]
    with opened(store) as ms:
        existing_queue(ms, queue).fail(chosen, reason=reason)
    _say_ended(queue, len(chosen), "failed", as_json=json)


def peek(
    queue: QueueName,
    store: StorePath = Path(DEFAULT_STORE),
    count: Count = 10,
    state: Annotated[str, typer.Option(help="available, in_flight, done or failed.")] = "available",
    after: Annotated[
        str | None, typer.Option(metavar="CLAIM_ID", help="Go on behind this one.")
    ] = None,
    json: MessagesJson = False,
    values: Values = False,
) -> None:
    """Print messages in a state, without claiming them."""

    printer = _choose_printer(json=json, values=values)
    position = -1 if after is None else _claim_id(after)
    with opened(store) as ms:
        found = existing_queue(ms, queue)
        for message in found.peek(count, state=state.replace("-", " "), after=position):
            printer(message)


def attempts(
    queue: QueueName,
    claim: Annotated[str, typer.Argument(metavar="CLAIM_ID", help="The message.")],
    store: StorePath = Path(DEFAULT_STORE),
    json: AsJson = False,
) -> None:
    """Show how the attempts at a message went."""
    from msgspec.structs import asdict

    from millstream.cli import display
    from millstream.record import wall_ms_of

    with opened(store) as ms:
        tries = existing_queue(ms, queue).attempts(_claim_id(claim))
    if json:
        display.say_json([{"attempt": n, **asdict(one)} for n, one in enumerate(tries, start=1)])
        return
    if not tries:
        display.note("no attempts")
        return
    display.say_table(
        ("attempt", "claimed", "consumer", "took", "outcome", "reason"),
        [
            (
                str(number),
                display.time_of(one.claimed),
                display.safe(one.consumer),
                "-"
                if one.ended is None
                else display.span(wall_ms_of(one.ended) - wall_ms_of(one.claimed)),
                one.outcome,
                display.safe(one.reason) or "-",
            )
            for number, one in enumerate(tries, start=1)
        ],
        numbers=("attempt", "took"),
    )


def parse_claim(queue: str, text: str) -> Message:
    """A claim from CLAIM_ID:ATTEMPT; enough of a message to end its attempt."""
    from millstream.queue.model.message import named_message

    claim_id, colon, attempt = text.partition(":")
    if not (colon and claim_id.isdecimal() and attempt.isdecimal()):
        raise typer.BadParameter(f"a claim is CLAIM_ID:ATTEMPT, not {text!r}")
    return named_message(queue, int(claim_id), int(attempt))


def _claim_id(text: str) -> int:
    claim_id = text.partition(":")[0]
    if not claim_id.isdecimal():
        raise typer.BadParameter(f"a claim id is a number, not {text!r}")
    return int(claim_id)


def message_json(message: Message) -> dict[str, Any]:
    """A message as one JSON object; ids are text, for they are too large for a JavaScript number."""
    from millstream.cli.display import record_json
    from millstream.record import Record

    record = record_json(
        Record(
            message.log,
            message.offset,
            message.value,
            message.timestamp,
            message.key,
            message.headers,
        )
    )
    del record["appended"]
    return {
        "queue": message.queue,
        "claim": f"{message.claim_id}:{message.attempt}",
        "claim_id": str(message.claim_id),
        "attempt": message.attempt,
        "until": message.until,
        "reason": message.reason,
        **record,
    }


def _choose_printer(*, json: bool, values: bool) -> Callable[[Message], None]:
    from millstream.cli import display

    if json and values:
        raise typer.BadParameter("--json or --values, not both")

    def print_value(message: Message) -> None:
        if sys.stdout.isatty():
            display.say(display.safe(message.value))
        else:
            sys.stdout.buffer.write(message.value + b"\n")

    def print_json(message: Message) -> None:
        import msgspec

        display.say(msgspec.json.encode(message_json(message)).decode())

    def print_line(message: Message) -> None:
        key = "-" if message.key is None else display.safe(message.key)
        fields = [f"{message.claim_id}:{message.attempt}", key, display.safe(message.value)]
        if message.reason:
            fields.append(display.safe(message.reason))
        display.say(("  " if sys.stdout.isatty() else "\t").join(fields))

    return print_value if values else print_json if json else print_line


def _say_ended(queue: str, count: int, how: str, *, as_json: bool) -> None:
    from millstream.cli import display

    if as_json:
        display.say_json({"queue": queue, "count": count, "outcome": how})
    else:
        display.say(f"{display.plural(count, 'message')} {how}")
