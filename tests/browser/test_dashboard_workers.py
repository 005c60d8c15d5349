"""Workers and clients on the dashboard, and failed messages by reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.server.serving import Serving
from millstream.threads.database import Millstream
from millstream.threads.queue import Queue
from tests.browser.boarding import cells, go, says, serving, token, watch

pytestmark = [pytest.mark.browser, pytest.mark.requires("browser")]


@pytest.fixture
def ms(server: Serving) -> Iterator[Millstream]:
    with millstream.open(server.url) as opened:
        yield opened


@pytest.fixture
def jobs(ms: Millstream) -> Iterator[Queue]:
    queue = ms.create_queue("jobs", max_attempts=1, lease=600)
    yield queue
    queue.delete()


def fail(queue: Queue, count: int, reason: str) -> None:
    queue.put_many([reason] * count)
    queue.fail(queue.claim(count), reason=reason)


def test_clients_are_listed_with_what_they_hold(page: Any, server: Serving, jobs: Queue) -> None:
    complaints = watch(page)
    jobs.put_many(["a", "b", "c"])
    jobs.claim(2, consumer="ann")
    go(page, server, "clients")
    row = page.locator("tr:has-text('streaming socket'):has-text('as ann')")
    says(row.locator("td[data-label=holds]"), "jobs: 2 messages as ann")
    assert row.locator("td[data-label=client]").inner_text() == "local"
    assert row.locator("td[data-label=address]").inner_text().startswith("127.0.0.1:")
    workers = page.locator("table.consumers")
    assert workers.locator("td[data-label=worker]").all_inner_texts() == ["ann"]
    assert workers.locator("td[data-label=messages]").all_inner_texts() == ["2"]
    jobs.claim(1, consumer="bob")
    workers.locator("td[data-label=worker]", has_text="bob").wait_for()
    workers.get_by_role("link", name="jobs").first.click()
    page.wait_for_selector("section[aria-label=Consumers]")
    assert cells(page, "table.consumers td[data-label=worker]") == ["ann", "bob"]
    assert complaints == []


def test_a_viewer_sees_workers_and_is_told_what_connections_need(
    browser: Any, tmp_path: Path
) -> None:
    path = tmp_path / "viewed.db"
    with millstream.open(path) as ms:
        ms.create_queue("jobs", lease=600).put("x")
        ms.queue("jobs").claim(1, consumer="ann")
    text = token(path, "*:read", name="viewer")
    context = browser.new_context()
    page = context.new_page()
    with serving(path, auth="on") as server:
        go(page, server, "clients", text=text)
        assert "store:admin" in page.locator(".notice").inner_text()
        assert cells(page, "table.consumers td[data-label=worker]") == ["ann"]
        assert cells(page, "h2") == ["Connected to this server", "Workers"]
    context.close()


def test_failed_messages_are_grouped_by_reason_and_a_group_is_retried(
    page: Any, server: Serving, jobs: Queue
) -> None:
    complaints = watch(page)
    fail(jobs, 3, "the printer is busy")
    fail(jobs, 2, "no such customer\nmore about it")
    go(page, server, "queues", "jobs", tab="failed")
    group = "table.groups td[data-label={}]"
    page.wait_for_selector("table.groups")
    reasons = ["the printer is busy", "no such customer"]
    assert cells(page, group.format("reason")) == reasons
    assert cells(page, group.format("messages")) == ["3", "2"]
    page.locator("table.groups tr", has_text="printer").get_by_role("button").click()
    dialog = page.locator("dialog")
    assert dialog.locator("pre").inner_text() == "the printer is busy"
    dialog.get_by_role("button", name="Dry run").click()
    dialog.get_by_text("3 messages would be available again.").wait_for()
    assert jobs.claim(1) == []
    dialog.get_by_role("button", name="Retry them").click()
    dialog.get_by_text("3 messages are available again.").wait_for()
    dialog.get_by_role("button", name="Close").click()
    page.locator("table.groups tr", has_text="printer").wait_for(state="detached")
    assert cells(page, group.format("reason")) == ["no such customer"]
    assert [message.text for message in jobs.claim(5)] == ["the printer is busy"] * 3
    page.get_by_role("button", name="Retry group…").click()
    dialog.get_by_role("button", name="Retry them").click()
    says(page.locator(".figure", has_text="failed").locator("b"), "0")
    assert dialog.get_by_text("2 messages are available again.").is_visible()
    dialog.get_by_role("button", name="Close").click()
    page.get_by_text("Nothing has failed.").wait_for()
    assert page.locator("table.groups").count() == 0
    assert complaints == []


def test_a_viewer_retries_no_group(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "groups.db"
    with millstream.open(path) as ms:
        fail(ms.create_queue("jobs", max_attempts=1), 1, "busy")
    text = token(path, "*:read", name="viewer")
    context = browser.new_context()
    page = context.new_page()
    with serving(path, auth="on") as server:
        go(page, server, "queues", "jobs", text=text, tab="failed")
        button = page.get_by_role("button", name="Retry group…")
        button.wait_for()
        assert button.is_disabled()
        assert "queue:admin:jobs" in button.get_attribute("title")
    context.close()
