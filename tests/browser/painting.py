"""People at the shared canvas: a browser each, that enters, draws and looks."""

from __future__ import annotations

from typing import Any

FINDABLE_MS = 60_000
"""How long a test waits for what must come; it comes within a fraction of it."""


class Painter:
    """One person at the canvas, in a browser of its own."""

    def __init__(self, browser: Any, name: str, **context: Any) -> None:
        self.name = name
        self.complaints: list[str] = []
        self.context = browser.new_context(
            **{"viewport": {"width": 1280, "height": 800}, **context}
        )
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))

    def enter(self, url: str, query: str = "") -> Painter:
        """Open the page, say the name, and wait for the room's greeting."""
        self.page.goto(f"{url}/demo/canvas{query}")
        self.page.fill("#name", self.name)
        self.page.keyboard.press("Enter")
        self.page.wait_for_selector("#entry:not([open])", state="attached")
        return self.until_live()

    def until_live(self) -> Painter:
        self.page.wait_for_selector("#state:has-text('live')")
        return self

    def drag(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        """Press, move and let go, at places of the canvas."""
        self.move(start)
        self.page.mouse.down()
        self.move(((start[0] + end[0]) // 2, (start[1] + end[1]) // 2))
        self.move(end)
        self.page.mouse.up()

    def move(self, place: tuple[int, int]) -> None:
        self.page.mouse.move(*self.on_screen(place))

    def on_screen(self, place: tuple[int, int]) -> tuple[float, float]:
        """Where a place of the canvas is on this screen."""
        found: list[float] = self.page.evaluate(
            """([x, y]) => {
              const matrix = document.getElementById("stage").getScreenCTM();
              const point = new DOMPoint(x, y).matrixTransform(matrix);
              return [point.x, point.y];
            }""",
            list(place),
        )
        return found[0], found[1]

    def shapes(self) -> list[tuple[int, int, int, int]]:
        """The rectangles that show, in the order of their places."""
        boxes: list[list[int]] = self.page.eval_on_selector_all(
            ".shape rect",
            "(all) => all.map((one) => ['x', 'y', 'width', 'height']"
            ".map((name) => Number(one.getAttribute(name))))",
        )
        return sorted((box[0], box[1], box[2], box[3]) for box in boxes)

    def until_shapes(self, *wanted: tuple[int, int, int, int]) -> None:
        """Wait until exactly these show, to the pixel or nearly so."""
        self.page.wait_for_function(
            """(wanted) => {
              const found = [...document.querySelectorAll(".shape rect")].map((one) =>
                ["x", "y", "width", "height"].map((name) => Number(one.getAttribute(name))));
              const near = (a, b) => a.every((value, i) => Math.abs(value - b[i]) <= 4);
              return found.length === wanted.length &&
                wanted.every((one) => found.some((other) => near(one, other)));
            }""",
            arg=[list(one) for one in wanted],
        )

    def people(self) -> list[str]:
        return [str(one) for one in self.page.locator("#people li span").all_inner_texts()]

    def until_people(self, *names: str) -> None:
        self.page.wait_for_function(
            """(wanted) => {
              const found = [...document.querySelectorAll("#people li span")].map((one) => one.title);
              return JSON.stringify(found.sort()) === JSON.stringify(wanted.sort());
            }""",
            arg=list(names),
        )

    def leave(self) -> None:
        """Close the browser; nothing may have gone wrong in it."""
        self.context.close()
        assert self.complaints == []
