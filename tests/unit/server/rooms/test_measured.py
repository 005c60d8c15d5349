"""What is measured of rooms: who listens here, what was pushed, and how far this server has come."""

from __future__ import annotations

from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from millstream.server.serving import running
from millstream.server.settings import Settings
from tests.unit.server.rooms.joining import joined


def test_a_scrape_tells_of_listeners_pushes_and_looks(tmp_path: Path) -> None:
    with (
        running(tmp_path / "store.db", Settings(port=0), durability="relaxed") as server,
        joined(server, "hall", user="ann") as ann,
        joined(server, "hall", user="bob") as bob,
    ):
        ann.send(("chat", "hello"), n=1)
        bob.until_heard(1)
        text = httpx.get(f"{server.url}/metrics", timeout=60).text
        found = {
            sample.name: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        assert found["millstream_room_listeners"] == 2
        assert found["millstream_room_pushed_messages_total"] >= 1
        assert found["millstream_room_gaps_total"] == 0
        assert found["millstream_feeds"] >= 1
        assert found["millstream_feed_look_seconds_count"] >= 1
        assert found["millstream_feed_skipped_records_total"] == 0
        checks = httpx.get(f"{server.url}/health", timeout=60).json()["checks"]
        assert {"name": "rooms", "status": "healthy", "detail": "", "advice": ""} in checks
        assert server.core is not None
        place = server.core.checkup.own_place()
        assert place.instance == f"127.0.0.1:{server.port}"
        assert place.positions["hall"] == bob.offset
