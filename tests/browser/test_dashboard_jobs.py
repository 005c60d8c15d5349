"""Jobs on the dashboard: by task and state, one job with its error and output, retry and cancel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import millstream
from millstream import Jobs
from millstream.server.serving import Serving
from millstream.threads.database import Millstream
from tests.browser.boarding import cells, go, says, serving, token, watch

pytestmark = [pytest.mark.browser, pytest.mark.requires("browser")]

LARGE = 2**63 - 1


def fill(ms: Millstream) -> None:
    """Leave a done job, a failed job, a waiting job, and a job for later."""
    jobs = Jobs(ms)

    @jobs.task(name="shop:charge", max_attempts=1)
    def charge(order: int) -> dict[str, int]:
        if order == 2:
            raise ValueError("no card")
        return {"order": order}

    charge.put(LARGE)
    charge.put(2)
    jobs.worker().run(drain=True)
    charge.put(3)
    charge.put_in(3600, 4)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def shop(path: Path) -> Iterator[Serving]:
    with serving(path, fill) as server:
        yield server


def test_a_failed_job_is_found_by_its_task_and_retried(page: Any, shop: Serving) -> None:
    complaints = watch(page)
    go(page, shop, "jobs")
    row = page.locator("tr:has-text('shop:charge')")
    counts = [
        row.locator(f"td[data-label={state}]").inner_text()
        for state in ("failed", "waiting", "done")
    ]
    assert counts == ["1", "1", "1"]
    row.locator("td[data-label=failed] a").click()
    says(page.locator("td.reason"), "ValueError: no card")
    page.locator("a:text-is('jobs-1')").click()
    page.wait_for_selector("h1:text-is('jobs-1')")
    assert "line" in page.get_by_label("The traceback").inner_text()
    assert '"order": 2' in page.get_by_label("The arguments").inner_text()
    assert cells(page, "table.history td[data-label=reason]") == ["ValueError: no card"]
    page.get_by_role("button", name="Retry").click()
    says(page.locator(".row .badge"), "waiting")
    page.get_by_role("button", name="Cancel").click()
    says(page.locator(".row .badge"), "cancelled")
    assert complaints == []


def test_a_done_job_shows_its_result_digit_for_digit(page: Any, shop: Serving) -> None:
    go(page, shop, "jobs", "jobs-0")
    assert f'"order": {LARGE}' in page.get_by_label("The result").inner_text()


def test_a_job_is_cancelled_in_the_list(page: Any, shop: Serving) -> None:
    with millstream.open(shop.url) as ms:
        (scheduled,) = ms.queue("jobs").peek(1, state="delayed")
    go(page, shop, "jobs", tab="scheduled")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_text("No job waits for its time.").wait_for()
    with millstream.open(shop.url) as ms:
        assert Jobs(ms).get(f"jobs-{scheduled.id}").state() == "cancelled"


def test_output_is_shown_as_the_job_writes_it(page: Any, shop: Serving) -> None:
    with millstream.open(shop.url) as ms:
        queue = ms.queue("jobs")
        (message,) = queue.claim(1, lease=600)
        output = ms.log(f"jobs.output.jobs-{message.id}")
        queue.note_progress(message, b'{"fraction":1.0,"text":"almost"}')
        output.append("Hello")
        go(page, shop, "jobs", f"jobs-{message.id}")
        says(page.get_by_label("The output"), "Hello")
        assert "100 % almost" in page.locator(".facts").inner_text()
        output.append(", world")
        says(page.get_by_label("The output"), "Hello, world")
        queue.ack(message)
        says(page.locator("section[aria-label=Output] .badge"), "ended")


def test_a_schedule_is_triggered_paused_and_resumed(page: Any, shop: Serving) -> None:
    complaints = watch(page)
    body = {"task": "shop:charge", "every": "30 1 * * *", "tz": "Europe/Lisbon"}
    answer = httpx.put(f"{shop.url}/schedules/nightly", json=body | {"arguments": {"order": 5}})
    assert answer.status_code == 201, answer.text
    go(page, shop, "jobs", tab="schedules")
    assert page.locator("td[data-label='next ticks'] li").count() == 3
    page.get_by_role("button", name="Trigger").click()
    says(page.locator(".notice.good"), "Put job jobs-3.")
    page.get_by_role("button", name="Pause").click()
    says(page.locator("td .badge"), "paused")
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("button", name="Pause").wait_for()
    go(page, shop, "jobs", "jobs-3")
    assert page.locator(".facts a:text-is('nightly')").count() == 1
    assert complaints == []


def test_a_token_that_reads_sees_no_buttons(page: Any, path: Path) -> None:
    with millstream.open(path, durability="relaxed") as ms:
        fill(ms)
    text = token(path, "job:read")
    with serving(path, auth="on") as server:
        go(page, server, "jobs", "jobs-1", text=text)
        says(page.locator(".row .badge"), "failed")
        assert "job:write:jobs" in page.locator(".readonly").inner_text()
        assert page.get_by_role("button", name="Retry").count() == 0
