"""The dashboard in a test: opened at a page, watched for complaints, and asked what it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import millstream
from millstream.server.auth.tokens import create_token
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from millstream.threads.database import Millstream
from tests.browser.painting import FINDABLE_MS

ADMIN = ("*:admin", "store:admin")
TOKEN = "input[type=password]"


@contextmanager
def serving(
    path: Path, fill: Callable[[Millstream], object] = lambda ms: None, **settings: Any
) -> Iterator[Serving]:
    """A server on a store that was filled before."""
    with millstream.open(path, durability="relaxed") as ms:
        fill(ms)
    with running(path, Settings(port=0, **settings), durability="relaxed") as server:
        yield server


def token(path: Path, *permissions: str, name: str = "operator") -> str:
    """The text of a new token."""
    with millstream.open(path) as ms:
        return create_token(ms, name, permissions or ADMIN)[1]


def place(*parts: str, **asked: str) -> str:
    """The address of a page of the dashboard, behind the `#`."""
    query = "&".join(f"{name}={quote(value)}" for name, value in asked.items())
    return "#/" + "/".join(quote(part, safe="") for part in parts) + (f"?{query}" if query else "")


def go(page: Any, server: Serving, *parts: str, text: str = "", **asked: str) -> None:
    """Open a page of the dashboard, and sign in if a token is given."""
    page.goto(f"{server.url}/{place(*parts, **asked)}")
    if text:
        page.fill(TOKEN, text)
        page.keyboard.press("Enter")
    page.wait_for_selector(".frame main h1")
    settled(page)


def settled(page: Any) -> None:
    """Wait until nothing on the page is still on its way."""
    page.wait_for_selector("[aria-busy]", state="detached")


def figure(page: Any, label: str) -> str:
    """What a figure of the page says."""
    text: str = (
        page.locator(".figure", has=page.get_by_text(label, exact=True)).locator("b").inner_text()
    )
    return text


def cells(page: Any, selector: str) -> list[str]:
    """The texts of all such cells."""
    return [text.strip() for text in page.locator(selector).all_inner_texts()]


EXPECTED = ("Failed to load resource", "closed before the connection is established")
"""Of requests that fail as they should, and of pages that are left while they connect."""


def watch(page: Any) -> list[str]:
    """Everything that the browser complains of from now on, failed requests apart."""
    complaints: list[str] = []

    def hear(message: Any) -> None:
        is_expected = any(text in message.text for text in EXPECTED)
        if message.type in ("error", "warning") and not is_expected:
            complaints.append(message.text)

    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", hear)
    return complaints


def says(locator: Any, text: str) -> None:
    """Wait until an element says exactly this."""
    from playwright.sync_api import expect  # where it is missing, these tests are left out

    expect(locator).to_have_text(text, timeout=FINDABLE_MS)
