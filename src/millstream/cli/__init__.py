"""The command line: each command parses arguments, calls the library, and prints the answer.

Modules that only some commands need are imported when these commands run: the start is fast.
"""

from __future__ import annotations

import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from millstream.cli.advice import EXIT_FAILED, exit_code, explain
from millstream.cli.append import append
from millstream.cli.apply import apply
from millstream.cli.backup import backup
from millstream.cli.bench import bench
from millstream.cli.cluster import cluster
from millstream.cli.command import command
from millstream.cli.compact import compact
from millstream.cli.config import use_file
from millstream.cli.config_command import config
from millstream.cli.demo import demo
from millstream.cli.display import PrintedLine, silence
from millstream.cli.doctor import doctor
from millstream.cli.dump import dump
from millstream.cli.exec import execute
from millstream.cli.export import export
from millstream.cli.import_ import import_records
from millstream.cli.job import job
from millstream.cli.log import log
from millstream.cli.migrate import migrate
from millstream.cli.place import CA, STORE, TOKEN
from millstream.cli.promote import promote
from millstream.cli.put import put
from millstream.cli.queue import queue
from millstream.cli.read import read
from millstream.cli.restore import restore
from millstream.cli.room import room
from millstream.cli.schedule import schedule
from millstream.cli.schema import schema
from millstream.cli.serve import serve
from millstream.cli.spark import spark
from millstream.cli.sql import sql
from millstream.cli.store import adopt, copy, fold, stats
from millstream.cli.sync import sync
from millstream.cli.token import token
from millstream.cli.top import top
from millstream.cli.worker import worker
from millstream.errors import MillstreamError

__all__ = ["app", "main"]

EXIT_INTERRUPTED = 130


class Commands(TyperGroup):
    """The root of all commands: every error below becomes one clear line."""

    def get_params(self, ctx: Any) -> Any:
        """Return the options, including the options for completion, which are added last."""
        _hide_variables(self)
        return super().get_params(ctx)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; show an error as one line, and as a traceback only with --debug."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except MillstreamError as error:
            self._report(ctx, explain(error, _flags(self)))
            raise typer.Exit(exit_code(error)) from error
        except BrokenPipeError:
            silence()  # the reader has closed the pipe: the command's work is done
            raise typer.Exit(0) from None
        except OSError as error:
            self._report(ctx, f"{error.filename or ''}: {error.strerror or error}".lstrip(": "))
            raise typer.Exit(EXIT_FAILED) from error
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None

    def _report(self, ctx: Any, message: str) -> None:
        if ctx.params.get("debug"):
            import traceback

            traceback.print_exc()
        try:
            sys.stdout.flush()
        except OSError:
            silence()
        PrintedLine(f"error: {message}", "red", note=True).show()


def _hide_variables(command: Any) -> None:
    """Show only MILLSTREAM_STORE in the help: the variables of all other options follow a rule."""
    for parameter in command.params:
        parameter.show_envvar = parameter.name == "store"
    for child in getattr(command, "commands", {}).values():
        _hide_variables(child)


def _flags(command: Any) -> dict[str, str]:
    """Return the options of all commands as they are typed, by the names of their parameters.

    An option is also found by its own name: the parameter of `--token` is `secret`.
    """
    flags = {
        name: option
        for parameter in command.params
        for option in [name for name in parameter.opts if name.startswith("--")][:1]
        for name in (option[2:].replace("-", "_"), parameter.name)
    }
    for child in getattr(command, "commands", {}).values():
        flags |= _flags(child)
    return flags


app = typer.Typer(
    cls=Commands,
    epilog="""\b
First steps:
  millstream demo                          what every part does, with its code
  millstream append orders '{"id": 1}'     creates millstream.db, and the log in it
  millstream read orders
  millstream queue create mail
  millstream put mail '{"to": "ada"}'
  millstream queue pop mail
  millstream serve                         with a dashboard at http://127.0.0.1:8080""",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"auto_envvar_prefix": "MILLSTREAM", "help_option_names": ["-h", "--help"]},
)


def _version(is_set: bool) -> None:
    if is_set:
        from millstream import __version__

        typer.echo(f"millstream {__version__}")
        raise typer.Exit


@app.callback()
def settings(
    store: Annotated[str | None, STORE] = None,
    secret: Annotated[str | None, TOKEN] = None,
    ca: Annotated[str | None, CA] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="The configuration file.",
            show_default="millstream.toml, if there is one",
            callback=use_file,
            is_eager=True,
        ),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_version,
            is_eager=True,
            allow_from_autoenv=False,
            help="Print the version.",
        ),
    ] = False,
) -> None:
    """Durable logs, work queues and live rooms, in a file or behind a server.

    Settings come from flags, then from environment variables (MILLSTREAM_STORE,
    MILLSTREAM_APPEND_BATCH, …), then from millstream.toml.
    """


command(app, "append orders '{\"id\": 1}'", "append lines --batch 500 < lines.txt", create=True)(
    append
)
command(
    app,
    "read orders --from -10",
    "read orders --since 15m --json",
    "read orders -s http://depot:8080",
)(read)
app.add_typer(log, name="log")
app.add_typer(schema, name="schema")
command(app, 'put mail \'{"to": "ada"}\' --priority 5', "put mail --delay 15m < lines.txt")(put)
app.add_typer(queue, name="queue")
app.add_typer(room, name="room")
app.add_typer(job, name="job")
app.add_typer(schedule, name="schedule")
command(
    app,
    "worker shop.tasks:jobs --concurrency 20",
    "worker shop.tasks:jobs --processes 4 --queues mail:3,reports:1 --max-memory 500MiB",
    "worker shop.tasks:jobs --reload",
)(worker)
command(
    app, "exec mail ./send.sh --concurrency 4", "exec mail './send.sh --now' --drain", name="exec"
)(execute)
command(
    app,
    "apply topology.toml --dry-run",
    "apply topology.toml --prune --yes",
    "apply topology.toml --secrets tokens.json --store http://depot:8080",
)(apply)
command(app, "dump", "dump --store http://depot:8080 --json")(dump)
command(app, "sync http://depot:8080 --push --logs 'device/*'", "sync backup.db --create")(sync)
command(
    app,
    "copy orders.db backup.db",
    "copy orders.db backup.db --replace",
    "copy orders.db s3://shop/orders",
    "copy s3://shop/orders back.db",
)(copy)
command(
    app,
    "export orders -o orders.jsonl",
    "export orders clicks --where \"kind = 'sale'\" --since 7d -o sales.parquet",
    "export 'device/*' --format csv",
)(export)
command(
    app,
    "import orders.jsonl",
    "import sales.parquet --log sales",
    "import lines.jsonl --skip-bad --json",
    "import --from rq redis://localhost:6379/0 --queue mail",
    name="import",
    create=True,
)(import_records)
app.add_typer(backup, name="backup")
command(
    app,
    "restore /mnt/backup/shop shop.db",
    "restore /mnt/backup/shop shop.db --at 2026-12-24T18:30 --replace",
)(restore)
command(app, "compact orders.db --dry-run", "compact orders.db", "compact old.db --rewrite")(
    compact
)
command(app, "migrate orders.db --dry-run", "migrate --store orders.db --json")(migrate)
command(app, "adopt app.db", "adopt app.db --json")(adopt)
command(
    app,
    "serve orders.db",
    "serve --host 0.0.0.0 --certificate cert.pem --key key.pem",
    "serve orders.db --node a --peers a=host1,b=host2,c=host3 --cluster-secret-file secret",
    "serve copy.db --standby-of http://host1:8080 --cluster-secret-file secret",
)(serve)
command(app, "promote http://host2:8080")(promote)
app.add_typer(cluster, name="cluster")
app.add_typer(token, name="token")
app.add_typer(config, name="config")
app.add_typer(spark, name="spark")
command(app, "doctor orders.db", "doctor --environment", "doctor orders.db --bundle facts.zip")(
    doctor
)
command(
    app,
    'sql app.db "SELECT name, ready FROM millstream_queues"',
    "sql app.db",
    "sql --json < report.sql",
)(sql)
command(app, "stats", "stats --store http://depot:8080 --json")(stats)
command(app, "top", "top --store http://depot:8080", "top --once --json")(top)
command(app, "fold")(fold)
command(app, "bench core", "bench queue --only claim --json")(bench)
command(app, "demo", "demo --serve")(demo)


def main() -> None:
    """Run the program `millstream`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may lack some characters
    app(prog_name="millstream")
