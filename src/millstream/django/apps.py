"""The Django application, with the migration that makes the inbox."""

from __future__ import annotations

from django.apps import AppConfig


class MillstreamConfig(AppConfig):  # type: ignore[misc] # Django has no types
    """The settings of the application, as Django finds them."""

    name = "millstream.django"
    label = "millstream"
    verbose_name = "Millstream"
