"""The shared canvas at a cluster of real processes, one of which is killed while people draw."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.browser.painting import Painter
from tests.integration.cluster_run import running

pytestmark = [
    pytest.mark.browser,
    pytest.mark.requires("browser"),
    pytest.mark.requires("nats"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

SEED = int(os.environ["MILLSTREAM_SEED"])
FAIL_OVER_MS = 180_000
"""How long a test waits for another leader; it comes within seconds on a quiet machine."""

BOXES = ((100, 100, 200, 150), (500, 100, 220, 160), (900, 500, 240, 170))


def draw(painter: Painter, box: tuple[int, int, int, int]) -> None:
    x, y, width, height = box
    painter.drag((x, y), (x + width, y + height))


def test_people_go_on_at_another_node_when_theirs_is_killed(browser: Any, tmp_path: Path) -> None:
    with running(tmp_path, SEED) as run:
        leader = run.leader()
        assert leader is not None
        doomed, *others = sorted(run.trial.peers, key=lambda one: one.name != leader)
        query = "?" + "&".join(f"server={one.address}" for one in others)
        ada, grace = Painter(browser, "Ada"), Painter(browser, "Grace")
        for one in (ada, grace):
            one.page.set_default_timeout(FAIL_OVER_MS)
        ada.enter(doomed.address, query)
        grace.enter(others[0].address)
        draw(ada, BOXES[0])
        grace.until_shapes(BOXES[0])
        run.account.faults["kill_leader"] += 1
        run.send(leader, signal.SIGKILL)
        draw(ada, BOXES[1])  # which no node takes yet
        draw(grace, BOXES[2])
        for one in (ada, grace):
            one.until_shapes(*BOXES)
            one.until_live()
            one.until_people("Ada", "Grace")
        draw(ada, (100, 600, 150, 100))
        grace.until_shapes(*BOXES, (100, 600, 150, 100))
        for one in (ada, grace):
            one.leave()
