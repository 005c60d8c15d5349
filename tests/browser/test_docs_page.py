"""The page at /docs, as a browser shows it: whole, quiet, searchable, in both colours and sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.server.auth.tokens import create_token
from millstream.server.docs.endpoints import ENDPOINTS
from millstream.server.pages import versioned
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings

pytestmark = [pytest.mark.browser, pytest.mark.requires("browser")]


def go(page: Any, server: Serving) -> None:
    """Open the page, and wait until it shows the document."""
    page.goto(f"{server.url}/docs")
    page.wait_for_selector("#errors")


def visible(page: Any, selector: str) -> list[str]:
    return [one.get_attribute("id") for one in page.locator(selector).all() if one.is_visible()]


def test_it_loads_without_a_complaint_and_asks_nobody_else(page: Any, server: Serving) -> None:
    complaints: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    go(page, server)
    page.locator("summary").first.click()
    page.locator("#theme").click()
    assert complaints == []
    files = ("look.css", "theme.js", "icon.svg", "api/api.css", "api/api.js")
    wanted = {f"{server.url}/docs", f"{server.url}/openapi.json"}
    assert set(asked) - {server.url + versioned("/web/") + file for file in files} == wanted


def test_every_operation_is_there_and_opens(page: Any, server: Serving) -> None:
    go(page, server)
    shown = visible(page, "details.operation")
    assert sorted(shown) == sorted(endpoint.name for endpoint in ENDPOINTS)
    page.locator("nav a[href='#claimMessages']").click()
    details = page.locator("#claimMessages")
    assert details.get_attribute("open") is not None
    example = details.locator(".example pre").inner_text()
    assert example.startswith(f"curl {server.url}/queues/invoices/claims")
    assert details.locator("text=Seconds to wait for the first message").is_visible()


def test_it_says_that_it_loads_and_why_it_is_empty(page: Any, server: Serving) -> None:
    held: list[Any] = []
    page.route("**/openapi.json", lambda route: held.append(route))
    page.goto(f"{server.url}/docs")
    loading = page.locator("#loading")
    assert loading.inner_text() == "Loading the description of the HTTP interface…"
    page.wait_for_function("performance.getEntriesByType('navigation').length === 1")
    while not held:
        page.wait_for_selector("#loading")
    held.pop().continue_()
    page.wait_for_selector("#errors")
    assert not loading.is_visible()
    page.unroute("**/openapi.json")
    page.route("**/openapi.json", lambda route: route.abort())
    page.reload()
    page.wait_for_selector("#loading:has-text('The server does not answer')")


def test_it_is_searched_by_words_of_any_part(page: Any, server: Serving) -> None:
    go(page, server)
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
    go(page, server)
    page.fill("#search", "prolong")
    page.evaluate("location.hash = '#error-LeaseLost'")
    assert page.locator("#error-LeaseLost").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_follows_the_systems_colours_until_told_otherwise(
    browser: Any, server: Serving, scheme: str
) -> None:
    context = browser.new_context(color_scheme=scheme)
    page = context.new_page()
    go(page, server)

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
    go(page, server)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    context.close()


def test_without_scripts_it_says_where_the_document_is(browser: Any, server: Serving) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{server.url}/docs")
    assert "openapi.json" in page.locator("noscript").inner_text()
    context.close()


def test_a_call_is_tried_out(page: Any, server: Serving) -> None:
    go(page, server)
    page.locator("nav a[href='#appendRecords']").click()
    form = page.locator("#appendRecords form")
    form.locator("input[aria-label=log]").fill("tried/out")
    form.locator("textarea").fill('{"value": "<b>bold</b>"}')
    form.locator("button").click()
    page.wait_for_selector("#appendRecords .result:not([hidden])")
    assert '{"offset":0,"count":1}' in form.locator(".result").inner_text()
    page.locator("nav a[href='#readRecords']").click()
    form = page.locator("#readRecords form")
    form.locator("input[aria-label=log]").fill("tried/out")
    form.locator("button").click()
    page.wait_for_selector("#readRecords .result:not([hidden])")
    assert "<b>bold</b>" in form.locator(".result").inner_text()
    assert page.locator("#readRecords .result b").count() == 0


def test_where_tokens_are_needed_it_asks_for_one_and_sends_it(browser: Any, tmp_path: Path) -> None:
    with millstream.open(tmp_path / "a.db") as ms:
        _, text = create_token(ms, "reader", ["log:read:orders"])
        ms.log("orders").append("here")
    context = browser.new_context()
    with running(tmp_path / "a.db", Settings(port=0, auth="on")) as server:
        page = context.new_page()
        page.goto(f"{server.url}/docs")
        page.wait_for_selector("#asked:has-text('wants a token')")
        assert page.locator("details").count() == 0
        page.fill("#token", "ms_wrong_token")
        page.keyboard.press("Enter")
        page.wait_for_selector("#asked:has-text('not valid')")
        assert page.locator("details").count() == 0
        page.fill("#token", text)
        page.keyboard.press("Enter")
        page.wait_for_selector("#errors")
        assert page.locator("#token").input_value() == ""
        page.reload()
        page.wait_for_selector("#errors")
        page.locator("nav a[href='#readRecords']").click()
        page.locator("#readRecords form button").click()
        page.wait_for_selector("#readRecords .result:has-text('here')")
        assert page.evaluate("localStorage.length") == 0
        assert page.evaluate("document.cookie") == ""
        assert text not in page.content()
        other = context.new_page()
        other.goto(f"{server.url}/docs")
        other.wait_for_selector("#asked:has-text('wants a token')")
    context.close()
