"""`millstream top`: watch a store live on a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.command import AsJson
from millstream.cli.display import console, json_text, say
from millstream.cli.place import StorePlace
from millstream.cli.screen import TITLES, Scene, draw, line_of
from millstream.embedded.status import Pulse
from millstream.queue.model.message import QueueInfo
from millstream.rooms.model import RoomInfo

if TYPE_CHECKING:
    from millstream.cli.watched_store import Watching

TURN_S = 0.1
"""The longest time until a pressed key is noticed."""

LISTED = 1_000
LISTING_SHARE = 10
"""Listing queues and rooms may take a tenth of the time; a slow listing is repeated less often."""

END = "\x04"
QUIT = ("q", "Q", "\x03", END)


def top(
    place: StorePlace,
    once: Annotated[bool, typer.Option("--once", help="Show the figures once, and end.")] = False,
    json: AsJson = False,
) -> None:
    """Watch a store live: rates, queues, rooms and health. Ends with q or Ctrl-C.

    Works on a file, which is only read, and with a server, where a token needs store:read. In a
    pipe it writes a line per second, with --json an object.
    """
    from millstream.cli.watched_store import watching

    try:
        with watching(place) as watched:
            show = _Show(watched, once=once)
            if json:
                show.as_json()
            elif once or not sys.stdout.isatty():
                show.as_lines()
            else:
                show.on_screen()
    except KeyboardInterrupt:
        pass  # Ctrl-C is the normal end


class _Show:
    """The live figures of a store, shown as JSON, as text, or on the whole screen."""

    def __init__(self, watched: Watching, *, once: bool) -> None:
        self._watched = watched
        self._once = once
        self._pulses: deque[Pulse] = deque(maxlen=300)
        self._queues: list[QueueInfo] = []
        self._rooms: list[RoomInfo] = []
        self._list_at_s = 0.0

    def as_json(self) -> None:
        """Print an object per second."""
        for scene in self._scenes():
            figures = {"live": scene.pulses[-1], "queues": scene.queues, "rooms": scene.rooms}
            say(json_text(figures))
            sys.stdout.flush()

    def as_lines(self) -> None:
        """Print a line per second in a pipe; with --once on a terminal, print the screen."""
        titled = False
        for scene in self._scenes():
            if sys.stdout.isatty():
                screen = console()
                drawn = draw(scene, width=screen.width, height=screen.height, keys=False)
                screen.print(drawn)
                continue
            if not titled:
                say("\t".join(TITLES))
                titled = True
            say("\t".join(line_of(scene.pulses[-1])))
            sys.stdout.flush()

    def on_screen(self) -> None:
        """Use the complete terminal, until a key ends it."""
        from rich.live import Live
        from rich.text import Text

        screen = console()
        with (
            _keys() as pressed,
            Live(Text("reading …"), console=screen, screen=True, auto_refresh=False) as live,
        ):
            for scene in self._turns(pressed):
                drawn = draw(scene, width=screen.width, height=screen.height)
                live.update(drawn, refresh=True)

    def _scenes(self) -> Iterator[Scene]:
        """Yield a scene whenever there are new figures."""
        while True:
            if self._look():
                yield self._scene()
                if self._once:
                    return
            time.sleep(TURN_S)

    def _turns(self, pressed: Any) -> Iterator[Scene]:
        """Yield scenes until a key quits; a lost server is shown, too."""
        trouble = ""
        while True:
            if (self._look() or trouble != self._watched.trouble) and self._pulses:
                trouble = self._watched.trouble
                yield self._scene()
            if pressed(TURN_S) in QUIT:
                return

    def _look(self) -> bool:
        """Read new pulses; False without new pulses. With --once, rates are awaited."""
        pulses = self._watched.news()
        self._pulses += pulses
        if not pulses or (self._once and len(self._pulses) < self._watched.until_rates):
            return False
        now_s = time.perf_counter()
        if now_s >= self._list_at_s:
            self._queues = list(islice(self._watched.ms.queues(), LISTED))
            self._rooms = list(islice(self._watched.ms.rooms(), LISTED))
            self._list_at_s = now_s + (time.perf_counter() - now_s) * LISTING_SHARE
        return True

    def _scene(self) -> Scene:
        watched, pulses = self._watched, list(self._pulses)
        return Scene(watched.shown, pulses, self._queues, self._rooms, watched.trouble)


@contextmanager
def _keys() -> Iterator[Any]:
    """Yield a function that waits for a key, without Enter; without a terminal no key comes."""
    if not sys.stdin.isatty():

        def wait(seconds: float) -> str:
            time.sleep(seconds)
            return ""

        yield wait
        return
    import select
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:

        def pressed(seconds: float) -> str:
            if not select.select([sys.stdin], [], [], seconds)[0]:
                return ""
            try:
                return os.read(sys.stdin.fileno(), 1).decode("latin-1") or END
            except OSError:
                return END  # the terminal is gone

        yield pressed
    finally:
        with suppress(termios.error):  # a terminal that is gone cannot be reset
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
