"""Who may do what on the dashboard, and that it is for every user: tokens, viewers, text, keys, phones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.server.auth.register import Registrar
from millstream.server.auth.tokens import create_token
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from millstream.threads.database import Millstream
from tests.browser.boarding import ADMIN, TOKEN, cells, go, says, settled, watch

pytestmark = [pytest.mark.browser, pytest.mark.requires("browser")]

HOSTILE = "<img src=x onerror=hacked()>\"'&<script>hacked()</script>"
"""A name that would run, if it were anything but text."""

LONG = "an-exceedingly-long-name-" * 8
FOCUSABLE = (
    "a[href], button:enabled, input:enabled, select:enabled, textarea, summary, [tabindex='0']"
)


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return {}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, texts: dict[str, str]) -> Iterator[Serving]:
    """A server that lets in tokens only, on a store whose every text is hostile."""
    path = tmp_path_factory.mktemp("guarded") / "store.db"
    with millstream.open(path, durability="relaxed") as ms:
        fill(ms)
        for name, permissions in {
            "operator": ADMIN,
            "viewer": ("*:read",),
            "narrow": ("queue:admin:jobs", "log:read:o*"),
            HOSTILE: ("log:read:<b>*",),
        }.items():
            texts[name] = create_token(ms, name, permissions)[1]
    with running(path, Settings(port=0, auth="on"), durability="relaxed") as server:
        yield server


def fill(ms: Millstream) -> None:
    for name in (HOSTILE, LONG, "orders"):
        log = ms.log(name)
        log.append(HOSTILE, key=HOSTILE, headers={HOSTILE: HOSTILE, "n": 1})
        log.append({HOSTILE: [HOSTILE, 1, True, None]})
        log.cursor(HOSTILE)
    ms.log("orders").fork(f"{HOSTILE} fork")
    for name in (HOSTILE, LONG, "jobs"):
        queue = ms.create_queue(name, max_attempts=1, lease=3600, description=HOSTILE)
        queue.put_many([HOSTILE, HOSTILE, HOSTILE], headers=[{HOSTILE: HOSTILE}] * 3)
        first, _ = queue.claim(2, consumer=HOSTILE)
        ms.room(name).send(HOSTILE[:28], {HOSTILE: HOSTILE})
        queue.fail(first, reason=f'{HOSTILE}\n  File "{HOSTILE}", line 1, in {HOSTILE}')


PAGES: list[tuple[list[str], dict[str, str]]] = [
    ([], {}),
    (["logs"], {}),
    (["logs", HOSTILE], {}),
    (["queues"], {}),
    (["queues", HOSTILE], {"tab": "failed"}),
    (["queues", HOSTILE], {"tab": "in_flight"}),
    (["queues", HOSTILE], {"tab": "available"}),
    (["queues", HOSTILE], {"tab": "spec"}),
    (["rooms"], {}),
    (["rooms", HOSTILE], {}),
    (["replicas"], {}),
    (["clients"], {}),
    (["health"], {}),
    (["tokens"], {}),
]


def enter(page: Any, server: Serving, text: str) -> None:
    page.goto(server.url)
    page.fill(TOKEN, text)
    page.keyboard.press("Enter")
    page.wait_for_selector("nav")


# Signing in.


def test_a_wrong_token_is_told_and_a_right_one_lasts_for_the_tab(
    browser: Any, guarded: Serving, texts: dict[str, str]
) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{guarded.url}/#/queues/jobs")
    page.wait_for_selector(TOKEN)
    assert page.locator("[role=alert]").count() == 0
    page.fill(TOKEN, "ms_wrong_token")
    page.keyboard.press("Enter")
    page.wait_for_selector("[role=alert]:has-text('send a valid token')")
    page.fill(TOKEN, texts["operator"])
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('jobs')")  # where the address pointed to
    page.reload()
    page.wait_for_selector("h1:has-text('jobs')")
    assert page.locator("header").inner_text().count("operator") == 1
    assert texts["operator"] not in page.content()
    assert texts["operator"] not in page.evaluate("JSON.stringify(localStorage)")
    assert page.evaluate("document.cookie") == ""
    other = context.new_page()
    other.goto(guarded.url)
    other.wait_for_selector(TOKEN)
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_selector(TOKEN)
    assert page.evaluate("sessionStorage.length") == 0
    context.close()


def test_a_token_that_counts_no_more_is_asked_for_again(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "short.db"
    with millstream.open(path) as ms:
        text = create_token(ms, "short", ["*:read"])[1]
    context = browser.new_context()
    page = context.new_page()
    with running(path, Settings(port=0, auth="on")) as server:
        enter(page, server, text)
        page.wait_for_selector(".badge.good:has-text('live')")
        with millstream.open(path) as ms:
            Registrar(ms).revoke("short")
        page.wait_for_selector(TOKEN)
        assert "send a valid token" in page.locator("[role=alert]").inner_text()
        assert page.evaluate("sessionStorage.length") == 0
    context.close()


def test_no_address_that_is_asked_for_holds_the_token(
    page: Any, guarded: Serving, texts: dict[str, str]
) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    enter(page, guarded, texts["operator"])
    page.wait_for_selector(".badge.good:has-text('live')")
    assert asked
    assert not [url for url in asked if texts["operator"] in url or "ms_" in url]


# Reading only.


def refused(page: Any) -> list[tuple[str, str]]:
    """The controls that are disabled for want of a permission, and why."""
    found = page.locator("main [data-refused]").all()
    assert all(one.is_disabled() for one in found)
    return [(one.inner_text(), one.get_attribute("title")) for one in found]


def test_a_viewer_sees_everything_and_changes_nothing(
    page: Any, guarded: Serving, texts: dict[str, str]
) -> None:
    go(page, guarded, "queues", "jobs", text=texts["viewer"], tab="failed")
    why = "This needs the permission queue:admin:jobs, which the token “viewer” does not have."
    names = {name for name, reason in refused(page) if reason == why}
    assert names == {
        *("Settings…", "Pause", "Purge…"),
        *("Retry all that match…", "Retry", "Retry group…"),
    }
    assert why in page.locator(".readonly").inner_text()
    page.locator("td.toggle button").click()
    page.wait_for_selector("pre.trace")
    assert "Edit and retry…" in dict(refused(page))
    go(page, guarded, "logs", "orders")
    names = {name for name, _ in refused(page)}
    assert names == {"Append a record…", "Retention…", "Truncate…"}
    page.wait_for_selector("table.records")
    go(page, guarded, "replicas")
    assert "Merge…" in dict(refused(page))
    go(page, guarded, "tokens")
    assert page.get_by_role("button", name="New token…").is_disabled()
    assert "store:admin" in page.locator(".readonly").inner_text()


def test_a_token_for_one_queue_changes_that_queue_and_misses_the_figures(
    page: Any, guarded: Serving, texts: dict[str, str]
) -> None:
    go(page, guarded, "queues", "jobs", text=texts["narrow"], tab="spec")
    assert refused(page) == []
    assert page.get_by_role("button", name="Purge…").is_enabled()
    page.wait_for_selector("header .badge:has-text('not live')")
    go(page, guarded)
    assert "store:read" in page.locator(".notice").first.inner_text()
    assert cells(page, "tbody td:first-child") == ["jobs"]
    go(page, guarded, "health")
    assert page.locator(".verdict").inner_text() in ("healthy", "warning")  # of a late event loop
    assert "store:read" in page.locator(".notice").inner_text()


# Tokens.


def test_a_token_is_made_shown_once_and_revoked(
    page: Any, guarded: Serving, texts: dict[str, str]
) -> None:
    go(page, guarded, "tokens", text=texts["operator"])
    page.get_by_role("button", name="New token…").click()
    dialog = page.locator("dialog")
    dialog.get_by_label("Name", exact=True).fill("made here")
    dialog.get_by_label("Action").select_option("write")
    dialog.get_by_label("Pattern of names").fill("orders*")
    dialog.get_by_role("button", name="And also…").click()
    dialog.get_by_role("button", name="Create").click()
    page.locator("dialog .secret").wait_for()
    text = page.locator("dialog .secret").inner_text()
    assert text.startswith("ms_")
    page.get_by_role("button", name="I have kept it").click()
    row = page.locator("tr:has-text('made here')")
    row.wait_for()
    assert text not in page.content()
    assert [one.inner_text() for one in row.locator(".chips li").all()] == [
        "log:write:orders*",
        "queue:write",
    ]
    with millstream.open(guarded.url, token=text) as ms:
        ms.log("orders-made").append("x")
    row.get_by_role("button", name="Revoke…").click()
    dialog.get_by_label("The name, to confirm").fill("made here")
    dialog.get_by_role("button", name="Revoke", exact=True).click()
    dialog.get_by_text("It is refused from now on").wait_for()
    dialog.get_by_role("button", name="Close").click()
    row.wait_for(state="detached")


def test_only_queues_offer_the_right_to_put_alone(
    page: Any, guarded: Serving, texts: dict[str, str]
) -> None:
    go(page, guarded, "tokens", text=texts["operator"])
    page.get_by_role("button", name="New token…").click()
    dialog = page.locator("dialog")
    action, noun = dialog.get_by_label("Action"), dialog.get_by_label("Kind of thing")
    assert action.locator("option").all_inner_texts() == ["read", "write", "admin"]
    noun.select_option("queue")
    action.select_option("put")
    noun.select_option("room")
    assert action.input_value() == "write"
    noun.select_option("queue")
    action.select_option("put")
    dialog.get_by_label("Name", exact=True).fill("puts only")
    dialog.get_by_role("button", name="Create").click()
    page.locator("dialog .secret").wait_for()
    page.get_by_role("button", name="I have kept it").click()
    row = page.locator("tr:has-text('puts only')")
    row.wait_for()
    assert row.locator(".chips li").all_inner_texts() == ["queue:put"]


def test_a_wrong_permission_is_told_in_the_servers_words(
    page: Any, guarded: Serving, texts: dict[str, str]
) -> None:
    go(page, guarded, "tokens", text=texts["operator"])
    page.get_by_role("button", name="New token…").click()
    dialog = page.locator("dialog")
    dialog.get_by_label("Name", exact=True).fill("operator")
    dialog.get_by_role("button", name="Create").click()
    dialog.locator("[role=alert]").wait_for()
    assert "there is a token 'operator' already" in dialog.locator("[role=alert]").inner_text()


# Text is text.


def test_whatever_is_stored_is_shown_as_text(
    browser: Any, guarded: Serving, texts: dict[str, str]
) -> None:
    context = browser.new_context()
    page = context.new_page()
    hacked: list[str] = []
    page.expose_function("hacked", lambda: hacked.append("a text was run"))
    complaints = watch(page)
    enter(page, guarded, texts["operator"])
    for parts, asked in PAGES:
        go(page, guarded, *parts, **asked)
        for toggle in page.locator("td.toggle button").all()[:1]:
            toggle.click()
            page.wait_for_selector("tr.detail pre")
            for way in page.locator(".payload .row button:enabled").all():
                way.click()
        assert page.locator("main img, main script").count() == 0, parts
        if parts not in ([], ["health"]):
            assert "<img src=x onerror=hacked()>" in page.locator("main").inner_text(), parts
    for opener in ("Truncate…",):
        go(page, guarded, "logs", HOSTILE)
        page.get_by_role("button", name=opener).click()
        assert HOSTILE in page.locator("dialog").inner_text()
    go(page, guarded, "queues", HOSTILE, tab="failed")
    page.locator("td.toggle button").first.click()
    page.get_by_role("button", name="Edit and retry…").click()
    assert page.locator("dialog textarea").first.input_value() == HOSTILE
    assert page.locator("dialog img, dialog script").count() == 0
    assert (hacked, complaints) == ([], [])
    context.close()


# Every user.


@pytest.mark.parametrize("width", [360, 768, 1600])
def test_nothing_is_wider_than_the_screen(
    browser: Any, guarded: Serving, texts: dict[str, str], width: int
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 800})
    page = context.new_page()
    enter(page, guarded, texts["operator"])
    for parts, asked in PAGES:
        for name in (HOSTILE, LONG):
            place = [name if part == HOSTILE else part for part in parts]
            go(page, guarded, *place, **asked)
            for toggle in page.locator("td.toggle button").all()[:1]:
                toggle.click()
                settled(page)
            found = page.evaluate("document.documentElement.scrollWidth")
            assert found <= width, (place, asked, found)
    context.close()


def test_the_keyboard_reaches_everything(
    page: Any, guarded: Serving, texts: dict[str, str]
) -> None:
    enter(page, guarded, texts["operator"])
    for parts, asked in PAGES:
        go(page, guarded, *parts, **asked)
        page.wait_for_selector(".badge.good:has-text('live')")
        wanted = page.evaluate(NUMBERED, FOCUSABLE)
        reached: set[str] = set()
        for _ in range(wanted + 10):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement?.dataset.number ?? ''"))
        missing = {str(number) for number in range(wanted)} - reached
        names = [page.locator(f"[data-number='{one}']").inner_text() for one in missing]
        assert not missing, (parts, asked, names)


NUMBERED = """(selector) => {
  document.activeElement?.blur();
  const shown = [...document.querySelectorAll(selector)].filter((one) => one.checkVisibility());
  shown.forEach((one, number) => { one.dataset.number = number; });
  return shown.length;
}"""
"""Numbers what a user can act on; answers how many there are."""


def test_keys_lead_to_pages_open_rows_and_close_dialogs(
    page: Any, guarded: Serving, texts: dict[str, str]
) -> None:
    go(page, guarded, text=texts["operator"])
    page.keyboard.press("g")
    page.keyboard.press("q")
    page.wait_for_selector("h1:has-text('Queues')")
    settled(page)
    page.keyboard.press("/")
    page.keyboard.type("jobs")
    says(page.locator("tbody td:first-child"), "jobs")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('jobs')")
    page.wait_for_selector("td.toggle button")
    page.locator("td.toggle button").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("pre.trace")
    page.get_by_role("button", name="Purge…").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    assert page.locator("h1").inner_text() == "jobs"
    assert page.locator("pre.trace").is_visible()


def test_a_server_that_is_away_is_shown_and_found_again(browser: Any, tmp_path: Path) -> None:
    context = browser.new_context()
    page = context.new_page()
    path = tmp_path / "away.db"
    with running(path, Settings(port=0)) as server:
        go(page, server)
        page.wait_for_selector(".badge.good:has-text('live')")
        port = server.port
    page.wait_for_selector("header .badge.warn:has-text('reconnecting')")
    with running(path, Settings(port=port)):
        page.wait_for_selector(".badge.good:has-text('live')", timeout=60_000)
        assert page.locator("header .badge.warn").count() == 0
    context.close()
