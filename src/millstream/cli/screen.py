"""The screen of `millstream top`: what the last minute was like, and how queues and rooms stand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from millstream.cli.display import rough, safe
from millstream.embedded.status import Pulse
from millstream.queue.model.message import QueueInfo
from millstream.rooms.model import RoomInfo

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

BARS = "▁▂▃▄▅▆▇█"
SPARKS = 60
ROWS_MIN = 1
"""Of queues, also on a low terminal."""

TITLE_LINES = 4
OTHER_LINES = 10 + TITLE_LINES
"""What stands above and below the rows of queues."""

WIDE = 66
"""From so many columns on queues are shown with their rates."""

RATES = ("in/s", "done/s")
COLOURS = {"healthy": "green", "warning": "yellow", "critical": "bold red"}

Figure = Callable[[Pulse], float | None]

FIGURES: tuple[tuple[str, str, str, Figure], ...] = (
    ("published", "/s", "green", lambda pulse: pulse.rates.published),
    ("claimed", "/s", "cyan", lambda pulse: pulse.rates.claimed),
    ("acked", "/s", "blue", lambda pulse: pulse.rates.acked),
    ("depth", "", "magenta", lambda pulse: pulse.depth),
    ("oldest", "s", "yellow", lambda pulse: pulse.oldest_age_s),
    ("commit p50", "ms", "white", lambda pulse: pulse.commit_ms.p50),
    ("commit p99", "ms", "white", lambda pulse: pulse.commit_ms.p99),
)
"""What has a line with its history: name, unit, colour, and where it stands in a pulse."""


class Scene(Struct, frozen=True):
    """Everything that is shown at a time."""

    place: str
    pulses: Sequence[Pulse]
    """The last minutes, oldest first; at least one."""
    queues: Sequence[QueueInfo] = ()
    rooms: Sequence[RoomInfo] = ()
    trouble: str = ""


def sparkline(values: Iterable[float | None], width: int = SPARKS) -> str:
    """The last values as bars, from 0 to the largest of them; what is unknown is left blank."""
    shown = list(values)[-width:]
    most = max((one for one in shown if one is not None), default=0.0)
    return "".join(_bar(one, most) for one in shown).rjust(width)


def _bar(value: float | None, most: float) -> str:
    if value is None:
        return " "
    if not value or not most:
        return BARS[0]
    return BARS[min(len(BARS) - 1, max(1, int(value / most * len(BARS))))]


def number(value: float | None) -> str:
    """A number as people read it at a glance."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"


def longest(queues: Iterable[QueueInfo], most: int) -> list[QueueInfo]:
    """The queues in which most waits or happens, first; the others by name."""
    busy = sorted(queues, key=lambda one: (-_unfinished(one), -one.failed, one.name))
    return busy[:most]


def _unfinished(queue: QueueInfo) -> int:
    return queue.available + queue.unrouted + queue.delayed + queue.in_flight


def line_of(pulse: Pulse) -> list[str]:
    """The figures of a pulse as the cells of one line, for pipes."""
    at = datetime.fromtimestamp(pulse.time / 1000, UTC)
    values = (figure(pulse) for _, _, _, figure in FIGURES)
    cells = ("-" if value is None else f"{value:g}" for value in values)
    return [at.strftime("%H:%M:%S"), *cells, pulse.health]


TITLES = ["time", *(name for name, _, _, _ in FIGURES), "health"]


def draw(scene: Scene, *, width: int, height: int, keys: bool = True) -> RenderableType:
    """The scene for a terminal of a size."""
    from rich.console import Group

    parts: list[RenderableType] = [_header(scene), _figures(scene, width)]
    left = height - OTHER_LINES
    rooms = min(len(scene.rooms), left // 3, left - TITLE_LINES - ROWS_MIN)
    if rooms > 0:
        left -= rooms + TITLE_LINES
    if scene.queues:
        parts.append(_queues(scene.queues, max(ROWS_MIN, left), with_rates=width >= WIDE))
    if rooms > 0:
        parts.append(_rooms(scene.rooms, rooms))
    if keys:
        parts.append(_footer(scene))
    return Group(*parts)


def _header(scene: Scene) -> RenderableType:
    from rich.text import Text

    pulse = scene.pulses[-1]
    at = datetime.fromtimestamp(pulse.time / 1000, UTC)
    counts = (
        f"logs {pulse.logs:,} · queues {pulse.queues:,} · rooms {pulse.rooms:,} · "
        f"connections {pulse.connections:,}"
    )
    return Text.assemble(
        ("millstream ", "bold"),
        (safe(scene.place), "cyan"),
        f"  {at:%H:%M:%S}Z  ",
        (pulse.health, COLOURS[pulse.health]),
        f"\n{counts}",
        no_wrap=True,
        overflow="ellipsis",
    )


def _figures(scene: Scene, width: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True, min_width=8)
    table.add_column(no_wrap=True, min_width=2)
    table.add_column(no_wrap=True)
    room = max(8, min(SPARKS, width - 30))
    for name, unit, colour, figure in FIGURES:
        values = [figure(pulse) for pulse in scene.pulses]
        bars = Text(sparkline(values, room), colour)
        table.add_row(name, Text(number(values[-1]), "bold"), unit, bars)
    return table


def _queues(queues: Sequence[QueueInfo], most: int, *, with_rates: bool) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("queue", no_wrap=True, overflow="ellipsis")
    for title in (
        *("waiting", "delayed", "in flight", "failed", "oldest"),
        *RATES[: 2 * with_rates],
    ):
        table.add_column(title, justify="right", no_wrap=True)
    for one in longest(queues, most):
        name = Text(safe(one.name), "dim" if one.paused else "")
        oldest = "-" if one.oldest_s is None else rough(one.oldest_s * 1000)
        table.add_row(
            name.append(" paused", "yellow") if one.paused else name,
            number(one.available + one.unrouted),
            number(one.delayed),
            number(one.in_flight),
            Text(number(one.failed), "red" if one.failed else ""),
            oldest,
            *map(number, (one.in_per_second, one.done_per_second)[: 2 * with_rates]),
        )
    return table


def _rooms(rooms: Sequence[RoomInfo], most: int) -> Table:
    """The rooms in which most people are, first."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("room", no_wrap=True, overflow="ellipsis", min_width=8)
    for title in ("people", "messages", "sent", "kept"):
        table.add_column(title, justify="right", no_wrap=True)
    for one in sorted(rooms, key=lambda room: (-room.users, -len(room), room.name))[:most]:
        counts = one.users, len(one), one.end_offset, one.retained
        table.add_row(Text(safe(one.name)), *map(number, counts))
    return table


def _footer(scene: Scene) -> RenderableType:
    from rich.text import Text

    if scene.trouble:
        return Text(safe(scene.trouble), "yellow", no_wrap=True, overflow="ellipsis")
    return Text("q quits", "dim")
