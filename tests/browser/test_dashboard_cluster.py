"""The page of a cluster, in a browser: which node leads, and what a server alone says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.server.serving import Serving
from tests.browser.boarding import go, says, watch
from tests.unit.server.cluster.electing import serving_nodes

pytestmark = [pytest.mark.browser, pytest.mark.requires("browser")]


def test_a_follower_shows_every_node_and_which_one_leads(page: Any, tmp_path: Path) -> None:
    with serving_nodes(tmp_path, "a", "b", "c") as nodes:
        leader, follower = nodes.leader(), nodes.followers()[0]
        nodes.until(lambda: len(nodes.bulletin.reports()) == 3)
        with millstream.open(nodes.url(follower)) as ms:
            ms.log("a").append(b"x")
        complaints = watch(page)
        go(page, nodes.servers[follower], "cluster")
        table = page.locator("table.folds")
        table.wait_for()
        assert table.locator("tbody tr").count() == 3
        rows = {row.split()[0]: row for row in table.locator("tbody tr").all_inner_texts()}
        assert "leader" in rows[leader]
        assert "this one" in rows[follower]
        says(page.locator(".figure b").first, leader)
        go(page, nodes.servers[follower], "logs", "a")
        assert complaints == []


def test_a_server_alone_says_so(page: Any, server: Serving) -> None:
    go(page, server, "cluster")
    page.locator("main p.soft", has_text="This server is no node of a cluster.").wait_for()
    assert page.locator("table.folds").count() == 0
