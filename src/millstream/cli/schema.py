"""`millstream schema`: show, set, check and delete the schemas of logs and queues.

`queue:NAME` names the schema of the messages that are put into a queue.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from millstream import Millstream, SchemaVersion
from millstream.cli.command import Consent, command
from millstream.cli.display import Printed, Table, json_text, when
from millstream.cli.names import completed
from millstream.errors import InvalidInput, NotFound
from millstream.log.commands import DeleteSchema, GetSchemas, SetSchema
from millstream.queue.model.own_logs import INBOX, LATER
from millstream.queue.schema_commands import (
    DeleteQueueSchema,
    GetQueueSchemas,
    SetQueueSchema,
)
from millstream.schema.evolution import conflicts_with
from millstream.schema.source import schema_of

schema = typer.Typer(
    help="Show, set and check the schemas of logs and queues.", no_args_is_help=True
)

STDIN = "-"
EXIT_INCOMPATIBLE = 1

LogOrQueue = Annotated[
    str,
    typer.Argument(
        metavar="LOG",
        help="The log, or queue:NAME for a queue.",
        autocompletion=completed(Millstream.logs),
    ),
]
SchemaFile = Annotated[
    str,
    typer.Argument(
        metavar="FILE", help="A JSON Schema or an Avro schema in a file; - reads standard input."
    ),
]


@command(schema, "schema list", name="list")
def list_schemas(ms: Millstream) -> Printed:
    """List the logs and queues that have a schema. A queue is named queue:NAME."""
    newest = {
        info.name: versions[-1]
        for info in ms.logs()
        if not info.name.startswith(LATER)  # it has the schema of its queue
        and (versions := ms.session.execute(GetSchemas(info.name)))
    }
    rows = [
        (name, each.version, each.mode, when(int(each.created.timestamp() * 1000)))
        for name, each in newest.items()
    ]
    return Printed(
        [{"log": name, **_facts(each)} for name, each in newest.items()],
        Table(("log", "version", "mode", "created"), rows, none="no log or queue has a schema"),
    )


@command(
    schema, "schema show orders", "schema show orders --form avro", "schema show orders --history"
)
def show(
    log: LogOrQueue,
    ms: Millstream,
    form: Annotated[
        Literal["json", "avro", "spark"],
        typer.Option(
            metavar="FORM",
            help="json, avro or spark: as JSON Schema, as Avro, or as columns of Spark.",
        ),
    ] = "json",
    history: Annotated[
        bool, typer.Option("--history", help="List the versions instead of the newest schema.")
    ] = False,
) -> Printed:
    """Show the schema of a log or queue, or its versions."""
    versions = _versions(ms, log)
    if not versions:
        reason = f"{_noun(log)} has no schema; `millstream schema set` gives it one"
        raise NotFound(reason, log=log)
    if history:
        rows = [
            (each.version, each.start, each.mode, "yes" if each.forced else "no")
            for each in versions
        ]
        table = Table(("version", "from offset", "mode", "forced"), rows)
        return Printed([_facts(each) for each in versions], table)
    newest = versions[-1]
    if form == "spark":
        return Printed({**_facts(newest), "spark": newest.spark()}, newest.spark())
    document = newest.avro() if form == "avro" else newest.json_schema()
    return Printed({**_facts(newest), "schema": document}, json_text(document))


@command(
    schema,
    "schema set orders order.json",
    "schema set orders order.avsc --mode warn",
    "schema set queue:mail letter.json",
    name="set",
)
def set_schema(
    log: LogOrQueue,
    file: SchemaFile,
    ms: Millstream,
    consent: Consent,
    mode: Annotated[
        Literal["enforce", "warn"],
        typer.Option(
            metavar="MODE",
            help="enforce or warn: refuse records that do not fit, or store and count them.",
        ),
    ] = "enforce",
    force: Annotated[
        bool, typer.Option("--force", help="Accept a schema that is not compatible.")
    ] = False,
) -> Printed:
    """Give a log or queue a schema, or another version of its schema."""
    parsed = schema_of(_text(file))
    if force:
        consent.ask(f"Set the schema of {_noun(log)}, even if it is not compatible?")
    queue = _queue_of(log)
    version = ms.session.execute(
        SetSchema(log, parsed, mode, force)
        if queue is None
        else SetQueueSchema(queue, parsed, mode, force)
    )
    line = (
        f"{_noun(log)} has version {version.version} of its schema, from offset {version.start} on"
    )
    return Printed({"log": log, **_facts(version)}, line)


@command(schema, "schema check orders order.json", "schema check queue:mail letter.json --json")
def check(log: LogOrQueue, file: SchemaFile, ms: Millstream) -> Printed:
    """Compare a schema with the schema of a log or queue, for CI.

    Exits with 0 if the schema would be accepted, and with 1 and each conflict if it would not.
    """
    parsed = schema_of(_text(file))
    versions = _versions(ms, log)
    breaks = conflicts_with([version.schema for version in versions], parsed)
    number = versions[-1].version if versions else 0
    facts = {"log": log, "version": number, "compatible": not breaks, "conflicts": breaks}
    if breaks:
        summary = f"not compatible with version {number} of {_noun(log)}"
        return Printed(facts, *breaks, summary, code=EXIT_INCOMPATIBLE)
    noun = _noun(log)
    if number:
        return Printed(facts, f"compatible with version {number} of {noun}")
    if _exists(ms, log):
        return Printed(facts, f"compatible with {noun}, which has no schema")
    return Printed(facts, f"compatible: there is no {noun} yet")


@command(schema, "schema delete orders")
def delete(log: LogOrQueue, ms: Millstream, consent: Consent) -> Printed:
    """Delete the schema of a log or queue with its versions. Afterwards values are not checked."""
    consent.ask(f"Delete the schema of {_noun(log)} with its versions?")
    queue = _queue_of(log)
    deleted = ms.session.execute(DeleteSchema(log) if queue is None else DeleteQueueSchema(queue))
    return Printed(
        {"log": log, "deleted": deleted}, "deleted" if deleted else f"{_noun(log)} has no schema"
    )


def _noun(log: str) -> str:
    """Return how a sentence names a log, or the queue that `queue:NAME` stands for."""
    queue = _queue_of(log)
    return f"log {log!r}" if queue is None else f"queue {queue!r}"


def _queue_of(log: str) -> str | None:
    """Return the name of a queue from the name of its log, `queue:NAME`; None if the name has another
    form."""
    return log.removeprefix(INBOX) if log.startswith(INBOX) else None


def _exists(ms: Millstream, log: str) -> bool:
    queue = _queue_of(log)
    if queue is None:
        return any(info.name == log for info in ms.logs())
    return ms.queue(queue).exists()


def _versions(ms: Millstream, log: str) -> list[SchemaVersion]:
    queue = _queue_of(log)
    return ms.session.execute(GetSchemas(log) if queue is None else GetQueueSchemas(queue))


def _facts(version: SchemaVersion) -> dict[str, Any]:
    return {
        "version": version.version,
        "start": version.start,
        "created": version.created,
        "mode": version.mode,
        "forced": version.forced,
    }


def _text(file: str) -> str:
    try:
        return sys.stdin.read() if file == STDIN else Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the schema in {file!r} is not UTF-8: {error}") from error
