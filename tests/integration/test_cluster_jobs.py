"""Jobs whose store is a cluster: each kind of job ends as on a file, at a node that does not lead."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.integration.cluster_run import running
from tests.kit.jobs import every_kind_of_job

pytestmark = [pytest.mark.requires("nats"), pytest.mark.slow, pytest.mark.timeout(600)]

SEED = int(os.environ["MILLSTREAM_SEED"])


def test_jobs_on_a_cluster(tmp_path: Path) -> None:
    with running(tmp_path, SEED) as run:
        leader = run.leader()
        address = next(peer.address for peer in run.trial.peers if peer.name != leader)
        every_kind_of_job(address)
