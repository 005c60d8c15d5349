"""The examples run, and do what they say."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def load(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="example")


def test_the_pipeline_invoices_every_order_once_however_often_it_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = load("pipeline")["main"]
    for _ in range(2):
        main(str(tmp_path / "p.db"))
    assert capsys.readouterr().out == "5 invoices for 5 orders\n" * 2


def test_the_follower_prints_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    example = load("follow")
    example["write"](3)
    capsys.readouterr()
    example["follow"](0.01)
    assert capsys.readouterr().out.splitlines() == [f"{n} {{'tick': {n}}}" for n in range(3)]


def test_devices_feed_one_queue_and_push_only_what_is_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = load("devices")["main"]
    for _ in range(2):
        main(str(tmp_path / "fleet"), 30)
    line = "30 devices pushed 90 readings, the queue handled 90\n"
    assert capsys.readouterr().out == line * 2


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.name)
def test_every_example_is_known_here(path: Path) -> None:
    assert path.stem in {"devices", "pipeline", "follow"}
