"""The outbox of a Django project on PostgreSQL: jobs from its transactions, exactly once.

`examples/outbox.py` explains the steps. DATABASE_HOST and DATABASE_NAME name the database.

    python examples/outbox_django.py
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import django
from django.conf import settings

from millstream import Jobs

settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": os.environ.get("DATABASE_HOST", "localhost"),
            "NAME": os.environ.get("DATABASE_NAME", "shop"),
            "USER": os.environ.get("DATABASE_USER", "postgres"),
        }
    },
    USE_TZ=True,
)
django.setup()

from django.db import connection, models, transaction  # noqa: E402

jobs = Jobs(os.environ.get("SHOP_STORE", "jobs.db"))


class Outbox(models.Model):
    """A job that waits for the relay."""

    task = models.TextField()
    arguments = models.JSONField()

    class Meta:
        """The application of the model."""

        app_label = "shop"


@jobs.task(unique_for=timedelta(days=7), unique_by="outbox_id")
def send_mail(outbox_id: int, address: str) -> str:
    """Send a mail. A row of the outbox is put at most once within seven days."""
    return f"sent to {address}"


TASKS = {"send_mail": send_mail}


def post(task: str, **arguments: Any) -> None:
    """Insert a row, in the transaction of the caller."""
    Outbox.objects.create(task=task, arguments=arguments)


@transaction.atomic
def relay(*, limit: int = 100) -> int:
    """Move the next rows into the queue; return their number."""
    rows = list(Outbox.objects.select_for_update(skip_locked=True).order_by("pk")[:limit])
    for row in rows:
        TASKS[row.task].put(row.pk, **row.arguments)  # durable when the call returns
    Outbox.objects.filter(pk__in=[row.pk for row in rows]).delete()
    return len(rows)


def main() -> None:
    """Relay until Ctrl-C."""
    if "shop_outbox" not in connection.introspection.table_names():
        with connection.schema_editor() as editor:
            editor.create_model(Outbox)
    while True:
        if not relay():
            time.sleep(0.5)


if __name__ == "__main__":
    main()
