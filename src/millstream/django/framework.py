"""Django's tasks framework: of Django 6, or of the package `django-tasks` for older versions.

Their modules have equal names. A project that installs the application
`django_tasks` uses the package, also on Django 6.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from django.conf import settings

_uses_package = "django_tasks" in settings.INSTALLED_APPS or find_spec("django.tasks") is None
ROOT = "django_tasks" if _uses_package else "django.tasks"
"""The package of the framework."""

framework: Any = import_module(ROOT)
base: Any = import_module(f"{ROOT}.base")
backends: Any = import_module(f"{ROOT}.backends.base")
exceptions: Any = import_module(f"{ROOT}.exceptions")
signals: Any = import_module(f"{ROOT}.signals")
normalize_json: Any = import_module(
    "django_tasks.utils" if _uses_package else "django.utils.json"
).normalize_json
