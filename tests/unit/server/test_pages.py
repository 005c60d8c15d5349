"""WebPages: the files of the package and nothing else, each with its type, its tag and its policy."""

from __future__ import annotations

import asyncio
import posixpath
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources

import httpx
import pytest
from starlette.applications import Starlette

from millstream.server.listen.guard import PUBLIC, PUBLIC_FOLDER
from millstream.server.pages import (
    FOLDER,
    MEDIA_TYPES,
    PAGES,
    WebPages,
    files,
    safeguards,
    version_of,
    versioned,
)
from millstream.server.problems import nothing_here
from tests.unit.server.guarded import guarded, in_loop


@asynccontextmanager
async def asking(*origins: str) -> AsyncIterator[httpx.AsyncClient]:
    app = Starlette(routes=[WebPages(origins)], exception_handlers={404: nothing_here})
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        yield client


def get(path: str, method: str = "GET", **head: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        async with asking() as client:
            return await client.request(method, path, headers=head)

    return asyncio.run(ask())


@pytest.mark.parametrize("address", WebPages().addresses)
def test_every_file_is_sent_with_its_type_and_a_strict_policy(address: str) -> None:
    answer = get(address)
    assert answer.status_code == 200
    assert answer.content == files()[WebPages().addresses[address]].body
    assert answer.headers["content-type"] in MEDIA_TYPES.values()
    assert answer.headers["x-content-type-options"] == "nosniff"
    policy = answer.headers["content-security-policy"].split("; ")
    assert policy[0] == "default-src 'none'"
    assert {"script-src 'self'", "connect-src 'self'", "frame-ancestors 'none'"} < {*policy}
    assert "unsafe" not in answer.headers["content-security-policy"]


def test_scripts_have_a_type_with_which_browsers_run_them() -> None:
    assert get("/web/charts.js").headers["content-type"] == "text/javascript; charset=utf-8"
    assert get("/web/look.css").headers["content-type"] == "text/css; charset=utf-8"


def test_a_browser_that_has_a_file_is_sent_no_second_copy() -> None:
    first = get("/web/look.css")
    assert first.headers["cache-control"] == "no-cache"
    tag = first.headers["etag"]
    for known in (tag, f'"other", {tag}', f"W/{tag}"):
        again = get("/web/look.css", **{"if-none-match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == tag
        assert "content-security-policy" in again.headers
    assert get("/web/look.css", **{"if-none-match": '"other"'}).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/web",
        "/web/",
        "/web/vendor",
        "/web/../__init__.py",
        "/web/%2e%2e/__init__.py",
        "/web/..%2f__init__.py",
        "/web//look.css",
        "/web/look.css%00",
        "/web/LOOK.CSS",
        "/web/\\look.css",
        "/demo",
    ],
)
def test_nothing_else_is_there(path: str) -> None:
    async def ask() -> int:
        async with asking() as client:
            url = client.base_url.copy_with(raw_path=path.encode())
            return (await client.get(url)).status_code

    assert asyncio.run(ask()) == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_a_page_can_only_be_read(method: str) -> None:
    answer = get("/", method)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD"


def test_pages_open_without_a_token_and_with_a_wrong_one_do_not() -> None:
    async def test() -> None:
        async with guarded(extra=lambda core: [WebPages()]) as at:
            for address in ("/", "/demo/canvas", "/web/look.css"):
                assert (await at.ask("GET", address)).status_code == 200
                assert (await at.ask("GET", address, bearer="ms_no_good")).status_code == 401
            assert (await at.ask("GET", "/web/none")).status_code == 404

    in_loop(test)


def test_the_guard_lets_in_what_is_served() -> None:
    assert {*PAGES} <= PUBLIC
    assert FOLDER == PUBLIC_FOLDER


def test_a_page_may_connect_to_servers_whose_pages_may_connect_here() -> None:
    policy = safeguards(("http://b:81", "https://c"))["content-security-policy"]
    assert "connect-src 'self' http://b:81 https://c ws://b:81 wss://c;" in policy


def test_no_page_names_anything_outside_or_inside_itself() -> None:
    """The policy refuses inline scripts and styles, and every other server."""
    for path, file in files().items():
        text = file.body.decode()
        if path.endswith(".html"):
            assert not re.search(r"<style|\bstyle=|<script>|\son\w+=", text), path
            linked = set(re.findall(r'(?:src|href)="?(/web/[^"> ]+)', text))
            assert linked <= {*WebPages().addresses}, path
        if path.endswith((".html", ".css")):
            assert not re.search(r"(src|href)=\"?https?:|url\(|@import", text), path


def modules(url: str, found: list[str]) -> list[str]:
    """A module, and every one that it imports, in the order in which a browser meets them."""
    if url not in found:
        found.append(url)
        text = files()[WebPages().addresses[url]].body.decode()
        for one in re.findall(r"""(?:^import|\bfrom) ["']([^"'\n]+)["'];$""", text, re.MULTILINE):
            modules(posixpath.normpath(posixpath.join(posixpath.dirname(url), one)), found)
    return found


def test_the_dashboard_asks_for_all_its_modules_at_once() -> None:
    page = files()["dashboard/index.html"].body.decode()
    preloaded = re.findall(r'<link rel=modulepreload href="([^"]+)">', page)
    assert preloaded == modules(f"{versioned(FOLDER)}dashboard/app.js", [])


def test_what_a_page_names_has_the_version_and_is_kept_for_good() -> None:
    for page in ("/", "/demo/canvas", "/web/api/index.html"):
        answer = get(page)
        assert answer.headers["cache-control"] == "no-cache"
        named = re.findall(r'(?:src|href)="(/web/[^"]+)', answer.text)
        assert named
        for address in named:
            assert address.startswith(versioned(FOLDER))
            file = get(address)
            assert file.headers["cache-control"] == "public, max-age=31536000, immutable"
            assert file.content == get(address.replace(versioned(FOLDER), FOLDER)).content
            for one in modules(address, []) if address.endswith(".js") else ():
                assert one.startswith(versioned(FOLDER)), "it would be asked for each time"


def test_a_file_of_another_version_is_the_one_that_there_is_and_is_not_kept() -> None:
    other = f"{FOLDER}v-{'0' * 16}/"
    answer = get(f"{other}look.css")
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-cache")
    assert answer.content == files()["look.css"].body
    for path in ("none.css", "", f"v-{'0' * 16}/look.css"):
        assert get(other + path).status_code == 404
    assert get(f"{versioned(FOLDER)}dashboard/index.html").headers["cache-control"] == "no-cache"


def test_the_version_is_another_one_as_soon_as_a_file_is() -> None:
    bodies = {"a.js": b"1", "b.js": b"2"}
    others = [{"a.js": b"1"}, {"a.js": b"1", "b.js": b"3"}, {"a.js": b"1", "c.js": b"2"}]
    versions = {version_of(one) for one in (bodies, *others, {"a.js": b"2", "b.js": b"1"})}
    assert len(versions) == 5
    assert version_of({"b.js": b"2", "a.js": b"1"}) == version_of(bodies)


def test_what_others_have_made_has_its_licence_and_its_version() -> None:
    folder = resources.files("millstream") / "web" / "vendor"
    readme = (folder / "README.md").read_text(encoding="utf-8")
    vendored = [path.removeprefix("vendor/") for path in files() if path.startswith("vendor/")]
    for name in vendored:
        assert name == "README.md" or f"`{name}`" in readme, name
    for name in re.findall(r"`(LICENSE[^`]*)`", readme):
        assert (folder / name).is_file()


LOST_SPACES = (
    r"</(?:code|b|a|span|kbd)>[ \t]*\n\s*[\w(“]",
    r"[\w.,:;][ \t]*\n\s*<(?:code|b|kbd)[ >]",
)
"""Text and an inline element on two lines: the templates drop the line's end, and with it the space."""


@pytest.mark.parametrize(
    "path", sorted(path for path in files() if re.match(r"dashboard/.*\.js", path))
)
def test_no_space_between_words_and_code_is_lost_at_the_end_of_a_line(path: str) -> None:
    text = files()[path].body.decode()
    lost = [found[0] for pattern in LOST_SPACES for found in re.finditer(pattern, text)]
    assert lost == []
