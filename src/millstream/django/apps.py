"""The Django application, with the migration that makes the inbox, and the queues of its tasks."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.db import connections
from django.db.models.signals import post_migrate


class MillstreamConfig(AppConfig):  # type: ignore[misc] # Django has no types
    """The settings of the application, as Django finds them."""

    name = "millstream.django"
    label = "millstream"
    verbose_name = "Millstream"

    def ready(self) -> None:
        """Make the queues of tasks with each `manage.py migrate`."""
        post_migrate.connect(make_task_queues, sender=self)


def make_task_queues(using: str, **_facts: Any) -> None:
    """Create the queues of the backends whose store is the database that was migrated.

    A transaction of Django cannot create them. A store in another file makes its queues itself.
    """
    backends = getattr(settings, "TASKS", {})
    if not any("millstream" in str(backend.get("BACKEND")) for backend in backends.values()):
        return
    from millstream.django.backend import MillstreamBackend
    from millstream.django.backend_options import database_of_store
    from millstream.django.framework import framework

    for alias in backends:
        backend = framework.task_backends[alias]
        if not isinstance(backend, MillstreamBackend):
            continue
        if database_of_store(backend.settings.store, connections.settings) == using:
            for queue_name in backend.queues:
                backend.make_queue(backend.queue_of(queue_name))
