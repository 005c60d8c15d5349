"""Inside a worker of Spark: fit for many tasks, and quiet when it goes. Elsewhere nothing changes."""

from __future__ import annotations

import gc
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest

from millstream.spark import worker


def do_task(sock: Any, authenticated: bool) -> int:
    """As Spark's own: one task, and the code to exit with."""
    if sock == "gone":
        raise BrokenPipeError
    if sock == "bad":
        raise ValueError(sock)
    return 0 if authenticated else 7


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """This process, as if Spark had started it."""
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec("pyspark.daemon", None)
    main.worker = do_task  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(worker, "_modules_spared", 0)
    return main


def test_elsewhere_nothing_changes() -> None:
    before = gc.get_freeze_count()
    worker.settle()
    worker.leave_quietly()
    assert gc.get_freeze_count() == before


def test_a_worker_that_is_let_go_ends_quietly(daemon: ModuleType) -> None:
    worker.leave_quietly()
    worker.leave_quietly()
    assert daemon.worker("gone", True) == 1
    assert (daemon.worker("sock", True), daemon.worker("sock", False)) == (0, 7)
    with pytest.raises(ValueError, match="bad"):
        daemon.worker("bad", True)


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
