"""Inside a worker of Spark: fit for many tasks, and quiet when it goes. Elsewhere nothing changes."""

from __future__ import annotations

import gc
import sys
import traceback
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from millstream.spark.local import worker


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """This process, as if Spark had started it."""
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec("pyspark.daemon", None)
    main.traceback = traceback  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(worker, "_modules_spared", 0)
    return main


def test_elsewhere_nothing_changes() -> None:
    before = gc.get_freeze_count()
    worker.settle()
    worker.leave_quietly()
    assert gc.get_freeze_count() == before


def tell(daemon: ModuleType, error: Exception) -> None:
    """Do as Spark's daemon does with an error of a task."""
    try:
        raise error
    except Exception:
        daemon.traceback.print_exc()


def test_a_worker_that_is_let_go_ends_quietly(
    daemon: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    worker.leave_quietly()
    worker.leave_quietly()
    tell(daemon, BrokenPipeError("nobody reads"))
    assert capsys.readouterr().err == ""


def test_every_other_error_of_a_worker_is_told(
    daemon: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    worker.leave_quietly()
    tell(daemon, ValueError("bad"))
    assert "ValueError: bad" in capsys.readouterr().err
    assert daemon.traceback.format_exc is traceback.format_exc


def test_what_is_imported_is_not_collected_again(
    daemon: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(len(sys.modules)))
    worker.settle()
    worker.settle()
    assert len(frozen) == 1
    monkeypatch.setitem(sys.modules, "one_more", ModuleType("one_more"))
    worker.settle()
    assert len(frozen) == 2
