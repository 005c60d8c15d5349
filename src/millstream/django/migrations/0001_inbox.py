"""Makes the tables of the inbox, as a store makes them.

A store that opens the database later finds them and leaves them alone. Undoing the migration also
leaves them: the database may be a store by then. A database that is not SQLite stays as it is.
"""

from __future__ import annotations

from typing import Any

from django.db import migrations

from millstream.engine.sqlite.schema import INBOX_TABLES


def make_inbox(_apps: Any, schema_editor: Any) -> None:
    """Create the tables that are missing."""
    if schema_editor.connection.vendor == "sqlite":
        for statement in INBOX_TABLES.values():
            schema_editor.execute(statement)


class Migration(migrations.Migration):  # type: ignore[misc] # Django has no types
    """The first migration."""

    initial = True
    operations = [  # noqa: RUF012
        migrations.RunPython(make_inbox, migrations.RunPython.noop),
    ]
