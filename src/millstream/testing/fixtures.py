"""Fixtures of pytest. A project loads the fixtures in `conftest.py`:

pytest_plugins = ["millstream.testing.fixtures"]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from millstream.testing.jobs_runner import JobsRunner, jobs_eagerly
from millstream.threads.jobs import Jobs


@pytest.fixture
def jobs_runner() -> Iterator[Callable[[Jobs], JobsRunner]]:
    """Return a function that makes a runner of jobs, which ends with the test."""
    with ExitStack() as stack:
        yield lambda jobs: stack.enter_context(JobsRunner(jobs))


@pytest.fixture
def eager_jobs() -> Iterator[Callable[[Jobs], JobsRunner]]:
    """Return a function that runs jobs inside of each `put`, until the end of the test."""
    with ExitStack() as stack:
        yield lambda jobs: stack.enter_context(jobs_eagerly(jobs))
