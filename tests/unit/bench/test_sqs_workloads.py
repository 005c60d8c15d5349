"""The workloads of SQS run, and report their fields; how fast is not judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.bench import sqs


def test_a_deep_fifo_queue_is_measured_beside_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqs, "DEEP", 2_000)
    monkeypatch.setattr(sqs, "GROUPS", 100)
    (row,) = sqs.SUITE.run(
        ["sqs_fifo_deep"], directory=tmp_path, seconds_each=0.01, started=lambda name: None
    )
    assert row.per_second > 0
    assert row.required == "ratio ≥ 0.8"
    assert row.details == {"waiting": 2_000, "groups": 100}


def test_sends_and_receives_are_measured_beside_moto(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("moto.server")
    monkeypatch.setattr(sqs, "CONNECTIONS", 1)
    monkeypatch.setattr(sqs, "TURNS", 1)
    rows = sqs.SUITE.run(
        ["sqs_send", "sqs_receive"],
        directory=tmp_path,
        seconds_each=0.01,
        started=lambda name: None,
    )
    for row in rows:
        assert row.per_second > 0
        assert row.details["moto_per_second"] > 0
        assert "≥ 10 × moto" in row.required
