"""React, Vue and Svelte, as installed from npm: each page chats, shows who types, and follows a log.

The pages in `frameworks/` are built as an application would build them, with the npm package that
`make dist` packs. They are left out where npm or its registry cannot be reached; the test with the
Preact that the server brings always runs.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from tests.browser.boarding import watch
from tests.browser.sites import Site, open_site
from tests.browser.tabs import Tab

pytestmark = [pytest.mark.browser, pytest.mark.requires("browser")]

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = ("react", "vue", "svelte")
QUIET = ("--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")

PAGE = """<!doctype html><meta charset=utf-8><title>{name}</title><main id=app></main>
<script>window.config = {{ url: "{url}", user: "{user}" }};</script>
<script type=module src="/{name}.js"></script>"""


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages with everything that npm installs for them, the packed client among it."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm here")
    top = tmp_path_factory.mktemp("npm")
    place = top / "frameworks"
    shutil.copytree(
        ROOT / "tests/browser/frameworks", place, ignore=shutil.ignore_patterns("node_modules")
    )
    installed = run(place, "npm", "ci", *QUIET)
    if installed.returncode:
        pytest.skip(f"npm cannot install the frameworks here: {installed.stderr[-300:]}")
    shutil.copytree(ROOT / "src/millstream/web", top / "src/millstream/web")
    ignored = shutil.ignore_patterns("node_modules", "millstream.*", "LICENSE", "*.tgz")
    shutil.copytree(ROOT / "web", top / "web", ignore=ignored)
    shutil.copy(ROOT / "LICENSE", top)
    packed = run(top / "web", "npm", "pack", "--silent", "--pack-destination", str(top))
    assert packed.returncode == 0, packed.stderr
    archive = top / packed.stdout.strip()
    added = run(place, "npm", "install", "--no-save", *QUIET, str(archive))
    assert added.returncode == 0, added.stderr
    return place


@pytest.fixture(scope="module")
def built(project: Path) -> dict[str, str]:
    """The script of each page."""
    ran = run(project, "node", "build.mjs")
    assert ran.returncode == 0, ran.stderr
    return {name: (project / f"built/{name}.js").read_text() for name in FRAMEWORKS}


@pytest.fixture
def site(built: dict[str, str]) -> Iterator[Site]:
    with open_site() as site:
        site.files |= {f"/{name}.js": script for name, script in built.items()}
        yield site


@pytest.fixture
def open_server(tmp_path: Path, site: Site) -> Iterator[Serving]:
    with running(tmp_path / "a.db", Settings(port=0, origins=(site.origin,))) as server:
        yield server


def texts(page: Any, selector: str) -> list[str]:
    found: list[str] = page.locator(selector).all_inner_texts()
    return found


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_component_chats_and_follows(
    browser: Any, open_server: Serving, site: Site, name: str
) -> None:
    with millstream.open(open_server.url) as ms:
        ms.room("lobby", user="Old").send("chat", "früher")
        ms.log("news").append_many(["eins", "zwei"])
        context = browser.new_context()
        page = context.new_page()
        complaints = watch(page)
        site.files["/"] = PAGE.format(name=name, url=open_server.url, user="Ada 🦆")
        page.goto(site.origin)
        page.wait_for_selector("#state:text-is('live')")
        page.wait_for_selector("#records li:nth-child(2)")
        assert texts(page, "#messages li") == ["Old: früher"]
        assert texts(page, "#records li") == ["eins", "zwei"]
        bob = Tab(browser, open_server.url).join("lobby", user="Bob")
        page.wait_for_selector("#people li:text-is('Bob')")
        page.locator("#text").press_sequentially("Grüße")
        bob.until("room.presence.get('Ada 🦆')?.state.typing === true")
        page.wait_for_selector("#people li:text-is('Ada 🦆 is typing')")
        page.click("#send")
        bob.until_heard("Grüße")
        bob.send("chat", "hallo")
        page.wait_for_selector("#messages li:text-is('Bob: hallo')")
        assert texts(page, "#messages li") == ["Old: früher", "Ada 🦆: Grüße", "Bob: hallo"]
        bob.until("JSON.stringify(room.presence.get('Ada 🦆').state) === '{}'")
        ms.log("news").append("drei")
        page.wait_for_selector("#records li:nth-child(3):text-is('drei')")
        assert page.input_value("#text") == ""
        page.evaluate("leave()")
        bob.until("noted.presence.some(({ left }) => left === 'Ada 🦆')")
        assert bob.run("noted.presence.filter(({ joined }) => joined === 'Ada 🦆').length") == 0
        assert complaints == []
        bob.leave()
        context.close()


def test_the_types_are_right(project: Path) -> None:
    ran = run(project, "node", "node_modules/typescript/bin/tsc", "-p", ".")
    assert ran.returncode == 0, ran.stdout


PREACT = """async (name) => {
  const { h, render, html, ...hooks } = await import("/web/vendor/preact.js");
  const { Millstream, reactHooks } = await import("/millstream.js");
  const { useRoom } = reactHooks(hooks);
  const ms = new Millstream();
  function Chat({ name }) {
    const { state, messages, users, send } = useRoom(ms, name, { user: "Ada", history: 5 });
    window.send = send;
    return html`<p id=state>${name} ${state} ${users}</p><ol>${messages.map(({ offset, data }) => html`<li key=${offset}>${data}</li>`)}</ol>`;
  }
  document.body.replaceChildren();
  window.show = (name) => render(name && html`<${Chat} name=${name} />`, document.body);
  show(name);
}"""


def test_hooks_take_any_framework_of_this_kind(browser: Any, server: Serving) -> None:
    with millstream.open(server.url) as ms:
        for room in ("one", "two"):
            ms.room(f"preact {room}").send("chat", f"said in {room}")
    tab = Tab(browser, server.url)
    tab.run(PREACT, "preact one")
    tab.page.wait_for_selector("#state:text-is('preact one live 1')")
    tab.page.wait_for_selector("li")
    assert texts(tab.page, "li") == ["said in one"]
    tab.run("window.send('chat', 'mine')")
    tab.page.wait_for_selector("li:text-is('mine')")
    tab.run("() => show('preact two')")
    tab.page.wait_for_selector("#state:text-is('preact two live 1')")
    tab.page.wait_for_selector("li")
    assert texts(tab.page, "li") == ["said in two"]
    other = Tab(browser, server.url).join("preact two")
    tab.run("() => show(null)")
    other.until("noted.presence.some(({ left }) => left === 'Ada')")
    tab.leave()
    other.leave()
