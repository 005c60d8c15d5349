"""Free ports: those of one node are not those of another."""

from __future__ import annotations

import pytest

from millstream.cluster import trial


def test_no_port_is_given_to_two_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "PORT_MAX", trial.PORT_MIN + 1_000)  # they would meet soon

    found = [port + n for port in trial.free_ports(60) for n in range(trial.PORTS_IN_A_ROW)]

    assert len(set(found)) == 60 * trial.PORTS_IN_A_ROW
