"""Rooms on the dashboard: which there are, who is there, and what is said while it is said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import millstream
from millstream.server.serving import Serving
from millstream.threads.database import Millstream
from tests.browser.boarding import cells, go, says, watch

pytestmark = [pytest.mark.browser, pytest.mark.requires("browser")]

HOSTILE = "<img src=x onerror=hacked()>"

JOIN = """async ([room, user]) => {
  const { Millstream } = await import("/millstream.js");
  globalThis.joined = new Millstream().room(room, { user });
  await new Promise((done) => joined.on("state", ({ state }) => { if (state === "live") done(); }));
}"""
"""Joins a room as a user, as the page of any application does."""


@pytest.fixture
def ms(server: Serving) -> Iterator[Millstream]:
    with millstream.open(server.url) as opened:
        yield opened


@pytest.fixture
def guest(page: Any, server: Serving) -> Iterator[Any]:
    """Another page of the same browser, in no room yet."""
    other = page.context.new_page()
    other.goto(f"{server.url}/docs")
    yield other
    other.close()


def test_a_room_shows_who_is_there_and_what_is_said(
    page: Any, guest: Any, server: Serving, ms: Millstream
) -> None:
    complaints = watch(page)
    room = ms.room("lobby")
    room.specify(retained=("title",))
    room.send("title", {"text": "Welcome"}, key="top")
    go(page, server, "rooms")
    assert "lobby" in cells(page, "tbody td:first-child")
    page.get_by_role("link", name="lobby").click()
    page.wait_for_selector("section[aria-label='Live view'] .badge.good:has-text('live')")
    page.wait_for_selector("td.value:has-text('Welcome')")
    page.wait_for_selector("text=No user is here.")  # the dashboard itself listens unseen
    guest.evaluate(JOIN, ["lobby", "Ada"])
    says(page.locator(".people li b"), "Ada")
    page.wait_for_selector(".said li:has-text('Ada came')")
    guest.evaluate("joined.send('chat', {text: 'Hello'})")
    page.wait_for_selector(".said li:has-text('Hello')")
    assert "chat" in page.locator(".said li:has-text('Hello')").inner_text()
    room.send("note", {"text": "from Python"})
    page.wait_for_selector(".said li:has-text('from Python')")
    page.get_by_label("Which types").select_option("note")
    assert page.locator(".said li").count() == 1
    room.send("title", {"text": "Goodbye"}, key="top")
    page.wait_for_selector("td.value:has-text('Goodbye')")
    assert complaints == []


def test_what_is_said_in_a_room_is_text(
    page: Any, guest: Any, server: Serving, ms: Millstream
) -> None:
    hacked: list[str] = []
    page.expose_function("hacked", lambda: hacked.append("a text was run"))
    ms.room(HOSTILE).specify(retained=("kept",))
    go(page, server, "rooms", HOSTILE)
    page.wait_for_selector("section[aria-label='Live view'] .badge.good:has-text('live')")
    guest.evaluate(JOIN, [HOSTILE, HOSTILE])
    says(page.locator(".people li b"), HOSTILE)
    ms.room(HOSTILE).send(HOSTILE, {HOSTILE: HOSTILE})
    ms.room(HOSTILE).send("kept", HOSTILE, key=HOSTILE)
    page.wait_for_selector(f".said li .badge:text-is({HOSTILE!r})")
    page.wait_for_selector("section[aria-label='Who is there'] td.value")
    assert page.locator("main img, main script").count() == 0
    assert hacked == []
    go(page, server, "rooms")
    assert HOSTILE in cells(page, "tbody td:first-child")
