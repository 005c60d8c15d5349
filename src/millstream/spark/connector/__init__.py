"""The part of the source that runs in Java: columns, conditions and counts of a query reach it."""

from __future__ import annotations

from pathlib import Path

JAR = Path(__file__).resolve().with_name("millstream-spark.jar")
"""Give it to a session of your own as `spark.jars`; `local_session` does."""
