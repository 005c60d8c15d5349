"""`millstream exec`: run a program for every message of a queue.

The program gets the value on its standard input, and the other fields in environment variables. The
exit code decides: 0 is done, 100 fails the message, further codes (75 is customary) retry it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import IO, Annotated

import msgspec
import typer

from millstream import Message, Reject, Retry
from millstream.cli.arguments import duration
from millstream.cli.command import AsJson
from millstream.cli.display import json_text, note, report, safe
from millstream.cli.events import report_event, warnings_shown
from millstream.cli.names import QueueName
from millstream.cli.place import StorePlace, existing_queue
from millstream.remote.address import TOKEN_VARIABLE

EXIT_REJECTED = 100
REASON_BYTES = 4_096
"""How many bytes at the end of standard error are searched for its last line."""
_NOT_IN_NAMES = re.compile(r"[^A-Z0-9]")


def execute(
    queue: QueueName,
    command: Annotated[
        str,
        typer.Argument(
            metavar="COMMAND", help="A program and its arguments, as one word; no shell."
        ),
    ],
    place: StorePlace,
    concurrency: Annotated[
        int,
        typer.Option("--concurrency", "-c", metavar="N", min=1, help="Programs at the same time."),
    ] = 1,
    lease: Annotated[
        float | None, duration("The lease, renewed while a program runs.", default="the queue's")
    ] = None,
    time_limit: Annotated[
        float | None, duration("Kill a program after this long, and retry.")
    ] = None,
    drain: Annotated[bool, typer.Option("--drain", help="End when the queue is empty.")] = False,
    json: AsJson = False,
) -> None:
    """Run a program for every message of a queue.

    The program gets the value on stdin, and the other fields in MILLSTREAM_* variables. Exit code
    0: done. Exit code 100: failed for good. Any other: retried later; the last line of stderr is
    the reason. SIGTERM or Ctrl-C: no new messages, running programs finish.
    """
    arguments = _program(command)
    where = _variables_of_place(place)
    with warnings_shown(), place.opened() as ms:
        stats = (
            existing_queue(ms, queue)
            .worker(
                _handler(arguments, where, time_limit, output=_error_stream() if json else None),
                concurrency=concurrency,
                lease=lease,
                on_error=_complain,
            )
            .run(drain=drain)
        )
    counts = msgspec.structs.asdict(stats)
    if json:
        report(json_text({"queue": queue, **counts}))
    else:
        words = "done", "retried", "failed", "lost"
        note(", ".join(f"{counts[word]:,} {word}" for word in words))


def _variables_of_place(place: StorePlace) -> dict[str, str]:
    """Return the variables by which a program finds the store of its message."""
    if not place.is_server:
        return {"MILLSTREAM_STORE": os.path.abspath(place.store)}
    token = place.token()
    shown = {} if token is None else {TOKEN_VARIABLE: token}
    return {"MILLSTREAM_STORE": place.store, **shown}


def _program(command: str) -> list[str]:
    try:
        arguments = shlex.split(command)
    except ValueError as error:
        raise typer.BadParameter(f"COMMAND {command!r}: {error}") from None
    if not arguments or shutil.which(arguments[0]) is None:
        raise typer.BadParameter(f"COMMAND: there is no program {''.join(arguments[:1])!r}")
    return arguments


def _error_stream() -> int:
    try:
        return sys.stderr.fileno()
    except (OSError, ValueError):
        return subprocess.DEVNULL


def _complain(message: Message, error: BaseException) -> None:
    text = safe(str(error) or type(error).__name__)
    place = f"queue={safe(message.queue)} claim={message.claim_id}:{message.attempt}"
    outcome = "rejected" if isinstance(error, Reject) else "attempt failed"
    report_event(f"{place} {outcome}: {text}", "warning")


def _handler(
    arguments: list[str], where: dict[str, str], limit_s: float | None, *, output: int | None
) -> Callable[[Message], None]:
    def handle(message: Message) -> None:
        with tempfile.TemporaryFile() as errors:
            variables = {**os.environ, **where, **variables_of(message)}
            code = _run(
                arguments, message.value or b"", variables, limit_s, output=output, errors=errors
            )
            reason = _last_line(errors)
        if code is None:
            raise Retry(f"killed: it took longer than {limit_s:g} s")
        if code == EXIT_REJECTED:
            raise Reject(reason or f"exit {code}")
        if code:
            raise Retry(reason or (f"exit {code}" if code > 0 else f"killed by signal {-code}"))

    return handle


def _run(
    arguments: list[str],
    value: bytes,
    variables: dict[str, str],
    limit_s: float | None,
    *,
    output: int | None,
    errors: IO[bytes],
) -> int | None:
    """Run the program; return its exit code, or None if it took too long.

    Ctrl-C does not reach the program, so that it can finish.
    """
    with subprocess.Popen(
        arguments,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=errors,
        env=variables,
        start_new_session=True,
    ) as process:
        try:
            process.communicate(value, timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None
        except BaseException:
            process.kill()
            raise
    return process.returncode


def variables_of(message: Message) -> dict[str, str]:
    """Return the fields of a message as variables; fields with a NUL are left out."""
    key = b"" if message.key is None else message.key
    fields = {
        "QUEUE": message.queue,
        "CLAIM": f"{message.claim_id}:{message.attempt}",
        "CLAIM_ID": str(message.claim_id),
        "ATTEMPT": str(message.attempt),
        "LOG": message.log,
        "OFFSET": str(message.offset),
        "TIMESTAMP": str(message.timestamp),
        "KEY": os.fsdecode(key),
        "HEADERS": msgspec.json.encode(message.headers.shown()).decode(),
    }
    if message.value is None:
        fields["NULL"] = "true"
    for name, value in message.headers.items():
        if isinstance(value, bytes):
            text = os.fsdecode(value)
        else:
            text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        fields["HEADER_" + _NOT_IN_NAMES.sub("_", name.upper())] = text
    return {f"MILLSTREAM_{name}": text for name, text in fields.items() if "\0" not in text}


def _last_line(errors: IO[bytes]) -> str:
    """Return the last line of a program's standard error, which is also copied to our own."""
    errors.seek(0)
    shutil.copyfileobj(errors, sys.stderr.buffer)
    sys.stderr.flush()
    errors.seek(max(0, errors.tell() - REASON_BYTES))
    lines = errors.read().decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
