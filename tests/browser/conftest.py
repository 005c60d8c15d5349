"""A real browser, and a server for it to look at."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from millstream.server.settings import Settings
from tests.browser.painting import FINDABLE_MS

if TYPE_CHECKING:
    from millstream.server.serving import Serving

QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""Chromium as root, and without calls of its own to anywhere."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    from millstream.server.serving import running

    with running(tmp_path_factory.mktemp("browser") / "store.db", Settings(port=0)) as serving:
        yield serving


class PatientBrowser:
    """A browser whose pages wait long for what must come."""

    def __init__(self, chromium: Any) -> None:
        self._chromium = chromium

    def new_context(self, **options: Any) -> Any:
        context = self._chromium.new_context(**options)
        context.set_default_timeout(FINDABLE_MS)
        return context


@pytest.fixture(scope="session")
def browser() -> Iterator[PatientBrowser]:
    """One Chromium for the run: its start takes 3 s of processor time; pages share no context."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=list(QUIET), timeout=FINDABLE_MS
        )
        yield PatientBrowser(chromium)
        chromium.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield context.new_page()
    context.close()
