"""What all tests share: optional parts, the Hypothesis profile, and how to replay a failure.

A test says `@pytest.mark.requires("spark")` if it needs a heavy part. Where the part is missing the
test is skipped; where MILLSTREAM_REQUIRE names the part (comma-separated), it fails instead, so that a
machine which should run everything cannot quietly run less. Import such a part inside the test or
a fixture: an import at the top of the file would fail before the mark is looked at. A test without
the mark that imports a module of an extra is skipped as well (`tests/extras.py`).
"""

from __future__ import annotations

import functools
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sysconfig
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests import extras
from tests.long_tests import LongTests

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background, where Ctrl-C is ignored: the tests and their children rely on it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

if (_seed := os.environ.get("MILLSTREAM_SEED", "1")) == "random":
    _seed = str(secrets.randbelow(2**32))
os.environ["MILLSTREAM_SEED"] = _seed
"""What random tests begin with, Hypothesis' too: `make test` tries the same cases each time, and
`make faults` others each time (`MILLSTREAM_SEED=random`)."""

LONG = LongTests.load(Path(__file__).with_name("long.toml"))
"""The tests that `make test` leaves to `make test-all`."""

UNHURRIED: dict[str, Any] = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [hypothesis.HealthCheck.too_slow],
}
"""No example has to be fast: on a busy machine none is."""

hypothesis.settings.register_profile("short", max_examples=20, **UNHURRIED)
hypothesis.settings.register_profile("ci", **UNHURRIED)
hypothesis.settings.register_profile("long", max_examples=2_000, **UNHURRIED)


def _missing_modules(*names: str) -> str | None:
    absent = [n for n in names if find_spec(n) is None]
    return f"not installed: {', '.join(absent)}" if absent else None


def _missing_spark() -> str | None:
    if reason := _missing_modules("pyspark", "pyarrow", "pandas"):
        return reason
    from millstream.errors import CannotOpen
    from millstream.spark.local.java import find_java

    try:
        find_java()
    except CannotOpen as error:
        return error.message
    return None


def _missing_browser() -> str | None:
    if reason := _missing_modules("playwright"):
        return reason
    return None if shutil.which("chromium") else "Chromium is not installed"


def _missing_s3() -> str | None:
    return _missing_modules("slatedb", "obstore", "moto", "flask")


def _missing_azurite() -> str | None:
    from tests.integration.azurite import azurite_program

    return None if azurite_program() else "no azurite-blob: npm install --global azurite"


def _missing_nats() -> str | None:
    beside = shutil.which("nats-server", path=sysconfig.get_path("scripts"))
    server = beside or shutil.which("nats-server")
    return _missing_modules("nats") or (None if server else "no nats-server")


def _missing_fuse() -> str | None:
    if not Path("/dev/fuse").exists():
        return "no FUSE in this kernel"
    mounts = shutil.which("fusermount3") or shutil.which("fusermount")
    return None if mounts else "no fusermount"


def _missing_mounts() -> str | None:
    trial = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    if shutil.which("unshare") is None or subprocess.run(trial, capture_output=True).returncode:
        return "no disk can be mounted in a namespace"
    return None


# Each answers why the part cannot be used here, or None if it can.
PARTS: dict[str, Callable[[], str | None]] = {
    "spark": functools.cache(_missing_spark),
    "client": functools.partial(_missing_modules, "websockets"),
    "server": functools.partial(_missing_modules, *extras.EXTRAS["server"], "websockets"),
    "arrow": functools.partial(_missing_modules, "pyarrow"),
    "browser": functools.cache(_missing_browser),
    "s3": functools.cache(_missing_s3),
    "azurite": functools.cache(_missing_azurite),
    "nats": functools.cache(_missing_nats),
    "fuse": functools.cache(_missing_fuse),
    "mounts": functools.cache(_missing_mounts),
    "zstd": functools.partial(_missing_modules, *extras.EXTRAS["zstd"]),
    "lake": functools.partial(_missing_modules, "deltalake", "pyiceberg", "sqlalchemy"),
}


def _required_parts() -> set[str]:
    named = os.environ.get("MILLSTREAM_REQUIRE", "").split(",")
    return {part.strip() for part in named if part.strip()}


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Loads the profile, and fixes Hypothesis' seed so that a failure can name it."""
    if unknown := _required_parts().difference(PARTS, extras.EXTRAS):
        raise pytest.UsageError(f"MILLSTREAM_REQUIRE names unknown parts: {sorted(unknown)}")
    config.pluginmanager.register(extras, "extras")
    hypothesis.settings.load_profile(os.environ.get("MILLSTREAM_HYPOTHESIS", "ci"))
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = os.environ["MILLSTREAM_SEED"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option that chooses a tier."""
    parser.addoption(
        "--tier",
        choices=("quick", "short", "long"),
        help="short: without the long tests of tests/long.toml; quick: without the slow ones either; "
        "long: the long tests alone",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the tests of the other tier."""
    tier = config.getoption("--tier")
    if tier is None:
        return
    chosen: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        (chosen if LONG.is_in(tier, item.nodeid) else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = chosen


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips or fails a test whose part is missing."""
    for mark in item.iter_markers("requires"):
        for part in mark.args:
            if part not in PARTS:
                pytest.fail(f"unknown part {part!r}; known: {', '.join(PARTS)}", pytrace=False)
            if reason := PARTS[part]():
                if part in _required_parts():
                    pytest.fail(f"{part} is required here: {reason}", pytrace=False)
                pytest.skip(f"needs {part}: {reason}")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Prints, for each test that failed, the command that runs it again with the same seed."""
    reports = terminalreporter.getreports("failed") + terminalreporter.getreports("error")
    nodes = dict.fromkeys(report.nodeid for report in reports)
    if not nodes:
        return
    if "MILLSTREAM_FAILED_TESTS" in os.environ:
        with open(os.environ["MILLSTREAM_FAILED_TESTS"], "a") as failed:
            failed.writelines(f"{node}\n" for node in nodes)
    terminalreporter.section("to replay")
    profile = os.environ.get("MILLSTREAM_HYPOTHESIS")  # other counts of examples draw others
    variables = f"MILLSTREAM_HYPOTHESIS={profile} " if profile else ""
    variables += f"MILLSTREAM_SEED={config.option.hypothesis_seed}"
    for node in nodes:
        terminalreporter.line(f"{variables} .venv/bin/pytest {shlex.quote(node)}")
