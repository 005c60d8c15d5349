"""The prompt of `millstream sql` on a terminal: lines become statements, with a history."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw

from millstream.cli.advice import explain
from millstream.cli.display import note, safe, say
from millstream.cli.sql_rows import SqlRows, listed_tables, run_statements
from millstream.errors import MillstreamError

HISTORY = ".millstream_history"
"""The name of the history in the user's folder."""

HISTORY_LINES = 1_000

_FIRST, _NEXT = "millstream> ", "       ...> "

_HELP = """\
A statement ends with a semicolon, and may have several lines.
.tables    the tables and Millstream's relations
.help      this text
.quit      the end; so does Ctrl-D
Ctrl-C stops a statement, or drops the lines that were typed.
Columns: SELECT * FROM pragma_table_info('millstream_records');"""


class SqlPrompt:
    """Reads statements from a terminal until the user quits."""

    def __init__(self, connection: apsw.Connection, rows: SqlRows) -> None:
        self._connection = connection
        self._rows = rows

    def run(self) -> None:
        """Read and run statements."""
        say("Enter .help for help, .quit to end.")
        with _history():
            lines: list[str] = []
            while True:
                try:
                    line = input(_NEXT if lines else _FIRST)
                    if not lines and line.strip() in (".quit", ".exit"):
                        return
                    lines = self._take([*lines, line])
                except EOFError:
                    say("")
                    return
                except KeyboardInterrupt:
                    say("")
                    lines = []

    def _take(self, lines: list[str]) -> list[str]:
        """Run the lines if they are complete; return the lines to continue with."""
        text = "\n".join(lines)
        if not text.strip():
            return []
        if text.lstrip().startswith("."):
            self._command(text.strip())
            return []
        if not apsw.complete(text):
            return lines
        try:
            run_statements(self._connection, text, self._rows)
        except MillstreamError as error:
            note(f"error: {safe(explain(error))}")
        return []

    def _command(self, text: str) -> None:
        if text == ".tables":
            for name in listed_tables(self._connection):
                say(safe(name))
        elif text == ".help":
            say(_HELP)
        else:
            note(f"error: there is no command {safe(text)}; .help lists the commands")


@contextmanager
def _history() -> Iterator[None]:
    """Let the terminal edit lines, and remember them from one run to the next."""
    try:
        import readline
    except ImportError:  # Python was built without readline
        yield
        return
    path = Path.home() / HISTORY
    with suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(HISTORY_LINES)
    try:
        yield
    finally:
        with suppress(OSError):
            readline.write_history_file(path)
