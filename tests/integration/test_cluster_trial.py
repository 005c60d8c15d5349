"""`millstream cluster up`, `status` and `down`: nodes as processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from tests.conformance.nats_kit import until

pytestmark = [pytest.mark.requires("nats"), pytest.mark.slow]


def run(folder: Path, *arguments: str) -> Any:
    command = [sys.executable, "-m", "millstream", *arguments, "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    if (tmp_path / "trial" / "cluster.json").exists():
        run(tmp_path, "cluster", "down", "trial")


def test_a_trial_cluster_takes_a_record_to_every_node_and_survives_its_leader(folder: Path) -> None:
    told = run(folder, "cluster", "up", "trial")
    addresses = {one["node"]: one["address"] for one in told["nodes"]}
    assert set(addresses) == {"a", "b", "c"}

    with millstream.open(addresses[told["leader"]]) as ms:
        ms.log("orders").append(b"first")

    def is_everywhere(*values: bytes) -> bool:
        for address in addresses.values():
            with millstream.open(address, read_level="eventual") as ms:
                if [one.value for one in ms.log("orders").read()] != list(values):
                    return False
        return True

    until(lambda: is_everywhere(b"first"), "every node has the record")

    record = json.loads((folder / "trial" / "cluster.json").read_bytes())
    os.kill(record["processes"][told["leader"]], signal.SIGKILL)

    def follows() -> str | None:
        found = run(folder, "cluster", "status", "trial")["leader"]
        return found if found != told["leader"] else None

    until(follows, "another node leads")
    with millstream.open(addresses[follows() or ""]) as ms:
        ms.log("orders").append(b"second")

    again = run(folder, "cluster", "up", "trial")
    assert again["leader"] != told["leader"]
    until(lambda: is_everywhere(b"first", b"second"), "the node that was killed catches up")
    assert sorted(run(folder, "cluster", "down", "trial")["stopped"]) == ["a", "b", "c"]
    assert run(folder, "cluster", "down", "trial")["stopped"] == []


def test_the_secret_of_a_cluster_makes_its_first_token(folder: Path) -> None:
    from millstream.cluster.trial import HOST, free_ports

    (folder / "secret").write_text("hush\n")
    peers = f"a={HOST}:{free_ports(1)[0]}"
    place = ["--peers", peers, "--cluster-secret-file", "secret"]
    command = [sys.executable, "-m", "millstream", "serve", "a.db", "--node", "a", *place]
    with subprocess.Popen(
        [*command, "--auth", "on", "--json"], cwd=folder, stdout=subprocess.PIPE
    ) as node:
        assert node.stdout is not None
        try:
            address = json.loads(node.stdout.readline())["rest"]
            made = run(folder, "cluster", "token", "ops", "--allow", "*:admin", *place)
            with pytest.raises(millstream.MillstreamError):
                millstream.open(address)
            with millstream.open(address, token=made["token"]) as ms:
                assert ms.log("orders").append(b"first") == 0
            with pytest.raises(millstream.MillstreamError, match="belongs to a node"):
                millstream.open(folder / "a.db")
            with millstream.open(folder / "a.db", mode="r") as ms:
                assert [one.value for one in ms.log("orders").read()] == [b"first"]
        finally:
            node.terminate()
