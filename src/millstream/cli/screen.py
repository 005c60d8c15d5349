"""The screen of `millstream top`: the figures of the last minute, queues and rooms."""

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
"""Rows of queues, even on a low terminal."""

TITLE_LINES = 4
OTHER_LINES = 10 + TITLE_LINES
"""Lines above and below the rows of queues."""

WIDE = 66
"""The least width at which queues are shown with their rates."""

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
"""Figures with a history: name, unit, colour, and the function that reads it from a pulse."""


class Scene(Struct, frozen=True):
    """The contents of the screen at a time."""

    place: str
    pulses: Sequence[Pulse]
    """The pulses of the last minutes, oldest first; at least one."""
    queues: Sequence[QueueInfo] = ()
    rooms: Sequence[RoomInfo] = ()
    trouble: str = ""


def sparkline(values: Iterable[float | None], width: int = SPARKS) -> str:
    """Return the last values as bars, from 0 to their maximum; unknown values are blank."""
    shown = list(values)[-width:]
    highest = max((value for value in shown if value is not None), default=0.0)
    return "".join(_bar(value, highest) for value in shown).rjust(width)


def _bar(value: float | None, highest: float) -> str:
    if value is None:
        return " "
    if not value or not highest:
        return BARS[0]
    return BARS[min(len(BARS) - 1, max(1, int(value / highest * len(BARS))))]


def number(value: float | None) -> str:
    """Return a number in a short form."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"


def longest(queues: Iterable[QueueInfo], count: int) -> list[QueueInfo]:
    """Return the queues with the most unfinished messages first; sorted by name if equal."""
    busy = sorted(queues, key=lambda info: (-_unfinished(info), -info.failed, info.name))
    return busy[:count]


def _unfinished(queue: QueueInfo) -> int:
    return queue.available + queue.unrouted + queue.delayed + queue.in_flight


def line_of(pulse: Pulse) -> list[str]:
    """Return the figures of a pulse as cells of a line, for pipes."""
    at = datetime.fromtimestamp(pulse.time / 1000, UTC)
    values = (figure(pulse) for _, _, _, figure in FIGURES)
    cells = ("-" if value is None else f"{value:g}" for value in values)
    return [at.strftime("%H:%M:%S"), *cells, pulse.health]


TITLES = ["time", *(name for name, _, _, _ in FIGURES), "health"]


def draw(scene: Scene, *, width: int, height: int, keys: bool = True) -> RenderableType:
    """Return the scene for a terminal of a size."""
    from rich.console import Group

    blocks: list[RenderableType] = [_header(scene), _figures(scene, width)]
    free_lines = height - OTHER_LINES
    rooms = min(len(scene.rooms), free_lines // 3, free_lines - TITLE_LINES - ROWS_MIN)
    if rooms > 0:
        free_lines -= rooms + TITLE_LINES
    if scene.queues:
        blocks.append(_queues(scene.queues, max(ROWS_MIN, free_lines), with_rates=width >= WIDE))
    if rooms > 0:
        blocks.append(_rooms(scene.rooms, rooms))
    if keys:
        blocks.append(_footer(scene))
    return Group(*blocks)


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
    bars_width = max(8, min(SPARKS, width - 30))
    for name, unit, colour, figure in FIGURES:
        values = [figure(pulse) for pulse in scene.pulses]
        bars = Text(sparkline(values, bars_width), colour)
        table.add_row(name, Text(number(values[-1]), "bold"), unit, bars)
    return table


def _queues(queues: Sequence[QueueInfo], count: int, *, with_rates: bool) -> Table:
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
    for info in longest(queues, count):
        name = Text(safe(info.name), "dim" if info.paused else "")
        oldest = "-" if info.oldest_s is None else rough(info.oldest_s * 1000)
        table.add_row(
            name.append(" paused", "yellow") if info.paused else name,
            number(info.available + info.unrouted),
            number(info.delayed),
            number(info.in_flight),
            Text(number(info.failed), "red" if info.failed else ""),
            oldest,
            *map(number, (info.in_per_second, info.done_per_second)[: 2 * with_rates]),
        )
    return table


def _rooms(rooms: Sequence[RoomInfo], count: int) -> Table:
    """Return a table of rooms, the rooms with most users first."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("room", no_wrap=True, overflow="ellipsis", min_width=8)
    for title in ("people", "messages", "sent", "kept"):
        table.add_column(title, justify="right", no_wrap=True)
    for info in sorted(rooms, key=lambda room: (-room.users, -len(room), room.name))[:count]:
        counts = info.users, len(info), info.end_offset, info.retained
        table.add_row(Text(safe(info.name)), *map(number, counts))
    return table


def _footer(scene: Scene) -> RenderableType:
    from rich.text import Text

    if scene.trouble:
        return Text(safe(scene.trouble), "yellow", no_wrap=True, overflow="ellipsis")
    return Text("q quits", "dim")
