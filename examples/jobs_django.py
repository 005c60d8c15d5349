"""A project of Django in one file, with tasks that are part of its transactions.

The database is the store as well, so a task exists if and only if its transaction commits.

    python examples/jobs_django.py migrate
    python examples/jobs_django.py order
    python examples/jobs_django.py millstream_worker
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import django
from django.conf import settings

import millstream

FRAMEWORK = "django.tasks" if find_spec("django.tasks") else "django_tasks"
DATABASE = os.environ.get("SHOP_STORE", "shop.sqlite3")

settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": DATABASE}},
    INSTALLED_APPS=[
        "django.contrib.contenttypes",
        "django.contrib.auth",
        "millstream.django",
        *([] if FRAMEWORK == "django.tasks" else [FRAMEWORK]),
    ],
    TASKS={
        "default": {
            "BACKEND": "millstream.django.MillstreamBackend",
            "OPTIONS": {"store": DATABASE, "retry_on": ["OSError"], "max_attempts": 5},
        }
    },
    USE_TZ=True,
)
django.setup()

from django.contrib.auth.models import User  # noqa: E402
from django.core.management import execute_from_command_line  # noqa: E402
from django.db import transaction  # noqa: E402

task: Any = import_module(FRAMEWORK).task


@task(priority=10)
def welcome(user_id: int) -> str:
    """Write to a new user."""
    user = User.objects.get(pk=user_id)
    return f"welcome, {user.username}"


def order(name: str) -> Any:
    """Add a user, and enqueue the mail, in one transaction."""
    with transaction.atomic():
        user = User.objects.create(username=name)
        return welcome.enqueue(user.pk)


def main(arguments: list[str]) -> None:
    """Run a command of this file, or of Django."""
    if arguments[:1] == ["order"]:
        print(order(*arguments[1:] or ["ada"]).id)
    elif arguments[:1] == ["result"]:
        print(welcome.get_result(arguments[1]).return_value)
    else:
        if arguments[:1] == ["migrate"]:
            millstream.open(DATABASE, adopt=True).close()  # as `millstream adopt` does
        execute_from_command_line(["jobs_django.py", *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
