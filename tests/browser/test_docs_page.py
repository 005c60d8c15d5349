"""The page at /docs, as a browser shows it: whole, quiet, searchable, in both colours and sizes."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.server.docs.endpoints import ENDPOINTS
from millstream.server.serving import Serving

pytestmark = [pytest.mark.browser, pytest.mark.requires("browser")]


def visible(page: Any, selector: str) -> list[str]:
    return [one.get_attribute("id") for one in page.locator(selector).all() if one.is_visible()]


def test_it_loads_without_a_complaint_and_asks_nobody_else(page: Any, server: Serving) -> None:
    complaints: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{server.url}/docs")
    page.locator("summary").first.click()
    page.locator("#theme").click()
    assert complaints == []
    assert {url for url in asked if not url.endswith("/favicon.ico")} == {f"{server.url}/docs"}


def test_every_operation_is_there_and_opens(page: Any, server: Serving) -> None:
    page.goto(f"{server.url}/docs")
    shown = visible(page, "details.operation")
    assert sorted(shown) == sorted(endpoint.name for endpoint in ENDPOINTS)
    page.locator("nav a[href='#claimMessages']").click()
    details = page.locator("#claimMessages")
    assert details.get_attribute("open") is not None
    example = details.locator("pre").inner_text()
    assert example.startswith(f"curl {server.url}/queues/invoices/claims")
    assert details.locator("text=Seconds to wait for the first message").is_visible()


def test_it_is_searched_by_words_of_any_part(page: Any, server: Serving) -> None:
    page.goto(f"{server.url}/docs")
    page.keyboard.press("/")
    page.keyboard.type("POST /logs/{log}/truncate")
    assert "truncateLog" in visible(page, "details.operation")
    assert "claimMessages" not in visible(page, "details.operation")
    assert page.locator("#found").inner_text() == "1 operation"
    assert not page.locator("nav a[href='#claimMessages']").is_visible()
    page.fill("#search", "xyzzy")
    assert page.locator("#none").is_visible()
    assert visible(page, "main section") == []
    page.keyboard.press("Escape")
    assert len(visible(page, "details.operation")) == len(ENDPOINTS)


def test_a_link_to_what_is_filtered_out_shows_it(page: Any, server: Serving) -> None:
    page.goto(f"{server.url}/docs")
    page.fill("#search", "prolong")
    page.evaluate("location.hash = '#error-LeaseLost'")
    assert page.locator("#error-LeaseLost").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_follows_the_systems_colours_until_told_otherwise(
    browser: Any, server: Serving, scheme: str
) -> None:
    context = browser.new_context(color_scheme=scheme)
    page = context.new_page()
    page.goto(f"{server.url}/docs")

    def brightness() -> int:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in colour.removeprefix("rgb(").rstrip(")").split(","))

    before = brightness()
    assert (before > 600) == (scheme == "light")
    page.locator("#theme").click()
    assert (brightness() > 600) == (scheme == "dark")
    context.close()


@pytest.mark.parametrize("width", [360, 800, 1600])
def test_nothing_is_wider_than_the_screen(browser: Any, server: Serving, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 800})
    page = context.new_page()
    page.goto(f"{server.url}/docs")
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    context.close()


def test_it_can_be_read_without_scripts(browser: Any, server: Serving) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{server.url}/docs")
    page.locator("#appendRecords summary").click()
    assert page.locator("#appendRecords pre").is_visible()
    assert not page.locator("#search").is_visible()
    context.close()
