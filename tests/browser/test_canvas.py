"""The shared canvas: people draw over two servers on one file, and see each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

import millstream
from millstream.embedded.session import EmbeddedSession
from millstream.rooms.commands import SweepRooms
from millstream.server.auth.tokens import create_token
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from millstream.testing import Probe
from tests.browser.painting import Painter

pytestmark = [pytest.mark.browser, pytest.mark.requires("browser")]

BOX = (200, 150, 300, 200)
OTHER = (900, 500, 260, 180)
Enter = Callable[..., Painter]


def corners(box: tuple[int, int, int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    x, y, width, height = box
    return (x, y), (x + width, y + height)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Serving]]:
    """Two servers on one file."""
    with ExitStack() as open_:
        path = tmp_path / "shared.db"
        yield [open_.enter_context(running(path, Settings(port=0))) for _ in range(2)]


@pytest.fixture
def enter(browser: Any) -> Iterator[Enter]:
    """People who enter at a server, and leave when the test ends."""
    people: list[Painter] = []

    def enter_one(name: str, server: Serving, query: str = "", **context: Any) -> Painter:
        people.append(Painter(browser, name, **context))
        return people[-1].enter(server.url, query)

    yield enter_one
    for one in people:
        one.leave()


def test_people_at_two_servers_draw_and_see_each_other(
    servers: list[Serving], enter: Enter
) -> None:
    ada, grace = enter("Ada", servers[0]), enter("Grace", servers[1])
    ada.until_people("Ada", "Grace")
    grace.until_people("Ada", "Grace")
    assert ada.people() == ["Ada (you)", "Grace"]
    ada.drag(*corners(BOX))
    grace.drag(*corners(OTHER))
    ada.until_shapes(BOX, OTHER)
    grace.until_shapes(BOX, OTHER)
    grace.drag((300, 200), (500, 260))  # by its inside: it moves
    there = (BOX[0] + 200, BOX[1] + 60, BOX[2], BOX[3])
    ada.until_shapes(there, OTHER)
    ada.move((700, 700))
    assert grace.page.wait_for_selector(".pointer").text_content() == "Ada"
    ada.move((950, 550))
    ada.page.mouse.down()
    ada.page.mouse.up()
    ada.page.locator("#remove").click()
    grace.until_shapes(there)


def test_the_canvas_is_complete_after_its_messages_expired_and_all_servers_restarted(
    tmp_path: Path, enter: Enter
) -> None:
    path = tmp_path / "shared.db"
    third = (600, 600, 100, 120)
    with running(path, Settings(port=0)) as one, running(path, Settings(port=0)) as two:
        settings = {"ttl": 0.05, "retained": ["shape"]}
        httpx.put(f"{one.url}/rooms/canvas/settings", json=settings, timeout=60).raise_for_status()
        ada, grace = enter("Ada", one), enter("Grace", two)
        ada.drag(*corners(BOX))
        grace.drag(*corners(OTHER))
        ada.until_shapes(BOX, OTHER)
        grace.drag(*corners(third))
        ada.until_shapes(BOX, OTHER, third)
    until_forgotten(path)
    with running(path, Settings(port=0)) as one, running(path, Settings(port=0)) as two:
        linus = enter("Linus", two)
        linus.until_shapes(BOX, OTHER, third)
        linus.drag((300, 250), (400, 250))
        ken, moved = enter("Ken", one), (BOX[0] + 100, *BOX[1:])
        ken.until_shapes(moved, OTHER, third)
        ken.until_people("Ken", "Linus")  # who sat at the servers that ended is soon missed
        assert ken.people() == ["Ken (you)", "Linus"]


def until_forgotten(path: Path) -> None:
    """Let the room forget what was drawn, as its time to live says."""
    with millstream.open(path) as ms:
        log = ms.room("canvas").log
        while any(one.headers["type"] == "shape" for one in log.read()):
            EmbeddedSession(Probe(ms).store).execute(SweepRooms())
        assert log.end_offset() > 0


def test_what_others_send_shows_as_text(servers: list[Serving], enter: Enter) -> None:
    evil = "<img src=x onerror=alert(1)>"
    script = "</text><script>alert(2)</script>"
    ada = enter("Ada", servers[0])
    eve = enter(evil, servers[1])
    ada.until_people("Ada", evil)
    eve.drag(*corners(BOX))
    ada.until_shapes(BOX)
    eve.move((800, 600))
    assert ada.page.wait_for_selector(".pointer").text_content() == evil
    values: list[Any] = [
        {"x": 10, "y": 20, "w": 50, "h": 60, "by": script},
        {"x": "javascript:alert(3)", "y": 0, "w": 1, "h": 1},
        {"__proto__": {"x": 1}},
        [evil],
        evil,
        None,
    ]
    messages = [
        {"type": "shape", "key": f"{evil}{i}", "data": value} for i, value in enumerate(values)
    ]
    messages += [{"type": evil, "data": evil}, {"type": "pointer", "data": {"x": evil, "y": 1}}]
    body = {"messages": messages, "user": script}
    httpx.post(f"{servers[1].url}/rooms/canvas/messages", json=body, timeout=60).raise_for_status()
    for headers in ({"type": "joined"}, {"type": "left"}, {"type": "shape"}, {}):
        record = {"value": evil, "headers": headers}
        by_hand = {"records": [record, {"value": None, "headers": headers}]}
        httpx.post(
            f"{servers[1].url}/logs/room:canvas/records", json=by_hand, timeout=60
        ).raise_for_status()
    ada.until_shapes(BOX, (10, 20, 50, 60))
    eve.drag(*corners(OTHER))
    ada.until_shapes(BOX, OTHER, (10, 20, 50, 60))
    assert script in ada.page.locator("#shapes").text_content()
    assert ada.page.locator("#shapes img, #people img, main script").count() == 0


def test_it_is_drawn_with_the_keyboard(servers: list[Serving], enter: Enter) -> None:
    ada, grace = enter("Ada", servers[0]), enter("Grace", servers[1])
    grace.drag(*corners(OTHER))
    ada.until_shapes(OTHER)
    ada.page.keyboard.press("n")
    ada.page.wait_for_selector(".shape.chosen:focus")
    ((x, y, width, height),) = [box for box in ada.shapes() if box[2] == 220]
    for key in ("ArrowLeft", "ArrowLeft", "ArrowDown"):
        ada.page.keyboard.press(key)
    grace.until_shapes(OTHER, (x - 20, y + 10, width, height))
    ada.page.keyboard.press("Control+z")
    grace.until_shapes(OTHER)
    assert ada.page.locator("#undo").is_disabled()
    ada.page.keyboard.press("Control+z")  # another's rectangle is not hers to take back
    ada.page.locator(".shape").focus()
    ada.page.keyboard.press("Delete")
    grace.until_shapes()
    assert ada.shapes() == []


def test_it_is_drawn_with_a_finger_on_a_phone(servers: list[Serving], enter: Enter) -> None:
    ada = enter("Ada", servers[0])
    phone = enter("Grace", servers[1], viewport={"width": 390, "height": 844}, has_touch=True)
    assert phone.page.evaluate("document.documentElement.scrollWidth") <= 390
    touch = phone.context.new_cdp_session(phone.page)
    (x, y), (to_x, to_y) = corners(BOX)
    for kind, place in (
        ("touchStart", (x, y)),
        ("touchMove", (x + 50, y + 50)),
        ("touchMove", (to_x, to_y)),
        ("touchEnd", None),
    ):
        points = [dict(zip("xy", phone.on_screen(place), strict=True))] if place else []
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    ada.page.wait_for_selector(".shape")
    ((found_x, found_y, *_),) = ada.shapes()
    assert abs(found_x - x) < 8
    assert abs(found_y - y) < 8


def test_a_browser_goes_on_when_its_server_comes_back(tmp_path: Path, enter: Enter) -> None:
    path = tmp_path / "shared.db"
    with running(path, Settings(port=0)) as server:
        port = server.port
        ada, grace = enter("Ada", server), enter("Grace", server)
        ada.drag(*corners(BOX))
        grace.until_shapes(BOX)
    grace.page.wait_for_selector("#state:has-text('reconnecting')")
    ada.page.wait_for_selector("#state:has-text('reconnecting')")
    ada.drag(*corners(OTHER))
    ada.until_shapes(BOX, OTHER)
    with running(path, Settings(port=port)):
        ada.until_live()
        grace.until_live()
        grace.until_shapes(BOX, OTHER)
        assert len(ada.shapes()) == 2


def test_where_tokens_are_needed_it_asks_for_one(browser: Any, tmp_path: Path) -> None:
    with millstream.open(tmp_path / "a.db") as ms:
        _, text = create_token(ms, "painter", ["room:admin:canvas"])
        _, reader = create_token(ms, "reader", ["room:read:other"])
    with running(tmp_path / "a.db", Settings(port=0, auth="on")) as server:
        ada = Painter(browser, "Ada")
        page = ada.page
        page.goto(f"{server.url}/demo/canvas")
        page.fill("#name", "Ada")
        page.keyboard.press("Enter")
        page.wait_for_selector("#token:visible")
        page.fill("#token", reader)
        page.keyboard.press("Enter")
        page.wait_for_selector("#entry-trouble:has-text('reader')")
        page.fill("#token", text)
        page.locator("#enter button").click()
        ada.until_live()
        ada.drag(*corners(BOX))
        ada.until_shapes(BOX)
        assert text not in page.content()
        page.reload()
        page.keyboard.press("Enter")
        ada.until_shapes(BOX)
        ada.leave()
