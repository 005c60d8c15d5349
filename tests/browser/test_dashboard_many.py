"""The dashboard of a store with more than a page of everything, or with just one of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from millstream.server.auth.tokens import create_token
from millstream.server.serving import Serving
from millstream.threads.database import Millstream
from tests.browser.boarding import cells, go, serving, settled, token

pytestmark = [pytest.mark.browser, pytest.mark.requires("browser")]

PAGE = 1_000
LAST = f"last-{PAGE}"


def fill(ms: Millstream) -> None:
    """One more log, queue and room than a page of a listing has."""
    for name in (*(f"first-{number:04}" for number in range(PAGE)), LAST):
        ms.log(name).append("x")
        ms.create_queue(name)
        ms.room(name).send("said", 1)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("many") / "store.db", fill) as server:
        yield server


@pytest.mark.parametrize("noun", ["queue", "room"])
def test_what_a_page_does_not_hold_is_shown_when_more_is_asked_for(
    page: Any, many: Serving, noun: str
) -> None:
    go(page, many, f"{noun}s")
    page.get_by_text(f"More {noun}s").wait_for()
    assert LAST not in cells(page, "tbody td:first-child")
    page.get_by_text(f"More {noun}s").click()
    page.get_by_role("link", name=LAST).wait_for()
    assert page.get_by_text(f"More {noun}s").count() == 0


@pytest.mark.parametrize("noun", ["log", "queue", "room"])
def test_a_search_finds_what_no_page_shows_yet(page: Any, many: Serving, noun: str) -> None:
    go(page, many, f"{noun}s")
    page.fill("input[type=search]", "last")
    page.get_by_role("link", name=LAST).first.wait_for()
    page.fill("input[type=search]", "nowhere")
    page.get_by_text(f"No {noun} has this in its name.").wait_for()
    assert page.get_by_role("link", name=LAST).count() == 0


def test_a_search_that_was_left_asks_for_no_more_pages(page: Any, many: Serving) -> None:
    held: list[Any] = []
    go(page, many, "queues")
    page.route("**/queues?*", lambda route: held.append(route))  # Playwright asks it for its names
    with page.expect_request("**/queues?*"):
        page.fill("input[type=search]", "nowhere")
    page.evaluate("location.hash = '#/rooms'")
    page.get_by_role("heading", name="Rooms").wait_for()
    for route in list(held):  # the search, and perhaps a refresh of the page
        with page.expect_response("**/queues?*"):
            route.fulfill(json={"queues": [], "after": "first-0999"})
    page.evaluate("fetch('/health').then((answer) => answer.text())")
    assert [route.request.url for route in held if "after=" in route.request.url] == []


def test_the_overview_says_that_it_has_not_looked_at_all_queues(page: Any, many: Serving) -> None:
    go(page, many)
    page.get_by_text("Of the first 1,000 queues by name; there are more.").wait_for()
    assert LAST not in cells(page, "tbody td:first-child")


def test_tokens_behind_the_first_page_are_found_and_shown(page: Any, tmp_path: Any) -> None:
    def fill_tokens(ms: Millstream) -> None:
        for name in (*(f"first-{number:04}" for number in range(PAGE)), LAST):
            create_token(ms, name, ["log:read"])

    path = tmp_path / "store.db"
    with serving(path, fill_tokens, auth="on") as server:
        go(page, server, "tokens", text=token(path, name="admin"))
        page.get_by_role("button", name="More tokens").wait_for()
        page.fill("input[type=search]", "last")
        page.get_by_role("cell", name=LAST, exact=True).wait_for()
        page.fill("input[type=search]", "")
        page.get_by_role("button", name="More tokens").click()
        page.get_by_role("cell", name=LAST, exact=True).wait_for()
        assert page.get_by_role("button", name="More tokens").count() == 0


def test_a_server_that_says_nothing_more_is_told_as_such(page: Any, tmp_path: Any) -> None:
    with serving(tmp_path / "store.db") as server:
        go(page, server)
        page.locator("header .badge", has_text="live").wait_for()
        assert server.core is not None
        server.core.live.tick_s = 3_600.0
        page.locator("header .badge", has_text="no answer").wait_for()


def test_one_of_a_thing_is_told_as_one(page: Any, tmp_path: Any) -> None:
    def alone(ms: Millstream) -> None:
        ms.room("lobby").send("said", 1)

    with serving(tmp_path / "store.db", alone) as server:
        go(page, server)
        page.locator(".chips li").first.wait_for()
        settled(page)
        told = cells(page, ".chips li")
    assert told[1:3] == ["0 queues", "1 room"]


def test_a_long_name_begins_where_the_page_begins_on_a_phone(browser: Any, tmp_path: Any) -> None:
    name = "Überlang-" + "数据流" * 20 + "a" * 80

    def long(ms: Millstream) -> None:
        ms.log(name).append("x")
        queue = ms.queue(name, sources=name, start="earliest")
        queue.claim(1)

    with serving(tmp_path / "store.db", long) as server:
        context = browser.new_context(viewport={"width": 360, "height": 800})
        page = context.new_page()
        go(page, server, "queues")
        page.get_by_role("link", name=name).wait_for()
        assert page.eval_on_selector("tbody td a", "e => getComputedStyle(e).textAlign") == "start"
        over = page.evaluate(
            "[...document.querySelectorAll('td')].filter(e => e.scrollWidth > e.clientWidth).length"
        )
        assert over == 0
        context.close()
