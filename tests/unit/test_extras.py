"""A test whose part is not installed is skipped with the name of the extra; others fail as before."""

from __future__ import annotations

import re
import sys
from itertools import chain
from pathlib import Path

import pytest

from tests import extras

OURS = ("millstream", "millstream_command", "tests", "tools")
CORE = {"apsw", "blake3", "google_crc32c", "lark", "msgspec", "rich", "typer"}
TESTING = {"hypothesis", "packaging", "pytest"}
"""Modules that every run of the tests has."""
PROGRAMS = {"outbox_django", "shop_tasks"}
"""Modules that a test writes for another process."""


@pytest.fixture(autouse=True)
def imaginary_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(extras.EXTRAS, "imaginary", ("no_such_module",))
    monkeypatch.delenv("MILLSTREAM_REQUIRE", raising=False)


def error_from(module: str) -> RuntimeError:
    """An error of ours that says a module is not there."""
    error = RuntimeError("cannot open")
    error.__cause__ = ModuleNotFoundError(name=module)
    return error


def test_the_extra_is_named() -> None:
    reason = "needs the extra imaginary: no_such_module is not installed"
    assert extras.missing_extra(error_from("no_such_module.part")) == reason


def test_an_error_of_another_kind_and_a_module_of_ours_are_no_reason() -> None:
    assert extras.missing_extra(RuntimeError("cannot open")) is None
    assert extras.missing_extra(error_from("millstream.nowhere")) is None
    assert extras.missing_extra(error_from("pytest")) is None


def test_an_extra_that_is_required_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_REQUIRE", "spark,imaginary")
    assert extras.missing_extra(error_from("no_such_module")) is None


def test_every_module_that_a_test_imports_belongs_to_an_extra() -> None:
    known = {
        *sys.stdlib_module_names,
        *OURS,
        *CORE,
        *TESTING,
        *PROGRAMS,
        *chain(*extras.EXTRAS.values()),
    }
    imported = {
        module
        for path in Path(extras.__file__).parent.rglob("test_*.py")
        for module in re.findall(r"^(?:from|import) (\w+)", path.read_text(), re.MULTILINE)
    }
    assert imported - known == set()
