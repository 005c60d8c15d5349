"""Following: sync again as soon as something has changed, until the caller stops.

A store says when a log has changed: its newest commit is a number that one waits to pass. Rounds in
which nothing was found come further and further apart, so that a store that is busy with other things
is left alone.
"""

from __future__ import annotations

from millstream.command import Read, Traits, Wait
from millstream.format import keys
from millstream.replica.sync.outcome import LogOutcome, Options, Outcome
from millstream.replica.sync.steps import Side
from millstream.store.sleep import Sleep, Waiting
from millstream.store.store import Store

WAIT_MS = 1_000
"""The longest single wait: a caller that stops following is heard within it."""

PAUSE_S_MIN = 0.01
PAUSE_S_MAX = 1.0
"""Between rounds, while nothing comes of them."""

WATCHED = (keys.prefix(keys.HEAD), keys.prefix(keys.METADATA), keys.prefix(keys.NAME))


class WaitForChange(Read[int], frozen=True):
    """Wait until a log may have changed after a commit; answers the newest commit."""

    traits = Traits(needs="nothing", waits=Wait("timeout_ms"))

    sequence: int
    timeout_ms: int


def wait_for_change(store: Store, query: WaitForChange) -> Waiting[int]:
    """Wait until there is a newer commit, woken by those that change a log."""
    if newest(store) <= query.sequence:
        wait_s = max(0, min(query.timeout_ms, WAIT_MS)) / 1000
        yield Sleep(WATCHED, lambda: newest(store) > query.sequence, wait_s)
    return newest(store)


def newest(store: Store) -> int:
    """The newest commit, of whatever process."""
    store.refresh()
    return store.seq


def watched_sides(options: Options) -> tuple[Side, ...]:
    """Whose changes can matter."""
    return {"both": ("own", "peer"), "pull": ("peer",), "push": ("own",)}[options.direction]  # type: ignore[return-value]


class Pace:
    """Which rounds are worth telling, and how long to leave the stores alone after one."""

    def __init__(self) -> None:
        self.seconds = PAUSE_S_MIN
        self._failed: list[LogOutcome] | None = None

    def tells(self, outcome: Outcome) -> bool:
        """Whether something came of a round; the same failure again is not reported."""
        failed = [log for log in outcome.logs if log == LogOutcome(log=log.log, error=log.error)]
        moved = len(failed) < len(outcome.logs)
        news = moved or failed != self._failed
        self.seconds = PAUSE_S_MIN if moved else min(self.seconds * 2, PAUSE_S_MAX)
        self._failed = failed
        return news
